"""What a drill came to, as data: the runs, what the guard saw and did in them, and the verdict on each fault."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal


LOST_FROM = 0.08  # a run this much above the clean one is lost: what is made good costs 4 % at most, what is not 14 %

Verdict = Literal["recovered", "stopped", "harmless", "not recovered", "not found", "made worse"]
PASSED: tuple[Verdict, ...] = ("recovered", "stopped", "harmless")


@dataclass(frozen=True)
class Run:
    """One training.

    Args:
        held_out: mean loss on held-out data at the end; NaN when the weights are.
        fingerprint: hash of all that the next step would depend on.
        num_steps: steps that were taken.
        stopped: why the guard ended it early, or "".
        failed: what a plugin of the policy raised and ended it with, or "".
        recorded_in: the guard's run directory; None without a guard.
    """

    held_out: float
    fingerprint: str = ""
    num_steps: int = 0
    stopped: str = ""
    failed: str = ""
    recorded_in: Path | None = None

    @property
    def is_cut_short(self) -> bool:
        """Whether it ended before its last step."""
        return bool(self.stopped or self.failed)

    def excess(self, clean: Run) -> float:
        """Return (loss - clean loss) / clean loss on held-out data.

        Example:
            >>> Run(held_out=1.5).excess(Run(held_out=1.0))
            0.5
        """
        return (self.held_out - clean.held_out) / clean.held_out

    def is_lost(self, clean: Run) -> bool:
        """Return whether the loss is not finite, or more than `LOST_FROM` above the clean run's."""
        excess = self.excess(clean)
        return not (math.isfinite(excess) and excess <= LOST_FROM)


@dataclass(frozen=True)
class Seen:
    """What a guard's record tells from the step of the fault on.

    Args:
        found: diagnosis of the first finding that a rule could act on, "" for none.
        found_at: its step; None for none.
        done: remedies that acted and how often, the main ones first; notices are left out.
        instead: why nothing was done, or what would have been, or "".
        own_faults: what failed in the guard or a plugin.
    """

    found: str = ""
    found_at: int | None = None
    done: tuple[tuple[str, int], ...] = ()
    instead: str = ""
    own_faults: tuple[str, ...] = ()


@dataclass(frozen=True)
class Struck:
    """One kind of fault, without and with the guard.

    Args:
        kind: its name.
        title: it in a few words.
        at: step at which it strikes first.
        without: the run without a guard.
        guarded: the run with it.
        seen: what the guard saw and did.
        verdict: what it came to.
    """

    kind: str
    title: str
    at: int
    without: Run
    guarded: Run
    seen: Seen
    verdict: Verdict

    @property
    def is_passed(self) -> bool:
        """Whether the policy did what one may ask of it."""
        return self.verdict in PASSED

    @property
    def late(self) -> int | None:
        """Steps from the fault to its finding; None when it was not found."""
        return None if self.seen.found_at is None else self.seen.found_at - self.at


def judge(clean: Run, without: Run, guarded: Run, seen: Seen) -> Verdict:
    """Return what a fault came to.

    Example:
        >>> clean, lost = Run(held_out=1.0), Run(held_out=math.nan)
        >>> judge(clean, lost, Run(held_out=1.01), Seen("nonfinite", 100))
        'recovered'
        >>> judge(clean, lost, lost, Seen())
        'not found'
    """
    if guarded.stopped:
        return "stopped"
    is_harmful = without.is_lost(clean)
    if guarded.failed or guarded.is_lost(clean):
        if not is_harmful:
            return "made worse"
        return "not recovered" if seen.found or guarded.failed else "not found"
    return "recovered" if is_harmful else "harmless"


@dataclass(frozen=True)
class Healthy:
    """The run without a fault, without and with the guard.

    Args:
        clean: without.
        guarded: with.
        actions: what the guard did in it, one each: "rule at step 33: skip_step".
        routine: the rules that act at every step.
    """

    clean: Run
    guarded: Run
    actions: tuple[str, ...] = ()
    routine: tuple[str, ...] = ()

    @property
    def is_untouched(self) -> bool:
        """Whether the guard left it alone, bit for bit."""
        return self.guarded.fingerprint == self.clean.fingerprint

    @property
    def is_passed(self) -> bool:
        """Whether it was left alone, or changed by rules for every step alone and without harm."""
        if self.guarded.is_cut_short or self.actions:
            return False
        return self.is_untouched or (bool(self.routine) and not self.guarded.is_lost(self.clean))


@dataclass(frozen=True)
class Drill:
    """A whole drill.

    Args:
        healthy: the run without a fault.
        struck: one for each kind of fault.
        num_steps: of each run.
        seed: of all of them.
        mode: "enforce" or "observe".
        notes: what to know about the policy in this drill.
    """

    healthy: Healthy
    struck: tuple[Struck, ...]
    num_steps: int
    seed: int
    mode: str = "enforce"
    notes: tuple[str, ...] = field(default=())

    @property
    def is_passed(self) -> bool:
        """Whether the healthy run was left alone and no fault did lasting harm unnoticed."""
        return self.healthy.is_passed and all(struck.is_passed for struck in self.struck)

    def having(self, *verdicts: Verdict) -> list[Struck]:
        """Return the faults with one of these verdicts."""
        return [struck for struck in self.struck if struck.verdict in verdicts]
