"""The tables, as rows of text that any renderer can show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.overhead.cell import Cell
from benchmarks.overhead.contenders import CONTENDERS
from benchmarks.overhead.result import Result


@dataclass(frozen=True)
class Grid:
    """A table.

    Args:
        title: of the table.
        columns: their heads; the first `num_words` hold words, the others numbers.
        rows: as long as the columns.
        notes: lines below it.
        num_words: columns that are aligned to the left.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()
    num_words: int = 1


def grids(result: Result) -> list[Grid]:
    """Return all tables that have something to say."""
    found = [legend(result.cells), summary(result.cells), *(of_cell(cell) for cell in result.cells)]
    found += [limits(result.cells), memory(result)]
    if result.endurance:
        found.append(endurance(result))
    if result.verdicts:
        found.append(verdicts(result))
    return [grid for grid in found if grid.rows]


def legend(cells: Sequence[Cell]) -> Grid:
    """Return who took part."""
    names = [name for name in CONTENDERS if any(name in cell.timings for cell in cells)]
    notes = (
        "Medians. step: with what the contender does in it. overhead: step less the bare step, with a 95 % interval.",
        "ratio: overhead divided by that of clip_grad_norm_ (clip-due for always-due). step ratio: the steps divided.",
        "of medians: the same of plain medians, in which a step that takes in what others put off does not show.",
        "amortised: overhead with what probes and snapshots take longer than a plain step, spread over all steps.",
    )
    return Grid("who takes part", ("name", "what"), tuple((n, CONTENDERS[n].what) for n in names), notes, num_words=2)


def of_cell(cell: Cell) -> Grid:
    """Return every contender of one cell."""
    rows, notes = [], []
    for name, timing in cell.timings.items():
        contender = CONTENDERS[name]
        is_bare = name == "bare"
        rows.append(
            (
                name,
                duration(timing.step),
                "" if is_bare else duration(timing.overhead),
                "" if is_bare else " to ".join(duration(bound) for bound in timing.overhead_interval),
                "" if is_bare else decimal(timing.ratio),
                "" if is_bare or timing.ratio_interval is None else " to ".join(map(decimal, timing.ratio_interval)),
                "" if is_bare else decimal(timing.median_ratio),
                "" if is_bare else decimal(timing.step_ratio),
                "" if is_bare or timing.amortised is None else duration(timing.amortised),
                "" if timing.probe is None else duration(timing.probe),
                "" if timing.snapshot is None else duration(timing.snapshot),
            )
        )
        if contender.is_in_backward:
            notes.append(f"{name}: works in the backward; its overhead is that of backward and step together")
    notes += [f"{name}: left out, {reason}" for name, reason in cell.skipped.items()]
    notes += [
        f"{name}: FOUND SOMETHING, {count} records; this run was not healthy" for name, count in cell.findings.items()
    ]
    notes += [f"{name}: no snapshot, {reason}" for name, reason in cell.refusals.items()]
    columns = (
        "name",
        "step",
        "overhead",
        "95 %",
        "ratio",
        "95 %",
        "of medians",
        "step ratio",
        "amortised",
        "probe",
        "snapshot",
    )
    title = (
        f"{cell.workload}, {cell.optimizer}: {cell.num_tensors:,} tensors, {size(cell.num_bytes)} of gradients, "
        f"iteration {duration(cell.iteration)}, {cell.rounds} rounds"
    )
    return Grid(title, columns, tuple(rows), tuple(notes))


def summary(cells: Sequence[Cell]) -> Grid:
    """Return overheads divided by that of `clip_grad_norm_`, a line a cell."""
    names = [name for name in CONTENDERS if name not in ("bare", "clip") and any(name in c.timings for c in cells)]
    rows = tuple(
        (
            cell.workload,
            cell.optimizer,
            f"{cell.num_tensors:,}",
            duration(cell.iteration),
            duration(cell.timings["clip"].overhead),
            *(decimal(cell.timings[name].ratio) if name in cell.timings else "" for name in names),
        )
        for cell in cells
    )
    columns = ("workload", "optimizer", "tensors", "iteration", "clip", *names)
    return Grid("overhead divided by that of clip_grad_norm_", columns, rows, num_words=2)


