"""`sync: deferred` does what `immediate` does, without waiting, and tells of it one step later."""

import math
from collections import Counter

import numpy as np
import pytest
import torch
from deferring import FUSED, NAN, Net, batch, policy_of, train
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import gradguard


QUICK = settings(deadline=None, derandomize=True, phases=[Phase.explicit, Phase.generate])
PRESETS = ["default", "pretrain", "finetune", "rnn"]
SCHEDULES = {
    "none": None,
    "warmup": lambda o: torch.optim.lr_scheduler.LinearLR(o, start_factor=0.1, total_iters=8),
    "restarts": lambda o: torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(o, T_0=7),
}
VALUES = ("_local_scalar_dense", "is_nonzero", "equal", "nonzero", "item")


class Values(TorchDispatchMode):
    """Counts the calls that hand a value to the host, while it is on."""

    def __init__(self):
        super().__init__()
        self.calls = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.calls[func.__name__.partition(".")[0]] += 1
        return func(*args, **(kwargs or {}))


def waited(policy, sync, optimizer="adamw", steps=120, monkeypatch=None, **options):
    """Return how often a value was handed to the host between backward and the end of each step."""
    found, python = [], []
    torch.manual_seed(0)
    model = Net()
    made = FUSED[optimizer](model.parameters()) if optimizer in FUSED else optimizer(model.parameters())
    guard = gradguard.attach(model, made, policy_of(policy, sync, **options))
    for name in ("item", "tolist", "__bool__", "__float__", "__int__", "__index__"):
        known = getattr(Tensor, name)

        def note(self, *args, known=known, name=name, **kwargs):
            python.append(name)
            return known(self, *args, **kwargs)

        monkeypatch.setattr(Tensor, name, note)
    for step in range(steps):
        made.zero_grad()
        loss = (model(batch(step)) - batch(step).sum(1, keepdim=True)).square().mean()
        loss.backward()
        python.clear()
        with Values() as values:
            guard.observe(loss)
            made.step()
        found.append(sum(values.calls[name] for name in VALUES) + len(python))
    monkeypatch.undo()
    guard.close()
    return found


@pytest.mark.parametrize("preset", [*PRESETS, "observe"])
@pytest.mark.parametrize("optimizer", ["adamw", "momentum"])
def test_a_healthy_step_hands_no_value_to_the_host(preset, optimizer, monkeypatch):
    """Probes included; but for the first step, and for steps after which a snapshot is taken."""
    found = waited(preset, "deferred", optimizer, monkeypatch=monkeypatch, snapshots={"every": 1000})
    snapshots = [step for step, count in enumerate(found) if count]
    assert len([step for step in snapshots if step > 0]) <= 8, found  # 10, 20, ... steps after attach, ever rarer
    assert sum(found[1:]) < 200


def test_a_run_that_keeps_no_snapshots_hands_no_value_to_the_host_after_its_first_step(monkeypatch):
    """Also at the probes, of which there are twelve."""
    rules = [
        {"when": "nonfinite", "do": "skip_step"},
        {"when": "exploding_gradient", "do": {"clip_norm": {"max_norm": {"median_times": 3}}}},
        {"when": "loss_spike", "do": "skip_step"},
        {"name": "always", "when": "always", "do": {"clip_norm": {"max_norm": 1.0}}},
    ]
    monitor = {"probe_every": 10, "sync": "deferred"}
    found = waited(rules, "deferred", monkeypatch=monkeypatch, monitor=monitor)
    assert found[1:] == [0] * 119


def test_only_observing_hands_no_value_to_the_host_whatever_the_optimizer(monkeypatch):
    for make in (torch.optim.RMSprop, lambda params: torch.optim.AdamW(params, lr=0.01)):
        found = waited("observe", "deferred", make, steps=40, monkeypatch=monkeypatch)
        assert found[1:] == [0] * 39 or make is not torch.optim.RMSprop


def rows_of(path):
    """Return the statistics of a run, without what only time decides."""
    return {name: np.array(column) for name, column in gradguard.read_run(path).statistics.items()}


SPOILS = st.dictionaries(st.integers(1, 49), st.sampled_from([NAN, math.inf, 20.0, 1e3, 1e5, 1e8]), max_size=4)


@settings(QUICK, max_examples=60)
@given(
    preset=st.sampled_from(PRESETS),
    optimizer=st.sampled_from(sorted(FUSED)),
    losses=SPOILS,
    inputs=st.dictionaries(st.integers(1, 49), st.sampled_from([NAN, -math.inf, 10.0, 50.0]), max_size=2),
    without_side=st.sets(st.integers(0, 49), max_size=10),
    num_micro_batches=st.integers(1, 3),
    observe=st.sampled_from(["tensor", "number", None]),
    schedule=st.sampled_from(sorted(SCHEDULES)),
    closure=st.booleans(),
)
def test_a_deferred_run_is_the_immediate_one(
    bits,
    tmp_path_factory,
    preset,
    optimizer,
    losses,
    inputs,
    without_side,
    num_micro_batches,
    observe,
    schedule,
    closure,
):
    """Whatever goes wrong as a whole: parameters, buffers, optimizer state, what was done and why, and every row."""
    path = tmp_path_factory.mktemp("runs")
    if optimizer == "momentum":
        without_side = set()  # torch's fused kernel takes no parameter that joins in later
    told = {}
    for sync in ("immediate", "deferred"):
        run = train(
            preset,
            sync,
            optimizer=optimizer,
            losses=losses,
            inputs=inputs,
            without_side=without_side,
            num_micro_batches=num_micro_batches,
            observe=observe,
            schedule=SCHEDULES[schedule],
            closure=closure,
            run_dir=path / sync,
        )
        told[sync] = run
    immediate, deferred = told["immediate"], told["deferred"]
    assert deferred.told == immediate.told
    assert deferred.state(bits) == immediate.state(bits)
