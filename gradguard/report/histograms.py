"""Histograms of the gradients at some of the probes, for every layer."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from gradguard.audit.read import Run
from gradguard.gradients.magnitude_bins import NUM_BINS, bin_edges, pack_shares
from gradguard.report.timeline import Timeline, timeline


NUM_CELLS = 8000  # probes x layers, of the whole page; 26 bytes each
MOST, FEWEST = 60, 6  # probes
NO_BINS = 0


def histograms(run: Run, of_interest: Iterable[int] = (), share: float = 1.0) -> dict[str, Any] | None:
    """Return the histograms at the first and last probe, at those near some steps, and at others evenly in between.

    Args:
        run: whose.
        of_interest: steps whose last probe before and first probe after are wanted most.
        share: of the page that it may take, in (0, 1].

    Returns:
        {"step": (K,) of the probes, "levels": base64 of (K, P, 25) bytes, see `pack_shares`, "top": base64 of (K, P)
        bytes: where on the grid of magnitudes the outermost bin lies, see `magnitude_bins`; 0 for no histogram};
        None when no gradient was probed.
    """
    line = timeline(run.gradients["step"])
    num_layers = len(run.parameters)
    if not len(line.steps) or not num_layers:
        return None
    limit = int(min(max(NUM_CELLS * share // num_layers, FEWEST), MOST))
    kept = chosen_probes(line, of_interest, limit)
    parts = [_one(run, int(line.rows[place])) for place in kept]
    return {
        "step": line.steps[kept].tolist(),
        "levels": _text(np.stack([levels for levels, _ in parts])),
        "top": _text(np.stack([top for _, top in parts])),
    }


def chosen_probes(line: Timeline, of_interest: Iterable[int], limit: int) -> npt.NDArray[np.int64]:
    """Return the places of at most `limit` (>= 2) probes on a timeline, ascending.

    Example:
        >>> chosen_probes(timeline(np.arange(0, 1000, 50)), [420], 5).tolist()
        [0, 8, 9, 14, 19]
    """
    num_probes = len(line.steps)
    if num_probes <= limit:
        return np.arange(num_probes)
    chosen = dict.fromkeys((0, num_probes - 1))
    for step in of_interest:
        after = int(np.searchsorted(line.steps, min(step, int(line.steps[-1])), side="right"))
        for place in (after - 1, after):
            if 0 <= place < num_probes and len(chosen) < max(2, limit * 4 // 5):
                chosen.setdefault(place)
    while len(chosen) < limit:  # the middle of the widest gap
        places = np.sort(np.fromiter(chosen, dtype=np.int64))
        gap = int(np.argmax(np.diff(places)))
        chosen.setdefault(int(places[gap] + places[gap + 1]) // 2)
    return np.sort(np.fromiter(chosen, dtype=np.int64))


def _one(run: Run, row: int) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """Return the levels (P, 25) and the top bins (P,) of one probe."""
    largest, smallest, shares = (run.gradients.between(name, row, row + 1)[0] for name in ("max", "min", "histogram"))
    outer = bin_edges(largest, smallest)[..., -1]  # 2^(2 (top + 1) - 127)
    is_there = np.isfinite(outer) & (outer > 0)
    top = np.where(is_there, (np.log2(np.where(is_there, outer, 1.0)) + 127) / 2 - 1, NO_BINS)
    return pack_shares(shares).reshape(-1, NUM_BINS), np.clip(np.rint(top), NO_BINS, 255).astype(np.uint8)


def _text(values: npt.NDArray[np.uint8]) -> str:
    return base64.b64encode(values.tobytes()).decode("ascii")
