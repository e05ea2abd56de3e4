"""An episode in words: what happened, where, what was done, whether it worked, and what to do about it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gradguard.audit.headline import plural
from gradguard.audit.read import Run
from gradguard.audit.responses import ENDS, TELLS
from gradguard.printable import printable
from gradguard.records import Intervention, Outcome
from gradguard.report.episodes import Episode
from gradguard.report.suspects import rate_jump, suspect
from gradguard.report.timeline import Timeline


MAX_WHERE = 4  # layers named
WHY_NOT = {
    "dry_run": "the policy only observes",
    "cooldown": "the rule was cooling down",
    "budget": "the budget of the rule was spent",
    "warmup": "the rule was not armed yet",
    "no_rule": "no rule of the policy covers it",
    "superseded": "another rule had a stronger say",
    "below_severity": "it was too mild for the rule",
    "unavailable": "the remedy could not be had",
    "failed": "the remedy itself failed",
}


def tell(run: Run, line: Timeline, episode: Episode) -> dict[str, Any]:
    """Return an episode as the page shows it.

    Returns:
        {"first", "last": steps, "chain": [{"diagnosis", "step", "follows"}], "critical": whether a finding was,
        "happened": a sentence, "before": what came just before it, "where": names of layers, "more": how many are not
        named, "suspect": a layer that stood out instead, "did": [{"remedy", "count", "summary"}], "worked": {"tone",
        "text"}, "advice", "alike": {"count", "last"} or None}; all text printable, "" where there is none.
    """
    root = episode.root
    where, more = _where(episode)
    advice = [finding.advice for finding in episode.findings if finding.advice]
    return {
        "first": episode.first,
        "last": episode.last,
        "chain": [
            {"diagnosis": printable(part.diagnosis), "step": part.step, "follows": printable(part.follows)}
            for part in episode.chain
        ],
        "critical": any(finding.severity == "critical" for finding in episode.findings),
        "happened": printable(root.message),
        "before": _before(run, line, episode),
        "where": where,
        "more": more,
        "suspect": "" if where else _suspicion(run, line, episode),
        "did": _did(episode.done),
        "worked": worked(episode),
        "advice": printable(root.advice or (advice[0] if advice else "")),
        "alike": {"count": episode.alike, "last": episode.last_alike} if episode.alike else None,
    }


def worked(episode: Episode) -> dict[str, str]:
    """Return whether what was done helped, {"tone": "good" | "mixed" | "bad" | "open", "text"}."""
    acts = [record for record in episode.acts if record.remedy != ENDS]
    if any(record.remedy == ENDS for record in episode.done):
        tried = "" if not acts else " " + _judged([record.outcome for record in acts])["text"]
        return {"tone": "bad", "text": "It could not be saved: the policy stopped the run." + tried}
    if not episode.done:
        reasons = list(dict.fromkeys(WHY_NOT.get(record.reason, record.reason) for record in episode.withheld))
        if WHY_NOT["dry_run"] in reasons:
            reasons = [WHY_NOT["dry_run"]]
        why = f": {' and '.join(reasons)}" if reasons else ""
        return {"tone": "open", "text": f"Nothing was done{why}."}
    if not acts:
        return {
            "tone": "open",
            "text": "The guard told of it and changed nothing: the cure lies in the model or its training.",
        }
    return _judged([record.outcome for record in acts])


def _judged(outcomes: Sequence[Outcome | None]) -> dict[str, str]:
    verdicts = [outcome.verdict for outcome in outcomes if outcome is not None and outcome.verdict != "unknown"]
    if not verdicts:
        return {"tone": "open", "text": "Not judged: no loss was observed, or the run ended too soon."}
    helped, worse = verdicts.count("helped"), verdicts.count("worse")
    last = next(outcome for outcome in reversed(outcomes) if outcome is not None and outcome.verdict != "unknown")
    reason = f" {last.reason[:1].upper()}{last.reason[1:]}." if last.reason else ""
    if helped == len(verdicts):
        count = "" if helped == 1 else f" ({helped:,} of {helped:,} judged actions)"
        return {"tone": "good", "text": f"It helped{count}.{printable(reason)}"}
    if len(verdicts) == 1:
        text = "It made it worse." if worse else "It had no effect."
        return {"tone": "bad", "text": f"{text}{printable(reason)}"}
    counts = {"helped": helped, "had no effect": verdicts.count("no_effect"), "made it worse": worse}
    parts = [f"{number:,} {words}" for words, number in counts.items() if number]
    tone = "mixed" if helped else "bad"
    return {"tone": tone, "text": f"Of {plural(len(verdicts), 'judged action')} {', '.join(parts)}.{printable(reason)}"}


def _where(episode: Episode) -> tuple[list[str], int]:
    """Return the layers named by the root of the episode, else by what came with it, and how many are not named."""
    for finding in (episode.root, *episode.findings):
        if finding.parameters:
            names = [printable(name) for name in finding.parameters[:MAX_WHERE]]
            return names, max(0, max(finding.num_parameters, len(finding.parameters)) - len(names))
    return [], 0


def _before(run: Run, line: Timeline, episode: Episode) -> str:
    jump = rate_jump(run, line, episode.first)
    if jump is not None:
        times = jump.after / jump.before
        rates = f"from {jump.before:.3g} to {jump.after:.3g}"
        return f"At step {jump.step:,} the learning rate rose {times:,.0f} times, {rates}."
    cause = episode.root.follows
    if cause is None:
        return ""
    return f"The record links it to {printable(cause.diagnosis)} at step {cause.step:,}."


def _suspicion(run: Run, line: Timeline, episode: Episode) -> str:
    found = suspect(run, line, episode.root.step)
    if found is None:
        return ""
    grown = "was not finite" if found.ratio == float("inf") else f"was {found.ratio:,.0f} times its usual size"
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
        for remedy, records in groups.items()
    ]
