"""Steps that are only noted change nothing: the guard decides, remembers and writes the same as one that notes none."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import flatten
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import gradguard
from gradguard.guard import Guard


NAN = math.nan
SHAPES = ((3, 4), (4,), (2, 4), (2,))


class Run:
    """A model whose gradients and losses are made up, under a guard that may or may not note quiet steps."""

    def __init__(self, is_noting: bool, run_dir: Path | None = None, num_tensors: int = 4, **policy: Any) -> None:
        torch.manual_seed(0)
        shapes = [SHAPES[i % len(SHAPES)] for i in range(num_tensors)]
        self.model = nn.ParameterList([nn.Parameter(torch.randn(shape)) for shape in shapes])
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)
        self.guard = gradguard.attach(
            self.model, self.optimizer, gradguard.Policy(**policy) if policy else "default", run_dir=run_dir
        )
        self.quiet = self.guard._pipeline.quiet
        self.num_noted = 0
        if not is_noting:
            self.quiet.arm = self.quiet.disarm  # type: ignore[method-assign]
        self.random = np.random.default_rng(1)

    def step(self, scale: float = 1.0, loss: float | None = 1.0, absent: int | None = None) -> None:
        self.optimizer.zero_grad()
        for i, param in enumerate(self.model.parameters()):
            noise = torch.tensor(self.random.normal(size=param.shape), dtype=torch.float32)
            param.grad = None if i == absent else noise * scale
        if loss is not None:
            self.guard.observe(loss * float(self.random.uniform(0.9, 1.1)))
        self.optimizer.step()
        self.num_noted += self.quiet.is_last


def same(noting: Run, whole: Run) -> None:
    """Check that two guards know, decided and left the same."""
    first, second = (dict(flatten(run.guard.state_dict())) for run in (noting, whole))
    assert first.keys() == second.keys()
    for place, value in first.items():
        assert repr(value) == repr(second[place]), place
    told = [[record.model_dump(exclude={"time"}) for record in run.guard.records] for run in (noting, whole)]
    assert repr(told[0]) == repr(told[1])
    for mine, other in zip(noting.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(mine, other)


EVENTS: dict[str, Callable[[Run], None]] = {
    "usual": lambda run: run.step(),
    "spike": lambda run: run.step(scale=1e4),
    "rise": lambda run: run.step(scale=30.0),
    "nan": lambda run: run.step(scale=NAN),
    "zero": lambda run: run.step(scale=0.0),
    "loss": lambda run: run.step(loss=50.0),
    "nan loss": lambda run: run.step(loss=NAN),
    "no loss": lambda run: run.step(loss=None),
    "absent": lambda run: run.step(absent=1),
    "level": lambda run: [run.step(scale=8.0) for _ in range(12)] and None,
    "asked": lambda run: run.guard.last and None,
    "saved": lambda run: run.guard.state_dict() and None,
}


@settings(max_examples=15, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(sorted(EVENTS)), st.integers(0, 30)), max_size=8))
def test_noting_changes_nothing(events: list[tuple[str, int]]) -> None:
    runs = Run(is_noting=True), Run(is_noting=False)
    for run in runs:
        for _ in range(45):
            run.step()
        for event, pause in events:
            EVENTS[event](run)
            for _ in range(pause):
                run.step()
    same(*runs)
    assert runs[0].num_noted
    assert not runs[1].num_noted
    for run in runs:
        run.guard.close()


@pytest.mark.parametrize("num_tensors", [4, 80])
def test_most_steps_of_a_healthy_run_are_only_noted_and_all_are_written(num_tensors: int, tmp_path: Path) -> None:
    runs = [Run(is_noting, tmp_path / str(is_noting), num_tensors) for is_noting in (True, False)]
    for run in runs:
        for _ in range(210):
            run.step()
    same(*runs)
    for run in runs:
        run.guard.close()
    assert runs[0].num_noted > 100
    noted, whole = (gradguard.read_run(tmp_path / name).statistics for name in ("True", "False"))
    assert len(noted["step"]) == 210
    for name in noted:
        np.testing.assert_array_equal(noted[name], whole[name], err_msg=name)


def test_what_is_noted_reaches_the_record_of_a_guard_that_is_flushed_at_exit(tmp_path: Path) -> None:
    run = Run(is_noting=True, run_dir=tmp_path / "run")
    while not (run.quiet.is_last and run.guard.step > 60):
        run.step()
    run.guard._finalizer()
    assert len(gradguard.read_run(tmp_path / "run").statistics["step"]) == run.guard.step
    run.guard.close()


def armed() -> Run:
    """Return a run whose next quiet step is only noted."""
    run = Run(is_noting=True)
    while run.quiet.left < 2 or run.guard.step < 60:
        run.step()
    return run


def add_group(run: Run) -> None:
    extra = nn.Parameter(torch.ones(2))
    run.model.append(extra)
    run.optimizer.add_param_group({"params": [extra]})


def keep_gradients(run: Run) -> None:
    run.quiet._pipeline.watch.is_stale = True


def scale_loss(run: Run) -> None:
    run.optimizer.grad_scale = None  # type: ignore[attr-defined]


def use_large_rate(run: Run) -> None:
    run.quiet._reach = 1.0
    run.optimizer.param_groups[0]["lr"] = 10.0


@pytest.mark.parametrize("disturb", [add_group, keep_gradients, scale_loss, use_large_rate])
def test_a_disturbed_step_goes_through_the_whole_flow(disturb: Callable[[Run], None]) -> None:
    run = armed()
    disturb(run)
    run.step()
    assert not run.quiet.is_last
    run.guard.close()


@pytest.mark.parametrize("event", ["spike", "nan", "zero", "loss", "nan loss", "no loss", "absent"])
def test_a_step_beyond_the_bounds_goes_through_the_whole_flow(event: str) -> None:
    run = armed()
    EVENTS[event](run)
    assert not run.quiet.is_last
    run.guard.close()


def test_a_single_parameter_beyond_its_bound_goes_through_the_whole_flow() -> None:
    for num_tensors in (4, 80):
        run = Run(is_noting=True, num_tensors=num_tensors)
        while run.quiet.left < 2 or run.guard.step < 60:
            run.step()
        run.quiet._limit = math.inf
        run.quiet._limits = [1e-9] * num_tensors if num_tensors <= 64 else np.full(num_tensors, 1e-9, np.float32)
        run.step()
        assert not run.quiet.is_last
        run.guard.close()


@pytest.mark.parametrize(
    ("max_norm", "is_noted"),
    [(1.0, False), (1e3, True), ({"median_times": 100}, False), ({"quantile": 0.9}, False)],
    ids=["due", "idle", "moving", "tracked"],
)
def test_steps_at_which_a_rule_for_every_step_has_something_to_do_are_not_only_noted(
    max_norm: Any, is_noted: bool
) -> None:
    rules = {"rules": ({"when": "always", "do": {"clip_norm": {"max_norm": max_norm}}},)}
    runs = Run(True, **rules), Run(False, **rules)
    for run in runs:
        for _ in range(120):
            run.step()
    same(*runs)
    assert bool(runs[0].num_noted) is is_noted
    for run in runs:
        run.guard.close()


@pytest.mark.parametrize("limit", [{"quantile": 0.9}, {"zscore": 2.5}, {"adagc": 1.05, "warmup": 10}])
def test_what_is_remembered_of_steps_that_were_only_noted_is_all_of_them(limit: Any) -> None:
    """So that a limit is what it would have been when at last something explodes."""
    rules = {"rules": ({"when": "exploding_gradient", "do": {"clip_norm": {"max_norm": limit}}},)}
    runs = Run(True, **rules), Run(False, **rules)
    for run in runs:
        for step in range(140):
            run.step(scale=1e4 if step in (90, 125) else 1.0)
    same(*runs)
    assert runs[0].num_noted > 50
    assert [record.kind for record in runs[0].guard.records].count("intervention") == 2
    for run in runs:
        run.guard.close()


def test_a_diagnosis_whose_foresight_fails_is_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    for method in ("calm", "pass_by"):
        run = armed()
        entry = run.quiet._pipeline.judgement._watchful[0]

        def fail(*args: Any) -> None:
            raise RuntimeError("no foresight")

        with monkeypatch.context() as patch:
            patch.setattr(type(entry.diagnosis), method, fail)
            entry.pass_by = entry.diagnosis.pass_by
            for _ in range(60):
                run.step()
        events = [record for record in run.guard.records if record.kind == "event" and record.event == "internal_error"]
        assert len(events) == 1
        assert entry.diagnosis.name in events[0].message
        assert isinstance(run.guard, Guard)
        run.guard.close()
