"""An episode in words: what happened, where, what was done, whether it worked, and what to do about it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gradguard.audit.advice import advice
from gradguard.audit.ending import why_unknown
from gradguard.audit.rate_jump import Jump, rate_jump
from gradguard.audit.read import Run
from gradguard.audit.responses import ENDS, TELLS, Response, responses
from gradguard.audit.spoken import spoken, times
from gradguard.cli.render import REASONS
from gradguard.evidence.origin_words import place_of
from gradguard.outcomes.main_remedy import main_first
from gradguard.printable import printable, short
from gradguard.records import Finding, Intervention
from gradguard.report.episodes import Episode
from gradguard.report.suspects import suspect
from gradguard.report.timeline import Timeline


MAX_WHERE = 4  # layers named
VERDICTS = {"helped": ("helped", "good"), "no_effect": ("had no effect", "bad"), "worse": ("made it worse", "bad")}


def tell(run: Run, line: Timeline, episode: Episode) -> dict[str, Any]:
    """Return an episode as the page shows it.

    Returns:
        {"first", "last": steps, "chain": [{"diagnosis", "step", "follows"}], "critical": whether a finding was,
        "happened": a sentence, "before": what came just before it, "where": names of layers, "more": how many are not
        named, "place": another place that is known where none is, "suspect": a layer that stood out where that is not
        known either, "did": [{"remedy", "count", "summary"}], "worked": {"tone", "text"}, "advice", "alike": {"count",
        "last"} or None}; all text printable, "" where there is none.
    """
    root = episode.root
    where, more = _where(episode)
    place = "" if where else printable(place_of(_same(episode, "evidence").evidence))
    jump = rate_jump(line.steps, run.statistics["lr"][line.rows], episode.first)
    return {
        "first": episode.first,
        "last": episode.last,
        "chain": [
            {"diagnosis": printable(part.diagnosis), "step": part.step, "follows": printable(part.follows)}
            for part in episode.chain
        ],
        "critical": any(finding.severity == "critical" for finding in episode.findings),
        "happened": printable(root.message),
        "before": _before(jump, episode),
        "where": where,
        "more": more,
        "place": place,
        "suspect": "" if where or place else _suspicion(run, line, episode),
        "did": _did(episode.done),
        "worked": worked(episode),
        "advice": printable(advice(_same(episode, "advice"), jump)),
        "alike": {"count": episode.alike, "last": episode.last_alike} if episode.alike else None,
    }


def worked(episode: Episode) -> dict[str, str]:
    """Return whether what was done helped, {"tone": "good" | "mixed" | "bad" | "open", "text"}."""
    acts = [event for event in responses(episode.done) if event.acts]
    if any(record.remedy == ENDS for record in episode.done):
        return {"tone": "bad", "text": "It could not be saved: the policy stopped the run."}
    if not episode.done:
        reasons = list(dict.fromkeys(REASONS.get(record.reason, record.reason) for record in episode.withheld))
        if REASONS["dry_run"] in reasons:
            reasons = [REASONS["dry_run"]]
        why = f": {' and '.join(reasons)}" if reasons else ""
        return {"tone": "open", "text": f"Nothing was done{why}."}
    if not acts:
        return {
            "tone": "open",
            "text": "The guard warned of it and changed nothing: the cure lies in the model or its training.",
        }
    return _judged(acts)


def _judged(acts: Sequence[Response]) -> dict[str, str]:
    """Return the last word on what was done, and how often it had helped before."""
    judged = [event for event in acts if event.verdict in VERDICTS]
    if not judged:
        return {"tone": "open", "text": f"Not known: {why_unknown(acts)}."}
    last = judged[-1]
    words, tone = VERDICTS[str(last.verdict)]
    outcome = last.outcome
    reason = f" {outcome.reason[:1].upper()}{outcome.reason[1:]}." if outcome is not None and outcome.reason else ""
    if len(judged) == 1:
        return {"tone": tone, "text": f"It {words}.{printable(reason)}"}
    counts = {name: sum(event.verdict == name for event in judged) for name in VERDICTS}
    if counts[str(last.verdict)] == len(judged):
        return {"tone": tone, "text": f"It {words}, {times(len(judged))}. The last:{printable(reason)}"}
    parts = [f"{count:,} {VERDICTS[name][0]}" for name, count in counts.items() if count]
    told = f"In the end {printable(last.remedies[0])} {words}; of {len(judged):,} times {', '.join(parts)}."
    # What helped last may be the weaker remedy, after a stronger one: then it is not over for sure.
    is_mixed = tone == "good" and any(event.records[0].rung > last.records[0].rung for event in judged)
    return {"tone": "mixed" if is_mixed else tone, "text": f"{told}{printable(reason)}"}


def _same(episode: Episode, field: str) -> Finding:
    """Return the finding of the root's diagnosis that says something in a field, the root if none does."""
    same = (finding for finding in episode.findings if finding.diagnosis == episode.root.diagnosis)
    return next((finding for finding in same if getattr(finding, field)), episode.root)


def _where(episode: Episode) -> tuple[list[str], int]:
    """Return the layers that the episode's first diagnosis named, and how many are not named."""
    finding = _same(episode, "parameters")
    names = [printable(name) for name in finding.parameters[:MAX_WHERE]]
    return names, max(0, max(finding.num_parameters, len(finding.parameters)) - len(names)) if names else 0


def _before(jump: Jump | None, episode: Episode) -> str:
    if jump is not None:
        return f"{str(jump)[:1].upper()}{str(jump)[1:]}."
    cause = episode.root.follows
    if cause is None:
        return ""
    return f"The record links it to {spoken(cause.diagnosis)} at step {cause.step:,}."


def _suspicion(run: Run, line: Timeline, episode: Episode) -> str:
    found = suspect(run, line, episode.root.step)
    if found is None:
        return ""
    grown = "was not finite" if found.ratio == float("inf") else f"was {short(found.ratio)} times its usual size"
    return f"The finding names no layer; at that step the gradient of {printable(found.name)} {grown}."


def _did(done: Sequence[Intervention]) -> list[dict[str, Any]]:
    groups: dict[str, list[Intervention]] = {}
    for record in done:
        groups.setdefault(record.remedy, []).append(record)
    return [
        {
            "remedy": printable(remedy),
            "count": len(records),
            "summary": "" if remedy == TELLS else printable(records[0].change.summary),
        }
        for remedy, records in ((name, groups[name]) for name in main_first(groups))
    ]
