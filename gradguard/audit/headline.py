"""The first words of an audit: was the run healthy or cured, what happened, what is still changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradguard.audit.lasting import FOR_GOOD
from gradguard.audit.responses import TELLS
from gradguard.audit.spoken import counted, spoken, times
from gradguard.printable import short


if TYPE_CHECKING:
    from gradguard.audit.summary import Summary

JUDGED_LOSSES = 50  # observed losses from which a loss that ended high is worth a word
ABSURD = 1000.0  # times the loss at the end: a loss that starts there was never a sound one
ENDINGS = {
    "closed": "",
    "running": " It is still running.",
    "interrupted": " It was interrupted: the process died without closing the guard.",
    "failed": " It ended with an error.",
}
VERDICTS = {
    "cured": "Cured",
    "so_far": "Helped as far as it could be judged",
    "partly": "Cured in part",
    "not_cured": "Not cured",
    "stopped": "Not cured",
    "unknown": "Not known whether it helped",
}


def headline(summary: Summary) -> str:
    """Return a few sentences that a newcomer understands."""
    return " ".join(
        filter(None, (verdict(summary), _acted(summary), _lasting(summary), loss_words(summary), _caveat(summary)))
    )


def plural(number: int, noun: str, nouns: str = "") -> str:
    """Return the number with its noun.

    Example:
        >>> plural(1, "step"), plural(1200, "step")
        ('1 step', '1,200 steps')
    """
    return f"{number:,} {noun if number == 1 else nouns or noun + 's'}"


def story_line(summary: Summary) -> str:
    """Return what was found in order, an arrow where one thing follows from another that was found before it."""
    line = ""
    told: list[str] = []
    for chapter in summary.story:
        join = "" if not told else " -> " if chapter.follows in told else "; "
        line += f"{join}step {chapter.step:,} {chapter.diagnosis}"
        told.append(chapter.diagnosis)
    return line


def acted_counts(summary: Summary, is_telling: bool = False) -> dict[str, int]:
    """Return by diagnosis how often the guard changed something, or how often it only told."""
    counts: dict[str, int] = {}
    for group in summary.responses:
        if (group.remedies[0] == TELLS) is is_telling:
            counts[group.diagnosis] = counts.get(group.diagnosis, 0) + group.count
    return counts


def verdict(summary: Summary) -> str:
    """Return the one sentence that says how the run went."""
    steps, end = plural(summary.num_steps, "step"), summary.ending
    num_findings = sum(summary.severities.values())
    num_serious = num_findings - summary.severities.get("info", 0)
    if not summary.num_steps and not num_findings and not summary.responses:
        return "Nothing to judge: no step was taken" + (" so far." if summary.status == "running" else ".")
    if any(problem.kind == "missing" for problem in summary.problems):
        return f"Part of the record is missing, so what happened in {steps} cannot be told."
    if end.kind in VERDICTS:
        return f"{VERDICTS[end.kind]}: {end.reason}."
    if num_serious:
        if summary.mode == "observe":
            return f"Not healthy, and only watched (mode: observe): {_found(summary)} in {steps}."
        told = acted_counts(summary, is_telling=True)
        if told:
            return f"Not healthy: the guard warned of {counted(told)} in {steps}, and changed nothing."
        return f"Not healthy, and the guard did not act: {_found(summary)} in {steps}."
    return _without_alarm(summary, steps, num_findings)


def _without_alarm(summary: Summary, steps: str, num_minor: int) -> str:
    """Return what can be said of a run in which nothing was found: it is healthy only as far as it was looked at."""
    loss = summary.loss
    if loss.first is None or loss.median_last is None:
        return (
            f"No loss was handed over: only the gradients were watched, and they gave no alarm in {steps}. "
            "Call guard.observe(loss) to have the loss judged."
        )
    if ended_high(summary):
        return f"The guard had no reason to act in {steps}, but the loss ended above its start: nothing was learned."
    if loss.first > ABSURD * max(abs(loss.median_last), 1.0):
        return (
            f"No alarm in {steps}, but the loss started at {short(loss.first)}: the first outputs were far too large; "
            "check the initialisation and the scale of the targets."
        )
    notes = f", {plural(num_minor, 'minor note')}" if num_minor else ""
    return f"Healthy: {steps}, nothing that needed the guard{notes}."


def _found(summary: Summary) -> str:
    return counted({matter.diagnosis: matter.count for matter in summary.matters})


def _acted(summary: Summary) -> str:
    acted, told = acted_counts(summary), acted_counts(summary, is_telling=True)
    if not acted:
        return ""
    also = f" and warned of {counted(told)}" if told else ""
    what = counted(acted) if len(acted) > 1 else spoken(next(iter(acted)))
    return f"The guard acted {times(sum(acted.values()))} in {plural(summary.num_steps, 'step')} ({what}){also}."


def _lasting(summary: Summary) -> str:
    stays = [change for change in summary.lasting if FOR_GOOD in change]
    return f"Still in force: {'; '.join(stays)}." if stays else ""


def ended_high(summary: Summary) -> bool:
    """Return whether the loss ended well above its start: nothing was learned."""
    loss = summary.loss
    if loss.first is None or loss.median_last is None or loss.num_observed < JUDGED_LOSSES:
        return False
    return loss.median_last > loss.first + 0.5 * abs(loss.first)


def loss_words(summary: Summary) -> str:
    """Return from where to where the loss went, "" when too few were observed."""
    loss, end = summary.loss, summary.ending
    if loss.first is None or loss.median_last is None or loss.last is None or loss.num_observed < 2:
        return ""
    if end.num_bad:
        return f"The loss went from {short(loss.first)} to {end.bad}; the last that was a number is {short(loss.last)}."
    return f"The loss went from {short(loss.first)} to {short(loss.median_last)}."


def _caveat(summary: Summary) -> str:
    errors = ""
    if summary.internal_errors:
        errors = f"The guard itself had {plural(summary.events['internal_error'], 'internal error')}; see below."
    status = ENDINGS.get(summary.status, "").strip()
    if summary.status == "stopped" and summary.ending.kind != "stopped":
        status = "The policy stopped it."
    return " ".join(filter(None, (errors, status)))
