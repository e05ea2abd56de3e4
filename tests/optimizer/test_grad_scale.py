"""The clip that a fused optimizer applies while it reads the gradients is that of torch, and leaves nothing behind."""

import copy
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils import clip_grad_norm_
from torch.utils._python_dispatch import TorchDispatchMode

import gradguard
from gradguard.optimizer.grad_scale import GradScale, is_foldable


LAW = settings(max_examples=40, deadline=None, derandomize=True)
FUSED = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, fused=True),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1, nesterov=True, fused=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True, fused=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1, fused=True),
}
every_fused = pytest.mark.parametrize("name", FUSED)


def always(*do, **more):
    """Return a policy that does this at every step."""
    rules = [{"name": "always", "when": "always", "do": list(do), **more}]
    return gradguard.Policy.model_validate({"rules": rules, "sinks": []})


def clip(max_norm, **more):
    return {"clip_norm": {"max_norm": max_norm, **more}}


def make(name="adamw", **options):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    make_optimizer = FUSED[name]
    return model, make_optimizer(model.parameters(), **options)


def backward(model, seed, factor=1.0):
    inputs = torch.randn(8, 3, generator=torch.Generator().manual_seed(seed))
    loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean() * factor
    loss.backward()
    return loss


def has_left(optimizer):
    return [name for name in ("grad_scale", "found_inf") if hasattr(optimizer, name)]


