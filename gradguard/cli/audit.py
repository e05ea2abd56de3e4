"""`gradguard audit RUN`: what happened in a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from gradguard.audit.headline import plural, story_line
from gradguard.audit.read import read_run
from gradguard.audit.summary import ActionGroup, Summary, summarise
from gradguard.cli.render import console, duration, facts, number, steps, table, text
from gradguard.record.encode import to_json


MAX_PROBLEMS = 10
FOUND_WIDTH = 19  # of the longest diagnosis, kept on one line
VERDICTS = {"helped": "helped", "no_effect": "no effect", "worse": "worse", "unknown": "unknown"}


def audit(
    run: Annotated[Path, typer.Argument(help="The run directory.")],
    name: Annotated[str | None, typer.Option(help="Which guard's record, when several recorded there.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> None:
    """Summarise a run: is it healthy, what was done, did it help."""
    summary = summarise(read_run(run, name))
    if as_json:
        typer.echo(to_json(summary, indent=2))
    else:
        render_summary(summary)


def render_summary(summary: Summary) -> None:
    """Print a summary: the verdict first, then the facts, then what was done and not done."""
    out = console()
    out.print(text(summary.headline, style="bold"))
    out.print()
    out.print(facts(_facts(summary)))
    if summary.interventions:
        out.print()
        out.print(_groups("What the guard did", summary.interventions, "outcome"))
    if summary.withheld:
        out.print()
        out.print(_groups("What it did not do", summary.withheld, "why not"))
    notes = [f"internal error: {message}" for message in summary.internal_errors]
    if summary.is_torn:
        notes.append("the last record was cut off when the process died; everything before it is whole")
    notes += [str(problem) for problem in summary.problems[:MAX_PROBLEMS]]
    if len(summary.problems) > MAX_PROBLEMS:
        notes.append(f"{len(summary.problems) - MAX_PROBLEMS} more problems; see: gradguard verify")
    if notes:
        out.print()
        out.print(text("Notes", style="bold"))
        for note in notes:
            out.print(text(f"* {note}"))
    if summary.interventions:
        out.print()
        name = f" --name {summary.name}" if summary.name else ""
        out.print(text("More about one of these steps: gradguard show RUN" + name + " --step N", style="dim"))


def _facts(summary: Summary) -> list[tuple[str, str]]:
    where = summary.path + (f" (guard {summary.name!r})" if summary.name else "")
    skipped = f"{summary.num_skipped_by_guard:,} skipped by the guard, {summary.num_skipped_by_scaler:,} by GradScaler"
    rows: list[tuple[str, str]] = [
        ("run", where),
        ("status", f"{summary.status}, {duration(summary.duration_sec)}, mode {summary.mode}"),
    ]
    if summary.first_step is not None and summary.last_step is not None:
        rows.append(
            ("steps", f"{steps(summary.first_step, summary.last_step)}: {summary.num_applied:,} applied, {skipped}")
        )
    loss = summary.loss
    if loss.first is not None:
        end = f"{number(loss.median_last)} (median of the last {min(50, loss.num_observed)})"
        rows.append(("loss", f"{number(loss.first)} -> {end}, lowest {number(loss.lowest)}"))
    else:
        rows.append(("loss", "not observed; call guard.observe(loss) to have it judged"))
    if summary.clip_share:
        factor = f", half of them by a factor of {number(summary.clip_median)} or less"
        rows.append(("clipping", f"{summary.clip_share:.1%} of the steps were scaled down{factor}"))
    if summary.severities:
        rows.append(("findings", ", ".join(f"{count:,} {name}" for name, count in summary.severities.items())))
    if len(summary.story) > 1:
        rows.append(("story", story_line(summary)))
    if summary.num_stale:
        rows.append(("stale", f"{plural(summary.num_stale, 'step')} with gradients left over from the step before"))
    if summary.events:
        rows.append(("events", ", ".join(f"{name} {count:,}x" for name, count in summary.events.items())))
    return rows


def _groups(title: str, groups: tuple[ActionGroup, ...], last: str) -> Table:
    columns = ["found", "remedy", "count", "steps", "mostly in", last]
    result = table(title, columns, right=frozenset({"count"}))
    result.columns[0].min_width = min(FOUND_WIDTH, max(len(group.diagnosis) for group in groups))
    for group in groups:
        result.add_row(
            text(group.diagnosis),
            text(group.remedy or "-"),
            f"{group.count:,}",
            steps(group.first_step, group.last_step),
            text(group.worst_parameter or "-"),
            text(group.reason or _outcomes(group)),
        )
    return result


def _outcomes(group: ActionGroup) -> str:
    return (
        ", ".join(f"{group.outcomes[name]:,} {words}" for name, words in VERDICTS.items() if name in group.outcomes)
        or "-"
    )
