"""All that a resumed run needs to decide exactly as an uninterrupted one, out of a pipeline and into another."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradguard.contracts import REMEDIES
from gradguard.errors import UsageError, did_you_mean
from gradguard.flow.pipeline import Pipeline
from gradguard.snapshots.plain import from_plain, to_plain
from gradguard.surgery import activation_swap


def dump(pipeline: Pipeline) -> dict[str, Any]:
    """Return a pipeline's state as numbers, strings, tensors and containers of these."""
    pipeline.settle()
    target, periodic = pipeline.target, pipeline.periodic
    state = {
        "step": pipeline.step,
        "parameters": list(pipeline.monitor.table.names),
        "judgement": pipeline.judgement.state_dict(),
        "intervening": pipeline.intervening.state_dict(),
        "effects": {name: effect.state_dict() for name, effect in target.effects.items()},
        "replaced": dict(target.replaced),
        "scale": pipeline.scale.state_dict(),
        "weight_norms": pipeline.stats.weight_norms,
        "sgd_reach": pipeline.stats.sgd_reach,
        "shrinkage": pipeline.stats.shrinkage,
        "bad_state": list(pipeline.stats.bad_state),
        "expected_buffers": dict(pipeline.monitor.finite_check.expected),
        "next_probe": periodic.next_probe,
        "next_due": periodic.next_due,
        "locating": pipeline.locating.state_dict(),
        "captures": target.captures.num_written if target.captures is not None else 0,
    }
    probes = to_plain(pipeline.probes.state_dict()) if pipeline.probes is not None else None
    snapshots = target.snapshots.state_dict() if target.snapshots is not None else None
    return {**to_plain(state), "snapshots": snapshots, "probes": probes}


def load(pipeline: Pipeline, state: dict[str, Any]) -> None:
    """Put a dumped state into a pipeline; the model and the optimizer must have been loaded before.

    Raises:
        UsageError: the state is about other parameters; nothing was changed.
    """
    names = pipeline.monitor.table.names
    if state["parameters"] != names:
        other = [name for name in state["parameters"] if name not in set(names)]
        hint = f"; {other[0]!r} is not among them{did_you_mean(other[0], names)}" if other else ""
        raise UsageError(
            f"the state is about {len(state['parameters'])} parameters, this guard watches {len(names)}{hint}"
        )
    pipeline.quiet.settle()
    plain = from_plain({key: value for key, value in state.items() if key != "snapshots"})
    target, stats, periodic = pipeline.target, pipeline.stats, pipeline.periodic
    pipeline.step = plain["step"]
    pipeline.judgement.load_state_dict(plain["judgement"])
    pipeline.intervening.load_state_dict(plain["intervening"])
    target.effects = {name: REMEDIES.get(name).restore_effect(effect) for name, effect in plain["effects"].items()}
    target.replaced = dict(plain.get("replaced", {}))
    activation_swap.replace(target.model, target.replaced)
    if target.snapshots is not None and state["snapshots"] is not None:
        target.snapshots.load_state_dict(state["snapshots"])
    if target.captures is not None:
        target.captures.num_written = plain["captures"]
    if "locating" in plain:
        pipeline.locating.load_state_dict(plain["locating"])
    if target.buffers is not None:
        target.buffers.accept()
    if pipeline.target.variances is not None:
        pipeline.target.variances.read()
    target.end_step()
    pipeline.scale.load_state_dict(plain["scale"])
    stats.weight_norms = np.array(plain["weight_norms"], dtype=np.float32)
    stats.sgd_reach, stats.shrinkage = plain["sgd_reach"], plain["shrinkage"]
    stats.bad_state = tuple(plain["bad_state"])
    pipeline.monitor.finite_check.expected = dict(plain["expected_buffers"])
    periodic.next_probe, periodic.next_due = plain["next_probe"], plain["next_due"]
    pipeline.monitor.read_spreads(stats)
    pipeline.gradient_probe.next_step = 0
    if pipeline.probes is not None and plain.get("probes") is not None:
        pipeline.probes.load_state_dict(plain["probes"])
    pipeline.start_versions = []
    pipeline.parameters_changed()
    pipeline.recorder.sampled(stats, has_spreads=True)
    pipeline.recorder.replay(
        "resumed",
        step=pipeline.step,
        judgement=plain["judgement"],
        intervening=plain["intervening"],
        snapshots=_windows(state["snapshots"] or {}),
    )


def _windows(snapshots: dict[str, Any]) -> dict[int, Any]:
    """Return the rolling statistics of saved snapshots, by step."""
    kept = [*snapshots.get("good", ()), snapshots.get("start"), snapshots.get("pending")]
    return {int(saved["step"]): from_plain(saved["windows"]) for saved in kept if saved is not None}