class CountCalls(TorchDispatchMode):
    """Counts what torch does, by name."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.calls.append(func.__name__)
        return func(*args, **(kwargs or {}))


@every_fused
def test_a_folded_clip_is_that_of_torch(name):
    """Parameters, optimizer state, and the gradients that are left to look at."""
    model, optimizer = make(name)
    other, other_optimizer = make(name)
    with gradguard.attach(model, optimizer, always(clip(0.3))) as guard:
        for seed in range(12):
            optimizer.zero_grad()
            other_optimizer.zero_grad()
            backward(model, seed)
            backward(other, seed)
            clip_grad_norm_(other.parameters(), 0.3)
            optimizer.step()
            other_optimizer.step()
            assert guard.last.clip_coef < 1.0
            assert has_left(optimizer) == []
            for found, expected in zip(model.parameters(), other.parameters(), strict=True):
                torch.testing.assert_close(found.grad, expected.grad, rtol=1e-4, atol=1e-7)
                torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)
    state, expected = optimizer.state_dict()["state"], other_optimizer.state_dict()["state"]
    torch.testing.assert_close(state, expected, rtol=1e-3, atol=1e-6)


@every_fused
def test_folding_costs_no_pass_over_the_gradients(name):
    model, optimizer = make(name)
    with gradguard.attach(model, optimizer, always(clip(0.3))):
        for seed in range(3):
            optimizer.zero_grad()
            backward(model, seed)
            with CountCalls() as counted:
                optimizer.step()
            assert not [call for call in counted.calls if "mul" in call]
            assert sum("_fused" in call for call in counted.calls) == 1


def test_a_gradient_within_the_limit_is_left_to_the_last_bit():
    model, optimizer = make()
    other, other_optimizer = make()
    with gradguard.attach(model, optimizer, always(clip(1e3))):
        for seed in range(5):
            optimizer.zero_grad()
            other_optimizer.zero_grad()
            backward(model, seed)
            backward(other, seed)
            optimizer.step()
            other_optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


def one_step(policy, *, name="sgd", factor=1.0, is_fused=True, on_step=None):
    """Return the gradients before, and those that the kernel used, of one guarded step."""
    model, optimizer = make(name)
    if not is_fused:
        optimizer.param_groups[0]["fused"] = False
    with gradguard.attach(model, optimizer, policy) as guard:
        loss = backward(model, 0, factor)
        before = [p.grad.clone() for p in model.parameters()]
        guard.observe(loss)
        optimizer.step()
        assert has_left(optimizer) == []
        return before, [None if p.grad is None else p.grad.clone() for p in model.parameters()], guard


MIXED = {
    "clip, then a cap on entries": [clip(0.5), {"clip_value": {"max_value": 0.05}}],
    "a cap on entries, then clip": [{"clip_value": {"max_value": 0.05}}, clip(0.01)],
    "rescale and clip": [{"rescale": {"factor": 0.25}}, clip(0.1)],
    "clip twice": [clip(0.5), clip(0.1)],
    "clip, then each parameter": [clip(0.5), clip(0.1, scope="per_parameter")],
    "each parameter, then clip": [clip(0.1, scope="per_parameter"), clip(0.15)],
    "rescale to nothing": [{"rescale": {"factor": 0.0}}, clip(0.1)],
    "rescale below what a kernel can invert": [{"rescale": {"factor": 1e-20}}, {"rescale": {"factor": 2e-20}}],
    "rescale far up": [{"rescale": {"factor": 1e20}}, {"rescale": {"factor": 1e-20}}],
}


@pytest.mark.parametrize("mix", MIXED)
def test_what_is_folded_keeps_its_place_among_other_changes(mix):
    """The same rules, in their order, with an optimizer that cannot fold and with one that can."""
    _, expected, unfused = one_step(always(*MIXED[mix]), is_fused=False)
    _, found, guard = one_step(always(*MIXED[mix]))
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=0)
    assert guard.last.clip_coef == unfused.last.clip_coef


def test_a_rule_for_some_parameters_acts_on_what_was_scaled_before():
    rules = [
        {"name": "all", "when": "always", "do": {"rescale": {"factor": 0.5}}},
        {"name": "some", "when": "always", "do": {"rescale": {"factor": 3.0}}, "parameters": ["0.*"]},
        {"name": "again", "when": "always", "do": {"rescale": {"factor": 0.5}}},
    ]
    before, after, _ = one_step(gradguard.Policy.model_validate({"rules": rules, "sinks": []}))
    for grad, used, factor in zip(before, after, [0.75, 0.75, 0.25, 0.25], strict=True):
        torch.testing.assert_close(used, grad * factor)


def test_a_step_that_is_skipped_after_it_was_scaled_is_not_scaled_later():
    rules = [
        {"name": "drop", "when": {"nonfinite": {"where": "batch"}}, "do": "skip_step"},
        {"name": "always", "when": "always", "do": clip(0.3)},
    ]
    _, after, guard = one_step(gradguard.Policy.model_validate({"rules": rules, "sinks": []}), factor=math.nan)
    assert guard.last.skipped
    assert after == [None] * 4


@LAW
@given(st.floats(1e-12, 1e12), st.floats(1e-6, 1e6))
def test_any_factor_that_can_be_inverted_is_applied(factor, max_norm):
    before, after, guard = one_step(always({"rescale": {"factor": factor}}, clip(max_norm)))
    coefficient = factor * min(1.0, max_norm / (factor * math.hypot(*[g.norm().item() for g in before]) + 1e-6))
    assert guard.last.clip_coef == pytest.approx(coefficient, rel=1e-4)
    for grad, used in zip(before, after, strict=True):
        torch.testing.assert_close(used, grad * coefficient, rtol=1e-4, atol=1e-37)


class Failed(Exception):
    """Raised inside of a step."""


def fail(*_):
    raise Failed


@pytest.mark.parametrize("sync", ["immediate", "deferred"])
def test_nothing_is_left_on_the_optimizer_after_a_step_that_failed(sync):
    """A hook that raises keeps torch's step, and ours after it, from running: the next one starts afresh."""
    policy = always(clip(0.3))
    policy = policy.model_copy(update={"monitor": policy.monitor.model_copy(update={"sync": sync})})
    model, optimizer = make()
    other, other_optimizer = make()
    with (
        gradguard.attach(model, optimizer, policy) as guard,
        gradguard.attach(other, other_optimizer, policy) as other_guard,
    ):
        for seed in range(6):
            for each, its_optimizer, its_guard in ((model, optimizer, guard), (other, other_optimizer, other_guard)):
                its_optimizer.zero_grad()
                its_guard.observe(backward(each, seed))
            if seed == 3:
                handle = optimizer.register_step_pre_hook(fail)
                with pytest.raises(Failed):
                    optimizer.step()
                handle.remove()
            optimizer.step()
            other_optimizer.step()
            assert has_left(optimizer) == []
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize("sync", ["immediate", "deferred"])
def test_closing_after_a_step_that_failed_takes_the_attributes_off(sync):
    policy = always(clip(0.3))
    policy = policy.model_copy(update={"monitor": policy.monitor.model_copy(update={"sync": sync})})
    model, optimizer = make()
    guard = gradguard.attach(model, optimizer, policy)
    backward(model, 0)
    optimizer.step()
    backward(model, 1)
    optimizer.register_step_pre_hook(fail)
    with pytest.raises(Failed):
        optimizer.step()
    assert has_left(optimizer) == ["grad_scale"]
    guard.close()
    assert has_left(optimizer) == []


@pytest.mark.parametrize("sync", ["immediate", "deferred"])
def test_a_closure_that_raises_leaves_nothing_on_the_optimizer(sync):
    policy = always(clip(0.3))
    policy = policy.model_copy(update={"monitor": policy.monitor.model_copy(update={"sync": sync})})
    model, optimizer = make()
    with gradguard.attach(model, optimizer, policy):
        for seed in range(4):
            optimizer.zero_grad()
            optimizer.step(lambda seed=seed: backward(model, seed))
            with pytest.raises(Failed):
                optimizer.step(fail)
            assert has_left(optimizer) == []


