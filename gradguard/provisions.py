"""What a policy's remedies need the guard to keep; what none of them needs is not kept."""

from __future__ import annotations

from gradguard.buffer_shadow import BufferShadow
from gradguard.companions import Companions
from gradguard.finite_check import FiniteCheck
from gradguard.policy.schema import Policy
from gradguard.record.directory import RunDirectory
from gradguard.snapshots import Snapshots
from gradguard.target import Target


SNAPSHOTS_FOLDER = "snapshots"


def provide(
    target: Target,
    policy: Policy,
    finite_check: FiniteCheck,
    companions: Companions | None,
    directory: RunDirectory | None,
) -> None:
    """Give a target what the remedies of its policy need.

    Args:
        target: its `buffers`, `snapshots` and so on are set.
        policy: in mode "observe" nothing is needed.
        finite_check: tells what must not be saved.
        companions: what is saved beside model and optimizer.
        directory: where snapshots on disk go; ranks that have none keep them in memory.
    """
    needs = policy.needs() if policy.mode == "enforce" else frozenset()
    if "buffers" in needs:
        target.buffers = BufferShadow.of(target.model)
    options = policy.snapshots
    if "snapshots" in needs:
        target.snapshots = Snapshots(
            target.model,
            target.optimizer,
            options.every,
            options.max_memory_share,
            finite_check,
            keep=options.keep,
            keeps_start="start" in needs,
            companions=companions,
            folder=directory.path / SNAPSHOTS_FOLDER if directory is not None and options.where == "disk" else None,
        )
