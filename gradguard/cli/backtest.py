"""`gradguard backtest POLICY RUN`: what another policy would have found and done in a run."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from gradguard.audit.headline import plural
from gradguard.cli.progress import steps_bar
from gradguard.cli.render import console, facts, keep_whole, steps, table, text
from gradguard.errors import PolicyError, did_you_mean
from gradguard.policy.load import load_policy, preset_names
from gradguard.policy.schema import Policy
from gradguard.record.encode import to_json
from gradguard.replay.backtest import Backtest, Replayed
from gradguard.replay.decided import Decided
from gradguard.replay.difference import Comparison, Difference, compare
from gradguard.replay.recorded import Recorded
from gradguard.replay.routine import RoutineDifference
from gradguard.replay.unknowns import gaps, unmeasured


RECORDED = "recorded"  # in place of a policy: that of the run
MAX_DIFFERENCES = 25


def backtest(
    policy: Annotated[str, typer.Argument(help="A policy file, a preset's name, or 'recorded' for the run's own.")],
    run: Annotated[Path, typer.Argument(help="The run directory.")],
    name: Annotated[str | None, typer.Option(help="Which guard's record, when several recorded there.")] = None,
    show_all: Annotated[bool, typer.Option("--all", help="Show every difference, however many.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the comparison as JSON.")] = False,
) -> None:
    """Replay a run under another policy: what it would have found and done, and where that differs.

    Every recorded step is judged again from its numbers. By the run's own
    policy ('recorded') that gives what was recorded, to the last letter. After
    the first step at which another policy would have changed the run's course
    its answers are hypothetical: the numbers are those of the run as it was.

    Exit code 0: the same findings and decisions; 1: they differ;
    2: no such policy or run.
    """
    recorded = Recorded(run, name)
    chosen = _policy(policy, recorded)
    with steps_bar("replaying", recorded.num_rows) as progress:
        replayed = Backtest(recorded, chosen).run(progress)
    comparison = compare(recorded, chosen, replayed)
    unknown = [*gaps(recorded), *unmeasured(recorded, chosen), *_assumed(replayed), *replayed.faults]
    if as_json:
        typer.echo(to_json(as_plain(policy, recorded, replayed, comparison, unknown), indent=2))
    else:
        _show(policy, recorded, replayed, comparison, unknown, None if show_all else MAX_DIFFERENCES)
    if not comparison.is_same:
        raise typer.Exit(1)


def _policy(source: str, recorded: Recorded) -> Policy:
    if source != RECORDED:
        try:
            return load_policy(source)
        except PolicyError:
            if Path(source).suffix or Path(source).exists():
                raise
            known = did_you_mean(source, [RECORDED, *preset_names()])
            raise PolicyError([f"no preset and no file is called {source!r}{known}"]) from None
    if recorded.policy is None:
        raise PolicyError(["the run's own policy names something that is not installed here; give a policy file"])
    return recorded.policy


def _assumed(replayed: Replayed) -> list[str]:
    names = replayed.routine.assumed if replayed.routine is not None else ()
    return [f"what {name} works on is not recorded: it is taken to act at every step" for name in names]


def as_plain(
    policy: str, recorded: Recorded, replayed: Replayed, comparison: Comparison, unknown: list[str]
) -> dict[str, Any]:
    """Return a comparison as plain values, for `--json`."""
    names = ("findings_recorded", "findings_replayed", "actions_recorded", "actions_replayed")
    return {
        "run": str(recorded.run.path),
        "policy": policy,
        "num_steps": replayed.num_steps,
        "is_same": comparison.is_same,
        "is_exact": comparison.is_exact,
        "first_difference": comparison.first_difference,
        "hypothetical_from": comparison.hypothetical_from,
        "stopped_at": replayed.stopped_at,
        "num_same": comparison.num_same,
        "diagnoses": {name: dict(zip(names, counts, strict=True)) for name, counts in comparison.counts.items()},
        "differences": [
            {
                "diagnosis": difference.diagnosis,
                "recorded": _plain(difference.recorded),
                "replayed": _plain(difference.replayed),
                "steps": list(difference.steps),
                "is_hypothetical": difference.is_hypothetical,
            }
            for difference in comparison.differences
        ],
        "routine": None if comparison.routine is None else asdict(comparison.routine),
        "unknown": unknown,
    }


def _show(
    policy: str,
    recorded: Recorded,
    replayed: Replayed,
    comparison: Comparison,
    unknown: list[str],
    limit: int | None,
) -> None:
    out = console()
    out.print(text(_headline(comparison), style="bold"))
    out.print()
    out.print(facts(_facts(policy, recorded, replayed, comparison)))
    if comparison.counts:
        out.print()
        out.print(_counts(comparison))
    if comparison.differences:
        out.print()
        out.print(_differences(comparison.differences[:limit]))
        if limit is not None and len(comparison.differences) > limit:
            out.print(text(f"{len(comparison.differences) - limit} more: --all shows every one", style="dim"))
        if any(difference.is_hypothetical for difference in comparison.differences):
            out.print(text("? hypothetical: the policy would have changed the run before this step", style="dim"))
    if unknown:
        out.print()
        out.print(text("What this replay cannot know", style="bold"))
        for line in unknown:
            out.print(text(f"* {line}"))


def _headline(comparison: Comparison) -> str:
    if comparison.routine is not None and not comparison.differences:
        return f"Not the same: {routine_words(comparison.routine)}."
    if comparison.is_exact:
        count = comparison.num_same
        return (
            f"The same: {plural(count, 'decision')}, to the last letter." if count else "The same: nothing was found."
        )
    if comparison.is_same:
        return f"The same: {plural(comparison.num_same, 'decision')}; rules or thresholds are others."
    kinds = plural(len(comparison.differences) + (comparison.routine is not None), "difference")
    return f"Not the same: {kinds}, the first at step {comparison.first_difference:,}."


def routine_words(routine: RoutineDifference) -> str:
    """Return what the rules for every step would have done, beside what those of the run did.

    Example:
        >>> routine_words(RoutineDifference(75, 3, 0, 75, 400, is_clipping=True))
        'it would have clipped 75 of 400 steps, the run clipped none'
    """
    did = "clipped" if routine.is_clipping else "changed the gradients of"
    would = f"{routine.num_replayed:,} of {routine.num_judged:,} steps" if routine.num_replayed else "no step"
    times = f"{routine.num_recorded:,}" if routine.num_recorded else "none"
    differing = f"; {routine.num_steps:,} steps differ" if routine.num_recorded and routine.num_replayed else ""
    return f"it would have {did} {would}, the run {did} {times}{differing}"


def _facts(policy: str, recorded: Recorded, replayed: Replayed, comparison: Comparison) -> list[tuple[str, str]]:
    was = recorded.policy
    rows = [
        ("run", f"{recorded.run.path}, {recorded.run.status}"),
        ("policy", "the run's own" if policy == RECORDED else policy),
        ("replayed", f"{replayed.num_steps:,} of {recorded.num_rows:,} steps"),
    ]
    if was is not None and was.mode == "observe":
        rows.append(("mode", "the run only observed: nothing that was found was acted on"))
    if replayed.stopped_at is not None and recorded.run.status != "stopped":
        rows.append(("ends", f"the policy stops the training at step {replayed.stopped_at:,}"))
    if recorded.run.status == "stopped" and replayed.stopped_at is None:
        rows.append(("ends", "the run was stopped; the policy would have gone on into what nobody knows"))
    if comparison.routine is not None and comparison.differences:
        rows.append(("every step", f"{routine_words(comparison.routine)}, from step {comparison.routine.first:,} on"))
    if comparison.hypothetical_from is not None:
        before = comparison.hypothetical_from - 1
        known = f"at step {before:,} the policy changes the run's course; what comes after is hypothetical"
        rows.append(("known", known))
    return rows


def _counts(comparison: Comparison) -> Table:
    columns = ["diagnosis", "found\nby the run", "\nreplayed", "acts\nof the run", " \nreplayed"]
    result = table("What is found and done", columns, right=frozenset(columns[1:]))
    for column in result.columns:
        column.vertical = "bottom"
    keep_whole(result, 0, comparison.counts)
    for name, (found, refound, done, redone) in comparison.counts.items():
        style = "" if (found, done) == (refound, redone) else "bold"
        result.add_row(text(name), f"{found:,}", text(f"{refound:,}", style), f"{done:,}", text(f"{redone:,}", style))
    return result


def _differences(differences: tuple[Difference, ...]) -> Table:
    result = table("Where they differ", ["", "steps", "times", "found", "the run", "this policy"], frozenset({"times"}))
    keep_whole(result, 3, (difference.diagnosis for difference in differences))
    for difference in differences:
        result.add_row(
            "?" if difference.is_hypothetical else "",
            steps(difference.steps[0], difference.steps[-1]),
            f"{len(difference.steps):,}",
            text(difference.diagnosis),
            text(_told(difference.recorded, difference)),
            text(_told(difference.replayed, difference)),
        )
    return result


def _told(side: tuple[Decided, ...] | None, difference: Difference) -> str:
    """Return one side in words; options and severities only where the sides differ in them."""
    if side is None:
        return "not found"
    both = [decided for other in (difference.recorded, difference.replayed) for decided in other or ()]
    has_options = len({(decided.remedy, decided.options) for decided in both}) > len({one.remedy for one in both})
    has_severity = len({decided.severity for decided in both}) > 1
    return ", ".join(decided.told(has_options, has_severity) for decided in side) or "nothing else"


def _plain(side: tuple[Decided, ...] | None) -> list[dict[str, Any]] | None:
    return None if side is None else [decided._asdict() for decided in side]
