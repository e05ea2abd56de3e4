"""A start from which nothing can be learnt: equal units, a signal that dies or blows up, saturated activations."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from pydantic import Field

from gradguard.contracts import DIAGNOSES, STAYS, Diagnosis
from gradguard.evidence.probe_stats import Activations
from gradguard.evidence.stats import ParameterTable, StepStats
from gradguard.printable import layer_name, short
from gradguard.records import MAX_NAMES, Finding


MIN_PLACES = 4  # of one kind, from which there is a trend over the depth
SATURATED = 0.5  # share of a layer's entries
EQUAL = 1e-5  # distance of the rows from their mean row, over the size of the entries, of rows that are equal
FEW_STEPS = 20  # after which activations are not those of the start
SCALES = re.compile("scale|gamma|gain|norm|temperature", re.IGNORECASE)  # in a name: a tensor of ones by intent


@dataclass
class InitState:
    """Whether weights and activations were judged, each once."""

    table: ParameterTable
    rows: npt.NDArray[np.int64]
    weights_judged: bool = False
    places_judged: bool = False


@DIAGNOSES.register
class BadInitialization(Diagnosis[InitState]):
    """The weights that the run starts with cannot be learnt from.

    Args:
        max_growth: standard deviation of the activations of the last layers over the first, or the other way round,
            above which the scale does not fit, > 1.
    """

    name = "bad_initialization"
    what = "The first weights are unfit: all units alike, all zero, or of a scale at which the signal dies or blows up."
    computed = (
        "Once. Weights, before step 1: the rows of a matrix are equal and not zero, or more than half of all matrices "
        "are zero (a few may be: heads, residual branches, adapters). Activations, at the first probe: more than half "
        "of a hidden tanh or sigmoid is at its limits; or the standard deviation of the last third of the layers is "
        "`max_growth` times that of the first third, or as much smaller, and the two do not overlap."
    )
    cure = (
        "He initialisation with ReLU and its kin, Xavier with tanh and sigmoid, LeCun with SELU, biases of zero; batch "
        "or layer normalisation; residual connections. Never set all weights to one value: equal units stay equal."
    )
    source = "Glorot and Bengio 2010, He et al. 2015; TheDeepChecker (Ben Braiek and Khomh 2022) for the variance check"
    reads = frozenset({"activations"})
    lasts = STAYS
    precedence = 12

    max_growth: float = Field(default=1e2, gt=1)

    def rests_when_quiet(self) -> bool:
        return True

    def init(self, table: ParameterTable, rows: Sequence[int]) -> InitState:
        return InitState(table, np.array([row for row in rows if _is_layer(table, row)], dtype=np.int64))

    def update(self, state: InitState, stats: StepStats) -> tuple[InitState, Finding | None]:
        if not state.weights_judged:
            state.weights_judged = True
            if finding := self._weights(state, stats):
                state.places_judged = True
                return state, finding
        if state.places_judged or stats.activations is None:
            return state, None
        state.places_judged = True
        return state, self._places(stats, stats.activations) if stats.step < FEW_STEPS else None

    def _weights(self, state: InitState, stats: StepStats) -> Finding | None:
        spreads, norms = stats.weight_spreads[state.rows], stats.weight_norms[state.rows]
        rows, zero, equal = state.rows, norms == 0.0, spreads <= EQUAL  # a NaN is neither
        if np.count_nonzero(zero) * 2 > len(rows):
            bad, what = rows[zero], "is all zero, as most weights are: no gradient gets through"
        elif np.count_nonzero(equal):
            bad, what = rows[equal], "has equal rows: its units compute the same and will learn the same"
        else:
            return None
        names = [state.table.names[row] for row in bad]
        return Finding(
            diagnosis=self.name,
            step=stats.step,
            severity="warn",
            statistic="spread of the weights over the units",
            value=0.0,
            threshold=EQUAL,
            parameters=tuple(names[:MAX_NAMES]),
            num_parameters=len(names),
            message=f"{layer_name(names[0])} {what}.",
            advice=self.cure,
            evidence={"matrices": len(rows)},
            indices=tuple(int(row) for row in bad),
        )

    def _places(self, stats: StepStats, seen: Activations) -> Finding | None:
        full = [
            place
            for place in np.flatnonzero(seen.saturated > SATURATED).tolist()  # a NaN is not
            if not seen.is_answer(place) and not seen.is_gate(place)
        ]
        if full:
            names = [seen.names[place] for place in full]
            value = float(seen.saturated[full[0]])
            message = (
                f"{value:.0%} of what {layer_name(names[0])} gives is at the limits of its activation from the start."
            )
            return self._finding(stats, names, "share of saturated entries", value, SATURATED, message)
        growth, names = _growth(seen)
        if abs(growth) > math.log(self.max_growth):
            value = math.exp(min(growth, 700.0))
            way = "blows up" if growth > 0 else "dies"
            message = f"The signal {way} on its way: {short(value, 1)} of its size is left after {len(names)} layers."
            return self._finding(stats, names, "growth of the activations", value, self.max_growth, message)
        return None

    def _finding(
        self, stats: StepStats, names: list[str], statistic: str, value: float, threshold: float, message: str
    ) -> Finding:
        return Finding(
            diagnosis=self.name,
            step=stats.step,
            severity="warn",
            statistic=statistic,
            value=value,
            threshold=threshold,
            parameters=tuple(names[:MAX_NAMES]),
            num_parameters=len(names),
            message=message,
            advice=self.cure,
        )


def _is_layer(table: ParameterTable, row: int) -> bool:
    """Return whether a parameter is the weight of a layer with several units that all see the same inputs."""
    shape = table.shapes[row]
    return len(shape) >= 2 and shape[0] > 1 and shape[1] > 1 and SCALES.search(table.names[row]) is None


def _growth(seen: Activations) -> tuple[float, list[str]]:
    """Return the growth of ln(std) from the first third of the commonest kind to the last, 0 where they overlap."""
    kinds = [kind for kind in seen.kinds if kind not in ("input", "output", "softmax", "log_softmax", "sigmoid")]
    if not kinds:
        return 0.0, []
    commonest = max(sorted(set(kinds)), key=kinds.count)
    places = [place for place, kind in enumerate(seen.kinds) if kind == commonest and not seen.is_answer(place)]
    std = seen.std[places].astype(np.float64)
    usable = np.isfinite(std) & (std > 0.0)
    logs = np.log(std[usable])
    names = [seen.names[place] for place, is_usable in zip(places, usable, strict=True) if is_usable]
    if len(logs) < MIN_PLACES:
        return 0.0, names
    third = max(1, len(logs) // 3)
    first, last = logs[:third], logs[-third:]
    is_apart = last.max() < first.min() or last.min() > first.max()
    return (float(np.median(last) - np.median(first)) if is_apart else 0.0), names
