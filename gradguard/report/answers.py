"""The four questions of the next morning: what broke, where, what did the guard do, did it work."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from gradguard.audit.headline import plural
from gradguard.audit.responses import TELLS
from gradguard.audit.summary import Summary
from gradguard.printable import printable
from gradguard.report.episodes import Episode


MAX_NAMED = 3
ENOUGH = 50  # steps without a finding at the end, from which the run is said to have gone on


def answers(summary: Summary, found: Sequence[Episode], told: Sequence[dict[str, Any]]) -> list[dict[str, str]]:
    """Return [{"question", "answer", "detail", "tone"}], tone one of "good", "mixed", "bad", "open", "calm".

    Args:
        summary: of the run.
        found: all its episodes.
        told: the same, or some of them, in words.
    """
    if not summary.num_steps and not found:
        return []
    if not found:
        return _healthy(summary)
    return [_what(found), _where(told), _did(summary), _worked(summary, found, told)]


def _healthy(summary: Summary) -> list[dict[str, str]]:
    minor = summary.severities.get("info", 0)
    notes = f", {plural(minor, 'minor note')}" if minor else ""
    return [
        _answer("What broke?", "Nothing", f"{plural(summary.num_steps, 'step')} watched{notes}", "good"),
        _answer("Where?", "Nowhere", "no layer stood out", "good"),
        _answer("What did the guard do?", "It left the run alone", "bit for bit as without it", "calm"),
        _answer("How did it go?", _capital(_losses(summary)) or "No loss was observed", _ending(summary), "calm"),
    ]


def _what(found: Sequence[Episode]) -> dict[str, str]:
    names = [printable(name) for name in dict.fromkeys(episode.root.diagnosis for episode in found)]
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    steps = [f"{episode.first:,}" for episode in found[:MAX_NAMED]]
    count = sum(1 + episode.alike for episode in found)
    left = f" and {plural(count - len(steps), 'time')} more" if count > len(steps) else ""
    where = f"at step{'s' if len(steps) > 1 else ''} {', '.join(steps)}{left}"
    is_critical = any(finding.severity == "critical" for episode in found for finding in episode.findings)
    return _answer("What broke?", ", ".join(names[:MAX_NAMED]) + more, where, "bad" if is_critical else "mixed")


def _where(told: Sequence[dict[str, Any]]) -> dict[str, str]:
    named = Counter(episode["where"][0] for episode in told if episode["where"])
    if not named:
        suspicion = next((episode["suspect"] for episode in told if episode["suspect"]), "")
        return _answer("Where?", "In the run as a whole", suspicion or "no single layer was named", "open")
    names = [name for name, _ in named.most_common(MAX_NAMED)]
    first = next(episode for episode in told if episode["where"] and episode["where"][0] == names[0])
    others = len(first["where"]) - 1 + first["more"]
    detail = f"{plural(others, 'more layer')} with it" if others else "nothing else was named"
    if len(names) > 1:
        detail = "also " + ", ".join(names[1:])
    return _answer("Where?", names[0], detail, "open")


def _did(summary: Summary) -> dict[str, str]:
    counts: Counter[str] = Counter()
    for group in summary.interventions:
        if group.remedy != TELLS:
            counts[printable(group.remedy)] += group.count
    told = sum(group.count for group in summary.interventions if group.remedy == TELLS)
    if not counts and told:
        return _answer("What did the guard do?", f"It told of it, {told:,}x", "nothing was changed", "open")
    if not counts:
        reasons = dict.fromkeys(printable(group.reason).replace("_", " ") for group in summary.withheld)
        detail = "the policy only observes" if summary.mode == "observe" else ", ".join(reasons)
        return _answer("What did the guard do?", "Nothing", detail, "open")
    answer = ", ".join(f"{name} {count:,}x" for name, count in counts.most_common(MAX_NAMED))
    rest = len(counts) - MAX_NAMED
    details = [f"and {plural(rest, 'other remedy', 'other remedies')}"] if rest > 0 else []
    details += [f"{plural(summary.num_skipped_by_guard, 'step')} of {summary.num_steps:,} skipped"]
    details += [f"told of the rest, {told:,}x"] if told else []
    return _answer("What did the guard do?", answer, "; ".join(details), "calm")


def _worked(summary: Summary, found: Sequence[Episode], told: Sequence[dict[str, Any]]) -> dict[str, str]:
    judged = {name: count for name, count in summary.outcomes.items() if name != "unknown"}
    total, helped = sum(judged.values()), judged.get("helped", 0)
    losses = _losses(summary)
    if summary.status == "stopped":
        return _answer("Did it work?", "No: the run was stopped", losses or _ending(summary), "bad")
    if not any(episode.acts for episode in found):
        advice = next((episode["advice"] for episode in told if episode["advice"]), "")
        return _answer("Did it work?", "Nothing was changed", f"What to do: {advice}" if advice else losses, "open")
    if not total:
        return _answer("Did it work?", "Not known", "no outcome could be judged", "open")
    left = [episode for episode in found if not episode.acts]
    if helped == total and left:
        names = ", ".join(dict.fromkeys(printable(episode.root.diagnosis) for episode in left[:MAX_NAMED]))
        return _answer(
            "Did it work?", f"In part: {helped:,} of {total:,} helped", f"{names} was left as it was; {losses}", "mixed"
        )
    if helped == total:
        return _answer("Did it work?", "Yes" if total == 1 else f"Yes: {total:,} of {total:,} helped", losses, "good")
    tone = "bad" if judged.get("worse", 0) * 2 > total or not helped else "mixed"
    word = "No" if not helped else "In part"
    return _answer("Did it work?", f"{word}: {helped:,} of {total:,} helped", losses, tone)


def _losses(summary: Summary) -> str:
    loss = summary.loss
    if loss.first is None or loss.median_last is None:
        return ""
    return f"the loss went from {loss.first:.3g} to {loss.median_last:.3g}"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _ending(summary: Summary) -> str:
    return {"closed": "the run ended as planned", "running": "the run is still going on"}.get(
        summary.status, f"the run was {printable(summary.status)}"
    )


def _answer(question: str, answer: str, detail: str, tone: str) -> dict[str, str]:
    return {"question": question, "answer": answer, "detail": detail, "tone": tone}
