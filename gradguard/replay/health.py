"""Whether a recorded run went well enough for its alarms to be called false ones."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from gradguard.audit.headline import ended_high
from gradguard.audit.read import Run
from gradguard.audit.summary import summarise
from gradguard.record.statistics import Flag
from gradguard.records import Intervention


ENDINGS = {"stopped": "its policy stopped it", "failed": "it ended with an error"}
SET_BACK = ("rollback", "restart", "reinitialize")  # the state was lost: not for a false alarm either
MAX_STEPS = 3  # that are named


def ailments(run: Run) -> list[str]:
    """Return what shows that a run did not go well, in words; nothing for a healthy one.

    A rule that acted is no such sign by itself: it may have cried wolf.

    Args:
        run: whose statistics and journal are looked at.
    """
    told = [ENDINGS[run.status]] if run.status in ENDINGS else []
    columns = run.statistics
    is_bad = ~np.isfinite(columns["global_norm"]) & ((columns["flags"] & Flag.SKIPPED_BY_SCALER) == 0)
    is_bad |= np.isinf(columns["loss"])
    found = {finding.step for finding in run.findings if finding.diagnosis == "nonfinite"}
    if broken := found.union(columns["step"][is_bad].tolist()):
        told.append(f"NaN or Inf (nonfinite) {at_steps(broken)}")
    done = [record for record in run.records if isinstance(record, Intervention)]
    for remedy in SET_BACK:
        if steps := {record.step for record in done if record.remedy == remedy}:
            causes = ", ".join(dict.fromkeys(record.diagnosis for record in done if record.remedy == remedy))
            told.append(f"{remedy} against {causes} {at_steps(steps)}")
    if ended_high(summarise(run)):
        told.append("the loss ended above its start")
    return told


def at_steps(steps: Iterable[int]) -> str:
    """Return steps in words, the first few by number.

    Example:
        >>> at_steps([7]), at_steps({26, 283, 9, 300, 301})
        ('at step 7', 'at steps 9, 26, 283 and 2 more')
    """
    ordered = sorted(steps)
    named = ", ".join(f"{step:,}" for step in ordered[:MAX_STEPS])
    more = f" and {len(ordered) - MAX_STEPS:,} more" if len(ordered) > MAX_STEPS else ""
    return f"at step{'s' if len(ordered) > 1 else ''} {named}{more}"
