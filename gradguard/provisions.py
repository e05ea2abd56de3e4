"""What a policy's remedies need the guard to keep; what none of them needs is not kept."""

from __future__ import annotations

from collections.abc import Callable

from gradguard.buffer_shadow import BufferShadow
from gradguard.captures import Captures
from gradguard.companions import Companions
from gradguard.finite_check import FiniteCheck
from gradguard.forward_inputs import ForwardInputs
from gradguard.policy.schema import Policy
from gradguard.record.directory import RunDirectory
from gradguard.snapshots import Snapshots
from gradguard.target import Target


SNAPSHOTS_FOLDER = "snapshots"
CAPTURES_FOLDER = "captures"


def provide(
    target: Target,
    policy: Policy,
    finite_check: FiniteCheck,
    companions: Companions | None,
    directory: RunDirectory | None,
    on_fault: Callable[[str, Exception], None],
) -> None:
    """Give a target what the remedies of its policy need.

    Args:
        target: its `buffers`, `snapshots` and so on are set.
        policy: in mode "observe" nothing is needed.
        finite_check: tells what must not be saved.
        companions: what is saved beside model and optimizer.
        directory: where snapshots on disk and captures go; ranks that have none keep snapshots in memory.
        on_fault: called with (what failed, error) when a hook fails.
    """
    needs = policy.needs() if policy.mode == "enforce" else frozenset()
    companions = Companions(target.optimizer) if companions is None else companions
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
    if "captures" in needs:
        folder = directory.path / CAPTURES_FOLDER if directory is not None else None
        inputs = ForwardInputs(target.model, on_fault)
        target.captures = Captures(target.model, target.optimizer, companions, inputs, folder)
        size = f"a capture takes {target.captures.nbytes() / 1e6:.3g} MB and the inputs"
        target.notes.append(size if folder is not None else "no captures: they are files of a run_dir")
