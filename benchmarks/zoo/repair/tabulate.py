"""The tables of the report on repairs, from attempts alone."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.zoo.catalogue import ZOO
from benchmarks.zoo.grid import Grid
from benchmarks.zoo.repair.arms import LOTTERY
from benchmarks.zoo.repair.attempt import Attempt
from benchmarks.zoo.repair.rates import CLASSES, Rate, arms_of, class_rate, fault_of, is_harmed, rate
from benchmarks.zoo.result import RECOVERED, REPAIRED


ASKED = {"loop": "loop", "surgery": "surgery", "advice": "left alone"}


def grids(attempts: Sequence[Attempt], has_titles: bool = True) -> list[Grid]:
    """Return all tables that have something to say.

    Args:
        attempts: of every arm.
        has_titles: whether set-ups are told by their titles too, which takes a page rather than a terminal.
    """
    failing, healthy, transient = (
        [attempt for attempt in attempts if attempt.group == group] for group in ("failing", "healthy", "transient")
    )
    found = [
        repaired(failing),
        harm(healthy),
        faults(transient),
        setups(failing, has_titles),
        remedies(failing, has_titles),
    ]
    return [grid for grid in found if grid.rows]


def repaired(failing: Sequence[Attempt]) -> Grid:
    """Return how many failing runs each arm repaired, or left alone."""
    rows = []
    for arm in arms_of(failing):
        own = [attempt for attempt in failing if attempt.arm == arm]
        cells = [cell for kind in CLASSES for cell in _cells(class_rate(own, kind))]
        steps = sum(attempt.steps for attempt in own)
        rows.append((arm, *cells, f"{100 * sum(attempt.wasted for attempt in own) / steps:.1f} %"))
    columns = ("arm", *(head for kind in CLASSES for head in (ASKED[kind], "95 %")), "wasted")
    notes = (
        f"loop, surgery: by where the cure lies, runs with {1 - REPAIRED:.0%} of the score that a person's fix gives.",
        "left alone: nothing was changed, or the run was stopped, where only advice helps.",
        "wasted: steps that were skipped, or taken and rolled back, of all steps.",
    )
    return Grid("repaired", "runs that fail: what each arm made of them", columns, tuple(rows), notes)


def harm(healthy: Sequence[Attempt]) -> Grid:
    """Return what each arm did to runs that needed nobody."""
    rows = []
    for arm in arms_of(healthy):
        own = [attempt for attempt in healthy if attempt.arm == arm]
        rows.append(
            (
                arm,
                *_cells(rate(own, lambda attempt: attempt.is_identical)),
                *_cells(rate(own, is_harmed)),
                f"{max(attempt.harm for attempt in own):.3f}",
            )
        )
    columns = ("arm", "identical", "95 %", "harmed", "95 %", "most lost")
    notes = (
        "identical: the weights are bit for bit those of the run that nobody tended.",
        f"harmed: more than {RECOVERED:.0%} of the score was lost. most lost: score, of all runs.",
    )
    return Grid("harm", "healthy runs: what each arm did to them", columns, tuple(rows), notes)


def faults(transient: Sequence[Attempt]) -> Grid:
    """Return how many runs that a fault struck each arm brought to where the clean run ends."""
    arms = arms_of(transient)
    rows = []
    for fault in dict.fromkeys(map(fault_of, transient)):
        own = [attempt for attempt in transient if fault_of(attempt) == fault]
        rows.append((fault, *(f"{_recovered(own, arm)}" for arm in arms)))
    if rows:
        rows.append(("all", *(f"{_recovered(transient, arm)}" for arm in arms)))
        rows.append(("95 %", *(_interval(_recovered(transient, arm)) for arm in arms)))
    notes = (f"Runs that end within {RECOVERED:.0%} of the clean run's score.",)
    return Grid("faults", "healthy runs that one fault strikes: recovered", ("fault", *arms), tuple(rows), notes)


def setups(failing: Sequence[Attempt], has_titles: bool) -> Grid:
    """Return which set-ups were repaired by whom."""
    arms = arms_of(failing)
    rows = []
    for kind in CLASSES:
        for id in dict.fromkeys(attempt.id for attempt in failing if attempt.repair == kind):
            own = [attempt for attempt in failing if attempt.id == id]
            counts = [rate((a for a in own if a.arm == arm), CLASSES[kind]) for arm in arms]
            references = [attempt.reference for attempt in own if attempt.reference is not None]
            fixed = f"{sum(references) / len(references):.3f}" if references else "-"
            rows.append((id, *_titled(id, has_titles), kind, fixed, *map(str, counts)))
    columns = ("id", *(("set-up",) if has_titles else ()), "cure", "fixed", *arms)
    notes = ("fixed: mean score of the run that a person fixed. Then runs repaired or, for advice, left alone.",)
    return Grid("setups", "who repaired what", columns, tuple(rows), notes, num_words=3 if has_titles else 2)


def remedies(failing: Sequence[Attempt], has_titles: bool) -> Grid:
    """Return what guards did in runs that they did not bring to their goal, though no surgery was asked for."""
    rows = []
    for arm in arms_of(a for a in failing if a.interventions and a.arm != LOTTERY):
        for id in dict.fromkeys(attempt.id for attempt in failing):
            own = [attempt for attempt in failing if (attempt.id, attempt.arm) == (id, arm)]
            bad = [attempt for attempt in own if not CLASSES[attempt.repair or "loop"](attempt)]
            if bad and bad[0].repair != "surgery":
                done = {name: sum(a.interventions.get(name, 0) for a in bad) for a in bad for name in a.interventions}
                told = ", ".join(f"{name} {count}" for name, count in done.items())
                scores = f"{min(a.score for a in bad):.3f}", f"{max(a.score for a in bad):.3f}"
                rows.append((arm, id, *_titled(id, has_titles), told, f"{len(bad)}/{len(own)}", *scores))
    columns = ("arm", "id", *(("set-up",) if has_titles else ()), "what was done", "runs", "worst", "best")
    title = "not repaired in the loop, or not left alone"
    return Grid("remedies", title, columns, tuple(rows), num_words=4 if has_titles else 3)


def _recovered(attempts: Sequence[Attempt], arm: str) -> Rate:
    return rate((attempt for attempt in attempts if attempt.arm == arm), lambda attempt: attempt.is_recovered)


def _titled(id: str, has_titles: bool) -> tuple[str, ...]:
    return (ZOO[id].title if id in ZOO else "",) if has_titles else ()


def _cells(found: Rate) -> tuple[str, str]:
    return f"{found}", _interval(found)


def _interval(found: Rate) -> str:
    low, high = found.interval
    return f"{low:.0f}-{high:.0f}" if found.total else ""
