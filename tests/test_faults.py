"""Fault injection: each fault lands where and when it says, nothing else changes, and the hooks are taken out."""

import copy
import io
import math
import random
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from gradguard.errors import UsageError
from gradguard.faults import Fault, Injector, inject


def make_model(dtype: torch.dtype = torch.float32) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)).to(dtype)


def train_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, step: int, num_micro_batches: int = 1
) -> torch.Tensor:
    generator = torch.Generator().manual_seed(step)
    dtype = next(model.parameters()).dtype
    optimizer.zero_grad()
    for _ in range(num_micro_batches):
        inputs = torch.randn(8, 4, generator=generator).to(dtype)
        loss = model(inputs).square().mean()
        loss.backward()
    optimizer.step()
    return loss.detach()


def run(faults: Sequence[Fault], num_steps: int = 6, **options: object) -> tuple[nn.Module, Injector, list[float]]:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with inject(model, optimizer, faults, **options) as injector:  # type: ignore[arg-type]
        losses = [float(train_step(model, optimizer, step)) for step in range(num_steps)]
    return model, injector, losses


def num_hooks(model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    parameters = sum(len(getattr(p, "_post_accumulate_grad_hooks", None) or ()) for p in model.parameters())
    modules = sum(len(module._forward_pre_hooks) for module in model.modules())
    return parameters + modules + len(optimizer._optimizer_step_pre_hooks) + len(optimizer._optimizer_step_post_hooks)


ONE_OF_EACH = [
    Fault("nan", "gradient", at=1, parameters="0.weight"),
    Fault("inf", "batch", at=1),
    Fault("bitflip", "weight", at=0, parameters="2.bias"),
    Fault("scale", "lr", at=1, factor=3.0),
]


# --- where and when


@pytest.mark.parametrize("step", [0, 1, 4])
def test_a_gradient_fault_is_seen_by_the_optimizer_at_its_step_only(step: int) -> None:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    seen: list[bool] = []
    optimizer.register_step_pre_hook(lambda *_: seen.append(not model[0].weight.grad.any()))
    with inject(model, optimizer, [Fault("zero", "gradient", at=step, parameters="0.weight")]):
        for number in range(6):
            train_step(model, optimizer, number)
    assert seen == [number == step for number in range(6)]


@pytest.mark.parametrize("step", [0, 3])
def test_a_weight_fault_is_in_the_forward_pass_of_its_step_and_stays(step: int) -> None:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    zeros: list[bool] = []
    model.register_forward_pre_hook(lambda *_: zeros.append(not model[0].weight.any()))
    with inject(model, optimizer, [Fault("zero", "weight", at=step, parameters="0.weight")]):
        for number in range(5):
            train_step(model, optimizer, number)
    assert zeros == [number >= step for number in range(5)]


def test_a_batch_fault_spoils_one_loss_and_never_the_users_tensor() -> None:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    inputs = torch.ones(8, 4)
    losses = []
    with inject(model, optimizer, [Fault("nan", "batch", at=1)]) as injector:
        for _ in range(3):
            loss = model(inputs).square().mean()
            losses.append(bool(loss.isnan()))
            optimizer.step()
    assert losses == [False, True, False]
    assert torch.equal(inputs, torch.ones(8, 4))
    assert injector.log[0].target == "input of Sequential"


def test_a_batch_fault_reaches_nested_and_keyword_inputs() -> None:
    class Nested(nn.Module):
        def forward(self, pair: tuple[torch.Tensor, list[torch.Tensor]], *, extra: dict[str, torch.Tensor]) -> float:
            return bool(pair[0].isnan().any() and pair[1][0].isnan().any() and extra["x"].isnan().any())  # type: ignore

    model = Nested()
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)
    with inject(model, optimizer, [Fault("nan", "batch", at=0)]):
        assert model((torch.ones(2), [torch.ones(3)]), extra={"x": torch.ones(1), "ids": torch.ones(1).long()})


def test_a_batch_fault_in_a_submodule_spoils_a_model_of_token_ids() -> None:
    model = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tokens = torch.tensor([[0, 1, 2]])
    with inject(model, optimizer, [Fault("nan", "batch", at=0, module="1")]):
        assert model(tokens).isnan().any()
    with inject(model, optimizer, [Fault("nan", "batch", at=0)]), pytest.raises(UsageError, match="no floating tensor"):
        model(tokens)


def test_evaluation_is_never_struck_nor_counted() -> None:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with inject(model, optimizer, [Fault("nan", "batch", at=0)]):
        with torch.no_grad():
            assert not model(torch.ones(2, 4)).isnan().any()
        model.eval()
        assert not model(torch.ones(2, 4)).isnan().any()
        model.train()
        assert model(torch.ones(2, 4)).isnan().any()


