"""`gradguard show RUN [--step N]`: everything about one step."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gradguard.audit.advice import advice
from gradguard.audit.rate_jump import Jump
from gradguard.audit.read import Run, read_run
from gradguard.audit.responses import ENDS, Response, responses
from gradguard.audit.step import ParameterNorms, StepReport, StepRow, describe_step, notable_steps
from gradguard.cli.render import REASONS as WITHHELD
from gradguard.cli.render import console, facts, number, table, text
from gradguard.cli.render import name as shown_name
from gradguard.errors import RecordError
from gradguard.outcomes.verdict import WORDS
from gradguard.printable import short
from gradguard.record.encode import to_json
from gradguard.records import Event, Finding, Intervention, Outcome, Withheld


MAX_STEPS = 10  # that are named
FIRED = {
    "fired": "acted",
    "escalated": "acted",
    "gave_up": "gave up: the budget of the run is spent",
}
FLAGS = {
    "skipped_by_guard": "was skipped by the guard",
    "skipped_by_scaler": "was skipped by GradScaler",
    "finding": "something was found",
    "intervention": "the guard acted",
    "stale": "gradients were left over from the step before",
    "refused": "its numbers are not taken for usual ones",
    "unjudged": "was dropped unseen, its weights had been replaced",
}
Told = Intervention | Withheld | Event


def show(
    run: Annotated[Path, typer.Argument(help="The run directory.")],
    step: Annotated[
        int | None, typer.Option(help="The optimizer step, from 0; the first at which the guard acted if not given.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Which guard's record, when several recorded there.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
) -> None:
    """Show everything that is recorded about one step: what was measured, found, decided, changed, and the outcome."""
    read = read_run(run, name)
    notable = notable_steps(read)
    report = describe_step(read, _chosen(read, notable) if step is None else step)
    if as_json:
        typer.echo(to_json(report, indent=2))
        return
    render_step(report)
    if step is None:
        out = console()
        out.print()
        out.print(text(_others(notable), style="dim"))


def _chosen(run: Run, notable: list[int]) -> int:
    """Return the step that is shown when none is asked for: the first notable one, else the last."""
    if notable:
        return notable[0]
    steps = run.statistics["step"]
    if not len(steps):
        raise RecordError(f"{run.path}: no step was recorded, so there is none to show")
    return int(steps[-1])


def _others(notable: list[int]) -> str:
    """Return what else there is to show.

    Example:
        >>> _others([7]), _others([113, 114, 116])
        ('Nothing happened at another step; any step: --step N', 'More happened at steps 114, 116; any step: --step N')
    """
    rest = notable[1:]
    if not rest:
        what = "Nothing happened at another step" if notable else "Nothing was found in this run; this is its last step"
    else:
        more = f" and {len(rest) - MAX_STEPS:,} more" if len(rest) > MAX_STEPS else ""
        what = f"More happened at step{'s' if len(rest) > 1 else ''} {', '.join(map(str, rest[:MAX_STEPS]))}{more}"
    return f"{what}; any step: --step N"


def render_step(report: StepReport) -> None:
    """Print what is recorded about a step."""
    out = console()
    out.print(text(f"Step {report.step} of {report.path}", style="bold"))
    out.print()
    if report.row is not None:
        out.print(facts(_measured(report.row)))
        _print_neighbours(out, report)
    elif report.is_empty:
        out.print(text("No step was taken in this run; the record says of it:"))
    else:
        out.print(text("The statistics of this step were lost; the journal has it:"))
    if not report.records:
        out.print()
        out.print(text("Nothing was found at this step."))
    for finding, members in _by_finding(report.records):
        rows = _evidence(finding, report.jump) if finding is not None else []
        for event in responses(record for record in members if isinstance(record, Intervention)):
            rows += _done(event)
        for record in members:
            rows += _told(record)
        out.print()
        out.print(facts(rows))


def _by_finding(records: Sequence[Told]) -> list[tuple[Finding | None, list[Told]]]:
    """Return the records with what they are about; what is about the same is told together."""
    found: dict[str, tuple[Finding | None, list[Told]]] = {}
    for index, record in enumerate(records):
        finding = None if isinstance(record, Event) else record.finding
        key = str(index) if finding is None else to_json(finding)
        found.setdefault(key, (finding, []))[1].append(record)
    return list(found.values())


def _measured(row: StepRow) -> list[tuple[str, str]]:
    factor = "" if row.effective_lr == row.lr else f", {number(row.effective_lr)} with the guard's factor"
    clip = "not shortened" if not row.clip_coef < 1 else f"shortened to {_times_shorter(row.clip_coef)}"
    rows: list[tuple[str, str]] = [
        ("loss", number(row.loss)),
        ("learning rate", number(row.lr) + factor),
        ("gradient norm", f"{number(row.global_norm)}, {clip}"),
    ]
    if row.loss_scale != 1:
        rows.append(("loss scale", number(row.loss_scale)))
    if row.flags:
        rows.append(("this step", ", ".join(FLAGS.get(flag, flag.replace("_", " ")) for flag in row.flags)))
    return rows


def _times_shorter(factor: float) -> str:
    """Return a factor below 1 as a person says it.

    Example:
        >>> _times_shorter(0.25), _times_shorter(2e-9)
        ('0.25 of its length', 'one part in 500 million')
    """
    return f"{short(factor)} of its length" if factor >= 0.001 or factor <= 0 else f"one part in {short(1 / factor)}"


def _print_neighbours(out: Console, report: StepReport) -> None:
    heads = [f"[{row.step}]" if row.step == report.step else str(row.step) for row in report.rows]
    around = table("Around it", ["step", *heads], right=frozenset(heads))
    around.add_row("loss", *(number(row.loss) for row in report.rows))
    around.add_row("gradient norm", *(number(row.global_norm) for row in report.rows))
    around.add_row("shortened to", *(number(row.clip_coef) for row in report.rows))
    out.print()
    out.print(around)
    if report.parameters:
        title = f"Largest gradient norms, {len(report.parameters)} of {report.num_parameters} parameters"
        norms = _table_of_names(title, heads)
        for parameter in report.parameters:
            norms.add_row(*_norm_cells(parameter))
        out.print()
        out.print(norms)

    if report.gradients:
        heads = ["mean", "std", "max", "min", "zeros", "norm"]
        probed = _table_of_names(f"Their gradients at step {report.probe_step}", heads)
        for row in report.gradients:
            numbers = (row.mean, row.std, row.max, row.min, row.zero_ratio, row.norm)
            probed.add_row(shown_name(row.name), *(number(value) for value in numbers))
        out.print()
        out.print(probed)


def _table_of_names(title: str, heads: list[str]) -> Table:
    """Return a table in which names give way to numbers."""
    result = table(title, ["parameter", *heads], right=frozenset(heads))
    for column in result.columns[1:]:
        column.no_wrap = True
    return result


def _norm_cells(parameter: ParameterNorms) -> list[Text | str]:
    return [shown_name(parameter.name), *(number(norm) for norm in parameter.norms)]


def _done(event: Response) -> list[tuple[str, str]]:
    """Return the lines that tell all that was done about one finding, and what became of it."""
    rows: list[tuple[str, str]] = []
    order = {name: place for place, name in enumerate(event.remedies)}
    records = sorted(event.records, key=lambda record: order.get(record.remedy, len(order)))
    for record in records:
        rows.append(("" if rows else "done", f"{record.remedy}: {record.change.summary}"))
        for name in record.change.before:
            after = f" -> {_value(record.change.after[name])}" if name in record.change.after else ""
            rows.append(("", f"  {name}: {_value(record.change.before[name])}{after}"))
    for rule, rung, reason in dict.fromkeys((record.rule, record.rung, record.reason) for record in records):
        ladder = f", at step {rung + 1} of its ladder" if rung else ""
        rows.append(("why", f"rule {rule!r} {FIRED[reason]}{ladder}"))
    if event.acts and ENDS not in event.remedies:
        rows.append(("outcome", _judged(event.outcome)))
    return rows + _samples(records[0].sample_ids)


def _told(record: Told) -> list[tuple[str, str]]:
    """Return the lines that tell what was not done, or an event; interventions are told together."""
    if isinstance(record, Event):
        return [("event", f"{record.event.replace('_', ' ')}: {record.message}")]
    if isinstance(record, Intervention):
        return []
    detail = WITHHELD.get(record.reason, record.reason)
    detail += f" ({record.detail})" if record.detail else ""
    rows = [("not done", record.remedy or "-")]
    rows.append(("why not", detail + (f"; rule {record.rule!r}" if record.rule else "")))
    return rows + _samples(record.sample_ids)


def _samples(samples: Sequence[int | str]) -> list[tuple[str, str]]:
    return [("samples", ", ".join(str(sample) for sample in samples))] if samples else []


def _evidence(finding: Finding, jump: Jump | None) -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = [("found", f"{finding.diagnosis} ({finding.severity}). {finding.message}".rstrip())]
    if finding.value is not None:
        window = f" over {finding.window} steps" if finding.window else ""
        against = f", baseline {number(finding.baseline)}{window}" if finding.baseline is not None else ""
        alarm = f", alarm from {number(finding.threshold)}" if finding.threshold is not None else ""
        rows.append(("evidence", f"{finding.statistic or 'value'} {number(finding.value)}{against}{alarm}"))
    for name, value in finding.evidence.items():
        rows.append(("", f"{name}: {_value(value)}"))
    if finding.parameters:
        unnamed = finding.num_parameters - len(finding.parameters)
        rows.append(("in", ", ".join(finding.parameters) + (f" and {unnamed} more" if unnamed > 0 else "")))
    if finding.follows is not None:
        rows.append(("follows", f"{finding.follows.diagnosis} at step {finding.follows.step}"))
    if todo := advice(finding, jump):
        rows.append(("what to do", todo))
    return rows


def _judged(outcome: Outcome | None) -> str:
    if outcome is None:
        return "not judged (yet)"
    return f"{WORDS[outcome.verdict]}: {outcome.reason}".rstrip()


def _value(value: float | str | None) -> str:
    return value if isinstance(value, str) else number(value)
