"""The first words of an audit: is the run healthy, what happened, did it help."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradguard.printable import short


if TYPE_CHECKING:
    from gradguard.audit.summary import Summary

TELLS = "notify"  # the remedy that changes nothing
JUDGED_LOSSES = 50  # observed losses from which a loss that ended high is worth a word
ENDINGS = {
    "closed": "",
    "running": " It is still running.",
    "interrupted": " It was interrupted: the process died without closing the guard.",
    "stopped": " The policy stopped it.",
    "failed": " It ended with an error.",
}


def headline(summary: Summary) -> str:
    """Return a few sentences that a newcomer understands."""
    parts = _what_happened(summary), _did_it_help(summary), _loss(summary), _caveat(summary)
    return "".join(parts) + _ending(summary)


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


def _what_happened(summary: Summary) -> str:
    num_findings = sum(summary.severities.values())
    num_serious = summary.severities.get("warn", 0) + summary.severities.get("critical", 0)
    num_actions = sum(group.count for group in summary.interventions)
    steps = plural(summary.num_steps, "step")
    if not summary.num_steps and not num_findings and not num_actions:
        return "Nothing to judge: no step was recorded."
    if any(problem.kind == "missing" for problem in summary.problems):
        return f"Part of the record is missing, so what happened in {steps} cannot be told."
    if not num_actions and not num_serious and ended_high(summary):
        return f"The guard had no reason to act in {steps}, but the loss ended above its start: nothing was learned."
    if not num_actions and not num_serious:
        notes = f", {plural(num_findings, 'minor finding')}" if num_findings else ""
        return f"Healthy: {steps}, nothing that needed the guard{notes}."
    if not num_actions:
        what = _count_by_diagnosis({group.diagnosis: group.count for group in summary.withheld})
        if summary.mode == "observe":
            return f"Not healthy, and only watched (mode: observe): {what} in {steps}."
        return f"Not healthy, and the guard did not act: {what} in {steps}."
    acted, told = _counts(summary, is_telling=False), _counts(summary, is_telling=True)
    if not acted:
        return f"Not healthy: the guard told of {_count_by_diagnosis(told)} in {steps}, and changed nothing."
    number = sum(acted.values())
    times = "once" if number == 1 else f"{number:,} times"
    also = f", and told of {_count_by_diagnosis(told)}" if told else ""
    return f"The guard stepped in {times} in {steps} ({_count_by_diagnosis(acted)}){also}."


def _counts(summary: Summary, is_telling: bool) -> dict[str, int]:
    """Return by diagnosis how often a remedy that only tells was carried out, or one that acts."""
    counts: dict[str, int] = {}
    for group in summary.interventions:
        if (group.remedy == TELLS) is is_telling:
            counts[group.diagnosis] = counts.get(group.diagnosis, 0) + group.count
    return counts


def ended_high(summary: Summary) -> bool:
    """Return whether the loss ended well above its start: nothing was learned."""
    loss = summary.loss
    if loss.first is None or loss.median_last is None or loss.num_observed < JUDGED_LOSSES:
        return False
    return loss.median_last > loss.first + 0.5 * abs(loss.first)


def _count_by_diagnosis(counts: dict[str, int]) -> str:
    ranked = sorted(counts.items(), key=lambda item: -item[1])
    named = ", ".join(f"{name} {count:,}x" for name, count in ranked[:3])
    return named + (f", {len(ranked) - 3} more" if len(ranked) > 3 else "")


def _did_it_help(summary: Summary) -> str:
    if not _counts(summary, is_telling=False):
        return ""
    judged = {name: number for name, number in summary.outcomes.items() if name != "unknown"}
    total = sum(judged.values())
    if not total:
        return " Whether it helped was not judged: no loss was observed, or the run ended first."
    words = {"helped": "helped", "no_effect": "had no effect", "worse": "made it worse"}
    parts = [f"{judged[name]:,} {phrase}" for name, phrase in words.items() if judged.get(name)]
    return f" Of {total:,} judged, {', '.join(parts)}."


def _loss(summary: Summary) -> str:
    loss = summary.loss
    if loss.first is None or loss.median_last is None or loss.num_observed < 2:
        return ""
    return f" The loss went from {short(loss.first)} to {short(loss.median_last)}."


def _ending(summary: Summary) -> str:
    stops = [group for group in summary.interventions if group.remedy == "stop"]
    if summary.status == "stopped" and stops:
        return f" The policy stopped it at step {stops[-1].last_step} because of {stops[-1].diagnosis}."
    return ENDINGS.get(summary.status, "")


def _caveat(summary: Summary) -> str:
    if summary.internal_errors:
        return f" The guard itself had {plural(summary.events['internal_error'], 'internal error')}; see below."
    return ""
