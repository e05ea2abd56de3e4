"""The four questions of the next morning: what broke, where, what did the guard do, did it work."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from gradguard.audit.headline import acted_counts, loss_words, plural
from gradguard.audit.responses import TELLS
from gradguard.audit.spoken import spoken, times
from gradguard.audit.summary import Summary
from gradguard.cli.render import REASONS
from gradguard.outcomes.main_remedy import main_first
from gradguard.printable import printable
from gradguard.report.episodes import Episode


MAX_NAMED = 3


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
    return [_what(summary, found), _where(told), _did(summary), _worked(summary, found, told)]


def _healthy(summary: Summary) -> list[dict[str, str]]:
    minor = summary.severities.get("info", 0)
    notes = f", {plural(minor, 'minor note')}" if minor else ""
    went = _capital(loss_words(summary).rstrip(".")) or "No loss was observed"
    broke = _answer("What broke?", "Nothing", f"{plural(summary.num_steps, 'step')} watched{notes}", "good")
    if summary.loss.first is None:
        broke = _answer("What broke?", "Nothing was found", "in the gradients; no loss was handed over", "open")
    return [
        broke,
        _answer("Where?", "Nowhere", "no layer stood out", "good"),
        _answer("What did the guard do?", "It left the run alone", "bit for bit as without it", "calm"),
        _answer("How did it go?", went, _ending(summary), "calm"),
    ]


def _what(summary: Summary, found: Sequence[Episode]) -> dict[str, str]:
    roots = list(dict.fromkeys(episode.root.diagnosis for episode in found))
    names = [_named(name) for name in roots]
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    matters = [matter for matter in summary.matters if matter.diagnosis in roots]
    count = sum(matter.count for matter in matters)
    first, last = min(matter.first_step for matter in matters), max(matter.last_step for matter in matters)
    where = f"at step {first:,}" if first == last else f"{times(count)}, at steps {first:,} to {last:,}"
    is_critical = any(finding.severity == "critical" for episode in found for finding in episode.findings)
    return _answer("What broke?", ", ".join(names[:MAX_NAMED]) + more, where, "bad" if is_critical else "mixed")


def _named(diagnosis: str) -> str:
    """Return a diagnosis in words, and in brackets the name by which it is explained, where that is another."""
    words = spoken(diagnosis)
    return words if words == printable(diagnosis).replace("_", " ") else f"{words} ({printable(diagnosis)})"


def _where(told: Sequence[dict[str, Any]]) -> dict[str, str]:
    by_layer = sorted(told, key=lambda episode: not episode["where"])  # of what comes as often, a layer says more
    named = Counter(place for episode in by_layer if (place := _place(episode)))
    if not named:
        suspicion = next((episode["suspect"] for episode in told if episode["suspect"]), "")
        return _answer("Where?", "In the run as a whole", suspicion or "no single layer was named", "open")
    names = [name for name, _ in named.most_common(MAX_NAMED)]
    first = next(episode for episode in told if _place(episode) == names[0])
    others = max(0, len(first["where"]) - 1) + first["more"]
    detail = f"{plural(others, 'more layer')} with it" if others else "nothing else was named"
    if len(names) > 1:
        detail = "also " + ", ".join(names[1:])
    return _answer("Where?", names[0], detail, "open")


def _place(episode: dict[str, Any]) -> str:
    return str(episode["where"][0] if episode["where"] else episode["place"])


def _did(summary: Summary) -> dict[str, str]:
    counts: Counter[str] = Counter()
    along: dict[str, None] = {}
    for group in summary.responses:
        if group.remedies[0] != TELLS:
            counts[group.remedies[0]] += group.count
            along.update(dict.fromkeys(group.remedies[1:]))
    told = sum(acted_counts(summary, is_telling=True).values())
    if not counts and told:
        return _answer("What did the guard do?", f"It warned {times(told)}", "nothing was changed", "open")
    if not counts:
        reasons = dict.fromkeys(REASONS.get(group.reason, printable(group.reason)) for group in summary.withheld)
        return _answer("What did the guard do?", "Nothing", "; ".join(reasons), "open")
    named = main_first(counts)
    answer = ", ".join(f"{printable(name)} {times(counts[name])}" for name in named[:MAX_NAMED])
    rest = [name for name in [*named[MAX_NAMED:], *along] if name not in named[:MAX_NAMED]]
    details = [f"with {', '.join(printable(name) for name in dict.fromkeys(rest))}"] if rest else []
    details += [f"{plural(summary.num_skipped_by_guard, 'step')} of {summary.num_steps:,} skipped"]
    details += [f"warned of the rest, {times(told)}"] if told else []
    return _answer("What did the guard do?", answer, "; ".join(details), "calm")


WORKED = {
    "cured": ("Yes", "good"),
    "so_far": ("As far as it could be judged", "mixed"),
    "partly": ("In part", "mixed"),
    "not_cured": ("No", "bad"),
    "stopped": ("No: the run was stopped", "bad"),
    "unknown": ("Not known", "open"),
}


def _worked(summary: Summary, found: Sequence[Episode], told: Sequence[dict[str, Any]]) -> dict[str, str]:
    end, losses = summary.ending, loss_words(summary)
    if end.kind not in WORKED:
        advice = next((episode["advice"] for episode in told if episode["advice"]), "")
        return _answer("Did it work?", "Nothing was changed", f"What to do: {advice}" if advice else losses, "open")
    answer, tone = WORKED[end.kind]
    left = [episode for episode in found if not episode.acts]
    detail = f"{_capital(end.reason)}."
    if end.kind == "cured" and left:
        names = dict.fromkeys(spoken(episode.root.diagnosis) for episode in left)
        answer, tone = "Yes, where it acted", "mixed"
        detail = f"Left to you: {', '.join(list(names)[:MAX_NAMED])}. {detail}"
    return _answer("Did it work?", answer, f"{printable(detail)} {losses}".strip(), tone)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _ending(summary: Summary) -> str:
    return {"closed": "the run ended as planned", "running": "the run is still going on"}.get(
        summary.status, f"the run was {printable(summary.status)}"
    )


def _answer(question: str, answer: str, detail: str, tone: str) -> dict[str, str]:
    return {"question": question, "answer": answer, "detail": detail, "tone": tone}
