"""How a run stands, in one line: what a person wants to know before anything else."""

from __future__ import annotations

from gradguard.audit.ending import FEW_LOST, STRETCH, bad_at_end
from gradguard.audit.responses import TELLS
from gradguard.audit.spoken import spoken
from gradguard.outcomes.main_remedy import main_first
from gradguard.printable import short
from gradguard.record.statistics import Flag
from gradguard.watch.entries import Entry
from gradguard.watch.watcher import View


GOOD, OPEN, BAD = "green", "yellow", "red"
VERDICTS = {"helped": ("helped", GOOD), "no_effect": ("had no effect", BAD), "worse": ("made it worse", BAD)}


def verdict(view: View) -> tuple[str, str]:
    """Return one sentence on how a run stands, and the colour that goes with it."""
    rows = view.scalars
    if not len(rows):
        return ("no step was taken", OPEN) if view.is_over else ("no step yet", "")
    num_bad = bad_at_end(rows["flags"], rows["loss"])
    stopped = "stopped by the policy: " if view.status == "stopped" else ""
    if num_bad:
        last = short(float(rows["loss"][-1]))
        what = f"the last {num_bad:,} losses are {last}" if num_bad > 1 else f"the last loss is {last}"
        return stopped + what, BAD
    late = rows["flags"][-STRETCH:]
    num_lost = int(((late & Flag.SKIPPED_BY_GUARD) != 0).sum())
    if num_lost > FEW_LOST * STRETCH:
        return f"{stopped}{num_lost:,} of the last {len(late):,} steps were thrown away", BAD
    found = [entry for entry in view.entries if entry.is_alarm]
    if not found:
        watched = "" if _has_loss(view) else "; no loss was handed over, only the gradients are watched"
        return f"no alarm so far{watched}" if not view.is_over else f"no alarm{watched}", "" if watched else GOOD
    return _since(found)


def _since(found: list[Entry]) -> tuple[str, str]:
    """Return what became of what happened last."""
    last = found[-1]
    same = [entry for entry in found if (entry.last_step, entry.diagnosis) == (last.last_step, last.diagnosis)]
    remedies = [name for name in main_first(entry.remedy for entry in same if entry.is_done) if name != TELLS]
    what = f"{spoken(last.diagnosis)} at step {last.last_step:,}"
    if not remedies:
        is_told = any(entry.is_done for entry in same)
        return f"the last: {what}, {'a warning: nothing was changed' if is_told else 'nothing was done'}", OPEN
    judged = next((entry.last_verdict for entry in same if entry.remedy == remedies[0]), "")
    if judged in VERDICTS:
        words, style = VERDICTS[judged]
        return f"the last: {what}, {remedies[0]} {words}", style
    return f"the last: {what}, {remedies[0]}; not known yet whether it helped", OPEN


def _has_loss(view: View) -> bool:
    return bool((view.scalars["loss"] == view.scalars["loss"]).any())
