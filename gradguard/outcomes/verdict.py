"""What is known of the loss before and after an intervention, and the verdict that follows from it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from gradguard.evidence.running import MAD_TO_SIGMA
from gradguard.printable import short
from gradguard.records import Outcome, Verdict


LEAST = 3  # losses from which a level can be told
SMALL = 0.05  # a rise by this share of the loss is none: what a restored state or a changed step costs for a while
ERRORS = 3.0  # standard errors of the difference of two medians that chance explains
WORSE = 4.0  # times the rise that chance explains: from there on the run is worse off
FEW = (
    0.2  # share of the steps: what comes back on no more of them (a short last batch in epochs of five) is passed over
)
FALL = 0.5  # a loss that fell below this share of what it was fell, however noisy it had been
MEDIAN_ERROR = 1.2533  # standard error of a median over that of a mean, sqrt(pi / 2), for a normal distribution
WORDS: dict[Verdict, str] = {"helped": "helped", "no_effect": "no effect", "worse": "worse", "unknown": "not known"}


@dataclass(frozen=True)
class Level:
    """Where the loss was in some steps.

    Args:
        median: of the losses, NaN when there were too few.
        spread: 1.4826 MAD, the standard deviation of one loss about it where losses are normal.
        count: losses.
    """

    median: float = math.nan
    spread: float = 0.0
    count: int = 0

    @classmethod
    def of(cls, losses: Sequence[float]) -> Level:
        """Return the level of some finite losses.

        Example:
            >>> Level.of([1.0, 2.0, 3.0, 4.0, 5.0])
            Level(median=3.0, spread=1.4826, count=5)
            >>> Level.of([1.0]).count
            1
        """
        if len(losses) < LEAST:
            return cls(count=len(losses))
        middle = median(losses)
        return cls(middle, MAD_TO_SIGMA * median([abs(loss - middle) for loss in losses]), len(losses))


def tolerance(before: Level, after_count: int) -> float:
    """Return the rise of the median loss that the usual noise explains.

    It is the largest of the spread of single losses (drift, which the standard error does not know), three standard
    errors of the difference of both medians, and 5 % of the loss.

    Args:
        before: level before the intervention.
        after_count: losses since, >= 1.

    Example:
        >>> tolerance(Level(2.0, 0.1, 50), 50)
        0.1
        >>> round(tolerance(Level(2.0, 0.1, 50), 5), 3)
        0.176
    """
    error = MEDIAN_ERROR * before.spread * math.sqrt(1.0 / max(1, before.count) + 1.0 / max(1, after_count))
    return max(before.spread, ERRORS * error, SMALL * abs(before.median))


def judge(before: Level, after: Level, recurrences: int, horizon: int) -> tuple[Verdict, str]:
    """Return the verdict on an intervention, and one sentence.

    "worse": the loss rose by more than four times what its usual noise explains. "helped": the loss is where it was, or
    lower, and what was found did not come back, or on one step in five at most; or it fell by more than noise although
    it came back. "no_effect": neither. "unknown": there is nothing to tell it by.

    Args:
        before: loss before the intervention.
        after: loss since.
        recurrences: findings of the same diagnosis since.
        horizon: steps since.

    Example:
        >>> judge(Level(1.0, 0.1, 50), Level(0.95, 0.1, 50), 0, 50)
        ('helped', 'it did not come back in 50 steps and the loss is 0.95, as before (1, give or take 0.1)')
        >>> judge(Level(1.0, 0.1, 50), Level(3.0, 0.1, 50), 0, 50)
        ('worse', 'it did not come back in 50 steps and the loss is 3, above what it was (1, give or take 0.1)')
        >>> judge(Level(2050.0, 1300.0, 5), Level(0.61, 0.1, 50), 0, 50)
        ('helped', 'it did not come back in 50 steps and the loss is back from 2,050 to 0.61')
    """
    times = "once" if recurrences == 1 else f"{recurrences} times"
    came_back = f"it {f'came back {times}' if recurrences else 'did not come back'} in {horizon} steps"
    is_rare = recurrences <= FEW * horizon
    if not (math.isfinite(before.median) and math.isfinite(after.median)):
        why = "no loss was observed to compare" if not before.count + after.count else "too few losses to compare"
        return ("unknown", f"{came_back}; {why}") if is_rare else ("no_effect", came_back)
    rise, noise = after.median - before.median, tolerance(before, after.count)
    told = f"{came_back} and the loss is {_moved(before.median, after.median, noise)}"
    if rise > WORSE * noise:
        return "worse", told
    return ("helped" if (is_rare and rise <= noise) or rise < -noise else "no_effect"), told


def _moved(before: float, after: float, noise: float) -> str:
    """Return where the loss is, and where it was."""
    if 0 < after < FALL * before:
        return f"back from {short(before)} to {short(after)}"
    rise = after - before
    way = "as before" if abs(rise) <= noise else "above what it was" if rise > 0 else "below what it was"
    return f"{short(after)}, {way} ({short(before)}, give or take {short(noise)})"


def outcome(
    of: int,
    step: int,
    horizon: int,
    levels: tuple[Level, Level],
    judged: tuple[Verdict, str],
    recurrences: int,
    last_seen: int | None,
) -> Outcome:
    """Return a judgement as a record.

    Args:
        of: `seq` of what is judged.
        step: at which it is judged.
        horizon: steps since.
        levels: the loss before and since.
        judged: verdict and sentence, as `judge` returns them.
        recurrences: findings of the same diagnosis since.
        last_seen: step of the last of these.
    """
    before, after = levels
    is_known = math.isfinite(before.median)
    return Outcome(
        step=step,
        of=of,
        verdict=judged[0],
        recurrences=recurrences,
        last_seen=last_seen,
        loss_before=before.median if is_known else None,
        loss_after=after.median if math.isfinite(after.median) else None,
        loss_noise=tolerance(before, after.count) if is_known else None,
        horizon=horizon,
        reason=judged[1],
    )
