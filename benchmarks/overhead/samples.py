"""Times of contenders that took turns, and what follows from them. Plain arithmetic: no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt


NUM_RESAMPLES = 400
PLAIN, NOTED, PROBE, SNAPSHOT = "plain", "noted", "probe", "snapshot"

Floats = npt.NDArray[np.float64]


@dataclass
class Samples:
    """Seconds of one contender, one entry a round.

    Args:
        backward: zero_grad, forward and backward.
        step: what the contender does, and the optimizer's step.
        kinds: what else a guard did in that step: nothing ("plain"), not even all of its own work, which it puts off to
            a plain one ("noted"), a "probe", a "snapshot", or both ("").
    """

    backward: list[float] = field(default_factory=list)
    step: list[float] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Periodic:
    """How often a guard does what it does now and then.

    Args:
        probe_every: steps between probes.
        snapshot_every: steps between snapshots; None when the policy takes none.
    """

    probe_every: int
    snapshot_every: int | None


@dataclass(frozen=True)
class Timing:
    """One contender in one cell; times are microseconds, intervals 95 %.

    Args:
        step: median of a step at which nothing else is due; where some of the work is put off, the mean of the medians
            of both kinds of step, weighted by how often they come.
        overhead: that less the bare step's; backward and step together where the contender works in the backward.
        overhead_interval: of the overhead.
        ratio: overhead divided by that of the `clip_grad_norm_` it stands against; None where that is not above zero.
        ratio_interval: of the ratio; None where the anchor's overhead is not surely above zero.
        median_ratio: as `ratio`, of the plain medians of all steps at which nothing else is due, some of whose work
            may be put off; None likewise.
        step_ratio: step divided by the step of the `clip_grad_norm_` that it stands against.
        mean_overhead: mean of all rounds, probes and snapshots as they came, less the bare mean.
        amortised: overhead with probes and snapshots spread over the steps between them; None where none was seen.
        probe: what a probe takes, in all of the steps that it needs and their forward passes; None where none was seen.
        snapshot: what a step with a snapshot takes longer; None where none was seen.
        backward: median of zero_grad, forward and backward.
    """

    step: float
    overhead: float
    overhead_interval: tuple[float, float]
    ratio: float | None
    ratio_interval: tuple[float, float] | None
    median_ratio: float | None
    step_ratio: float
    mean_overhead: float
    amortised: float | None
    probe: float | None
    snapshot: float | None
    backward: float


def compare(
    samples: Mapping[str, Samples],
    against: Mapping[str, str],
    in_backward: Sequence[str] = (),
    periodic: Mapping[str, Periodic] | None = None,
) -> dict[str, Timing]:
    """Return the timing of every contender.

    Args:
        samples: by contender, of one length; "bare" is among them.
        against: the contender that each is divided by.
        in_backward: whose backward counts.
        periodic: of the guards.

    Example:
        >>> rounds = {"bare": [1e-4] * 9, "clip": [3e-4] * 9, "guard": [2e-4] * 9}
        >>> samples = {name: Samples([1e-3] * 9, step, ["plain"] * 9) for name, step in rounds.items()}
        >>> guard = compare(samples, {"bare": "clip", "clip": "clip", "guard": "clip"})["guard"]
        >>> round(guard.overhead), round(guard.ratio, 3), round(guard.step_ratio, 3)
        (100, 0.5, 0.667)
    """
    own = {name: _Own(each) for name, each in samples.items()}
    plain = np.all([np.isin(each.kinds, (PLAIN, NOTED)) for each in own.values()], axis=0)
    rounds = np.flatnonzero(plain if plain.any() else ~plain)
    drawn = np.random.default_rng(0).choice(rounds, (NUM_RESAMPLES, len(rounds)))
    rows = np.vstack([rounds, drawn])  # the first row is what was measured

    def overheads(name: str) -> Floats:
        is_whole = name in in_backward
        return own[name].center(is_whole, rows) - own["bare"].center(is_whole, rows)

    def timing(name: str) -> Timing:
        is_whole = name in in_backward
        overhead, anchor = overheads(name), overheads(against[name])
        is_seen, is_sure = anchor[0] > 0, bool(np.all(anchor > 0))
        step, other = (float(own[each].center(False, rows[:1])[0]) for each in (name, against[name]))
        due = (periodic or {}).get(name)
        medians = [own[each].median(name in in_backward, rounds) for each in (name, "bare")]
        anchors = [own[each].median(against[name] in in_backward, rounds) for each in (against[name], "bare")]
        probe = own[name].of_a_probe(step, due.probe_every) if due is not None else None
        snapshot = own[name].extra(SNAPSHOT, step)
        return Timing(
            step=step,
            overhead=float(overhead[0]),
            overhead_interval=_interval(overhead[1:]),
            ratio=float(overhead[0] / anchor[0]) if is_seen else None,
            ratio_interval=_interval(overhead[1:] / anchor[1:]) if is_sure else None,
            median_ratio=(medians[0] - medians[1]) / (anchors[0] - anchors[1]) if anchors[0] > anchors[1] else None,
            step_ratio=step / other,
            mean_overhead=float(np.mean(own[name].times(is_whole) - own["bare"].times(is_whole))),
            amortised=_amortised(float(overhead[0]), probe, snapshot, due),
            probe=probe,
            snapshot=snapshot,
            backward=float(np.median(own[name].backward)),
        )

    return {name: timing(name) for name in samples}


class _Own:
    """The samples of one contender as arrays of microseconds."""

    def __init__(self, samples: Samples) -> None:
        self.backward = 1e6 * np.array(samples.backward, dtype=np.float64)
        self.step = 1e6 * np.array(samples.step, dtype=np.float64)
        self.kinds = np.array(samples.kinds)

    def times(self, is_whole: bool) -> Floats:
        return self.backward + self.step if is_whole else self.step

    def median(self, is_whole: bool, rounds: npt.NDArray[np.int64]) -> float:
        """Return the median time of these rounds."""
        return float(np.median(self.times(is_whole)[rounds]))

    def center(self, is_whole: bool, rows: npt.NDArray[np.int64]) -> Floats:
        """Return the median time of each row of rounds: of each kind of step, weighted by its share of the first."""
        times, total = self.times(is_whole), np.zeros(len(rows))
        for kind in np.unique(self.kinds[rows[0]]):
            is_kind = self.kinds == kind
            share = float(np.mean(is_kind[rows[0]]))
            drawn = np.where(is_kind, times, np.nan)[rows]
            drawn[~is_kind[rows].any(axis=1), 0] = np.median(times[rows[0]][is_kind[rows[0]]])  # a draw without any
            total += share * np.nanmedian(drawn, axis=1)
        return total

    def of_a_probe(self, plain: float, probe_every: int) -> float | None:
        """Return what one probe takes beside plain steps, forward passes included; None when there was none."""
        is_probed = self.kinds == PROBE
        if not is_probed.any():
            return None
        others = self.backward[~is_probed] if not is_probed.all() else self.backward
        extra = self.times(True)[is_probed] - (plain + float(np.median(others)))
        return float(extra.sum()) / max(1.0, len(self.kinds) / probe_every)

    def extra(self, kind: str, plain: float) -> float | None:
        """Return what a step of this kind takes longer than a plain one; None when there was none."""
        found = self.step[self.kinds == kind]
        return float(np.median(found)) - plain if found.size else None


def _interval(values: Floats) -> tuple[float, float]:
    low, high = np.quantile(values, (0.025, 0.975))
    return float(low), float(high)


def _amortised(overhead: float, probe: float | None, snapshot: float | None, periodic: Periodic | None) -> float | None:
    if periodic is None:
        return overhead
    if probe is None or (snapshot is None and periodic.snapshot_every is not None):
        return None
    total = overhead + probe / periodic.probe_every
    return total + snapshot / periodic.snapshot_every if snapshot is not None and periodic.snapshot_every else total
