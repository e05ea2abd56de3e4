"""What the league says about our guard: is a clean run left alone, and in which cells is it beaten?"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.league.run import Run
from benchmarks.league.standing import standing


OURS = "default"


def clean_pairs(runs: Sequence[Run]) -> tuple[int, int]:
    """Return how many clean runs under `default` ended bit for bit like the run without a guard, and of how many."""
    digests = {(run.task, run.seed, run.entrant): run.digest for run in runs if run.condition == "clean"}
    pairs = [
        digest == digests[task, seed, "none"]
        for (task, seed, name), digest in digests.items()
        if name == OURS and (task, seed, "none") in digests
    ]
    return sum(pairs), len(pairs)


def beaten(runs: Sequence[Run], name: str = OURS) -> list[str]:
    """Return, a line each, the cells in which an entrant is neither best nor within noise of best."""
    places = standing(runs)
    lines = []
    for (task, condition, entrant), place in places.items():
        if entrant == name and not place.is_near:
            rivals = {key[2]: other for key, other in places.items() if key[:2] == (task, condition)}
            winner = min(rivals, key=lambda rival: rivals[rival].final)
            lines.append(f"{task}/{condition}: {place.final:.4g}, {winner} {rivals[winner].final:.4g}")
    return lines


def summary(runs: Sequence[Run]) -> list[str]:
    """Return the verdict in a few lines."""
    same, pairs = clean_pairs(runs)
    cells = {(run.task, run.condition) for run in runs if run.entrant == OURS}
    lost = beaten(runs)
    lines = [f"clean runs under {OURS}, bit for bit those without a guard: {same} of {pairs}"]
    if cells:
        lines.append(f"cells in which {OURS} is best or within noise of best: {len(cells) - len(lost)} of {len(cells)}")
    return lines + [f"  beaten in {line}" for line in lost]
