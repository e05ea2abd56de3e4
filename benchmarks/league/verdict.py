"""What the league says about our guard: is a clean run left alone, and in which cells is it beaten?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from benchmarks.league.run import Run
from benchmarks.league.standing import is_within_noise, standing


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


def unharmed(runs: Sequence[Run], name: str = OURS) -> tuple[int, int]:
    """Return in how many cells an entrant ends no worse than the clean run without a guard, but for noise.

    A guard that clips at every step may train a clean run better than no guard does. One that leaves it alone cannot,
    and then this is the best that there is to reach.
    """
    places = standing(runs)
    kept = []
    for (task, _, entrant), place in places.items():
        clean = places.get((task, "clean", "none"))
        if entrant == name and clean is not None:
            kept.append(is_within_noise(place.final, place.error, clean.final, clean.error))
    return sum(kept), len(kept)


def summary(runs: Sequence[Run]) -> list[str]:
    """Return the verdict in a few lines."""
    same, pairs = clean_pairs(runs)
    near = Counter(entrant for (_, _, entrant), place in standing(runs).items() if place.is_near)
    lines = [f"clean runs under {OURS}, bit for bit those without a guard: {same} of {pairs}"]
    for name in dict.fromkeys(run.entrant for run in runs):
        kept, cells = unharmed(runs, name)
        lines.append(
            f"{name}: best or within noise of best in {near[name]}, as good as clean in {kept} of {cells} cells"
        )
    return lines + [f"  {OURS} beaten in {line}" for line in beaten(runs)]
