"""`gradguard check POLICY`: is it right, and what will it do?"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gradguard.audit.headline import plural
from gradguard.errors import PolicyError
from gradguard.printable import printable


if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from gradguard.policy.schema import Policy, Rule, Rung, SnapshotOptions
    from gradguard.registry import Component


LABEL_WIDTH = 16  # columns of what stands before a value


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
    for rule in policy.rules:
        console.print()
        console.print(Text(printable(rule.name), "bold"))
        _print_lines(console, rule_lines(rule))
    if note := _pattern_note(policy):
        console.print(Text(f"\n{note}", "dim"))
    if any(rule.escalate for rule in policy.rules):
        console.print(
            Text(
                "\nA line '4 in 8 steps' acts in place of the one above it when that acted 4 times in 8 steps; 'if no "
                "effect' when that had none where it was judged last.",
                "dim",
            )
        )


def _pattern_note(policy: Policy) -> str:
    """Return when it is known whether patterns match anything; "" where there are none that have to."""
    given = [policy.monitor.parameters, *(rule.parameters or () for rule in policy.rules)]
    patterns = dict.fromkeys(pattern for each in given for pattern in each)
    wanted = [pattern for pattern in patterns if not pattern.startswith("!") and pattern != "*"]
    if not wanted:
        return ""
    named = ", ".join(repr(printable(pattern)) for pattern in wanted[:3])
    more = f" and {len(wanted) - 3} more" if len(wanted) > 3 else ""
    return (
        f"Whether {named}{more} {'match' if len(wanted) > 1 else 'matches'} anything is known once there is a model: "
        "attach compares patterns with the names in model.named_parameters(), and refuses one that matches none."
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
        lines.append(("budget", f"{plural(policy.budget, 'action')} in vain{within}, then {policy.on_budget}"))
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
        lines.append(("budget", f"{plural(rule.budget, 'action')} a run"))
    if rule.budget_per_parameter is not None:
        lines.append(("budget", f"{plural(rule.budget_per_parameter, 'action')} a run on each parameter"))
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


def _print_lines(console: Console, lines: Iterable[tuple[str, str]]) -> None:
    """Print labels beside their values; a label that is too long has a line of its own."""
    from rich.table import Table
    from rich.text import Text

    for label, value in lines:
        is_long = len(label) > LABEL_WIDTH
        if is_long:
            console.print(Text(f"  {label}", "dim"))
        row = Table.grid(padding=(0, 2, 0, 0))
        row.add_column(width=LABEL_WIDTH + 2)
        row.add_column(overflow="fold")
        row.add_row(Text("" if is_long else f"  {label}", "dim"), Text(printable(value)))
        console.print(row)


def _two_columns(lines: Iterable[tuple[str, str]]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for label, value in lines:
        table.add_row(Text(label, "dim"), Text(printable(value)))
    return table