def test_a_learning_rate_fault_is_in_force_for_one_step_and_put_back_exactly() -> None:
    model = make_model()
    rate = 0.1 + 1e-17
    optimizer = torch.optim.SGD(
        [{"params": model[0].parameters()}, {"params": model[2].parameters(), "lr": 0.3}], lr=rate
    )
    with inject(model, optimizer, [Fault("scale", "lr", at=1, factor=7.0, parameters="2.*")]) as injector:
        in_force: list[tuple[float, float]] = []
        optimizer.register_step_pre_hook(lambda o, *_: in_force.append(tuple(g["lr"] for g in o.param_groups)))
        for step in range(3):
            train_step(model, optimizer, step)
            assert [group["lr"] for group in optimizer.param_groups] == [rate, 0.3]
    assert in_force == [(rate, 0.3), (rate, 0.3 * 7.0), (rate, 0.3)]
    assert [(entry.target, entry.before, entry.after) for entry in injector.log] == [("group 1", 0.3, 0.3 * 7.0)]


def test_a_learning_rate_given_as_a_tensor_comes_back_as_the_same_object() -> None:
    model = make_model()
    rate = torch.tensor(0.1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    with inject(model, optimizer, [Fault("scale", "lr", at=0, factor=300.0)]) as injector:
        train_step(model, optimizer, 0)
    assert optimizer.param_groups[0]["lr"] is rate
    assert rate.item() == torch.tensor(0.1).item()
    assert injector.log[0].after == pytest.approx(30.0)


@pytest.mark.parametrize("micro_batch", [0, 1, 2])
def test_the_micro_batch_chooses_the_backward_and_the_forward_pass(micro_batch: int) -> None:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    faults = [
        Fault("zero", "gradient", at=1, parameters="0.weight", micro_batch=micro_batch),
        Fault("scale", "batch", at=1, micro_batch=micro_batch, factor=1.0),
    ]
    with inject(model, optimizer, faults) as injector:
        for _ in range(2):
            optimizer.zero_grad()
            for number in range(3):
                model(torch.ones(2, 4)).sum().backward()
                is_struck = injector.step == 1 and number == micro_batch
                assert bool(model[0].weight.grad.any()) is not is_struck
            optimizer.step()
    assert [(entry.step, entry.target) for entry in injector.log] == [(1, "input of Sequential"), (1, "0.weight")]


def test_a_fault_is_over_when_the_scaler_keeps_the_step_back() -> None:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    with inject(model, optimizer, [Fault("inf", "gradient", at=1, parameters="0.weight")]) as injector:
        for _ in range(4):
            optimizer.zero_grad()
            scaler.scale(model(torch.ones(2, 4)).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
    assert len(injector.log) == 1
    assert scaler.get_scale() == 4.0
    assert injector.step == 3


def test_a_closure_is_struck_in_its_first_evaluation() -> None:
    model = make_model()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)
    evaluations: list[bool] = []

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(torch.ones(2, 4)).square().mean()
        loss.backward()
        evaluations.append(bool((model[0].weight.grad == 0).all()))
        return loss

    with inject(model, optimizer, [Fault("zero", "gradient", at=0, parameters="0.weight")]):
        optimizer.step(closure)
    assert evaluations[0]
    assert not any(evaluations[1:])


def test_a_fault_for_another_rank_stays_away() -> None:
    _, injector, _ = run([Fault("nan", "gradient", at=1, rank=1), Fault("nan", "gradient", at=2, rank=0)])
    assert {entry.step for entry in injector.log} == {2}


@given(
    at=st.integers(0, 30),
    every=st.none() | st.integers(1, 7),
    step=st.integers(0, 60),
)
@settings(max_examples=60, deadline=None)
def test_steps_follow_at_and_every(at: int, every: int | None, step: int) -> None:
    expected = step == at if every is None else step in range(at, 61, every)
    assert Fault("nan", "weight", at=at, every=every).strikes_at(step) is expected


def test_the_faults_that_have_not_struck_are_known() -> None:
    late = Fault("nan", "gradient", at=99)
    _, injector, _ = run([Fault("nan", "gradient", at=0), late])
    assert injector.missed == (late,)


# --- what


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("bit", range(5))
def test_a_bit_flip_moves_the_exponent_by_its_power_of_two(dtype: torch.dtype, bit: int) -> None:
    model = make_model(dtype)
    with torch.no_grad():
        model[0].weight.fill_(0.75)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    fault = Fault("bitflip", "weight", at=0, parameters="0.weight", exponent_bit=bit)
    with inject(model, optimizer, [fault]) as injector:
        pass
    exponent_bits = {torch.float64: 11, torch.float16: 5}.get(dtype, 8)
    shift = 2 ** (exponent_bits - 1 - bit)
    # The exponent of 0.75 is bias - 1 = 0b011...10: its most significant and its lowest bit are 0, the others 1.
    is_up = bit in (0, exponent_bits - 1)
    expected = math.ldexp(0.75, shift if is_up else -shift)
    (entry,) = injector.log
    assert (entry.before, entry.after) == (0.75, expected)
    assert model[0].weight[entry.index].item() == expected
    assert (model[0].weight != 0.75).sum() == 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("what", ["nan", "inf", "scale", "zero"])
def test_every_kind_strikes_gradients_of_every_float_type(dtype: torch.dtype, what: str) -> None:
    model = make_model(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    reference = make_model(dtype)
    train_step(reference, torch.optim.SGD(reference.parameters(), lr=0.0), 0)
    fault = Fault(what, "gradient", at=0, parameters="2.weight", factor=2.0 if what == "scale" else None, entries="all")  # type: ignore[arg-type]
    with inject(model, optimizer, [fault]):
        train_step(model, optimizer, 0)
    clean = reference[2].weight.grad
    expected = {
        "nan": torch.full_like(clean, float("nan")),
        "inf": torch.full_like(clean, float("inf")),
        "scale": clean * 2.0,
        "zero": torch.zeros_like(clean),
    }[what]
    torch.testing.assert_close(model[2].weight.grad, expected, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(model[0].weight.grad, reference[0].weight.grad, rtol=0, atol=0)


@given(count=st.integers(1, 20))
@settings(max_examples=20, deadline=None)
def test_as_many_distinct_entries_are_struck_as_asked(count: int) -> None:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with inject(model, optimizer, [Fault("nan", "weight", at=0, parameters="0.weight", entries=count)]) as injector:
        pass
    assert model[0].weight.isnan().sum() == min(count, 12)
    assert injector.log[0].num_entries == min(count, 12)
    assert model[0].weight[injector.log[0].index].isnan()


def test_unusual_tensors_are_struck_in_place() -> None:
    model = nn.Module()
    model.scalar = nn.Parameter(torch.tensor(2.0))
    model.transposed = nn.Parameter(torch.ones(3, 4).t())
    model.complex = nn.Parameter(torch.ones(3, dtype=torch.complex64))
    model.empty = nn.Parameter(torch.ones(0))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with inject(model, optimizer, [Fault("nan", "weight", at=0)]) as injector:
        pass
    assert [entry.target for entry in injector.log] == ["scalar", "transposed", "complex"]
    assert [int(parameter.isnan().sum()) for parameter in model.parameters()] == [1, 1, 1, 0]


def test_a_sparse_gradient_is_struck_in_a_value_that_it_holds() -> None:
    model = nn.Embedding(9, 3, sparse=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with inject(model, optimizer, [Fault("nan", "gradient", at=0)]):
        model(torch.tensor([1, 4])).sum().backward()
        assert model.weight.grad.is_sparse
        assert model.weight.grad.to_dense().isnan().sum() == 1


# --- nothing else changes


def test_without_a_strike_training_is_bit_identical() -> None:
    with_injector, _, _ = run([Fault("nan", where, at=99) for where in ("gradient", "weight", "batch", "lr")])  # type: ignore[arg-type]
    without, _, _ = run([])
    for ours, theirs in zip(with_injector.parameters(), without.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_the_same_seed_strikes_the_same_entries_and_another_seed_others() -> None:
    faults = [Fault("zero", "weight", at=[1, 3], parameters="*.weight", entries=2)]
    first, again, other = (run(faults, seed=seed)[1].log for seed in (3, 3, 4))
    assert [entry.index for entry in first] == [entry.index for entry in again]
    assert [entry.index for entry in first] != [entry.index for entry in other]


def test_no_random_generator_is_touched() -> None:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()
    with inject(model, optimizer, [*ONE_OF_EACH, Fault("nan", "weight", every=1, entries=3)]):
        for _ in range(3):
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
    after = torch.get_rng_state(), random.getstate(), np.random.get_state()[1]
    assert torch.equal(before[0], after[0])
    assert before[1] == after[1]
    assert (before[2] == after[2]).all()


@pytest.mark.parametrize("is_raised", [False, True])
def test_every_hook_is_gone_after_the_block(is_raised: bool) -> None:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = num_hooks(model, optimizer)
    try:
        with inject(model, optimizer, ONE_OF_EACH):
            assert num_hooks(model, optimizer) == before + 4
            if is_raised:
                raise InterruptedError
    except InterruptedError:
        pass
    assert num_hooks(model, optimizer) == before


def test_the_learning_rate_is_put_back_when_a_step_raises() -> None:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def stop(*_: object) -> None:
        raise InterruptedError

    with inject(model, optimizer, [Fault("scale", "lr", at=0, factor=300.0)]):
        optimizer.register_step_pre_hook(stop)
        with pytest.raises(InterruptedError):
            train_step(model, optimizer, 0)
        assert optimizer.param_groups[0]["lr"] == 30.0
    assert optimizer.param_groups[0]["lr"] == 0.1


def test_a_copy_or_a_pickle_of_the_model_is_not_struck() -> None:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    faults = [Fault("nan", "batch", at=0), Fault("nan", "gradient", at=0)]
    with inject(model, optimizer, faults) as injector:
        buffer = io.BytesIO()
        torch.save(model, buffer)
        buffer.seek(0)
        for twin in (copy.deepcopy(model), torch.load(buffer, weights_only=False)):
            twin(torch.ones(2, 4)).sum().backward()
            assert all(parameter.grad.isfinite().all() for parameter in twin.parameters())
        assert injector.log == []


@pytest.mark.parametrize("is_observer_first", [True, False])
def test_an_observer_of_the_optimizer_is_nested_inside_whoever_attached_first(is_observer_first: bool) -> None:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen: list[tuple[str, float]] = []

    def observe() -> None:
        optimizer.register_step_pre_hook(lambda o, *_: seen.append(("pre", o.param_groups[0]["lr"])))
        optimizer.register_step_post_hook(lambda o, *_: seen.append(("post", o.param_groups[0]["lr"])))

    if is_observer_first:
        observe()
    with inject(model, optimizer, [Fault("scale", "lr", at=0, factor=2.0)]):
        if not is_observer_first:
            observe()
        train_step(model, optimizer, 0)
    assert seen == [("pre", 0.2), ("post", 0.2)]


# --- mistakes


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Fault("nam", "gradient", at=1), "unknown what 'nam' of a fault; did you mean 'nan'"),  # type: ignore
        (lambda: Fault("nan", "gradiant", at=1), "unknown where 'gradiant' of a fault; did you mean 'gradient'"),  # type: ignore
        (lambda: Fault("nan", "gradient"), "needs its steps"),
        (lambda: Fault("nan", "gradient", at=-1), "integers from 0, got -1"),
        (lambda: Fault("nan", "gradient", at=1.5), "integers from 0, got 1.5"),  # type: ignore[arg-type]
        (lambda: Fault("nan", "gradient", at=True), "integers from 0, got True"),
        (lambda: Fault("nan", "gradient", at=[]), "names no step"),
        (lambda: Fault("nan", "gradient", every=0), "integer from 1, got 0"),
        (lambda: Fault("nan", "gradient", at=[1, 2], every=3), "first step, got 2"),
        (lambda: Fault("scale", "gradient", at=1), "needs a factor"),
        (lambda: Fault("nan", "gradient", at=1, factor=2.0), "takes no factor"),
        (lambda: Fault("nan", "batch", at=1, parameters="0.*"), "use `module`"),
        (lambda: Fault("nan", "gradient", at=1, module="0"), "placed with `parameters`"),
        (lambda: Fault("nan", "lr", at=1, micro_batch=1), "not for 'lr'"),
        (lambda: Fault("nan", "gradient", at=1, micro_batch=-1), "from 0, got -1"),
        (lambda: Fault("nan", "gradient", at=1, rank=-2), "from 0, got -2"),
        (lambda: Fault("nan", "gradient", at=1, entries=0), "count from 1"),
        (lambda: Fault("nan", "gradient", at=1, parameters=()), "a pattern or several"),
        (lambda: Fault("bitflip", "weight", at=1, exponent_bit=11), "from 0 to 10, got 11"),
    ],
)
def test_a_fault_that_makes_no_sense_is_refused(make: Callable[[], Fault], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make()


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (
            Fault("nan", "gradient", at=1, parameters="0.wieght"),
            "pattern '0.wieght' matches no parameter; near: 0.weight",
        ),
        (
            Fault("nan", "gradient", at=1, parameters=["*", "3.*"]),
            "pattern '3.*' matches no parameter; the parameters are 0.weight",
        ),
        (Fault("nan", "gradient", at=1, parameters="1.*"), "requires a gradient"),
        (Fault("nan", "batch", at=1, module="5"), "no module '5'"),
        (Fault("zero", "lr", at=1, parameters="1.*"), "no param group of the optimizer holds"),
        (
            Fault("bitflip", "weight", at=1, parameters="0.*", exponent_bit=9),
            "has 8 exponent bits|with 8 exponent bits",
        ),
    ],
)
def test_a_fault_that_cannot_strike_is_refused_before_anything_changes(fault: Fault, message: str) -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2).requires_grad_(False))
    before = copy.deepcopy(model.state_dict())
    optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1)
    with pytest.raises(UsageError, match=message.replace("*", r"\*")):
        inject(model, optimizer, [Fault("zero", "weight", at=0), fault]).__enter__()
    assert num_hooks(model, optimizer) == 0
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
