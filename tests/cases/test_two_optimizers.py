"""Two optimizers on one graph: each guard judges its own parameters at its own step."""

import math

import pytest
import torch
from guarded import noise
from torch import nn

import gradguard


def norm_of(model):
    return math.hypot(*(parameter.grad.norm().item() for parameter in model.parameters()))


@pytest.mark.parametrize("is_leaking", [True, False])
def test_what_one_backward_leaves_in_the_others_gradients_is_not_its_history(is_leaking, tmp_path):
    """The generator's backward also fills the discriminator's gradients, 50 times as large as its own.

    Whatever the discriminator's optimizer really steps with is judged, when it steps, and nothing else.
    """
    torch.manual_seed(0)
    generator, discriminator = nn.Linear(4, 2), nn.Linear(2, 1)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.001) for m in (generator, discriminator)]
    guards = [
        gradguard.attach(m, o, name=name, run_dir=tmp_path / "run")
        for m, o, name in zip((generator, discriminator), optimizers, ("g", "d"), strict=True)
    ]
    wanted = {"g": [], "d": []}
    for step in range(60):
        optimizers[0].zero_grad()
        (50 * discriminator(generator(noise(step, 32, 4))).square().mean()).backward()
        wanted["g"].append(norm_of(generator))
        optimizers[0].step()
        if not is_leaking:
            optimizers[1].zero_grad()
        discriminator(noise(step + 1000, 32, 2)).mean().backward()
        wanted["d"].append(norm_of(discriminator))
        optimizers[1].step()
        optimizers[1].zero_grad()
    for guard, name, size in zip(guards, ("g", "d"), (2, 2), strict=True):
        guard.close()
        run = gradguard.read_run(tmp_path / "run", name=name)
        assert run.statistics["global_norm"].tolist() == pytest.approx(wanted[name], rel=1e-3)
        assert len(run.parameters) == size
        assert run.interventions == []
