"""`gradguard compare A B`: two runs step by step."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from gradguard.audit.headline import plural
from gradguard.audit.read import read_run
from gradguard.cli.render import console, keep_whole, number, steps, table, text
from gradguard.cli.render import name as shown_name
from gradguard.compare.actions import Action
from gradguard.compare.comparison import WORDS, Comparison, Side, compare_runs
from gradguard.compare.divergence import NORMS, Difference
from gradguard.printable import tidy
from gradguard.record.encode import to_json
from gradguard.record.statistics import Flag


FLAGS = {
    Flag.FINDING: "found",
    Flag.INTERVENTION: "acted",
    Flag.SKIPPED_BY_GUARD: "skipped",
    Flag.SKIPPED_BY_SCALER: "skipped by GradScaler",
    Flag.STALE: "stale gradients",
}
LONGEST = 40  # characters of a setting that are shown
MOST_ROWS = 12  # shown of lists that may be long; --json has them all


def compare(
    a: Annotated[Path, typer.Argument(help="The run directory of A.")],
    b: Annotated[Path, typer.Argument(help="The run directory of B.")],
    rtol: Annotated[
        float, typer.Option(min=0.0, help="Relative difference up to which two numbers are the same; 0: the same bits.")
    ] = 0.0,
    name: Annotated[str | None, typer.Option(help="Which guard's record, when several recorded there.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the comparison as JSON.")] = False,
) -> None:
    """Compare two runs step by step: where do they part, in what, and what did the guard do in each?

    Of a step that was taken again after a resume the last time counts.
    Parameters go by their names.

    Exit code 0: the same steps with the same numbers and actions; 1: they
    differ; 2: not a run directory.
    """
    found = compare_runs(read_run(a, name), read_run(b, name), rtol)
    if as_json:
        typer.echo(to_json(found, indent=2))
    else:
        render_comparison(found)
    if found.answer != "same":
        raise typer.Exit(1)


def render_comparison(found: Comparison) -> None:
    """Print a comparison: the answer, where they part, what was set up differently, and both side by side."""
    out = console()
    out.print(text(found.headline, style="bold"))
    parts = []
    if found.differences:
        parts.append(_differences(found.differences))
    if found.settings:
        parts.append(_settings(found))
    parts.append(_sides(found))
    if found.counts:
        parts.append(_counts(found))
    apart = [action for action in found.actions if action.in_a != action.in_b]
    if common := [action for action in apart if action.is_common]:
        parts.append(_apart(common))
    if beyond := [action for action in apart if not action.is_common]:
        parts.append(_beyond(beyond))
    for part in parts:
        out.print()
        out.print(part)


def _differences(differences: tuple[Difference, ...]) -> Table:
    columns = ["what", "step", "A", "B", "apart by"]
    result = table("Where they part", columns, right=frozenset(columns[1:]))
    for column in (result.columns[1], result.columns[4]):
        column.no_wrap = True
    for one in differences:
        what = WORDS.get(one.quantity, one.quantity).removeprefix("the ")
        if one.quantity == NORMS:
            more = f" (+{one.num_parameters - 1} more)" if one.num_parameters > 1 else ""
            what = f"gradient norm of {one.parameters[0]}{more}"
        values = [_flags(one.a), _flags(one.b)] if one.quantity == "flags" else [_norm(one, one.a), _norm(one, one.b)]
        apart = "-" if one.relative is None or one.quantity == "flags" else _percent(one.relative)
        result.add_row(shown_name(what), f"{one.step:,}", *values, apart)
    return result


def _settings(found: Comparison) -> Table:
    result = table("Set up differently", ["what", "A", "B"])
    for setting in found.settings[:MOST_ROWS]:
        result.add_row(shown_name(setting.name), *(text(_short(value) or "-") for value in (setting.a, setting.b)))
    if len(found.settings) > MOST_ROWS:
        result.add_row(text(f"{len(found.settings) - MOST_ROWS:,} more; see --json", style="dim"))
    return result


def _short(value: str) -> str:
    return value if len(value) <= LONGEST else value[: LONGEST - 3] + "..."


def _sides(found: Comparison) -> Table:
    result = table("Side by side", ["", "A", "B"])
    result.columns[0].no_wrap = True
    sides = (found.a, found.b)
    rows = {
        "run": [side.path for side in sides],
        "status": [side.status for side in sides],
        "verdict": [side.verdict for side in sides],
        "steps": [_steps(side) for side in sides],
        "loss, first": [number(side.loss.first) for side in sides],
        "loss, last": [number(side.loss.median_last) for side in sides],
        "loss, lowest": [number(side.loss.lowest) for side in sides],
        "norm, median": [number(side.norm_median) for side in sides],
        "norm, largest": [number(side.norm_max) for side in sides],
        "norm, not finite": [f"{side.num_nonfinite:,}" for side in sides],
        "steps skipped": [f"{side.num_skipped:,}" for side in sides],
        "clipped": ["-" if side.clip_share is None else f"{side.clip_share:.1%}" for side in sides],
        "findings": [", ".join(f"{n:,} {name}" for name, n in side.findings.items()) or "none" for side in sides],
        "guard acted": [f"{side.num_interventions:,}" for side in sides],
    }
    if found.only_a or found.only_b:
        rows["parameters"] = [
            f"{found.num_parameters:,} in both, {_named(names)}" for names in (found.only_a, found.only_b)
        ]
    for label, values in rows.items():
        style = "" if values[0] == values[1] or label in ("run", "steps") else "bold"
        result.add_row(text(label, style="dim"), *(text(value, style=style) for value in values))
    return result


def _counts(found: Comparison) -> Table:
    columns = ["found", "done", "A", "B", "same\nstep", "helped\nin A", "helped\nin B"]
    result = table("What the guard did", columns, right=frozenset(columns[2:]))
    for column in result.columns:
        column.vertical = "bottom"
    keep_whole(result, 0, (row.diagnosis for row in found.counts))
    keep_whole(result, 1, (name for row in found.counts for name in row.remedy.split(" + ")))
    for row in found.counts:
        helped = [
            f"{good:,} of {judged:,}" if judged else "-"
            for good, judged in ((row.helped_a, row.judged_a), (row.helped_b, row.judged_b))
        ]
        counts = (f"{count:,}" if count else "-" for count in (row.count_a, row.count_b, row.count_both))
        result.add_row(text(row.diagnosis), text(row.remedy.replace(" + ", ", ")), *counts, *helped)
    return result


def _apart(actions: list[Action]) -> Table:
    result = table(
        "In one of them only", ["step", "in", "found", "where", "done", "outcome"], right=frozenset({"step"})
    )
    keep_whole(result, 2, (action.diagnosis for action in actions))
    for action in actions[:MOST_ROWS]:
        side, verdict = ("A", action.verdict_a) if action.in_a else ("B", action.verdict_b)
        outcome = verdict.replace("_", " ") if verdict else "-"
        result.add_row(
            f"{action.step:,}",
            side,
            text(action.diagnosis),
            shown_name(action.parameter or "-"),
            text(action.remedy.replace(" + ", ", ")),
            outcome,
        )
    if len(actions) > MOST_ROWS:
        result.add_row("", "", text(f"{len(actions) - MOST_ROWS:,} more; see --json", style="dim"))
    return result


def _beyond(actions: list[Action]) -> Table:
    """Return what was done at steps that only one of the runs has, each kind in one row."""
    result = table(
        "At steps that only one of them has", ["in", "found", "done", "times", "steps"], frozenset({"times"})
    )
    groups: dict[tuple[str, str, str], list[int]] = {}
    for action in actions:
        key = ("A" if action.in_a else "B", action.diagnosis, action.remedy)
        groups.setdefault(key, []).append(action.step)
    keep_whole(result, 1, (diagnosis for _, diagnosis, _ in groups))
    for (side, diagnosis, remedy), at in groups.items():
        result.add_row(side, text(diagnosis), text(remedy), f"{len(at):,}", steps(at[0], at[-1]))
    return result


def _steps(side: Side) -> str:
    if side.first_step is None or side.last_step is None:
        return "none"
    only = f", {side.only:,} not in the other" if side.only else ""
    return f"{side.num_steps:,} ({steps(side.first_step, side.last_step)}){only}"


def _named(names: tuple[str, ...]) -> str:
    if not names:
        return "none of its own"
    return (
        f"{plural(len(names), 'of its own', 'of its own')}: {', '.join(names[:3])}{', ...' if len(names) > 3 else ''}"
    )


def _flags(value: float) -> str:
    """Return what the flags of a step say.

    Example:
        >>> _flags(Flag.FINDING | Flag.SKIPPED_BY_GUARD), _flags(0)
        ('found, skipped', 'nothing')
    """
    return ", ".join(word for flag, word in FLAGS.items() if int(value) & flag) or "nothing"


def _norm(one: Difference, value: float) -> str:
    return "no gradient" if one.quantity == NORMS and value < 0 else _exact(one, value)


def _exact(one: Difference, value: float) -> str:
    """Return a number in as many digits as it takes to see that the two differ."""
    for digits in (3, 6, 9, 17):
        if f"{one.a:.{digits}g}" != f"{one.b:.{digits}g}":
            break
    return number(value) if value != value or abs(value) == float("inf") else tidy(f"{value:.{digits}g}")


def _percent(share: float) -> str:
    """Return a relative difference.

    Example:
        >>> _percent(0.25), _percent(3e-8)
        ('25 %', '3e-6 %')
    """
    return f"{100 * share:.3g} %" if share >= 1e-5 else f"{tidy(f'{100 * share:.0e}')} %"
