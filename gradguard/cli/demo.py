"""`gradguard demo`: a small GPT broken on purpose, without and with the guard."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gradguard.cli.render import console, number, table, text
from gradguard.output_path import output_folder


if TYPE_CHECKING:
    from gradguard.demo.runs import Run
    from gradguard.faults import Fault

STYLES = {"clean": "cyan", "unguarded": "red", "guarded": "green"}
MIN_STEPS = 240  # in a shorter run the faults come before there is a past that they stand out from
PLOT_WIDTH, PLOT_HEIGHT = 110, 14  # characters; in a narrower terminal the plot is narrower


def demo(
    steps: Annotated[int, typer.Option(min=MIN_STEPS, help="Optimizer steps of each of the three runs.")] = 450,
    run_dir: Annotated[Path, typer.Option(help="Where the guarded run is recorded.")] = Path("runs/demo"),
    seed: Annotated[int, typer.Option(help="Of weights, data order and faults.")] = 0,
) -> None:
    """Train a small GPT three times: clean, with faults, and with the same faults under the guard."""
    from gradguard.audit.read import read_run
    from gradguard.audit.summary import summarise
    from gradguard.cli.audit import render_summary
    from gradguard.demo.progress import progress
    from gradguard.demo.runs import plan_faults, train
    from gradguard.demo.verdict import headline

    output_folder(run_dir, "the files of a run")
    out = console()
    faults = plan_faults(steps)
    _introduce(out, faults)
    with progress(out, STYLES, steps) as begin:
        clean = train(steps, seed, on_step=begin("clean"))
        unguarded = train(steps, seed, faults, on_step=begin("unguarded"))
        guarded = train(steps, seed, faults, run_dir, on_step=begin("guarded"))
    runs = {"clean": clean, "unguarded": unguarded, "guarded": guarded}
    _show_curves(out, runs, faults)
    _rule(out, "gradguard audit")
    recorded_in = _short(guarded.recorded_in or run_dir)
    render_summary(summarise(read_run(recorded_in)))
    _rule(out, "Outcome")
    _show_losses(out, runs)
    out.print()
    out.print(text(headline(clean, unguarded, guarded), style="bold"))
    _show_next(out, recorded_in, faults[-1].steps[0])


def _introduce(out: Console, faults: tuple[Fault, ...]) -> None:
    out.print(text("A small GPT learns Python's help texts three times, from the same weights and the same batches:"))
    planned = ", ".join(f"{fault.describe()} at step {fault.steps[0]}" for fault in faults)
    _grid(
        out,
        {
            "clean": "nothing goes wrong",
            "unguarded": planned,
            "guarded": "the same faults, under gradguard.attach(model, optimizer, run_dir=...)",
        },
    )
    out.print()


def _show_curves(out: Console, runs: dict[str, Run], faults: tuple[Fault, ...]) -> None:
    from gradguard.demo.plot import Curve, Marker, draw

    is_colored = out.color_system is not None
    # The guarded run is drawn last: what it hides of the clean one is where the two agree.
    curves = [Curve(name, runs[name].losses, STYLES[name]) for name in ("unguarded", "clean", "guarded")]
    markers = [Marker(fault.steps[0], fault.describe()) for fault in faults]
    legend = Text("training loss  ", style="bold")
    for name, style in STYLES.items():
        legend.append(f"{'━━' if is_colored else name[0]} {name}   ", style)
    out.print()
    out.print(legend)
    out.print(draw(curves, markers, min(out.width - 1, PLOT_WIDTH), PLOT_HEIGHT, is_colored))


def _show_losses(out: Console, runs: dict[str, Run]) -> None:
    from gradguard.demo.verdict import judge

    losses = table("", ["run", "loss on held-out text", "against clean", ""], right=frozenset({"against clean"}))
    for name, run in runs.items():
        verdict = judge(run, runs["clean"])
        excess = "" if name == "clean" else f"{verdict.excess:+.1%}"
        words = "lost" if verdict.is_lost else ""
        losses.add_row(Text(name, STYLES[name]), number(run.held_out), excess.replace("+nan%", "-"), words)
    out.print(losses)


def _show_next(out: Console, run_dir: Path, step: int) -> None:
    where = shlex.quote(str(run_dir))
    out.print()
    out.print(text(f"The guarded run is recorded in {run_dir}. Try:"))
    _grid(
        out,
        {
            f"gradguard show {where} --step {step}": "all about the step of the last fault",
            f"gradguard audit {where}": "the summary above",
            "gradguard explain": "what can be found, and what can be done",
            "gradguard init": "a policy of your own",
        },
    )


def _grid(out: Console, rows: dict[str, str]) -> None:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column()
    for name, what in rows.items():
        grid.add_row(text(f"  {name}", STYLES.get(name, "bold")), text(what))
    out.print(grid)


def _rule(out: Console, title: str) -> None:
    out.print()
    out.rule(text(title, style="bold"), align="left", style="dim")


def _short(path: Path) -> Path:
    """Return the path as one would type it here."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path
