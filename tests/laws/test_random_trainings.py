"""Laws tried on random trainings: a guard that does not act changes nothing, and a skip leaves no trace."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import nn

import gradguard


OPTIMIZERS: list[tuple[str, dict[str, Any]]] = [
    ("SGD", {}),
    ("SGD", {"momentum": 0.9, "weight_decay": 0.1, "nesterov": True}),
    ("SGD", {"momentum": 0.9, "fused": True}),
    ("Adam", {"amsgrad": True, "foreach": True}),
    ("AdamW", {"fused": True}),
    ("AdamW", {"weight_decay": 0.3, "foreach": False}),
    ("RMSprop", {"momentum": 0.5, "centered": True}),
    ("Adagrad", {"fused": True}),
    ("NAdam", {}),
    ("RAdam", {}),
    ("Adadelta", {}),
    ("Rprop", {}),
    ("ASGD", {}),
    ("Adamax", {}),
    ("Adafactor", {}),
]
# Without shrinking, which would take minutes: an example is a few lines as it is.
QUICK = settings(deadline=None, derandomize=True, phases=[Phase.explicit, Phase.generate])
SCHEDULES: dict[str, Callable[[torch.optim.Optimizer], torch.optim.lr_scheduler.LRScheduler]] = {
    "none": lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda step: 1.0),
    "warmup": lambda o: torch.optim.lr_scheduler.LinearLR(o, start_factor=0.1, total_iters=5),
    "decay": lambda o: torch.optim.lr_scheduler.ExponentialLR(o, gamma=0.9),
    "restarts": lambda o: torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(o, T_0=4),
}


@dataclass(frozen=True)
class Setup:
    """A training, as data."""

    widths: list[int]
    activation: type[nn.Module]
    norm: type[nn.Module] | None
    dropout: float
    dtype: torch.dtype
    optimizer: tuple[str, dict[str, Any]]
    schedule: str
    is_closure: bool
    num_micro_batches: int
    loss_factor: float
    seed: int

    def build(self):
        torch.manual_seed(self.seed)
        layers = []
        for fan_in, fan_out in zip([3, *self.widths], [*self.widths, 2], strict=True):
            layers += [nn.Linear(fan_in, fan_out), self.norm(fan_out) if self.norm else nn.Identity()]
            layers += [self.activation(), nn.Dropout(self.dropout)]
        model = nn.Sequential(*layers[:-2]).to(self.dtype)
        name, options = self.optimizer
        optimizer = getattr(torch.optim, name)(model.parameters(), lr=1e-3, **options)
        return model, optimizer, SCHEDULES[self.schedule](optimizer)


def setups(dropouts=(0.0,)):
    return st.builds(
        Setup,
        widths=st.lists(st.integers(1, 6), min_size=0, max_size=3),
        activation=st.sampled_from([nn.Tanh, nn.ReLU, nn.GELU]),
        norm=st.sampled_from([None, nn.BatchNorm1d, nn.LayerNorm]),
        dropout=st.sampled_from(dropouts),
        dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
        optimizer=st.sampled_from(OPTIMIZERS),
        schedule=st.sampled_from(sorted(SCHEDULES)),
        is_closure=st.booleans(),
        num_micro_batches=st.integers(1, 3),
        loss_factor=st.just(1e-3),  # gradients so small that the fixed clips of some presets never act
        seed=st.integers(0, 99),
    )


def run(setup, steps, policy=None, bits=None):
    """Train on the given steps, each (seed of its data, value that spoils it or None); hold the schedule on a skip."""
    model, optimizer, schedule = setup.build()
    guard = gradguard.attach(model, optimizer, policy) if policy is not None else None
    for seed, spoil in steps:
        data = torch.randn(setup.num_micro_batches, 8, 5, generator=torch.Generator().manual_seed(seed)).to(setup.dtype)
        if spoil is not None:
            data[-1, 2, 0] = spoil

        def evaluate(data=data):
            optimizer.zero_grad()
            total = 0.0
            for batch in data:
                loss = (model(batch[:, :3]) - batch[:, 3:]).square().mean() * setup.loss_factor
                (loss / len(data)).backward()
                total += float(loss.detach()) / len(data)
            return total

        if setup.is_closure:
            optimizer.step(evaluate)
        else:
            loss = evaluate()
            if guard is not None:
                guard.observe(loss)
            optimizer.step()
        if guard is None or not guard.last.skipped:
            schedule.step()
    return {**bits(model, optimizer), "schedule": repr(schedule.state_dict())}, guard


@settings(QUICK, max_examples=30)
@given(
    setup=setups(dropouts=(0.0, 0.3)),
    num_steps=st.integers(1, 30),
    policy=st.sampled_from(["default", "observe", "pretrain", "finetune", "rnn"]),
)
def test_a_guard_that_does_not_act_leaves_the_run_bit_identical(bits, setup, num_steps, policy):
    """Parameters, buffers, optimizer state, schedule and every random generator."""
    steps = [(seed, None) for seed in range(num_steps)]
    expected, _ = run(setup, steps, bits=bits)
    guarded, guard = run(setup, steps, policy, bits)
    assert guarded == expected
    assert guard.step == num_steps
    assert not [record for record in guard.records if record.kind == "intervention" and record.remedy != "notify"]


@settings(QUICK, max_examples=20)
@given(
    setup=setups(dropouts=(0.0, 0.3)),
    num_steps=st.integers(2, 30),
    bad_at=st.integers(0, 29),
    value=st.sampled_from([math.nan, math.inf, -math.inf, 1e4]),
)
def test_a_guard_that_only_observes_leaves_even_a_sick_run_bit_identical(bits, setup, num_steps, bad_at, value):
    steps = [(seed, value if seed == bad_at else None) for seed in range(num_steps)]
    expected, _ = run(setup, steps, bits=bits)
    observed, guard = run(setup, steps, "observe", bits)
    assert observed == expected
    assert not [record for record in guard.records if record.kind == "intervention"]
    if bad_at < num_steps and not math.isfinite(value):
        assert [record for record in guard.records if record.kind == "withheld" and record.reason == "dry_run"]


@settings(QUICK, max_examples=30)
@given(
    setup=setups(),
    num_steps=st.integers(1, 20),
    bad_at=st.sets(st.integers(0, 19), min_size=1, max_size=3),
    value=st.sampled_from([math.nan, math.inf, -math.inf]),
)
def test_a_skipped_batch_leaves_no_trace(bits, setup, num_steps, bad_at, value):
    """The run is bit-identical to the one that never saw the bad batches, whichever steps they came at."""
    good = [(seed, None) for seed in range(num_steps)]
    expected, _ = run(setup, good, bits=bits)
    steps = list(good)
    for place in sorted(bad_at, reverse=True):
        steps.insert(min(place, num_steps), (77, value))
    guarded, guard = run(setup, steps, "default", bits)
    assert guarded == expected
    skips = [record for record in guard.records if record.kind == "intervention" and record.remedy != "notify"]
    assert [record.remedy for record in skips] == ["skip_step"] * len(bad_at)
