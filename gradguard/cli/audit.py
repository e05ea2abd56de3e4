"""`gradguard audit RUN`: what happened in a run."""

from __future__ import annotations

import shlex
from itertools import groupby
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Group
from rich.padding import Padding
from rich.table import Table

from gradguard.audit.efficacy import Efficacy
from gradguard.audit.headline import plural, story_line
from gradguard.audit.matters import Matter
from gradguard.audit.read import read_run
from gradguard.audit.responses import ResponseGroup
from gradguard.audit.spoken import times
from gradguard.audit.summary import ActionGroup, Summary, summarise
from gradguard.cli.render import REASONS, console, duration, facts, keep_whole, number, steps, table, text
from gradguard.printable import compact
from gradguard.record.encode import to_json
from gradguard.records import SEVERITIES


MAX_PROBLEMS = 10
MAX_SPANS = 5  # of the times that something went on
MAX_GROUPS = 40  # rows of one table
USUAL = ("attached", "closed", "stopped", "failed", "state_kept")  # events that are told in other rows
COUNTS = ["helped", "no\neffect", "worse", "not\nknown"]
NUMBERS = ["loss\nchange", "steps to\nrecover"]
INDENT = 2  # of a remedy under the diagnosis that it is for


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
    for matter in summary.matters[:MAX_GROUPS]:
        if matter is summary.matters[0]:
            out.print()
            out.print(text("What was found", style="bold"))
        out.print(_matter(matter))
    if summary.responses:
        out.print()
        out.print(_done(summary.responses))
    if summary.efficacy:
        out.print()
        out.print(_efficacy(summary.efficacy))
    if summary.withheld:
        out.print()
        out.print(_not_done(summary.withheld))
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
    if summary.responses:
        out.print()
        out.print(text(f"More about one of these steps: {_show(summary)}", style="dim"))


def _show(summary: Summary) -> str:
    """Return the command that shows the first step at which something was done."""
    path, name = Path(summary.path), ""
    if summary.name:
        path, name = path.parent, f" --name {shlex.quote(summary.name)}"
    return f"gradguard show {shlex.quote(str(path))}{name} --step {summary.responses[0].first_step}"


def _facts(summary: Summary) -> list[tuple[str, str]]:
    where = summary.path + (f" (guard {summary.name!r})" if summary.name else "")
    mode = ", only watched (mode: observe)" if summary.mode == "observe" else ""
    rows: list[tuple[str, str]] = [
        ("run", where),
        ("status", f"{summary.status}, {duration(summary.duration_sec)}{mode}"),
    ]
    if summary.first_step is not None and summary.last_step is not None:
        skipped = f"{summary.num_skipped_by_guard:,} skipped by the guard"
        if summary.num_skipped_by_scaler:
            skipped += f", {summary.num_skipped_by_scaler:,} by GradScaler"
        rows.append(
            ("steps", f"{steps(summary.first_step, summary.last_step)}: {summary.num_applied:,} applied, {skipped}")
        )
    loss = summary.loss
    if loss.first is not None:
        end = f"{number(loss.median_last)} (median of the last {min(50, loss.num_observed)})"
        rows.append(("loss", f"{number(loss.first)} -> {end}, lowest {number(loss.lowest)}"))
    elif summary.num_steps:
        rows.append(("loss", "not observed; call guard.observe(loss) to have it judged"))
    if summary.lasting:
        rows.append(("still in force", "; ".join(summary.lasting)))
    if summary.last_good:
        rows.append(("start again", summary.last_good))
    if summary.clip_share:
        factor = f", half of them to {number(summary.clip_median)} of their length or less"
        rows.append(("clipping", f"the gradients of {summary.clip_share:.1%} of the steps were shortened{factor}"))
    if summary.severities:
        kinds = ", ".join(
            f"{summary.severities[name]:,} {name}" for name in SEVERITIES[::-1] if name in summary.severities
        )
        rows.append(("findings", f"{kinds}; at {plural(summary.num_steps_found, 'step')}"))
    if any(chapter.follows for chapter in summary.story):
        rows.append(("story", story_line(summary)))
    if summary.num_stale:
        rows.append(("stale", f"{plural(summary.num_stale, 'step')} with gradients left over from the step before"))
    events = {name: count for name, count in summary.events.items() if name not in USUAL}
    if events:
        rows.append(("events", ", ".join(f"{name} {times(count)}" for name, count in events.items())))
    return rows


