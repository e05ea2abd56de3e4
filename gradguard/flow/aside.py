"""Judgements outside of a normal step: a step that broke inside, the scaler's skips, and the last step of all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gradguard.flow import layout
from gradguard.records import Event


if TYPE_CHECKING:
    from gradguard.flow.pipeline import Pipeline


def judge_broken_step(pipeline: Pipeline) -> None:
    """Judge a step that ended in parameters that are not finite, although its first gradient was fine."""
    pipeline.quiet.settle()
    pipeline.quiet.disarm()
    stats = pipeline.stats
    stats.nonfinite = {
        row: (int(param.isnan().sum()), int(param.isinf().sum()))
        for row, param in enumerate(pipeline.monitor.params)
        if not bool(param.isfinite().all())
    }
    stats.finite = False
    pipeline.target.is_rebaselined = False
    pipeline.recorder.aside(stats)
    if found := pipeline.judgement.judge(stats):
        pipeline.findings += [finding for _, finding in found]
        pipeline.records = pipeline.records + pipeline.intervening.act(found, ())
        pipeline.periodic.outcomes_waiting()
        layout.follow_windows(pipeline, is_within=False)


def notice_scaler(pipeline: Pipeline, losses: Sequence[Any], is_every_step_observed: bool) -> bool:
    """Record GradScaler's skips that no step hook saw, and judge them; return whether there were any.

    Args:
        pipeline: judges and acts.
        losses: observed for the steps that it skipped.
        is_every_step_observed: this is called once for every iteration of the loop.
    """
    scale, stats = pipeline.scale, pipeline.stats
    if not (missed := scale.missed_skips(is_every_step_observed)):
        return False
    record_scaler_skips(pipeline, missed, scale.last_scale, ", scale now")
    stats.step, stats.found_inf = pipeline.step, True
    stats.scaler_skips, stats.loss_scale = scale.skips, scale.last_scale
    pipeline.target.begin()
    pipeline.records = []
    pipeline.monitor.measure(stats, losses=losses)
    pipeline.recorder.aside(stats)
    if found := pipeline.judgement.judge(stats):
        pipeline.findings = [finding for _, finding in found]
        pipeline.records = pipeline.intervening.act(found, ())
        pipeline.periodic.outcomes_waiting()
        layout.follow_windows(pipeline, is_within=False)
    return True


def record_scaler_skips(pipeline: Pipeline, count: int, scale: float, words: str) -> None:
    """Record the scaler's skips; it spares the weights, but a NaN in the forward pass went into the buffers.

    Args:
        pipeline: has the buffers and the record.
        count: how many.
        scale: the loss scale; 1 where it is not known.
        words: what scale that is, to be followed by the number.
    """
    buffers = pipeline.target.buffers
    restored = buffers.restore() if buffers is not None and not buffers.is_finite() else 0
    told = f"{words} {scale:g}" if scale != 1.0 else ""
    pipeline.recorder.write(
        Event(
            step=pipeline.step,
            event="scaler_skip",
            message=f"GradScaler skipped {count} step{'s' if count > 1 else ''}{told}",
            data={"skips": count, "loss_scale": scale, "buffers_restored": restored},
        ),
        durable=False,
    )


def judge_last_step(pipeline: Pipeline) -> None:
    """Judge what the very last step left: nothing measures it otherwise."""
    stats = pipeline.stats
    stats.bad_state = pipeline.monitor.nonfinite_parameters()
    if stats.bad_state:
        stats.step, stats.has_loss, stats.finite, stats.is_stale = pipeline.step, False, True, False
        pipeline.target.begin()
        pipeline.recorder.aside(stats)
        found = pipeline.judgement.judge(stats)
        pipeline.findings = [finding for _, finding in found]
        pipeline.records = pipeline.intervening.act(found, ())
