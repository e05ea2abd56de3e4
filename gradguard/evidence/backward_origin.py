"""Where in the backward pass NaN or infinity came in: at the layer nearest to the loss that has it."""

from __future__ import annotations

from collections.abc import Sequence

from gradguard.evidence.origin import Origin
from gradguard.evidence.stats import ABSENT, StepStats


def backward_origin(stats: StepStats, names: Sequence[str], order: Sequence[str] | None) -> Origin:
    """Return where gradients that are not finite begin, although the forward pass and the loss are.

    Args:
        stats: of the step.
        names: (P,) of the parameters.
        order: names of the modules as they were called; None when it is not known. Then that of the parameters is taken
            for it, if none that is finite comes before one that is not.
    """
    owners = [name.rpartition(".")[0] or name for name in names]
    bad = [row for row in range(len(names)) if row in stats.nonfinite]
    spoilt = {owners[row] for row in bad}
    good = [row for row in range(len(names)) if owners[row] not in spoilt and stats.norms[row] != ABSENT]
    if order is None:
        place = {row: float(row) for row in range(len(names))}
        if bad and good and min(good) < max(bad):
            return Origin("unknown", why="it began in the backward pass, where the order of the layers is not known")
    else:
        when = {module: float(position) for position, module in enumerate(order)}
        place = {row: when.get(owners[row], -1.0) for row in range(len(names))}
    if not bad or not good:
        return Origin("backward")
    nearest = max(bad, key=place.__getitem__)
    behind = [row for row in good if place[row] > place[nearest]]
    if not behind:
        return Origin("backward")
    next_to = min(behind, key=place.__getitem__)
    return Origin(
        "backward",
        place=owners[nearest],
        after=owners[next_to],
        parameters=tuple(names[row] for row in bad if owners[row] == owners[nearest]),
    )
