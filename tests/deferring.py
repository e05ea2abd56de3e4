"""The same small training with `sync: immediate` and `sync: deferred`, and all that may be compared of the two."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

import gradguard
from gradguard.faults import Fault, inject


FUSED: dict[str, Callable[[Any], Optimizer]] = {
    "sgd": lambda params: torch.optim.SGD(params, lr=0.02, fused=True),
    "momentum": lambda params: torch.optim.SGD(params, lr=0.01, momentum=0.9, nesterov=True, fused=True),
    "adam": lambda params: torch.optim.Adam(params, lr=0.01, amsgrad=True, fused=True),
    "adamw": lambda params: torch.optim.AdamW(params, lr=0.01, fused=True),
    "adagrad": lambda params: torch.optim.Adagrad(params, lr=0.05, fused=True),
}


def policy_of(policy: str | gradguard.Policy | list[dict[str, Any]], sync: str, **more: Any) -> gradguard.Policy:
    """Return a preset, a policy or one made of rules, with another `sync`, silent.

    Without what is only looked at where every step is judged before it is taken.
    """
    if isinstance(policy, list):
        policy = gradguard.Policy.model_validate({"rules": policy})
    raw = gradguard.load_policy(policy).model_dump(mode="json") if isinstance(policy, str) else policy.model_dump()
    raw["rules"] = [rule for rule in raw["rules"] if rule["name"] != "drop-variance-spike"]
    return gradguard.Policy.model_validate({**raw, "sinks": [], "monitor": {**raw["monitor"], "sync": sync}, **more})


class Net(nn.Module):
    """Two layers around a BatchNorm, and a layer that only some batches use."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 1))
        self.side = nn.Linear(4, 1)

    def forward(self, inputs: Tensor, has_side: bool = True) -> Tensor:
        return self.body(inputs) + self.side(inputs) if has_side else self.body(inputs)


def batch(seed: int, rows: int = 16) -> Tensor:
    return torch.randn(rows, 4, generator=torch.Generator().manual_seed(seed))


@dataclass
class Run:
    """A training that has ended, its guard closed.

    Args:
        reports: `guard.last` after each step, where it was asked for.
        stopped: the step at which it was stopped.
    """

    model: nn.Module
    optimizer: Optimizer
    guard: gradguard.Guard
    reports: list[Any] = field(default_factory=list)
    stopped: int | None = None

    def state(self, bits: Callable[..., dict[str, Any]]) -> dict[str, Any]:
        """Return every bit of parameters, buffers and optimizer state."""
        return bits(self.model, self.optimizer)

    @property
    def told(self) -> list[tuple[Any, ...]]:
        """What was done and withheld, why, and what happened: as (kind, step, rule, diagnosis, what, reason).

        But for the inputs: a batch is gone when its step is judged late.
        """
        return [
            (
                record.kind,
                record.step,
                getattr(record, "rule", ""),
                getattr(record, "diagnosis", ""),
                getattr(record, "remedy", "") or getattr(record, "event", ""),
                getattr(record, "reason", ""),
            )
            for record in self.guard.records
            if record.kind in ("intervention", "withheld", "event") and getattr(record, "diagnosis", "") != "bad_inputs"
        ]


def train(
    policy: str | gradguard.Policy | list[dict[str, Any]],
    sync: str,
    *,
    optimizer: str = "adamw",
    steps: int = 50,
    losses: Mapping[int, float] | None = None,
    inputs: Mapping[int, float] | None = None,
    left_out: frozenset[int] | set[int] = frozenset(),
    without_side: frozenset[int] | set[int] = frozenset(),
    num_micro_batches: int = 1,
    observe: str | None = "tensor",
    schedule: Callable[[Optimizer], Any] | None = None,
    asks: bool = False,
    closure: bool = False,
    set_to_none: bool = True,
    around: Callable[[Run, int], None] | None = None,
    between: Callable[[Run, int], None] | None = None,
    start: Callable[[Run], None] | None = None,
    faults: Sequence[Fault] = (),
    run_dir: Any = None,
    **more: Any,
) -> Run:
    """Train on fixed batches.

    Args:
        policy: see `policy_of`.
        sync: "immediate" or "deferred".
        optimizer: one of `FUSED`.
        steps: how many.
        losses: {step: factor} on the loss.
        inputs: {step: factor} on the inputs of the last micro-batch.
        left_out: steps that never come.
        without_side: steps at which some parameters get no gradient.
        num_micro_batches: backward passes a step.
        observe: how the loss is handed in: "tensor", "number" or None.
        schedule: makes a scheduler.
        asks: whether `guard.last` is read after each step; the schedule is then held at skipped steps.
        closure: whether the step takes a closure.
        set_to_none: of `zero_grad`.
        around: called after each step.
        between: called between each forward pass and its backward pass.
        start: called before the first step.
        faults: injected.
        run_dir: for the guard.
        more: blocks of the policy.
    """
    torch.manual_seed(0)
    model = Net()
    made = FUSED[optimizer](model.parameters())
    scheduler = schedule(made) if schedule is not None else None
    run = Run(model, made, gradguard.attach(model, made, policy_of(policy, sync, **more), run_dir=run_dir))
    losses, inputs = losses or {}, inputs or {}
    if start is not None:
        start(run)

    def evaluate(step: int) -> Tensor:
        made.zero_grad(set_to_none=set_to_none)
        total = torch.zeros(())
        for part in range(num_micro_batches):
            data = batch(100 * step + part)
            target = data.sum(1, keepdim=True)
            data = data * (inputs.get(step, 1.0) if part == num_micro_batches - 1 else 1.0)
            loss = (model(data, step not in without_side) - target).square().mean() * losses.get(step, 1.0)
            if between is not None:
                between(run, step)
            (loss / num_micro_batches).backward()
            total = total + loss.detach() / num_micro_batches
            if observe is not None and not closure:
                run.guard.observe(loss if observe == "tensor" else float(loss.detach()))
        return total

    with ExitStack() as stack:
        if faults:
            stack.enter_context(inject(model, made, faults))
        for step in sorted({*range(steps)} - {*left_out}):
            try:
                if closure:
                    made.step(lambda step=step: evaluate(step))
                else:
                    evaluate(step)
                    made.step()
            except gradguard.TrainingStopped:
                run.stopped = step
                break
            if asks:
                run.reports.append(run.guard.last)
            if scheduler is not None and not (asks and run.guard.last.skipped):
                scheduler.step()
            if around is not None:
                around(run, step)
    run.guard.close()
    return run


NAN = math.nan