def limits(cells: Sequence[Cell]) -> Grid:
    """Return how far everyone is from one read of the gradients."""
    rows = tuple(
        (
            cell.workload,
            cell.optimizer,
            size(cell.num_bytes),
            duration(cell.read.total),
            f"{cell.num_bytes / cell.read.total / 1e3:.1f}",
            duration(cell.read.norms),
            *(
                decimal(cell.timings[name].overhead / cell.read.norms) if name in cell.timings else ""
                for name in ("clip", "default", "always-due")
            ),
        )
        for cell in cells
    )
    columns = ("workload", "optimizer", "gradients", "sum", "GB/s", "norms", "clip", "default", "always-due")
    notes = (
        "sum: of one tensor of as many bytes, what the memory gives; norms: torch._foreach_norm of every tensor.",
        "clip, default, always-due: their overhead divided by norms.",
    )
    return Grid("one read of the gradients", columns, rows, notes, num_words=2)


def memory(result: Result) -> Grid:
    """Return what guards hold, and by how much they raise the peak of the process."""
    bare = {peak.workload: peak.num_bytes for peak in result.peaks if peak.contender == "bare"}
    peaks = {(peak.workload, peak.optimizer, peak.contender): peak.num_bytes for peak in result.peaks}
    rows = []
    for cell in {cell.workload: cell for cell in result.cells}.values():  # the last optimizer stands for all
        for name, held in cell.held.items():
            peak = peaks.get((cell.workload, cell.optimizer, name))
            if name != "bare" and (CONTENDERS[name].is_guard or peak is not None):
                more = "" if peak is None else size(peak - bare[cell.workload])
                rows.append((cell.workload, cell.optimizer, name, size(cell.num_bytes), size(held), more))
    columns = ("workload", "optimizer", "name", "gradients", "held", "peak")
    notes = (
        "held: bytes that Python, numpy and torch allocated while a contender began and took 12 steps, and still hold.",
        "With two snapshots, as at 10 steps of 200; with one, as else, for gpt2-124m, where no steps come first.",
        "peak: peak resident memory of a process with 12 steps, less that of the bare one.",
    )
    return Grid("memory", columns, tuple(rows), notes, num_words=3)


def endurance(result: Result) -> Grid:
    """Return the stretches of the long run."""
    rows = tuple(
        (f"{part.last_step:,}", duration(part.median), duration(part.mean), size(part.resident), size(part.on_disk))
        for part in result.endurance
    )
    columns = ("steps", "median", "mean", "resident", "on disk")
    return Grid("a long run under the guard: observe and step", columns, rows, num_words=0)


def verdicts(result: Result) -> Grid:
    """Return what was promised and what came of it."""
    rows = tuple(
        (
            "met" if verdict.is_met else "MISSED",
            verdict.workload,
            verdict.optimizer,
            verdict.what,
            decimal(verdict.value),
            decimal(verdict.limit),
        )
        for verdict in result.verdicts
    )
    columns = ("", "workload", "optimizer", "what", "measured", "at most")
    return Grid("targets", columns, rows, num_words=4)


def duration(microseconds: float) -> str:
    """Return a time in words.

    Example:
        >>> duration(4.2), duration(-73.4), duration(81234.0)
        ('4.2 us', '-73 us', '81.2 ms')
    """
    if abs(microseconds) >= 1000:
        return f"{microseconds / 1000:.3g} ms" if abs(microseconds) < 1e6 else f"{microseconds / 1e6:.2f} s"
    return f"{microseconds:.1f} us" if abs(microseconds) < 10 else f"{microseconds:.0f} us"


def size(num_bytes: float) -> str:
    """Return a size in words.

    Example:
        >>> size(812), size(19240), size(497_759_232)
        ('812 B', '19.2 kB', '498 MB')
    """
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(num_bytes) >= scale:
            return f"{num_bytes / scale:.3g} {unit}"
    return f"{num_bytes:.0f} B"


def decimal(number: float | None) -> str:
    """Return a ratio with two decimals, "-" when there is none."""
    return "-" if number is None else f"{number:.2f}"
