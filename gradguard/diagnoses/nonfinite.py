"""NaN or Inf in the loss, a gradient, a parameter or a buffer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from pydantic import Field

from gradguard.contracts import DIAGNOSES, Diagnosis
from gradguard.evidence.origin import Origin
from gradguard.evidence.origin_words import BACKWARD_ADVICE, BATCH_ADVICE, WEIGHTS_ADVICE, what_to_do, where_it_began
from gradguard.evidence.stats import ABSENT, ParameterTable, StepStats
from gradguard.evidence.trigger import Trigger
from gradguard.records import MAX_NAMES, Finding


WITHIN = "The optimizer went too far while it searched: use a smaller lr, or line_search_fn='strong_wolfe' with LBFGS."


@dataclass
class NonfiniteState:
    """What never changes: the parameters looked at."""

    table: ParameterTable
    rows: frozenset[int]
    covers_all: bool


@DIAGNOSES.register
class Nonfinite(Diagnosis[NonfiniteState]):
    """NaN or Inf in the loss or a gradient (this batch), or in a parameter or buffer (the model itself).

    Args:
        where: "batch" looks at the loss and the gradients, "state" at parameters and buffers, "microbatch" at what
            `drop_microbatch` took back, "any" at all of them. Gradients and loss are looked at every step; parameters
            whenever these are bad, and sampled with the buffers.
    """

    name = "nonfinite"
    what = "A NaN or an infinity turned up in the loss, in a gradient, or in the model's own parameters or buffers."
    computed = (
        "The norm of a gradient is finite exactly when all entries are, short of an overflow, which is told apart by "
        "looking at the entries. Parameters and buffers are looked at when loss or gradients are bad, and every "
        "probe_every steps. Where it began is looked for in an entry of a weight that is out of all proportion, in the "
        "inputs, in the forward pass (by running the batch once more, at the first 3 such steps and later at one in "
        "100), in the loss, and in the order of the gradients."
    )
    cure = (
        "The finding says where it began. In the inputs: look at the data of that step. In the loss: log(0), a "
        "division by zero or exp of a large number; use the fused losses (cross_entropy, "
        "binary_cross_entropy_with_logits). In the backward pass: sqrt or norm at exactly 0, or a row of attention "
        "that is masked everywhere."
    )
    source = "IEEE 754; torch.isfinite"
    follows = (
        "bad_inputs",
        "bad_initialization",
        "stale_gradients",
        "exploding_gradient",
        "divergence",
        "loss_spike",
        "update_spike",
    )
    precedence = 0
    is_foreseeable = True
    locates = True

    where: Literal["any", "batch", "state", "microbatch"] = Field(default="any")

    def sees_microbatches(self) -> bool:
        return self.where in ("any", "microbatch")

    def rests_when_quiet(self) -> bool:
        return True

    def init(self, table: ParameterTable, rows: Sequence[int]) -> NonfiniteState:
        return NonfiniteState(table, frozenset(rows), len(rows) == len(table))

    def update(self, state: NonfiniteState, stats: StepStats) -> tuple[NonfiniteState, Finding | None]:
        loss_is_bad = stats.has_loss and not math.isfinite(stats.loss)
        if stats.finite and not loss_is_bad and not stats.bad_state and not stats.dropped_microbatches:
            return state, None
        if stats.bad_state and self.where in ("any", "state") and (names := self._concerned(state, stats.bad_state)):
            return state, self._in_state(state, stats, names)
        if stats.dropped_microbatches and self.sees_microbatches():
            return state, self._in_microbatches(stats)
        if self.where in ("any", "batch"):
            return state, self._in_batch(state, stats, loss_is_bad)
        return state, None

    def triggers(self, state: NonfiniteState, stats: StepStats) -> Sequence[Trigger]:
        return () if self.where in ("state", "microbatch") else (Trigger("nonfinite"),)

    def _concerned(self, state: NonfiniteState, names: tuple[str, ...]) -> tuple[str, ...]:
        """Return the names that the rule looks at; a rule on all parameters also looks at the buffers."""
        if state.covers_all:
            return names
        looked_at = {state.table.names[row] for row in state.rows}
        return tuple(name for name in names if name in looked_at)

    def _in_state(self, state: NonfiniteState, stats: StepStats, names: tuple[str, ...]) -> Finding:
        advice = WEIGHTS_ADVICE
        if "float16" in state.table.dtypes:
            advice += (
                " With float16 weights Adam's eps of 1e-8 rounds to 0: use eps=1e-4, or keep the weights in float32."
            )
        index = {name: i for i, name in enumerate(state.table.names)}
        return Finding(
            diagnosis=self.name,
            step=stats.step,
            severity="critical",
            statistic="non-finite tensors in the model",
            value=len(names),
            threshold=0,
            parameters=names[:MAX_NAMES],
            num_parameters=len(names),
            message=self._damage(stats.origin, names),
            advice=advice,
            evidence={"where": "state", **_origin(stats)},
            indices=tuple(index[name] for name in names if name in index),
        )

    def _damage(self, origin: Origin | None, names: tuple[str, ...]) -> str:
        if origin is not None and origin.stage == "weights":
            return f"The model itself is damaged: {where_it_began(origin)}."
        return f"{names[0]} holds NaN or infinite values{_and_more(len(names))}: the model itself is damaged."

    def _in_microbatches(self, stats: StepStats) -> Finding:
        dropped, num = stats.dropped_microbatches, stats.num_microbatches
        verb = "got NaN or Inf gradients and was" if dropped == 1 else "got NaN or Inf gradients and were"
        return Finding(
            diagnosis=self.name,
            step=stats.step,
            severity="warn",
            statistic="non-finite micro-batches",
            value=dropped,
            threshold=0,
            message=f"{dropped} of {num} micro-batches {verb} taken back.",
            evidence={"where": "microbatch", "microbatches": num},
        )

    def _in_batch(self, state: NonfiniteState, stats: StepStats, loss_is_bad: bool) -> Finding | None:
        bad = {row: counts for row, counts in stats.nonfinite.items() if row in state.rows}
        if not bad and not (loss_is_bad and state.covers_all):
            return None
        rows = sorted(bad)
        names = self._places(state, stats, rows)
        num_nan, num_inf = sum(nan for nan, _ in bad.values()), sum(inf for _, inf in bad.values())
        # The gradient that the step began with was finite: an optimizer that evaluates its closure many times broke it.
        is_within = bool(rows) and not loss_is_bad and bool(np.isfinite(stats.norms[rows]).all())
        kind = "NaN" if num_nan or (stats.has_loss and math.isnan(stats.loss)) else "Inf"
        entries = "Inf gradient entries (or too large to square)" if stats.is_late and kind == "Inf" else ""
        which = _which(state, stats, rows)
        if loss_is_bad:
            where = f" on rank {', '.join(map(str, stats.bad_ranks))}" if stats.bad_ranks else ""
            word = "NaN" if math.isnan(stats.loss) else "Inf" if stats.loss > 0 else "-Inf"
            head = f"The loss is {word}{where}" + (f", and {which} got {kind} gradients" if rows else "")
        elif is_within:
            head = f"{which[0].upper()}{which[1:]} turned {kind} within the step, at a later evaluation"
        else:
            told = " although the loss is finite" if stats.has_loss else ""
            head = f"{which[0].upper()}{which[1:]} got {entries or f'{kind} gradient entries'}{told}"
        usual_advice = BATCH_ADVICE if loss_is_bad else BACKWARD_ADVICE
        advice = WITHIN if is_within else what_to_do(stats.origin) or usual_advice
        return Finding(
            diagnosis=self.name,
            step=stats.step,
            severity="warn",
            statistic=f"non-finite {'parameter' if is_within else 'gradient'} entries"
            + (", at least" if stats.is_late else ""),
            value=num_nan + num_inf,
            threshold=0,
            parameters=tuple(names[:MAX_NAMES]),
            num_parameters=len(names) or len(rows),
            message=f"{head}." if is_within else f"{head}: {where_it_began(stats.origin)}.",
            advice=advice,
            evidence={
                "where": "step" if is_within else " and ".join(["loss"] * loss_is_bad + ["gradient"] * bool(bad)),
                "kind": kind,
                "nan_entries": num_nan,
                "inf_entries": num_inf,
                "tensors": len(rows),
                **({"loss": stats.loss} if stats.has_loss else {}),
                **({"ranks": ",".join(map(str, stats.bad_ranks))} if stats.bad_ranks else {}),
                **_origin(stats),
            },
            indices=tuple(rows),
        )

    def _places(self, state: NonfiniteState, stats: StepStats, rows: list[int]) -> list[str]:
        """Return the names that say where it began; when all gradients are bad, theirs say nothing."""
        origin = stats.origin
        if origin is not None and origin.stage != "unknown":
            looked_at = {state.table.names[row] for row in state.rows}
            return [name for name in origin.parameters if name in looked_at]
        return [] if _are_all(state, stats, rows) else [state.table.names[row] for row in rows]


def _are_all(state: NonfiniteState, stats: StepStats, rows: list[int]) -> bool:
    """Return whether these are all that have a gradient, of several."""
    return 1 < len(rows) == sum(1 for row in state.rows if stats.norms[row] != ABSENT)


def _which(state: NonfiniteState, stats: StepStats, rows: list[int]) -> str:
    if _are_all(state, stats, rows):
        return f"all {len(rows)} parameter tensors"
    return f"{state.table.names[rows[0]]!r}{_and_more(len(rows))}" if rows else ""


def _origin(stats: StepStats) -> dict[str, int | float | str]:
    return {} if stats.origin is None else stats.origin.evidence()


def _and_more(count: int) -> str:
    return f" (and {count - 1} more)" if count > 1 else ""
