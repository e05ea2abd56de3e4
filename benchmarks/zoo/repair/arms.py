"""Who tends a run: nobody, a person's few lines, lots, or the guard."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch.optim import Optimizer

from benchmarks.zoo.repair.hands import Clip, ClipSkipPlateau
from benchmarks.zoo.repair.lottery import lottery
from benchmarks.zoo.setup import Setup
from benchmarks.zoo.train import Act, Hand, Trained, train
from gradguard.policy.load import preset_names


HANDS: dict[str, Callable[[Optimizer], Hand] | None] = {"nothing": None, "clip": Clip, "plateau": ClipSkipPlateau}
LOTTERY = "random"
OPERATING = "repair"  # the preset that may change the model


def arms(policy: str) -> tuple[str, ...]:
    """Return the names of all arms, without the preset `repair` while there is none.

    Args:
        policy: of the guard that is tried: a preset or a file.
    """
    operating = [OPERATING] if OPERATING in preset_names() and policy != OPERATING else []
    return (*HANDS, LOTTERY, policy, *operating)


def tend(setup: Setup, seed: int, arm: str, acts: Sequence[Act], num_turns: int) -> Trained:
    """Train a set-up with one arm.

    Args:
        setup: what to train.
        seed: of the run, and of the lots.
        arm: one of `arms`.
        acts: of the guard that is tried, for the lots.
        num_turns: of the training.
    """
    if arm in HANDS:
        return train(setup, seed, hand=HANDS[arm])
    if arm == LOTTERY:
        return train(setup, seed, lottery(acts, num_turns, f"{setup.id} {seed}"))
    return train(setup, seed, arm)
