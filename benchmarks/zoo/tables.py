"""The results in three tables: false alarms, recovery, detection."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks.zoo.interval import told
from benchmarks.zoo.result import RECOVERED, REPAIRED, Alarm, Result


def show(console: Console, results: Sequence[Result]) -> None:
    """Print the tables of the groups that were run."""
    for group, table in (("healthy", healthy), ("transient", transient), ("failing", failing)):
        own = [result for result in results if result.group == group]
        if own:
            console.print(table(own))
            for line in SUMMARIES[group](own):
                console.print(f"  {line}")
            console.print()


def healthy(results: Sequence[Result]) -> Table:
    """Every alarm and every intervention on runs that needed none."""
    table = _table("healthy runs with an alarm or a change", "id", "seed", "step", "what was said", "done", "score")
    for result in results:
        if result.loud or result.acted or not result.is_identical:
            said = [(f"{alarm.first_step}", _said(alarm)) for alarm in result.loud] or [("", "")]
            score = f"{result.guarded:.3f} ({result.unguarded:.3f})" if not result.is_identical else "identical"
            for index, (step, text) in enumerate(said):
                first = index == 0
                table.add_row(
                    result.id if first else "",
                    str(result.seed) if first else "",
                    step,
                    text,
                    _done(result) if first else "",
                    score if first else "",
                )
    return table


def _healthy_summary(results: Sequence[Result]) -> list[str]:
    steps = sum(result.steps for result in results)
    alarms = sum(alarm.count for result in results for alarm in result.loud)
    return [
        f"false alarms: {told(sum(bool(result.loud) for result in results), len(results))} of runs, "
        f"{1000 * alarms / steps:.2f} in 1,000 steps",
        f"left alone, bit for bit: {told(sum(result.is_identical for result in results), len(results))}",
        f"score lost by more than {RECOVERED:.0%}: "
        f"{sum(result.guarded < result.unguarded - RECOVERED * abs(result.unguarded) for result in results)} runs",
    ]


def transient(results: Sequence[Result]) -> Table:
    """Where runs with one fault ended up, beside the clean run and the run without a guard."""
    title = f"one fault in a healthy run: recovered to within {RECOVERED:.0%} of the clean run"
    table = _table(title, "id", "recovered", "clean", "guarded", "unguarded", "latency", "said", "done")
    for id in dict.fromkeys(result.id for result in results):
        own = [result for result in results if result.id == id]
        table.add_row(
            id,
            f"{sum(result.is_near_reference(RECOVERED) for result in own)}/{len(own)}",
            *(_scores(own, name) for name in ("reference", "guarded", "unguarded")),
            _each(own, "latency"),
            _names(own),
            _done(*own),
        )
    return table


def _transient_summary(results: Sequence[Result]) -> list[str]:
    recovered = sum(result.is_near_reference(RECOVERED) for result in results)
    lost = [result for result in results if not _survives(result)]
    saved = sum(result.is_near_reference(RECOVERED) for result in lost)
    return [
        f"recovered: {told(recovered, len(results))}",
        f"recovered, of those that are lost without a guard: {told(saved, len(lost))}",
        f"noticed: {told(sum(bool(result.loud) for result in results), len(results))}",
    ]


def _survives(result: Result) -> bool:
    return result.reference is not None and result.unguarded >= result.reference - RECOVERED * abs(result.reference)


def failing(results: Sequence[Result]) -> Table:
    """What was said about runs that fail, and where they ended up."""
    title = "runs that fail: detected, named, and where they ended up"
    table = _table(
        title, "id", "repair", "detected", "named", "first", "said", "done", "guarded", "unguarded", "reference"
    )
    for id in dict.fromkeys(result.id for result in results):
        own = [result for result in results if result.id == id]
        table.add_row(
            id,
            own[0].repair,
            f"{sum(bool(result.loud) for result in own)}/{len(own)}",
            f"{sum(result.is_named for result in own)}/{len(own)}",
            _each(own, "latency"),
            _names(own),
            _done(*own),
            *(_scores(own, name) for name in ("guarded", "unguarded", "reference")),
        )
    return table


def _failing_summary(results: Sequence[Result]) -> list[str]:
    detected = [result for result in results if result.loud]
    lines = [
        f"detected: {told(len(detected), len(results))}",
        f"rightly named, of those detected: {told(sum(result.is_named for result in detected), len(detected))}",
    ]
    for repair in ("loop", "surgery"):
        own = [result for result in results if result.repair == repair and result.reference is not None]
        repaired = sum(result.is_near_reference(REPAIRED) for result in own)
        lines.append(f"repaired to within {REPAIRED:.0%} of the reference, {repair}: {told(repaired, len(own))}")
    advised = [result for result in results if result.repair == "advice"]
    lines.append(
        f"nothing changed, or stopped, where only advice helps: {told(sum(r.abstained for r in advised), len(advised))}"
    )
    return lines


SUMMARIES = {"healthy": _healthy_summary, "transient": _transient_summary, "failing": _failing_summary}


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", expand=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _said(alarm: Alarm) -> str:
    first = alarm.findings[0]
    return escape(f"{alarm.diagnosis} ({alarm.severity}, {alarm.count}x): {first.message}")


def _names(results: Sequence[Result]) -> str:
    counts = Counter(alarm.diagnosis for result in results for alarm in result.loud)
    return ", ".join(f"{name} {count}" for name, count in counts.most_common())


def _done(*results: Result) -> str:
    total: Counter[str] = sum((result.interventions for result in results), Counter())
    stops = sum(bool(result.stopped) for result in results)
    parts = [f"{name} {count}" for name, count in total.most_common() if name not in ("notify", "stop")]
    return ", ".join(parts + ([f"stop {stops}"] if stops else []))


def _scores(results: Sequence[Result], name: str) -> str:
    values = sorted(value for result in results if (value := getattr(result, name)) is not None)
    if not values:
        return ""
    return f"{values[0]:.3f}" if values[0] == values[-1] else f"{values[0]:.3f}..{values[-1]:.3f}"


def _each(results: Sequence[Result], name: str) -> str:
    values = sorted(value for result in results if (value := getattr(result, name)) is not None)
    if not values:
        return "-"
    return str(values[0]) if values[0] == values[-1] else f"{values[0]}..{values[-1]}"
