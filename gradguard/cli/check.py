"""`gradguard check POLICY`: is it right, and what will it do?"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gradguard.errors import PolicyError
from gradguard.printable import printable


if TYPE_CHECKING:
    from rich.table import Table

    from gradguard.policy.schema import Policy, Rule, Rung, SnapshotOptions
    from gradguard.registry import Component


def check(
    policy: Annotated[str, typer.Argument(help="A policy file (.yaml, .yml, .toml, .json) or the name of a preset.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the outcome and the resolved policy as JSON.")] = False,
) -> None:
    """Check a policy and print its rules; exit with 2 and list every mistake if it has any."""
    from gradguard.policy.load import load_policy

    try:
        loaded = load_policy(policy)
    except PolicyError as error:
        if as_json:
            typer.echo(json.dumps({"valid": False, "problems": error.problems}, indent=2))
        for problem in error.problems:
            typer.echo(printable(problem), err=True)
        raise typer.Exit(2) from None
    if as_json:
        typer.echo(json.dumps({"valid": True, "problems": [], "policy": loaded.model_dump(mode="json")}, indent=2))
        return
    _show(policy, loaded)


def _show(name: str, policy: Policy) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    console.print(Text.assemble((printable(name), "bold"), " is a valid policy.\n"))
    console.print(_two_columns(headline(policy)))
    if not policy.rules:
        return
    console.print()
    console.print(_table(policy.rules))
    if any(rule.escalate for rule in policy.rules):
        console.print(
            Text(
                "\nA line '4 in 8 steps' acts in place of the one above it when that acted 4 times in 8 steps; 'if no "
                "effect' when that had none where it was judged last.",
                "dim",
            )
        )


def headline(policy: Policy) -> list[tuple[str, str]]:
    """Return what holds for the whole policy, as labels and values."""
    lines = [
        ("mode", "enforce" if policy.mode == "enforce" else "observe (decide and record, change nothing)"),
        ("parameters", " ".join(policy.monitor.parameters)),
    ]
    if "snapshots" in policy.needs():
        lines.append(("snapshots", _snapshots(policy.snapshots)))
    lines.append(("outcomes", f"judged {policy.horizon} steps after an intervention"))
    if policy.budget is not None:
        within = f" in {policy.budget_within} steps" if policy.budget_within is not None else ""
        lines.append(("budget", f"{policy.budget} actions in vain{within}, then {policy.on_budget}"))
    lines.append(("told to", ", ".join(map(as_written, policy.sinks)) or "nobody"))
    lines.append(("rules", str(len(policy.rules)) if policy.rules else "none: the guard measures and records only"))
    return lines


def _snapshots(options: SnapshotOptions) -> str:
    kept = "the last good one is" if options.keep == 1 else f"the last {options.keep} good ones are"
    place = "in memory" if options.where == "memory" else "in the run directory"
    rng = ", with the random generators" if options.rng else ""
    return f"every {options.every} steps; {kept} kept {place}{rng}"


def rule_lines(rule: Rule) -> list[tuple[str, str]]:
    """Return what a rule does, as labels and values; what is left at its default is not mentioned."""
    lines = [("when", as_written(rule.when))]
    if rule.parameters is not None:
        lines.append(("parameters", " ".join(rule.parameters)))
    if rule.min_severity != "warn":
        lines.append(("severity", f"{rule.min_severity} and above"))
    lines.append(("do", _together(rule.do)))
    lines.extend((_condition(rung), _together(rung.do)) for rung in rule.escalate)
    if rule.until is not None:
        lines.append(("until", f"step {rule.until}"))
    if rule.unless_follows:
        lines.append(("unless", f"it follows {' or '.join(rule.unless_follows)}"))
    if rule.cooldown:
        lines.append(("cooldown", f"{rule.cooldown} steps"))
    if rule.budget is not None:
        lines.append(("budget", f"{rule.budget} actions a run"))
    if rule.budget_per_parameter is not None:
        lines.append(("budget", f"{rule.budget_per_parameter} actions a run on each parameter"))
    return lines


def _condition(rung: Rung) -> str:
    """Return when a rung acts: `4 in 8 steps`, `if no effect`, or both."""
    verdict = "if " + " or ".join(verdict.replace("_", " ") for verdict in rung.if_outcome) if rung.if_outcome else ""
    if rung.after is not None:
        return f"{rung.after} in {rung.within} steps {verdict}".rstrip()
    return f"{verdict} in {rung.within} steps" if rung.within is not None else verdict


def as_written(component: Component) -> str:
    """Return a component as in a policy file, with the options that were set: `scale_lr {factor: 0.5}`."""
    given = component.model_dump(mode="json", exclude_unset=True)
    return f"{component.name} {_value(given)}" if given else component.name


def _together(components: Iterable[Component]) -> str:
    return " + ".join(map(as_written, components))


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {_value(inner)}' for key, inner in value.items())}}}"
    if isinstance(value, float):
        return f"{value:g}"
    return value if isinstance(value, str) else json.dumps(value)


def _table(rules: Iterable[Rule]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(overflow="fold", max_width=26)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for index, rule in enumerate(rules):
        if index:
            table.add_row()
        for row, (label, value) in enumerate(rule_lines(rule)):
            name = Text(printable(rule.name), "bold") if row == 0 else Text()
            table.add_row(name, Text(label, "dim"), Text(printable(value)))
    return table


def _two_columns(lines: Iterable[tuple[str, str]]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for label, value in lines:
        table.add_row(Text(label, "dim"), Text(printable(value)))
    return table
