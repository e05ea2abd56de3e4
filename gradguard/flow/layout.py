"""What the guard reads of model and optimizer at the start, and afresh when param groups or weights were replaced."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradguard.evidence.stats import StepStats
from gradguard.flow.judgement import Judgement
from gradguard.gradients.reset_watch import ResetWatch
from gradguard.records import Event


if TYPE_CHECKING:
    from gradguard.flow.pipeline import Pipeline


def start(pipeline: Pipeline) -> None:
    """Write the layout, take the first probe and the snapshot of the state at attach time."""
    pipeline.recorder.write_layout(pipeline.monitor.table)
    pipeline.monitor.probe(pipeline.stats)
    pipeline.monitor.read_spreads(pipeline.stats)
    pipeline.recorder.sampled(pipeline.stats, has_spreads=True)
    pipeline.start_versions = [param._version for param in pipeline.monitor.params]
    _take_first_snapshot(pipeline)
    if pipeline.probes is not None:
        pipeline.probes.start(0)


def take_new_layout(pipeline: Pipeline) -> None:
    """The optimizer has new parameters: measure them too, and start the rolling statistics afresh."""
    known = len(pipeline.monitor.table)
    pipeline.monitor.read_layout()
    table = pipeline.monitor.table
    if pipeline.target.buffers is not None:
        pipeline.target.buffers.read(pipeline.target.model)
    if pipeline.target.variances is not None:
        pipeline.target.variances.read()
    fresh, old = StepStats(len(table)), pipeline.stats
    fresh.step, fresh.loss_scale, fresh.scaler_skips = pipeline.step, old.loss_scale, old.scaler_skips
    pipeline.stats = pipeline.target.stats = fresh
    pipeline.read_parameters()
    num_losses = pipeline.judgement.num_losses
    pipeline.judgement = Judgement(pipeline.policy, table, pipeline.policy.horizon, pipeline.on_fault)
    pipeline.judgement.num_losses = num_losses
    pipeline.intervening.rows_of = pipeline.routine.rows_of = pipeline.judgement.rows_of
    pipeline.watch.close()
    pipeline.watch = ResetWatch(pipeline.monitor.params)
    if pipeline.target.microbatches is not None:
        pipeline.target.microbatches.close()
        pipeline.target.microbatches.read()
    pipeline.parameters_changed()
    if pipeline.probes is not None:
        pipeline.probes.layout_changed()
    pipeline.recorder.write_layout(table)
    message = f"the optimizer has {len(table)} parameters now ({known} before); rolling statistics start afresh"
    pipeline.recorder.write(
        Event(
            step=pipeline.step,
            event="parameters_changed",
            message=message,
            data={"before": known, "after": len(table)},
        )
    )
    pipeline.monitor.probe(pipeline.stats)
    pipeline.monitor.read_spreads(pipeline.stats)
    pipeline.recorder.sampled(pipeline.stats, has_spreads=True)
    if pipeline.target.snapshots is not None:
        pipeline.target.snapshots.forget()
    _take_first_snapshot(pipeline)


def follow_windows(pipeline: Pipeline, is_within: bool) -> None:
    """Follow what remedies did: the rolling statistics start afresh, or go back with the weights.

    Args:
        pipeline: whose remedies.
        is_within: a step that was judged is still to be taken in.
    """
    target = pipeline.target
    if target.is_rebaselined:
        pipeline.judgement.forget()
        pipeline.recorder.replay("forget", is_within=is_within, why="rebaselined")
    if target.restored is not None:
        pipeline.judgement.roll_back(target.restored.windows)
        pipeline.recorder.replay("roll_back", is_within=is_within, snapshot=target.restored.step)
        pipeline.scale.read_again()
        pipeline.periodic.probe_at(pipeline.step + 1)
    _recover_from_surgery(pipeline, is_within)


def _recover_from_surgery(pipeline: Pipeline, is_within: bool) -> None:
    """If weights or modules are not what they were, what was learnt of them is void, and so are states saved before.

    A rollback would bring the numbers of the old structure back into the new one. From here on it leads to the state
    just after the surgery, until a later one is confirmed.
    """
    if not pipeline.target.is_operated:
        return
    pipeline.judgement.forget()
    pipeline.recorder.replay("forget", is_within=is_within, why="operated")
    pipeline.monitor.probe(pipeline.stats)
    pipeline.monitor.read_spreads(pipeline.stats)
    pipeline.recorder.sampled(pipeline.stats, has_spreads=True, is_within=is_within)
    if pipeline.target.buffers is not None:
        pipeline.target.buffers.accept()
    if pipeline.probes is not None:
        pipeline.probes.start_over()
    pipeline.parameters_changed()
    if pipeline.target.snapshots is not None:
        pipeline.target.snapshots.forget()
    _take_first_snapshot(pipeline)


def check_for_loaded_weights(pipeline: Pipeline) -> None:
    """Before the first step: if weights were loaded since the guard was attached, start from these."""
    if pipeline.start_versions != [param._version for param in pipeline.monitor.params]:
        if pipeline.target.buffers is not None and pipeline.target.buffers.is_finite():
            pipeline.target.buffers.accept()
        pipeline.monitor.read_spreads(pipeline.stats)
        pipeline.recorder.replay("spreads", spreads=pipeline.stats.weight_spreads)
        if pipeline.target.snapshots is not None:
            pipeline.target.snapshots.take(pipeline.step, pipeline.judgement.state_dict(), is_confirmed=True)
    pipeline.start_versions = []


def _take_first_snapshot(pipeline: Pipeline) -> None:
    snapshots = pipeline.target.snapshots
    if snapshots is not None:
        windows = pipeline.judgement.state_dict()
        snapshots.take(pipeline.step, windows, is_confirmed=True, bad=pipeline.stats.bad_state)
