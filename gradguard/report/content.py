"""Everything that the page says about one run, as one value that JSON can hold."""

from __future__ import annotations

from typing import Any

from gradguard.audit.headline import acted_counts
from gradguard.audit.read import Run
from gradguard.audit.summary import Summary, summarise
from gradguard.cli.render import REASONS
from gradguard.contracts import DIAGNOSES, REMEDIES
from gradguard.printable import printable
from gradguard.report.actions import Action, actions, shown
from gradguard.report.answers import answers
from gradguard.report.baseline import alarm_of
from gradguard.report.curves import NUM_BUCKETS, curves
from gradguard.report.episodes import episodes, most_telling
from gradguard.report.histograms import histograms
from gradguard.report.layers import activations, layer_norms, probed_statistics, update_ratios
from gradguard.report.names import shown_names
from gradguard.report.policy_words import policy_words
from gradguard.report.sketch import told
from gradguard.report.story import tell
from gradguard.report.timeline import timeline


GUIDE = 1e-3  # norm(update) / norm(weight) that is usual for a healthy training
MAX_PROBLEMS = 20


def describe(run: Run, title: str, share: float = 1.0) -> dict[str, Any]:
    """Return what the page says about a run.

    Args:
        run: as read.
        title: what the page calls it.
        share: of the page that it may take, in (0, 1]; one over the number of runs.
    """
    summary = summarise(run)
    line = timeline(run.statistics["step"])
    alarm = alarm_of(run.policy)
    drawn = curves(run, line, alarm, max(100, int(NUM_BUCKETS * share)))
    found = episodes(run)
    told_of = [tell(run, line, episode) for episode in most_telling(found)]
    table, evidence = actions(run, share)
    return {
        "title": title,
        "path": printable(str(run.path)),
        "headline": printable(summary.headline),
        "answers": answers(summary, found, told_of),
        "episodes": told_of,
        "untold": len(found) - len(told_of),
        "facts": _facts(run, summary),
        "notes": _notes(summary),
        "closest": closest_call(drawn),
        "layers": shown_names(run.parameters),
        "shapes": _shapes(run),
        "alarm": {"window": alarm.window, "ratios": alarm.ratios, "clip": alarm.clip},
        "guide": GUIDE,
        "curves": drawn,
        "norms": told(layer_norms(run, line, share)),
        "probed": probed_statistics(run, share),
        "updates": update_ratios(run, share),
        "activations": activations(run, share),
        "histograms": histograms(run, (episode.first for episode in found), share),
        "actions": table,
        "evidence": evidence,
        "efficacy": [_plain(row.model_dump()) for row in summary.efficacy],
        "withheld": [
            [
                *(printable(text) for text in (group.diagnosis, group.remedy, REASONS.get(group.reason, group.reason))),
                group.count,
                group.first_step,
                group.last_step,
                printable(group.worst_parameter),
            ]
            for group in summary.withheld
        ],
        "glossary": _glossary(run),
        "policy": policy_words(run.policy),
        "environment": _environment(run),
    }


def closest_call(drawn: dict[str, Any]) -> dict[str, float] | None:
    """Return {"step", "norm", "ratio"} of the drawn step whose norm was highest above its level; None if unknown."""
    ratios = [
        (norm / median, step, norm)
        for step, norm, median in zip(drawn["step"], drawn["norm"], drawn["median"], strict=True)
        if norm is not None and median
    ]
    if not ratios:
        return None
    ratio, step, norm = max(ratios)
    return {"step": step, "norm": norm, "ratio": ratio}


def _facts(run: Run, summary: Summary) -> dict[str, Any]:
    loss = summary.loss
    return {
        "status": printable(summary.status),
        "mode": printable(summary.mode),
        "created": printable(summary.created),
        "seconds": summary.duration_sec,
        "steps": summary.num_steps,
        "first": summary.first_step,
        "last": summary.last_step,
        "applied": summary.num_applied,
        "skipped": summary.num_skipped_by_guard,
        "scaler": summary.num_skipped_by_scaler,
        "stale": summary.num_stale,
        "layers": len(run.parameters),
        "loss": [loss.first, loss.median_last, loss.lowest, loss.num_observed],
        "clipped": [summary.clip_share, summary.clip_median],
        "severities": summary.severities,
        "interventions": sum(acted_counts(summary).values()),
        "outcomes": summary.outcomes,
        "probes": run.gradients.num_steps,
    }


def _notes(summary: Summary) -> list[str]:
    notes = [f"internal error: {shown(message)}" for message in summary.internal_errors]
    if summary.is_torn:
        notes.append("the last record was cut off when the process died; everything before it is whole")
    notes += [shown(problem) for problem in summary.problems[:MAX_PROBLEMS]]
    if len(summary.problems) > MAX_PROBLEMS:
        notes.append(f"{len(summary.problems) - MAX_PROBLEMS:,} more problems; see: gradguard verify")
    return notes


def _shapes(run: Run) -> dict[str, str]:
    """Return "64 x 32, float32" by the shown name of a parameter, as far as the record says it."""
    found: dict[str, str] = {}
    shown_of = dict(zip(run.parameters, shown_names(run.parameters), strict=True))
    layouts = run.info.get("layouts")
    for layout in layouts if isinstance(layouts, list) else ():
        try:
            for name, shape, dtype in zip(layout["parameters"], layout["shapes"], layout["dtypes"], strict=True):
                size = " x ".join(str(int(side)) for side in shape) or "scalar"
                found[shown_of[str(name)]] = printable(f"{size}, {dtype}")
        except (KeyError, TypeError, ValueError, OverflowError):
            continue
    return found


def _glossary(run: Run) -> dict[str, str]:
    """Return what each diagnosis and remedy of the run means, of those that come with the package."""
    records: list[Action] = [*run.interventions, *run.withheld]
    named = {name for record in records for name in (record.diagnosis, record.remedy)}
    return {component.name: component.what for component in (*DIAGNOSES, *REMEDIES) if component.name in named}


def _environment(run: Run) -> list[list[str]]:
    versions = run.info.get("versions")
    rows = list(versions.items()) if isinstance(versions, dict) else []
    rows += [(key, run.info[key]) for key in ("host", "run_id", "policy_sha256") if key in run.info]
    return [[printable(str(name).replace("_", " ")), shown(value)] for name, value in rows]


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    return {key: printable(value) if isinstance(value, str) else value for key, value in row.items()}
