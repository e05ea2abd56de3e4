"""Was the run cured? Judged by how it ended, not by a share of what helped on the way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from gradguard.audit.columns import Columns
from gradguard.audit.responses import ENDS, Response
from gradguard.audit.spoken import spoken
from gradguard.printable import short
from gradguard.record.statistics import Flag
from gradguard.records import Frozen


Kind = Literal["empty", "untouched", "cured", "so_far", "partly", "not_cured", "stopped", "unknown"]
STRETCH = 50  # steps at the end that tell how a run ended
FEW_LOST = 0.1  # share of them that may be lost in a run that goes on


class Ending(Frozen):
    """How a run ended.

    Args:
        kind: "empty" (no step), "untouched" (the guard changed nothing, and nothing is lost), "cured", "so_far" (what
            could be judged helped, the last of it could not), "partly" (some of what was found), "not_cured", "stopped"
            (by the policy), "unknown" (nothing could be judged).
        reason: the rest of a sentence, such as "113 of 500 steps were thrown away, and the last 9 losses are NaN".
        num_bad: steps in a row at the very end whose loss is NaN or infinite.
        bad: the last loss, "NaN", "Inf" or "-Inf"; "" when it is finite.
    """

    kind: Kind
    reason: str = ""
    num_bad: int = 0
    bad: str = ""


def ending(statistics: Columns, events: Sequence[Response], status: str) -> Ending:
    """Return how a run ended.

    Args:
        statistics: its steps.
        events: what the guard did.
        status: see `Run.status`.
    """
    flags, loss = statistics["flags"], statistics["loss"]
    acts = [event for event in events if event.acts]
    stops = [event for event in acts if ENDS in event.remedies]
    num_bad = bad_at_end(flags, loss)
    bad = short(float(loss[-1])) if num_bad else ""
    losses = f"the last {num_bad:,} losses are {bad}" if num_bad > 1 else f"the last loss is {bad}"
    lost = (flags & Flag.SKIPPED_BY_GUARD) != 0
    thrown = f"{np.count_nonzero(lost):,} of {len(lost):,} steps were thrown away"
    num_late = int(np.count_nonzero(lost[-STRETCH:]))
    if status == "stopped" and stops:
        after = f", and {losses}" if num_bad else ""
        what = f"the policy stopped it at step {stops[-1].step:,} because of {spoken(stops[-1].diagnosis)}"
        return Ending(kind="stopped", reason=what + after, num_bad=num_bad, bad=bad)
    late = f", {num_late:,} of the last {len(lost[-STRETCH:]):,} among them" if num_late and len(lost) > STRETCH else ""
    if num_bad:
        reason = f"{thrown}{late}, and {losses}" if lost.any() else losses
        return Ending(kind="not_cured", reason=reason, num_bad=num_bad, bad=bad)
    if num_late > FEW_LOST * STRETCH:
        return Ending(kind="not_cured", reason=thrown + late)
    if not acts:
        return Ending(kind="untouched" if len(lost) else "empty")
    return by_outcomes(acts)


def bad_at_end(flags: npt.NDArray[np.uint8], loss: npt.NDArray[np.float64]) -> int:
    """Return how many steps in a row at the end had a loss that is not finite; what was not observed is none."""
    noticed = (flags & (Flag.FINDING | Flag.SKIPPED_BY_GUARD)) != 0
    is_bad = ~np.isfinite(loss) & (noticed | np.isinf(loss)) & np.isfinite(loss).any()
    good = np.flatnonzero(~is_bad)
    return len(loss) - (int(good[-1]) + 1 if len(good) else 0)


def by_outcomes(acts: Sequence[Response]) -> Ending:
    """Return what the last judgements say of everything that was found."""
    last: dict[str, Response] = {}
    for event in acts:
        if event.verdict not in (None, "unknown"):
            last[event.diagnosis] = event
    if not last:
        return Ending(kind="unknown", reason=why_unknown(acts))
    found = list(dict.fromkeys(event.diagnosis for event in acts))
    cured = [name for name in found if name in last and last[name].verdict == "helped"]
    open_ones = [event for event in acts if event.verdict in (None, "unknown") and _is_last_word(event, last)]
    unsure = {event.diagnosis for event in open_ones}
    failed = [name for name in last if last[name].verdict != "helped" and name not in unsure]
    if failed:
        words = {"no_effect": "had no effect", "worse": "made it worse"}
        verdicts = dict.fromkeys(words[str(last[name].verdict)] for name in failed)
        reason = f"what was done against {_all(failed)} {' or '.join(verdicts)}"
        if not cured:
            return Ending(kind="not_cured", reason=reason)
        return Ending(kind="partly", reason=f"{_all(cured)} passed, but {reason}")
    if open_ones:
        what = f"{spoken(open_ones[-1].diagnosis)} at step {open_ones[-1].step:,}"
        return Ending(kind="so_far", reason=f"all but the last ({what}): {why_unknown(open_ones)}")
    quiet = f"nothing came back after step {acts[-1].step:,}"
    num_helped = sum(event.verdict == "helped" for event in acts)
    if num_helped == len(acts) > 1:
        quiet = f"it helped {'both' if len(acts) == 2 else f'all {len(acts):,}'} times, and {quiet}"
    return Ending(kind="cured", reason=quiet)


def _is_last_word(event: Response, last: Mapping[str, Response]) -> bool:
    """Return whether nothing later was judged about the same."""
    return event.diagnosis not in last or last[event.diagnosis].step < event.step


def why_unknown(events: Sequence[Response]) -> str:
    """Return why events have no verdict."""
    outcomes = [event.outcome for event in events if event.outcome is not None]
    if not outcomes:
        return "it is not judged yet"
    if any("ended" in outcome.reason for outcome in outcomes):
        return "the run ended too soon after it"
    if all(outcome.loss_before is None and outcome.loss_after is None for outcome in outcomes):
        return "no loss was handed over to compare"
    return "there were too few losses before it" if outcomes[-1].loss_before is None else "too few losses came after it"


def _all(names: Sequence[str]) -> str:
    return " and ".join(spoken(name) for name in names)
