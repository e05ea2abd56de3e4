"""`gradguard drill POLICY`: what a policy does about every kind of fault, seen before it is trusted."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from loguru import logger
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gradguard.audit.headline import plural
from gradguard.cli.progress import steps_bar
from gradguard.cli.render import NAME_WIDTH, console, number, text
from gradguard.drill.kinds import KINDS, find_kinds
from gradguard.policy.load import load_policy
from gradguard.record.encode import to_json


if TYPE_CHECKING:
    from gradguard.drill.outcome import Drill, Healthy, Run, Struck, Verdict

MIN_STEPS = 150  # in a shorter run the faults come before there is a past that they stand out from
MAX_SEED = 2**32 - 1
STYLES = {"recovered": "green", "stopped": "yellow", "harmless": "dim"}
FAILED_STYLE = "bold red"
TOLD: tuple[Verdict, ...] = ("recovered", "stopped", "not recovered", "not found", "made worse")
TITLE_WIDTH = max(len(kind.title) for kind in KINDS)


def drill(
    policy: Annotated[str, typer.Argument(help="A policy file or a preset's name.")] = "default",
    only: Annotated[
        list[str] | None,
        typer.Option(help=f"Only these kinds of fault, with commas between: {', '.join(k.name for k in KINDS)}."),
    ] = None,
    steps: Annotated[int, typer.Option(min=MIN_STEPS, help="Optimizer steps of each run.")] = 300,
    seed: Annotated[int, typer.Option(min=0, max=MAX_SEED, help="Of weights, data and faults.")] = 0,
    run_dir: Annotated[
        Path | None, typer.Option(help="Keep the records of the guarded runs here, a folder for each.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the outcome as JSON.")] = False,
) -> None:
    """Drill a policy: strike a small training with every kind of fault, without and with the guard.

    A small classifier is trained on made data, on the CPU: once clean, once
    clean under the guard, and twice for each kind of fault. Patterns that name
    parameters of your model are left out, and that is said; sinks are not told.

    Exit code 0: every fault that harms was recovered from or stopped, and the
    healthy run was left alone; 1: not so; 2: no such policy or kind of fault.
    """
    kinds = find_kinds([name.strip() for names in only or [] for name in names.split(",")])
    chosen = load_policy(policy)
    from gradguard.drill.drill import drill as carry_out  # here, because it imports torch
    from gradguard.drill.drill import num_runs

    total = num_runs(kinds) * steps
    logger.disable("gradguard")  # what its guards tell of the drill's faults is told below
    try:
        with steps_bar("drilling", total) as progress:
            done = 0

            def on_step() -> None:
                nonlocal done
                done += 1
                progress(done)

            outcome = carry_out(chosen, kinds, num_steps=steps, seed=seed, run_dir=run_dir, on_step=on_step)
    finally:
        logger.enable("gradguard")
    if as_json:
        typer.echo(to_json(as_plain(policy, outcome), indent=2))
    else:
        _show(policy, outcome, run_dir)
    if not outcome.is_passed:
        raise typer.Exit(1)


def as_plain(policy: str, drill: Drill) -> dict[str, Any]:
    """Return a drill as plain values, for `--json`."""
    healthy, clean = drill.healthy, drill.healthy.clean
    return {
        "policy": policy,
        "mode": drill.mode,
        "num_steps": drill.num_steps,
        "seed": drill.seed,
        "is_passed": drill.is_passed,
        "healthy": {
            "is_passed": healthy.is_passed,
            "is_untouched": healthy.is_untouched,
            "actions": list(healthy.actions),
            "routine": list(healthy.routine),
            "clean": _plain_run(clean, clean),
            "guarded": _plain_run(healthy.guarded, clean),
        },
        "faults": [
            {
                "kind": struck.kind,
                "title": struck.title,
                "step": struck.at,
                "verdict": struck.verdict,
                "is_passed": struck.is_passed,
                "found": struck.seen.found or None,
                "steps_late": struck.late,
                "done": [{"remedy": remedy, "times": times} for remedy, times in struck.seen.done],
                "instead": struck.seen.instead or None,
                "without": _plain_run(struck.without, clean),
                "guarded": _plain_run(struck.guarded, clean),
            }
            for struck in drill.struck
        ],
        "notes": list(drill.notes),
    }


def _plain_run(run: Run, clean: Run) -> dict[str, Any]:
    return {
        "loss": run.held_out,
        "excess": run.excess(clean),
        "num_steps": run.num_steps,
        "stopped": run.stopped or None,
        "failed": run.failed or None,
        "recorded_in": None if run.recorded_in is None else str(run.recorded_in),
    }


def _show(policy: str, drill: Drill, run_dir: Path | None) -> None:
    out = console()
    out.print(_healthy(drill.healthy))
    at, loss = drill.num_steps // 3, number(drill.healthy.clean.held_out)
    setting = f"{drill.num_steps} steps a run, faults from step {at} on; losses against the clean run's {loss}."
    out.print(text(setting, style="dim"))
    out.print()
    out.print(_table(drill))
    _list(out, "Why it ended early", _endings(drill))
    _list(out, "To know", drill.notes)
    if run_dir is not None and drill.struck:
        out.print()
        where = shlex.quote(str(drill.struck[0].guarded.recorded_in or run_dir))
        out.print(text(f"The guarded runs are recorded in {run_dir}: gradguard audit {where}", style="dim"))
    out.print()
    out.print(text(summary(policy, drill), style="bold"))


def _list(out: Console, title: str, lines: Iterable[str]) -> None:
    for index, line in enumerate(lines):
        if index == 0:
            out.print()
            out.print(text(title, style="bold"))
        out.print(text(f"* {line}"))


def _endings(drill: Drill) -> list[str]:
    """Return why runs ended early, those with the same reason together."""
    kinds: dict[str, list[str]] = {}
    for struck in drill.struck:
        run = struck.guarded
        if run.is_cut_short:
            why = run.stopped or f"a plugin failed: {run.failed}"
            kinds.setdefault(f"at step {run.num_steps}: {why}", []).append(struck.kind)
    return [f"{', '.join(names)} {why}" for why, names in kinds.items()]


def _healthy(healthy: Healthy) -> Text:
    label = Text("Healthy run left alone bit for bit: ", "bold")
    if healthy.is_untouched and not healthy.guarded.is_cut_short:
        return label + Text("yes", "bold green")
    style = "bold yellow" if healthy.is_passed else FAILED_STYLE
    return label + Text("no", style) + text(f", {_why_touched(healthy)}")


def _why_touched(healthy: Healthy) -> str:
    run, excess = healthy.guarded, against(healthy.guarded, healthy.clean)
    if run.is_cut_short:
        return f"it ended at step {run.num_steps}: {run.stopped or run.failed}"
    if healthy.actions:
        more = f" and {plural(len(healthy.actions) - 1, 'more action')}" if len(healthy.actions) > 1 else ""
        return f"{healthy.actions[0]}{more} (loss {excess})"
    if healthy.routine:
        return f"as the policy asks: {', '.join(healthy.routine)} at every step (loss {excess})"
    return f"and its record does not say why (loss {excess})"


def _table(drill: Drill) -> Table:
    found = ["on the step", *(struck.seen.found for struck in drill.struck)]
    result = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="dim")
    clean = drill.healthy.clean
    # Of a width of their own, so that only what the guard did is folded where the terminal is narrow.
    result.add_column("\nfault", width=TITLE_WIDTH)
    result.add_column("loss\nwithout", justify="right", no_wrap=True)
    result.add_column("\nfound", overflow="fold", width=min(NAME_WIDTH, max(map(len, found), default=0)))
    result.add_column("\nthe guard did")
    result.add_column("loss\nwith it", justify="right", no_wrap=True)
    result.add_column("\nverdict", no_wrap=True)
    for struck in drill.struck:
        result.add_row(
            text(struck.title),
            text(against(struck.without, clean), "red" if struck.without.is_lost(clean) else ""),
            _found(struck),
            _done(struck, drill),
            text(against(struck.guarded, clean)),
            Text(struck.verdict.replace(" ", "\n"), STYLES.get(struck.verdict, FAILED_STYLE)),
        )
    return result


def _found(struck: Struck) -> Text:
    if struck.late is None:
        return Text("not found", "dim")
    when = "on the step" if struck.late == 0 else f"+{struck.late} late"
    return text(struck.seen.found) + Text(f"\n{when}", "dim")


def _done(struck: Struck, drill: Drill) -> Text:
    counted = [name if times == 1 else f"{name} x{times}" for name, times in struck.seen.done]
    if counted:
        rest = "".join(f", {name}" for name in counted[1:])
        return text(counted[0]) + text(rest, "dim")
    if drill.healthy.routine:
        return text(f"only {', '.join(drill.healthy.routine)}", "dim")
    return text("nothing" + (f" ({struck.seen.instead})" if struck.seen.instead else ""), "dim")


def against(run: Run, clean: Run) -> str:
    """Return a run's loss beside that of the clean one, in at most 9 characters.

    Example:
        >>> from gradguard.drill.outcome import Run
        >>> [against(Run(held_out=loss), Run(held_out=0.5)) for loss in (0.51, 45.0, float("nan"))]
        ['+2.0 %', 'x 90', 'NaN']
    """
    excess = run.excess(clean)
    if not math.isfinite(excess):
        return number(run.held_out)
    return f"{100 * excess:+.1f} %" if abs(excess) < 10 else f"x {number(1 + excess)}"


def summary(policy: str, drill: Drill) -> str:
    """Return what the drill came to, in one line or two."""
    clean = drill.healthy.clean
    harmful = sum(struck.without.is_lost(clean) for struck in drill.struck)
    counts = [f"{len(drill.having(verdict))} {verdict}" for verdict in TOLD if drill.having(verdict)]
    told = f"{policy}: {harmful} of {plural(len(drill.struck), 'kind')} of fault did harm"
    told += f"; {', '.join(counts)}." if counts else "."
    problems = [struck.kind for struck in drill.struck if not struck.is_passed]
    if problems:
        told += f" Failed: {', '.join(problems)}."
    if not drill.healthy.is_passed:
        told += " The healthy run was not left alone."
    if drill.mode == "observe":
        told += " The policy only observes (mode: observe): nothing was done."
    return told
