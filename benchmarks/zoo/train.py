"""Trains a set-up once, with or without a guard, exactly as a user would."""

from __future__ import annotations

import hashlib
import math
import time
import warnings
from collections import Counter
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field

import torch
from torch import Tensor

import gradguard
from benchmarks.zoo.jury import Jury
from benchmarks.zoo.recorder import Recorder
from benchmarks.zoo.setup import Setup, Training
from gradguard.faults import inject
from gradguard.policy.schema import Policy
from gradguard.records import Finding


@dataclass
class Trained:
    """What one run came to.

    Args:
        score: at the end, higher is better; minus infinity for a broken model.
        digest: of every bit of the model, the optimizers' state and torch's random generator.
        losses: of every step, the mean over its turns.
        findings: of the guards, in order.
        interventions: how often each remedy was carried out.
        withheld: how often an action was withheld, by "remedy: reason".
        stopped: why the guard ended the run early, or "".
        seconds: wall time of the training loop.
    """

    score: float = -math.inf
    digest: str = ""
    losses: list[float] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    interventions: Counter[str] = field(default_factory=Counter)
    withheld: Counter[str] = field(default_factory=Counter)
    stopped: str = ""
    seconds: float = 0.0


def train(setup: Setup, seed: int, policy: str | Policy | None = None, jury: Jury | None = None) -> Trained:
    """Train once.

    Args:
        setup: what to train.
        seed: of its weights, its data and the places that faults strike.
        policy: of the guard; None trains without one.
        jury: of rule sets that follow the run; None without them.
    """
    training = setup.make(seed)
    trained = Trained()
    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")  # schedulers wonder about steps that were skipped
        faults = inject(training.model, training.turns[0].optimizer, setup.faults, seed=seed)
        stack.enter_context(faults if setup.faults else nullcontext())
        guards = [
            None if policy is None else stack.enter_context(gradguard.attach(training.model, turn.optimizer, policy))
            for turn in training.turns
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
        started = time.perf_counter()
        try:
            for step in range(setup.steps):
                if setup.poison is not None:
                    setup.poison(training.model, step)
                trained.losses.append(_step(training, guards, recorders, step, trained))
        except gradguard.TrainingStopped as error:
            trained.stopped = str(error)
        trained.seconds = time.perf_counter() - started
    trained.digest = _digest(training)
    score = training.evaluate()
    trained.score = score if math.isfinite(score) else -math.inf
    return trained


def _step(
    training: Training,
    guards: list[gradguard.Guard | None],
    recorders: list[Recorder | None],
    step: int,
    trained: Trained,
) -> float:
    losses: list[Tensor] = []
    for turn, guard, recorder in zip(training.turns, guards, recorders, strict=True):

        def observe(loss: Tensor, observers: tuple[gradguard.Guard | Recorder | None, ...] = (guard, recorder)) -> None:
            losses.append(loss.detach())
            for observer in observers:
                if observer is not None:
                    observer.observe(loss)

        try:
            turn.run(step, observe)
        finally:
            if guard is not None:
                last = guard.last
                trained.findings += last.findings
                trained.interventions.update(record.remedy for record in last.interventions)
                trained.withheld.update(f"{record.remedy}: {record.reason}" for record in last.withheld)
    return sum(loss.item() for loss in losses) / len(losses) if losses else math.nan


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
