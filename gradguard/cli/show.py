"""`gradguard show RUN --step N`: everything about one step."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from gradguard.audit.read import read_run
from gradguard.audit.responses import ENDS, TELLS
from gradguard.audit.step import ParameterNorms, StepReport, StepRow, describe_step
from gradguard.cli.render import REASONS as WITHHELD
from gradguard.cli.render import console, facts, number, table, text
from gradguard.outcomes.verdict import WORDS
from gradguard.record.encode import to_json
from gradguard.records import AnyRecord, Event, Finding, Intervention, Outcome, Withheld


FIRED = {"fired": "fired", "escalated": "escalated", "gave_up": "gave up: the budget of the run is spent"}


def show(
    run: Annotated[Path, typer.Argument(help="The run directory.")],
    step: Annotated[int, typer.Option(help="The optimizer step, from 0.")],
    name: Annotated[str | None, typer.Option(help="Which guard's record, when several recorded there.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
) -> None:
    """Show everything that is recorded about one step: what was measured, found, decided, changed, and the outcome."""
    report = describe_step(read_run(run, name), step)
    if as_json:
        typer.echo(to_json(report, indent=2))
    else:
        render_step(report)


def render_step(report: StepReport) -> None:
    """Print what is recorded about a step."""
    out = console()
    out.print(text(f"Step {report.step} of {report.path}", style="bold"))
    out.print()
    if report.row is None:
        out.print(text("The statistics of this step were lost; the journal has it:"))
    else:
        out.print(facts(_measured(report.row)))
        _print_neighbours(out, report)
    if not report.records:
        out.print()
        out.print(text("Nothing was found at this step."))
    told: set[str] = set()
    for record in report.records:
        out.print()
        finding = getattr(record, "finding", None)
        is_told = finding is None or to_json(finding) in told
        out.print(facts(_told(record, None if is_told else finding)))
        told.add(to_json(finding))


def _measured(row: StepRow) -> list[tuple[str, str]]:
    factor = "" if row.effective_lr == row.lr else f", {number(row.effective_lr)} with the guard's factor"
    clip = "not scaled down" if not row.clip_coef < 1 else f"scaled down by {number(row.clip_coef)}"
    rows: list[tuple[str, str]] = [
        ("loss", number(row.loss)),
        ("learning rate", number(row.lr) + factor),
        ("gradient norm", f"{number(row.global_norm)}, {clip}"),
    ]
    if row.loss_scale != 1:
        rows.append(("loss scale", number(row.loss_scale)))
    if row.flags:
        rows.append(("flags", ", ".join(flag.replace("_", " ") for flag in row.flags)))
    return rows


def _print_neighbours(out: Console, report: StepReport) -> None:
    heads = [f"[{row.step}]" if row.step == report.step else str(row.step) for row in report.rows]
    around = table("Around it", ["step", *heads], right=frozenset(heads))
    around.add_row("loss", *(number(row.loss) for row in report.rows))
    around.add_row("gradient norm", *(number(row.global_norm) for row in report.rows))
    around.add_row("scaled by", *(number(row.clip_coef) for row in report.rows))
    out.print()
    out.print(around)
    if report.parameters:
        title = f"Largest gradient norms, {len(report.parameters)} of {report.num_parameters} parameters"
        norms = table(title, ["parameter", *heads], right=frozenset(heads))
        for parameter in report.parameters:
            norms.add_row(*_norm_cells(parameter))
        out.print()
        out.print(norms)

    if report.gradients:
        heads = ["mean", "std", "max", "min", "zeros", "norm"]
        probed = table(f"Their gradients at step {report.probe_step}", ["parameter", *heads], right=frozenset(heads))
        for row in report.gradients:
            numbers = (row.mean, row.std, row.max, row.min, row.zero_ratio, row.norm)
            probed.add_row(text(row.name), *(number(value) for value in numbers))
        out.print()
        out.print(probed)


def _norm_cells(parameter: ParameterNorms) -> list[Text | str]:
    return [text(parameter.name), *(number(norm) for norm in parameter.norms)]


def _told(record: AnyRecord, finding: Finding | None) -> list[tuple[str, str]]:
    """Return the lines that tell one record; `finding` is None when it was told with the record before."""
    rows: list[tuple[str, str]] = []
    if finding is not None:
        rows += _evidence(finding)
    if isinstance(record, Intervention):
        rung = f", rung {record.rung}" if record.rung else ""
        rows.append(("done", f"{record.remedy}: {record.change.summary}"))
        rows.append(("why", f"rule {record.rule!r} {FIRED[record.reason]}{rung}"))
        for name in record.change.before:
            after = f" -> {_value(record.change.after[name])}" if name in record.change.after else ""
            rows.append(("", f"{name}: {_value(record.change.before[name])}{after}"))
        if record.remedy not in (TELLS, ENDS):
            rows.append(("outcome", _judged(record.outcome)))
    elif isinstance(record, Withheld):
        detail = f": {record.detail or WITHHELD[record.reason]}"
        rows.append(("not done", record.remedy or "-"))
        rows.append(("why", f"{record.reason}{detail}" + (f" (rule {record.rule!r})" if record.rule else "")))
    elif isinstance(record, Event):
        rows.append(("event", f"{record.event}: {record.message}"))
    if isinstance(record, (Intervention, Withheld)) and record.sample_ids:
        rows.append(("samples", ", ".join(str(sample) for sample in record.sample_ids)))
    return rows


def _evidence(finding: Finding) -> list[tuple[str, str]]:
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
    if finding.advice:
        rows.append(("advice", finding.advice))
    return rows


def _judged(outcome: Outcome | None) -> str:
    if outcome is None:
        return "not judged (yet)"
    return f"{WORDS[outcome.verdict]}: {outcome.reason}".rstrip()


def _value(value: float | str | None) -> str:
    return value if isinstance(value, str) else number(value)
