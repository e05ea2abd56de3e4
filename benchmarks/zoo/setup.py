"""What a set-up of the zoo is: data that says how to build and judge one small training run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor, nn
from torch.optim import Optimizer

from gradguard.faults import Fault


Group = Literal["healthy", "transient", "failing"]
Repair = Literal["loop", "surgery", "advice"]
Observe = Callable[[Tensor], None]


@dataclass(frozen=True)
class Turn:
    """One optimizer's part in a step; a GAN has two.

    Args:
        optimizer: what the guard is attached to.
        run: called with (step, observe): a user's loop body, from zero_grad to the scheduler, which hands its loss to
            `observe` just before `optimizer.step()`.
    """

    optimizer: Optimizer
    run: Callable[[int, Observe], None]


@dataclass(frozen=True)
class Opening:
    """What the first step of a training works on, taken from a copy of its stream of batches.

    Args:
        model: the part of it that the first optimizer trains.
        batch: (inputs, targets).
        loss: function of (output, targets).
    """

    model: nn.Module
    batch: tuple[Any, Any]
    loss: Callable[[Any, Any], Tensor]


@dataclass(frozen=True)
class Training:
    """A training run that is ready to begin.

    Args:
        model: all of its parameters and buffers make up the result.
        turns: what happens in every step, in order.
        evaluate: returns the score of the model as it is, higher is better; NaN or infinite when the model is broken.
        opening: what a pre-flight of it is called with; None where the batch and the loss are not apart.
        accuracies: of a classifier, returns its accuracy on training and on held-out samples, without drawing random
            numbers; else None.
    """

    model: nn.Module
    turns: Sequence[Turn]
    evaluate: Callable[[], float]
    opening: Opening | None = None
    accuracies: Callable[[], tuple[float, float]] | None = None


Make = Callable[[int], Training]  # from a seed; the same seed gives the same run, bit for bit


@dataclass(frozen=True)
class Setup:
    """One inhabitant of the zoo.

    Args:
        id: short and unique, "H01".
        title: what it is, in a few words.
        group: what is expected of the guard.
        make: builds the run.
        steps: of the run.
        repair: of a failing one, where the cure lies: in the training loop, in surgery on the model, or with the user.
        expected: of a failing one, the diagnoses that name its trouble; any of them is right.
        onset: step at which the trouble begins.
        reference: of a failing one, the run as a person would have fixed it.
        faults: of a transient one, what strikes.
        poison: of a transient one, called with (model, step) before every step.
        clean: of a transient one, the id of the healthy set-up that is struck.
        held_out: whether it is kept for the last test: no threshold may be chosen by it.
    """

    id: str
    title: str
    group: Group
    make: Make
    steps: int = 300
    repair: Repair | None = None
    expected: tuple[str, ...] = ()
    onset: int = 0
    reference: Make | None = None
    faults: tuple[Fault, ...] = ()
    poison: Callable[[nn.Module, int], None] | None = None
    clean: str | None = None
    held_out: bool = False
