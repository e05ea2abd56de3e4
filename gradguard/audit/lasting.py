"""What the guard changed and has not put back when the record ends: what a person goes on with without knowing it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from gradguard.printable import short
from gradguard.records import Intervention, Number


SCALED = {"scale_lr": "the learning rate", "scale_weight_decay": "the weight decay"}
FOR_GOOD = "for good"
SURGERY = ("reinitialize", "revive_units", "replace_activation")


def lasting(interventions: Sequence[Intervention], last_step: int | None, lr_factor: float) -> tuple[str, ...]:
    """Return a few words for each change that is still in force after the last step.

    Args:
        interventions: of the run, in order.
        last_step: the last recorded one; None when there is none.
        lr_factor: of the guard, at the last step.
    """
    if last_step is None:
        return ()
    by_remedy: dict[str, list[Intervention]] = {}
    for record in interventions:
        by_remedy.setdefault(record.remedy, []).append(record)
    told = []
    for remedy, what in SCALED.items():
        done = by_remedy.get(remedy, [])
        factor = lr_factor if remedy == "scale_lr" else _number(done[-1].change.after, "factor") if done else 1.0
        if done and (until := _until(done, last_step)) and 0 <= factor < math.inf and abs(factor - 1) > 1e-6:
            told.append(f"{what} is {short(factor)} of yours, {until}")
    for record in by_remedy.get("keep_clipping", [])[-1:]:
        until_step, limit = (_number(record.change.after, name) for name in ("until_step", "max_norm"))
        if until_step > last_step:
            told.append(f"the gradient norm is kept below {short(limit)} until step {until_step:,.0f}")
    for remedy in SURGERY:
        told += [f"{record.change.summary} ({FOR_GOOD})" for record in by_remedy.get(remedy, [])]
    return tuple(told)


def _until(done: Sequence[Intervention], last_step: int) -> str:
    """Return until when a factor is in force, "" when it is not any more."""
    spans = [(record.step, _number(record.change.after, "recover_steps")) for record in done]
    if any(not span > 0 for _, span in spans):
        return FOR_GOOD
    end = max(step + span for step, span in spans)
    return f"rising back until step {end:,.0f}" if end > last_step else ""


def _number(values: Mapping[str, Number | str], name: str) -> float:
    value = values.get(name)
    return float(value) if isinstance(value, (int, float)) else math.nan
