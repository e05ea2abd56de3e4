"""Trains a set-up once, with or without a guard, exactly as a user would."""

from __future__ import annotations

import hashlib
import math
import time
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing, nullcontext
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor
from torch.optim import Optimizer

import gradguard
from benchmarks.zoo.jury import Jury
from benchmarks.zoo.recorder import Recorder
from benchmarks.zoo.setup import Setup, Training
from gradguard.faults import inject
from gradguard.policy.schema import Policy
from gradguard.records import Finding, Intervention


class Observer(Protocol):
    """Something that stands beside a turn and is handed its losses."""

    def observe(self, loss: Tensor) -> None:
        """Take a loss of the step that follows."""


class Hand(Observer, Protocol):
    """What a person puts into a training loop instead of a guard.

    Attributes:
        wasted: steps that it did not let happen.
    """

    wasted: int

    def close(self) -> None:
        """Take out what was put in."""


@dataclass(frozen=True)
class Act:
    """One intervention of a guard.

    Args:
        turn: whose guard it was, by place.
        step: of its optimizer.
        remedy: its name.
    """

    turn: int
    step: int
    remedy: str


@dataclass
class Trained:
    """What one run came to.

    Args:
        score: at the end, higher is better; minus infinity for a broken model.
        digest: of every bit of the model, the optimizers' state and torch's random generator.
        losses: of every step, the mean over its turns.
        findings: of the guards, in order.
        acts: what the guards carried out, in order.
        wasted: steps that were skipped, or taken and then rolled back.
        withheld: how often an action was withheld, by "remedy: reason".
        stopped: why the guard ended the run early, or "".
        seconds: wall time of the training loop.
    """

    score: float = -math.inf
    digest: str = ""
    losses: list[float] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    acts: list[Act] = field(default_factory=list)
    wasted: int = 0
    withheld: Counter[str] = field(default_factory=Counter)
    stopped: str = ""
    seconds: float = 0.0

    @property
    def interventions(self) -> Counter[str]:
        """How often each remedy was carried out."""
        return Counter(act.remedy for act in self.acts)


def train(
    setup: Setup,
    seed: int,
    policy: str | Policy | Sequence[Policy] | None = None,
    jury: Jury | None = None,
    hand: Callable[[Optimizer], Hand] | None = None,
) -> Trained:
    """Train once.

    Args:
        setup: what to train.
        seed: of its weights, its data and the places that faults strike.
        policy: of the guard, or of the guard of each turn; None trains without one.
        jury: of rule sets that follow the run; None without them.
        hand: what is put into the loop of every turn; None for nothing.
    """
    training = setup.make(seed)
    trained = Trained()
    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")  # schedulers wonder about steps that were skipped
        faults = inject(training.model, training.turns[0].optimizer, setup.faults, seed=seed)
        stack.enter_context(faults if setup.faults else nullcontext())
        policies = (
            policy if isinstance(policy, Sequence) and not isinstance(policy, str) else [policy] * len(training.turns)
        )
        guards = [
            None if own is None else stack.enter_context(gradguard.attach(training.model, turn.optimizer, own))
            for turn, own in zip(training.turns, policies, strict=True)
        ]
        recorders = [
            None
            if jury is None
            else Recorder(
                training.model, turn.optimizer, jury.seat(), training.accuracies, is_alone=len(training.turns) == 1
            )
            for turn in training.turns
        ]
        for recorder in recorders:
            if recorder is not None:
                stack.callback(recorder.close)
        hands = [
            None if hand is None else stack.enter_context(closing(hand(turn.optimizer))) for turn in training.turns
        ]
        beside = [tuple(o for o in own if o is not None) for own in zip(guards, recorders, hands, strict=True)]
        started = time.perf_counter()
        try:
            for step in range(setup.steps):
                if setup.poison is not None:
                    setup.poison(training.model, step)
                trained.losses.append(_step(training, guards, beside, step, trained))
        except gradguard.TrainingStopped as error:
            trained.stopped = str(error)
        trained.seconds = time.perf_counter() - started
        trained.wasted += sum(own.wasted for own in hands if own is not None)
    trained.digest = _digest(training)
    score = training.evaluate()
    trained.score = score if math.isfinite(score) else -math.inf
    return trained


def _step(
    training: Training,
    guards: Sequence[gradguard.Guard | None],
    beside: Sequence[Sequence[Observer]],
    step: int,
    trained: Trained,
) -> float:
    losses: list[Tensor] = []
    for place, (turn, guard, observers) in enumerate(zip(training.turns, guards, beside, strict=True)):

        def observe(loss: Tensor, observers: Sequence[Observer] = observers) -> None:
            losses.append(loss.detach())
            for observer in observers:
                observer.observe(loss)

        try:
            turn.run(step, observe)
        finally:
            if guard is not None:
                _note(guard, place, trained)
    return sum(loss.item() for loss in losses) / len(losses) if losses else math.nan


def _note(guard: gradguard.Guard, turn: int, trained: Trained) -> None:
    """Write down what a guard said and did at the step that was just taken."""
    last = guard.last
    trained.findings += last.findings
    trained.acts += [Act(turn, record.step, record.remedy) for record in last.interventions]
    trained.withheld.update(f"{record.remedy}: {record.reason}" for record in last.withheld)
    trained.wasted += last.skipped + sum(_lost(record) for record in last.interventions)


def _lost(record: Intervention) -> int:
    """Return how many steps an intervention undid."""
    lost = record.change.after.get("steps_lost", 0)
    return int(lost) if isinstance(lost, (int, float)) else 0


def _digest(training: Training) -> str:
    digest = hashlib.sha256()

    def add(value: object) -> None:
        if isinstance(value, Tensor):
            digest.update(
                value.detach().contiguous().view(torch.uint8).numpy().tobytes()
                if value.ndim
                else repr(value.item()).encode()
            )
        elif isinstance(value, dict):
            for key in value:
                digest.update(str(key).encode())
                add(value[key])
        elif isinstance(value, (list, tuple)):
            for entry in value:
                add(entry)
        else:
            digest.update(repr(value).encode())

    add(training.model.state_dict())
    for turn in training.turns:
        add(turn.optimizer.state_dict()["state"])
    add(torch.get_rng_state())
    return digest.hexdigest()
