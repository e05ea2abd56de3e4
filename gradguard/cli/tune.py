"""`gradguard tune RUN...`: how close healthy runs came to each threshold, and which thresholds fit them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from gradguard.audit.headline import plural
from gradguard.cli.progress import steps_bar
from gradguard.cli.render import console, facts, keep_whole, number, table, text
from gradguard.errors import PolicyError, UsageError
from gradguard.output_path import output_file
from gradguard.policy.load import load_policy, load_preset, preset_names
from gradguard.policy.schema import Policy
from gradguard.record.atomic_write import write_atomically
from gradguard.record.encode import to_json
from gradguard.replay.health import ailments
from gradguard.replay.margins import Margin, Margins, measure_margins, num_passes
from gradguard.replay.policy_text import Base, policy_text
from gradguard.replay.rates import highest_rate, rate
from gradguard.replay.recorded import Recorded
from gradguard.replay.suggest import TRIES, Suggestion, reason, suggest
from gradguard.replay.thresholds import FURTHEST
from gradguard.replay.unknowns import gaps, unmeasured


REFUSED = "what a rule acts on in such a run is no false alarm; give runs that went well, or add --anyway"


def tune(
    runs: Annotated[list[Path], typer.Argument(help="Run directories of runs that were healthy.", metavar="RUN...")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write a policy with thresholds that fit.")
    ] = None,
    policy: Annotated[str | None, typer.Option(help="Measure this policy, not that of the first run.")] = None,
    margin: Annotated[
        float, typer.Option(min=1.0, help="Factor that a threshold keeps from what the runs reach.")
    ] = 1.5,
    tighten: Annotated[
        bool, typer.Option("--tighten", help="Also bring thresholds nearer, as far as the runs show what is safe.")
    ] = False,
    anyway: Annotated[bool, typer.Option("--anyway", help="Take runs that did not go well, too.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file if it exists.")] = False,
    name: Annotated[str | None, typer.Option(help="Which guard's record, when several recorded there.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the measurements as JSON.")] = False,
) -> None:
    """Find out how close healthy runs came to each threshold, and how often rules cried wolf.

    The runs are replayed with thresholds that move until they raise an alarm,
    or raise none any more. Whatever a rule would act on in them is a false
    alarm, so a run that did not go well is refused: one that was stopped or
    failed, met NaN, was rolled back, or learned nothing.

    Exit code 0: no false alarm; 1: there are some; 2: unusable input.
    """
    if output is not None and output_file(output, "a policy", (".yaml", ".yml")).exists() and not force:
        raise UsageError(f"{output} exists; --force overwrites it")
    recorded = [Recorded(run, name) for run in runs]
    base, chosen = _base(policy, recorded[0])
    ill = [f"{run.run.path} did not go well: {'; '.join(signs)}" for run in recorded if (signs := ailments(run.run))]
    if ill and not anyway:
        raise UsageError("\n".join([*ill, REFUSED]))
    num_steps = sum(run.num_rows for run in recorded)
    with steps_bar("replaying", num_steps * num_passes()) as progress:
        margins = measure_margins(recorded, chosen, progress)
    with steps_bar("trying", num_steps * TRIES) as progress:
        suggestions = suggest(recorded, margins, margin, tighten, progress)
    unknown = [f"{run.run.path}: {gap}" for run in recorded for gap in (*gaps(run), *unmeasured(run, chosen))]
    unknown += margins.faults
    unfinished = [str(run.run.path) for run in recorded if run.run.status == "running"]
    warnings = [f"{line}; its alarms may be true ones" for line in ill]
    warnings += [f"{path} is still running: what comes may yet go wrong" for path in unfinished]
    if output is not None:
        kind = "run" if ill or unfinished else "healthy run"
        whole = _file(plural(len(runs), kind), base, chosen, margins, suggestions, margin, output.parent)
        write_atomically(output, whole)
    if as_json:
        typer.echo(to_json(as_plain(recorded, margins, suggestions, [*warnings, *unknown]), indent=2))
    else:
        unknown += _left_alone(margins, suggestions, margin) if tighten else []
        _show(recorded, policy, base, margins, suggestions, output, warnings, unknown)
    if any(margins.alarms.values()):
        raise typer.Exit(1)


def _base(source: str | None, first: Recorded) -> tuple[Base | None, Policy]:
    """Return what a policy file can extend (None: nothing), and the policy that is measured."""
    if source is not None:
        policy = load_policy(source)
        return Base(source, policy), policy
    if first.policy is None:
        raise PolicyError(["the run's own policy names something that is not installed here; give one with --policy"])
    rules = first.policy.model_dump(mode="json", include={"rules"})
    for name in ("default", *preset_names()):
        if (preset := load_preset(name)).model_dump(mode="json", include={"rules"}) == rules:
            return Base(name, preset), first.policy
    return None, first.policy


def _file(
    source: str,
    base: Base | None,
    policy: Policy,
    margins: Margins,
    suggestions: list[Suggestion],
    distance: float,
    folder: Path,
) -> str:
    changed = {suggestion.rule.name: suggestion for suggestion in suggestions}
    rules = tuple(changed[rule.name].rule if rule.name in changed else rule for rule in policy.rules)
    none = highest_rate(0, margins.num_steps)
    head = [
        f"Suggested by `gradguard tune` from {source}, {margins.num_steps:,} steps. Every "
        f"number was tried on them by replay, and keeps a factor of {distance:g} from where they begin to alarm.",
        f"A rule without a false alarm in so many steps raises fewer than {none:.3g} per 100,000 with 95 % confidence.",
    ]
    if not suggestions:
        head.append("No threshold had to be changed.")
    if base is not None and base.name not in preset_names():
        base = base._replace(name=os.path.relpath(base.name, folder))
    reasons = {name: reason(suggestion, margins.num_steps) for name, suggestion in changed.items()}
    return policy_text(head, base, policy.model_copy(update={"rules": rules}), reasons)


def as_plain(
    runs: list[Recorded], margins: Margins, suggestions: list[Suggestion], unknown: list[str]
) -> dict[str, Any]:
    """Return the measurements as plain values, for `--json`."""
    steps = margins.num_steps
    return {
        "runs": [str(run.run.path) for run in runs],
        "num_steps": steps,
        "rules": {
            name: {
                "false_alarms": count,
                "per_100000": rate(count, steps),
                "per_100000_at_most": highest_rate(count, steps),
            }
            for name, count in margins.alarms.items()
        },
        "margins": [
            {
                "rule": margin.rule.name,
                "thresholds": margin.values(1.0),
                "reached": margin.values(margin.edge) if margin.edge is not None else None,
                "ratio": margin.edge,
            }
            for margin in margins.margins
        ],
        "suggestions": [
            {"rule": one.rule.name, "thresholds": one.values, "false_alarms": one.alarms} for one in suggestions
        ],
        "unknown": unknown,
    }


def _show(
    runs: list[Recorded],
    policy: str | None,
    base: Base | None,
    margins: Margins,
    suggestions: list[Suggestion],
    output: Path | None,
    warnings: list[str],
    unknown: list[str],
) -> None:
    out = console()
    for warning in warnings:
        out.print(text(f"Warning: {warning}.", style="bold yellow"))
    if warnings:
        out.print()
    total, steps = sum(margins.alarms.values()), margins.num_steps
    head = f"{plural(total, 'false alarm') if total else 'No false alarm'} in {steps:,} steps"
    out.print(text(f"{head}.", style="bold"))
    out.print()
    told = policy or (f"the run's own ({base.name})" if base else "the run's own")
    quiet = sum(not count for count in margins.alarms.values())
    rows = [
        ("runs", ", ".join(str(run.run.path) for run in runs)),
        ("policy", told),
        ("rules", f"{quiet} without an alarm: below {highest_rate(0, steps):.3g} per 100,000 steps, 95 % confidence"),
    ]
    out.print(facts(rows))
    if total:
        out.print()
        out.print(_rates(margins))
    known = sorted((m for m in margins.margins if m.distance is not None), key=lambda m: (-bool(m.alarms), m.distance))
    if known:
        out.print()
        out.print(_margins(known))
    if beyond := _beyond(margins.margins):
        out.print()
        what = f"More than a factor of {FURTHEST:g} away, by each threshold and by all together: {beyond}"
        out.print(text(what, style="dim"))
    if suggestions:
        out.print()
        out.print(_suggestions(suggestions))
    hopeless = [name for name, count in margins.alarms.items() if count and name not in _names(suggestions)]
    notes = [
        f"no threshold of {name!r} silences it: raise its min_severity, or look again at the runs" for name in hopeless
    ]
    if total:
        notes.append("an alarm counts as false because the runs count as healthy: gradguard audit RUN tells of each")
    notes += unknown
    if notes:
        out.print()
        out.print(text("Notes", style="bold"))
        for note in notes:
            out.print(text(f"* {note}"))
    out.print()
    hint = "Write a policy with these numbers: gradguard tune RUN... -o policy.yaml"
    out.print(text(f"Written: {output}" if output is not None else hint, style="dim"))


def _left_alone(margins: Margins, suggestions: list[Suggestion], distance: float) -> list[str]:
    """Return why `--tighten` left quiet rules as they are."""
    changed = _names(suggestions)
    known = {margin.rule.name for margin in margins.margins if margin.distance is not None}
    quiet = [name for name, count in margins.alarms.items() if not count and name not in changed]
    told = []
    if near := [name for name in quiet if name in known]:
        told.append(f"not tightened, alarms begin within a factor of {distance:g} already: {', '.join(near)}")
    movable = {margin.rule.name for margin in margins.margins}
    if far := [name for name in quiet if name in movable - known]:
        told.append(
            f"not tightened, {plural(len(far), 'rule')}: even {FURTHEST:g} times nearer they raise no alarm, so the "
            "runs do not show how near is safe; longer or more runs may"
        )
    return told


def _names(suggestions: list[Suggestion]) -> set[str]:
    return {suggestion.rule.name for suggestion in suggestions}


def _rates(margins: Margins) -> Table:
    columns = ["rule", "false alarms", "per 100,000 steps", "at most (95 %)"]
    result = table("False alarms", columns, right=frozenset(columns[1:]))
    for name, count in margins.alarms.items():
        if count:
            share, bound = rate(count, margins.num_steps), highest_rate(count, margins.num_steps)
            result.add_row(text(name), f"{count:,}", _per(share), _per(bound))
    return result


def _margins(margins: list[Margin]) -> Table:
    columns = ["rule", "threshold", "is", "alarms from", "ratio", "away"]
    result = table("How close the runs came", columns, right=frozenset(columns[2:]))
    keep_whole(result, 0, (margin.rule.name for margin in margins))
    for margin in margins:
        edge = margin.edge or 1.0
        away = "too near" if margin.alarms else f"{margin.distance:.3g}x"
        result.add_row(
            text(margin.rule.name),
            _lines(margin.move.names),
            _lines(number(value) for value in margin.values(1.0).values()),
            _lines(number(value) for value in margin.values(edge).values()),
            number(edge),
            away,
        )
    return result


def _beyond(margins: list[Margin]) -> str:
    """Return the rules of which nothing is known but that their alarms begin further away."""
    near = {margin.rule.name for margin in margins if margin.distance is not None}
    names = dict.fromkeys(margin.rule.name for margin in margins if not margin.alarms)
    return ", ".join(name for name in names if name not in near)


def _per(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else number(value)


def _lines(parts: Any) -> Any:
    from rich.console import Group

    return Group(*(text(part) for part in parts))


def _suggestions(suggestions: list[Suggestion]) -> Table:
    columns = ["rule", "threshold", "is", "suggested", "false alarms left"]
    result = table("Suggested", columns, right=frozenset(columns[2:]))
    keep_whole(result, 0, (suggestion.rule.name for suggestion in suggestions))
    for one in suggestions:
        result.add_row(
            text(one.rule.name),
            _lines(one.values),
            _lines(number(value) for value in one.margin.values(1.0).values()),
            _lines(number(value) for value in one.values.values()),
            f"{one.alarms:,}",
        )
    return result
