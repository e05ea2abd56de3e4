"""NaN or Inf in the loss, a gradient, a parameter or a buffer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from pydantic import Field

from gradguard.contracts import DIAGNOSES, Diagnosis
from gradguard.evidence.stats import ParameterTable, StepStats
from gradguard.evidence.trigger import Trigger
from gradguard.records import MAX_NAMES, Finding


FINITE_LOSS = "A finite loss with a NaN gradient comes from sqrt or norm at 0, or a fully masked row."
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
        "probe_every steps."
    )
    cure = (
        "NaN in the loss and the inputs: look at the data of that step. Infinite loss: log(0), a division by zero or "
        "exp of a large number in the loss; use the fused losses (cross_entropy, binary_cross_entropy_with_logits). "
        "Finite loss but NaN gradient: sqrt or norm at exactly 0, or a row of attention that is masked everywhere."
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
        advice = (
            "The weights themselves are damaged: skipping batches cannot help, only going back to a good state can."
        )
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
            message=f"{names[0]} holds NaN or infinite values{_and_more(len(names))}: the model itself is damaged.",
            advice=advice,
            evidence={"where": "state"},
            indices=tuple(index[name] for name in names if name in index),
        )

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
        rows = sorted(bad, key=lambda row: (-sum(bad[row]), row))
        names = [state.table.names[row] for row in rows]
        num_nan, num_inf = sum(nan for nan, _ in bad.values()), sum(inf for _, inf in bad.values())
        # The gradient that the step began with was finite: an optimizer that evaluates its closure many times broke it.
        is_within = bool(rows) and not loss_is_bad and bool(np.isfinite(stats.norms[rows]).all())
        kind = "NaN" if num_nan or (stats.has_loss and math.isnan(stats.loss)) else "Inf"
        if loss_is_bad:
            where = f" on rank {', '.join(map(str, stats.bad_ranks))}" if stats.bad_ranks else ""
            word = "NaN" if math.isnan(stats.loss) else "Inf" if stats.loss > 0 else "-Inf"
            message = f"The loss is {word}{where}" + (f", and {names[0]} got a {kind} gradient" if names else "")
            message += (
                _and_more(len(names)) + ": look at the inputs and targets of this batch and at the loss function."
            )
        elif is_within:
            message = f"{names[0]} turned {kind} within the step{_and_more(len(names))}, at a later evaluation."
        else:
            told = " although the loss is finite" if stats.has_loss else ""
            entries = "Inf gradient entries (or too large to square)" if stats.is_late and kind == "Inf" else None
            message = f"{names[0]} got {entries or f'{kind} gradient entries'}{_and_more(len(names))}{told}."
        return Finding(
            diagnosis=self.name,
            step=stats.step,
            severity="warn",
            statistic=f"non-finite {'parameter' if is_within else 'gradient'} entries"
            + (", at least" if stats.is_late else ""),
            value=num_nan + num_inf,
            threshold=0,
            parameters=tuple(names[:MAX_NAMES]),
            num_parameters=len(rows),
            message=message,
            advice="" if loss_is_bad else WITHIN if is_within else FINITE_LOSS,
            evidence={
                "where": "step" if is_within else " and ".join(["loss"] * loss_is_bad + ["gradient"] * bool(bad)),
                "kind": kind,
                "nan_entries": num_nan,
                "inf_entries": num_inf,
                **({"loss": stats.loss} if stats.has_loss else {}),
                **({"ranks": ",".join(map(str, stats.bad_ranks))} if stats.bad_ranks else {}),
            },
            indices=tuple(rows),
        )


def _and_more(count: int) -> str:
    return f" (and {count - 1} more)" if count > 1 else ""