def _matter(matter: Matter) -> Group:
    """Return what was found, what it means, and what a person can do."""
    at = f"step {matter.first_step:,}"
    if matter.last_step != matter.first_step:
        named = ", ".join(steps(*span) for span in matter.spans[:MAX_SPANS])
        left = len(matter.spans) - MAX_SPANS
        at = f"{times(matter.count)}, steps {named}" + (f" and {left:,} more" if left > 0 else "")
    where = f", in {', '.join(matter.where)}" if matter.where else ""
    more = f" and {matter.more:,} more" if matter.more and matter.where else ""
    head = text(matter.diagnosis, style="bold").append_text(text(f" ({matter.severity}), {at}{where}{more}"))
    below = [text(matter.message)] if matter.message else []
    below += [text(f"What to do: {matter.advice}", style="dim")] if matter.advice else []
    return Group(head, *(Padding(line, (0, 0, 0, INDENT)) for line in below))


def _done(groups: tuple[ResponseGroup, ...]) -> Table:
    result = table("What the guard did", ["found", "done", "times", "steps", "mostly in"], right=frozenset({"times"}))
    keep_whole(result, 0, (group.diagnosis for group in groups))
    keep_whole(result, 1, (remedy for group in groups for remedy in group.remedies))
    for group in groups[:MAX_GROUPS]:
        result.add_row(
            text(group.diagnosis),
            text(", ".join(group.remedies)),
            f"{group.count:,}",
            steps(group.first_step, group.last_step),
            text(group.worst_parameter or "-"),
        )
    if len(groups) > MAX_GROUPS:
        result.add_row(text(f"and {len(groups) - MAX_GROUPS:,} more, see --json"))
    return result


def _not_done(groups: tuple[ActionGroup, ...]) -> Table:
    result = table("What it did not do", ["found", "due", "times", "steps", "why not"], right=frozenset({"times"}))
    keep_whole(result, 0, (group.diagnosis for group in groups))
    keep_whole(result, 1, (group.remedy for group in groups))
    for group in groups[:MAX_GROUPS]:
        result.add_row(
            text(group.diagnosis),
            text(group.remedy or "-"),
            f"{group.count:,}",
            steps(group.first_step, group.last_step),
            text(REASONS.get(group.reason, group.reason)),
        )
    if len(groups) > MAX_GROUPS:
        result.add_row(text(f"and {len(groups) - MAX_GROUPS:,} more, see --json"))
    return result


def _efficacy(rows: tuple[Efficacy, ...]) -> Group:
    """Return the rows under their diagnoses, and what the columns mean."""
    columns = ["found, and done", "times", *COUNTS, *NUMBERS]
    result = table("Did it help", columns, right=frozenset(columns[1:]))
    for column in result.columns:
        column.vertical = "bottom"
    for diagnosis, members in groupby(rows[:MAX_GROUPS], key=lambda row: row.diagnosis):
        result.add_row(text(diagnosis, style="bold"))
        for row in members:
            _add_row(result, row)
    keep_whole(result, 0, (" " * INDENT + name for row in rows for name in row.remedy.split(" + ")))
    return Group(result, text(_legend(rows), style="dim"))


def _add_row(result: Table, row: Efficacy) -> None:
    counts = (row.helped, row.no_effect, row.worse, row.unknown + row.waiting)
    result.add_row(
        Padding(text(row.remedy or "(left alone)"), (0, 0, 0, INDENT)),
        f"{row.count:,}",
        *(f"{count:,}" if count else "-" for count in counts),
        _share(row.loss_change),
        "-" if row.steps_to_recover is None else f"{row.steps_to_recover:,.0f}",
    )


def _legend(rows: tuple[Efficacy, ...]) -> str:
    legend = (
        "helped: the loss is where it was or lower, and the same came back on one step in "
        "five at most, or the loss fell all the same. "
        "Loss change and steps to recover are medians."
    )
    if any(not row.remedy for row in rows):
        legend += " (left alone): found, but nothing was done; what passed by itself counts as helped."
    return legend


def _share(value: float | None) -> str:
    """Return a change in percent, with its sign, in at most 8 characters; "-" for None.

    Example:
        >>> [_share(value) for value in (-0.034, 0.0, 0.5, 123.0, 1e9, None)]
        ['-3 %', '0 %', '+50 %', '124x', '1e9x', '-']
    """
    if value is None:
        return "-"
    if value >= 10:
        return f"{compact(value + 1)}x"
    percent = round(100 * value)
    return f"{percent:+d} %" if percent else "0 %"
