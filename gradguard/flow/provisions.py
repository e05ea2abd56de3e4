"""What a policy's remedies need the guard to keep; what none of them needs is not kept."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradguard.flow.exchange import Exchange
from gradguard.model.forward_inputs import ForwardInputs
from gradguard.model.last_call import LastCall
from gradguard.model.parameter_names import is_compiled
from gradguard.model.variance_watch import VarianceWatch
from gradguard.optimizer.microbatches import Microbatches, reason_not_to_drop
from gradguard.policy.decide import would_drop
from gradguard.snapshots.buffer_shadow import BufferShadow
from gradguard.snapshots.captures import Captures
from gradguard.snapshots.companions import Companions
from gradguard.snapshots.ring import Snapshots


if TYPE_CHECKING:
    from gradguard.flow.pipeline import Pipeline


SNAPSHOTS_FOLDER = "snapshots"
CAPTURES_FOLDER = "captures"


def provide(pipeline: Pipeline, companions: Companions | None) -> None:
    """Give a pipeline's target what the remedies of its policy need, and note what the user should know of it.

    In mode "observe" nothing is needed. Ranks without a run directory keep snapshots in memory and write no captures.

    Args:
        pipeline: what it measures with and decides by is there already.
        companions: what is saved beside model and optimizer, None for nothing.
    """
    policy, target = pipeline.policy, pipeline.target
    model, optimizer = target.model, target.optimizer
    needs = policy.needs() if policy.mode == "enforce" else frozenset()
    companions = Companions(optimizer) if companions is None else companions
    directory = pipeline.recorder.directory
    if "buffers" in needs:
        target.buffers = BufferShadow.of(model)
    options = policy.snapshots
    if "snapshots" in needs:
        target.snapshots = Snapshots(
            model,
            optimizer,
            options.every,
            options.max_memory_share,
            pipeline.monitor.finite_check,
            keep=options.keep,
            keeps_start=policy.needs_start_until(),
            companions=companions,
            folder=directory.path / SNAPSHOTS_FOLDER if directory is not None and options.where == "disk" else None,
        )
    if "variances" in policy.reads() and len(watch := VarianceWatch(model)):
        if watch.is_on_host() and not Exchange.is_needed() and policy.monitor.sync == "immediate":
            target.variances = watch
        else:
            target.notes.append("running variances are looked at only in a single process on the CPU, sync immediate")
    if needs & {"captures", "inputs"}:
        target.inputs = ForwardInputs(model, pipeline.on_fault, keeps_random="captures" in needs)
    if policy.locates() and not Exchange.is_needed() and not is_compiled(model):
        target.last_call = LastCall(model)
    if "captures" in needs and target.inputs is not None:
        folder = directory.path / CAPTURES_FOLDER if directory is not None else None
        target.captures = Captures(model, optimizer, companions, target.inputs, folder)
        size = f"a capture takes {target.captures.nbytes() / 1e6:.3g} MB and the inputs"
        target.notes.append(size if folder is not None else "no captures: they are files of a run_dir")
    if "microbatches" in needs:
        reason = reason_not_to_drop(model, optimizer, pipeline.scale.is_used)
        if reason:
            target.notes.append(f"no micro-batch can be dropped: {reason}")
        else:
            target.microbatches = Microbatches(
                model,
                optimizer,
                window=lambda: pipeline.watch.window,
                is_wanted=lambda: would_drop(policy, pipeline.intervening.histories, pipeline.step),
                on_fault=pipeline.on_fault,
            )
