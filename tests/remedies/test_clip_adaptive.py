"""clip_adaptive shortens each unit's gradient to a share of the unit's weights, and freezes nothing."""

import math

import pytest
import torch
import torch.distributed as dist
from aim import aim, aim_at
from torch import nn

import gradguard
from gradguard.contracts import REMEDIES, Unavailable


ClipAdaptive = REMEDIES.get("clip_adaptive")


def norms(rows):
    return [float(row.norm()) for row in rows]


def test_only_units_beyond_their_share_are_shortened_and_it_is_noted():
    target = aim(torch.tensor([[3.0, 4.0], [0.0, 0.01]]), torch.tensor([30.0, 40.0]), None)
    change = ClipAdaptive(factor=0.5).apply(target, None, None)
    share = 0.5 * math.sqrt(2)  # all weights are 1
    assert norms(target.params[0].grad) == pytest.approx([share, 0.01])
    assert float(target.params[1].grad.norm()) == pytest.approx(share)
    assert target.stats.norms.tolist() == pytest.approx([math.hypot(share, 0.01), share, -1.0])
    assert target.stats.global_norm == pytest.approx(math.hypot(share, 0.01, share))
    assert change.after == {"global_norm": target.stats.global_norm, "units": 2, "parameters": 2}
    assert change.summary == "2 units in 2 parameters clipped, global norm 50.2 -> 1"


def test_what_is_within_its_share_is_left_to_the_last_bit():
    grad = torch.tensor([[0.3, 0.4], [0.0, 0.0]])
    target = aim(grad, torch.zeros(0))
    assert ClipAdaptive(factor=0.5).apply(target, None, None) is None
    assert torch.equal(target.params[0].grad, grad)
    assert ClipAdaptive().apply(aim(None), None, None) is None


def test_only_the_rule_s_parameters_are_touched():
    target = aim(torch.ones(2), torch.ones(2))
    ClipAdaptive().apply(target, None, [1])
    assert target.params[0].grad.tolist() == [1.0, 1.0]
    assert float(target.params[1].grad.norm()) < 0.1


@pytest.mark.parametrize("eps", [1e-3, 0.1])
def test_weights_of_zero_are_not_frozen(eps):
    """A cap of a share of nothing would keep them at zero for ever; so it counts as a share of `eps`."""
    model = nn.Linear(3, 2, bias=False)
    nn.init.zeros_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    rule = {"when": "always", "do": {"clip_adaptive": {"factor": 0.01, "eps": eps}}}
    with gradguard.attach(model, optimizer, gradguard.Policy(rules=[rule], sinks=[])):
        for step in range(400):
            optimizer.zero_grad()
            ((model(torch.ones(1, 3)) - 1.0).square().sum()).backward()
            optimizer.step()
            if step == 0:
                assert norms(model.weight.detach()) == pytest.approx([0.01 * eps] * 2)
    assert min(norms(model.weight.detach())) > 2 * eps


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_unit_that_is_not_finite_is_left_alone_and_the_others_are_not(bad):
    target = aim(torch.tensor([[bad, 4.0], [3.0, 4.0]]), torch.tensor([30.0, 40.0]))
    ClipAdaptive(factor=0.5).apply(target, None, None)
    grad = target.params[0].grad
    assert grad[0, 1] == 4.0
    assert not math.isfinite(grad[0, 0])
    assert norms([grad[1], target.params[1].grad]) == pytest.approx([0.5 * math.sqrt(2)] * 2)


@pytest.mark.parametrize("size", [1e20, 1e38])
def test_a_gradient_whose_square_is_beyond_float32_is_clipped_rightly(size):
    target = aim(torch.full((2, 100), size))
    ClipAdaptive(factor=0.5).apply(target, None, None)
    assert norms(target.params[0].grad) == pytest.approx([5.0, 5.0], rel=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.complex64])
def test_every_dtype_is_clipped(dtype):
    for shape in ((3, 4), (4,), ()):
        target = aim(torch.full(shape, 7.0, dtype=torch.float64).to(dtype))
        ClipAdaptive(factor=0.5).apply(target, None, None)
        expected = 0.5 * math.sqrt(shape[-1] if shape else 1)
        grad = target.params[0].grad
        rows = torch.view_as_real(grad) if dtype.is_complex else grad
        for row in rows if len(shape) == 2 else [rows]:
            assert float(row.double().norm()) == pytest.approx(expected, rel=1e-2)


def test_a_loss_scale_that_is_still_in_the_gradients_is_allowed_for():
    target = aim(torch.tensor([[3.0, 4.0]]) * 1024, scale=1024.0)
    ClipAdaptive(factor=0.5).apply(target, None, None)
    assert norms(target.params[0].grad) == pytest.approx([512 * math.sqrt(2)])
    assert target.stats.global_norm == pytest.approx(0.5 * math.sqrt(2))


def test_a_sparse_gradient_is_clipped_row_by_row():
    model = nn.Embedding(5, 2, sparse=True)
    with torch.no_grad():
        model.weight.fill_(1.0)
        model.weight[3] = 2.0
    (model(torch.tensor([3, 3, 1])) * 10.0).sum().backward()
    target = aim_at(model, torch.optim.SparseAdam(model.parameters(), lr=0.1))
    ClipAdaptive(factor=0.5).apply(target, None, None)
    dense = target.params[0].grad.to_dense()
    assert norms(dense) == pytest.approx([0.0, 0.5 * math.sqrt(2), 0.0, math.sqrt(2), 0.0])
    assert target.stats.global_norm == pytest.approx(float(dense.norm()))


@pytest.fixture
def sharded():
    """A model that is cut over the ranks of a world of one."""
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    model = nn.Linear(3, 2)
    fully_shard(model, mesh=dist.init_device_mesh("cpu", (1,)))
    yield model
    dist.destroy_process_group()


def test_parameters_that_are_spread_over_ranks_are_refused_and_it_is_said_at_attach(sharded):
    optimizer = torch.optim.SGD(sharded.parameters(), lr=0.1)
    sharded(torch.ones(1, 3)).sum().backward()
    before = [param.grad.full_tensor() for param in sharded.parameters()]
    target = aim_at(sharded, optimizer)
    with pytest.raises(Unavailable, match="spread over ranks"):
        ClipAdaptive().apply(target, None, None)
    assert all(
        torch.equal(param.grad.full_tensor(), grad) for param, grad in zip(sharded.parameters(), before, strict=True)
    )
    rule = {"name": "agc", "when": "exploding_gradient", "do": "clip_adaptive"}
    with gradguard.attach(sharded, optimizer, gradguard.Policy(rules=[rule], sinks=[])) as guard:
        assert "rule 'agc' cannot use 'clip_adaptive': units of parameters that are spread" in guard.records[0].message


def test_where_it_can_act_nothing_is_said():
    model = nn.Linear(3, 2)
    rule = {"when": "always", "do": "clip_adaptive"}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gradguard.attach(model, optimizer, gradguard.Policy(rules=[rule], sinks=[])) as guard:
        assert "cannot use" not in guard.records[0].message
