"""How much of the weights decay takes off is what torch's own step takes off, where that can be said."""

import pytest
import torch
from torch import nn, optim

from gradguard.optimizer.weight_decay import shrinkage


def decayed(optimizer, param, steps):
    """Return the share of a weight that is left after steps without any gradient but the decay's."""
    for _ in range(steps):
        param.grad = torch.zeros_like(param)
        optimizer.step()
    return float(param.detach())


@pytest.mark.parametrize(
    ("cls", "options"),
    [
        (optim.SGD, {"lr": 0.1, "weight_decay": 0.1}),
        (optim.AdamW, {"lr": 1e-2, "weight_decay": 0.5}),
        (optim.Adam, {"lr": 1e-2, "weight_decay": 0.5, "decoupled_weight_decay": True}),
    ],
)
def test_it_is_what_a_step_takes_off(cls, options):
    param = nn.Parameter(torch.ones(()))
    optimizer = cls([param], **options)
    share = shrinkage(optimizer)
    assert share > 0
    assert decayed(optimizer, param, 1) == pytest.approx(1 - share, rel=1e-5)


@pytest.mark.parametrize("momentum", [0.5, 0.9])
def test_with_momentum_it_is_what_adds_up(momentum):
    """Once the momentum has built up, the weight shrinks by the share per step, to first order."""
    param = nn.Parameter(torch.ones((), dtype=torch.float64))
    optimizer = optim.SGD([param], lr=0.01, momentum=momentum, weight_decay=0.01)
    decayed(optimizer, param, 100)
    before = float(param.detach())
    assert decayed(optimizer, param, 1) / before == pytest.approx(1 - shrinkage(optimizer), rel=1e-4)


def test_where_decay_is_part_of_a_normalised_gradient_nothing_is_said():
    assert shrinkage(optim.Adam([nn.Parameter(torch.ones(2))], lr=0.1, weight_decay=0.5)) == 0.0


def test_the_largest_of_the_groups_counts_and_a_rate_may_be_a_tensor():
    params = [nn.Parameter(torch.ones(2)) for _ in range(2)]
    groups = [{"params": [params[0]], "weight_decay": 0.0}, {"params": [params[1]], "weight_decay": 0.2}]
    assert shrinkage(optim.AdamW(groups, lr=torch.tensor(0.5))) == pytest.approx(0.1)