@pytest.mark.parametrize("is_passed", [True, False])
def test_the_scale_of_a_grad_scaler_and_the_clip_go_into_one_factor(is_passed):
    """The kernel unscales and clips at once; the scaler finds its attribute as it left it."""
    model, optimizer = make()
    other, other_optimizer = make()
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    options = {"scaler": scaler} if is_passed else {}
    with gradguard.attach(model, optimizer, always(clip(0.3)), **options) as guard:
        for seed in range(5):
            optimizer.zero_grad()
            other_optimizer.zero_grad()
            scaler.scale(backward_loss(model, seed)).backward()
            backward(other, seed)
            clip_grad_norm_(other.parameters(), 0.3)
            scaler.step(optimizer)
            scaler.update()
            other_optimizer.step()
            assert guard.last.clip_coef < 1.0
            assert has_left(optimizer) == []
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def backward_loss(model, seed):
    inputs = torch.randn(8, 3, generator=torch.Generator().manual_seed(seed))
    return (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()


def test_what_someone_else_sets_meanwhile_is_left_to_them():
    _, optimizer = make()
    scale = GradScale(optimizer)
    mine, theirs, last = torch.ones(()), torch.ones(()), torch.ones(())
    scale.set("found_inf", mine)
    optimizer.found_inf = theirs
    scale.take_off()
    assert optimizer.found_inf is theirs
    scale.set("found_inf", mine)
    scale.set("found_inf", last)
    assert optimizer.found_inf is last
    scale.take_off()
    assert optimizer.found_inf is theirs


def test_what_was_gathered_for_a_step_that_never_came_is_forgotten():
    _, optimizer = make()
    scale = GradScale(optimizer)
    scale.factor = 0.5
    scale.take_off()
    scale.put_on()
    assert has_left(optimizer) == []


def test_a_copy_of_the_optimizer_between_two_steps_carries_no_factor():
    model, optimizer = make()
    with gradguard.attach(model, optimizer, always(clip(0.3))):
        for seed in range(3):
            backward(model, seed)
            optimizer.step()
        assert has_left(copy.deepcopy(optimizer)) == []


@pytest.mark.parametrize("is_later", [False, True])
def test_a_loaded_state_that_ends_the_fused_path_is_noticed(is_later):
    """Torch's other kernels refuse a factor: the gradients are then scaled themselves."""
    model, optimizer = make()
    other, _ = make()
    state = torch.optim.AdamW(other.parameters(), lr=0.01).state_dict()
    with gradguard.attach(model, optimizer, always(clip(0.3))) as guard:
        for seed in range(4):
            if seed == 2 * is_later:
                optimizer.load_state_dict(state)
            optimizer.zero_grad()
            backward(model, seed)
            optimizer.step()
            norm = math.hypot(*[p.grad.norm().item() for p in model.parameters()])
            assert norm == pytest.approx(0.3, rel=1e-4)
            assert guard.last.clip_coef < 1.0


def foldable(params, optimizer, watched=None):
    return is_foldable(optimizer, params if watched is None else watched)


def tensors(count=2, **options):
    return [nn.Parameter(torch.ones(3, **options)) for _ in range(count)]


def test_only_what_one_factor_of_float32_fits_is_folded():
    params = tensors()
    assert foldable(params, torch.optim.AdamW(params, fused=True))
    half = tensors(dtype=torch.bfloat16)
    assert foldable(half, torch.optim.AdamW(half, fused=True))
    both = [*tensors(1), *tensors(1, dtype=torch.float16)]
    assert foldable(both, torch.optim.AdamW(both, fused=True))
    wide = tensors(dtype=torch.float64)
    assert not foldable(wide, torch.optim.AdamW(wide, fused=True))
    mixed = [*tensors(1), *tensors(1, dtype=torch.float64)]
    assert not foldable(mixed, torch.optim.AdamW(mixed, fused=True))


def test_nothing_is_folded_unless_every_parameter_takes_the_fused_path():
    params = tensors()
    assert not foldable(params, torch.optim.AdamW(params))
    assert not foldable(params, torch.optim.AdamW(params, foreach=True))
    assert not foldable(params, torch.optim.RMSprop(params))
    groups = [{"params": params[:1], "fused": True}, {"params": params[1:], "fused": False}]
    optimizer = torch.optim.AdamW(params[:1], fused=True)
    optimizer.add_param_group({"params": params[1:], "fused": False})
    assert not foldable(params, optimizer)
    assert not foldable(params, torch.optim.AdamW(groups))
    assert not foldable(params, torch.optim.AdamW(params, fused=True), watched=params[:1])
    assert not foldable(params, torch.optim.AdamW(params, fused=True), watched=[])


class Marked(torch.Tensor):
    """A tensor of another kind, as a sharded one is."""


def test_tensors_of_other_kinds_are_not_folded():
    params = [nn.Parameter(torch.ones(2).as_subclass(Marked))]
    assert not foldable(params, torch.optim.AdamW(tensors(1), fused=True), watched=params)
    places = [nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2, device="meta"))]
    optimizer = torch.optim.AdamW(tensors(2), fused=True)
    assert not foldable(places, optimizer)
