"""Write down what is needed to take a step again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pydantic import Field

from gradguard.contracts import REMEDIES, Remedy, Unavailable
from gradguard.printable import short
from gradguard.records import Change, Finding


if TYPE_CHECKING:
    from gradguard.flow.target import Target


@REMEDIES.register
class Capture(Remedy):
    """Write the state before the step, its inputs and random state, loss, sample ids and gradients to a file.

    It goes to `captures/` in the run directory and loads with `torch.load(path, weights_only=True)`;
    `gradguard.snapshots.captures` says what is in it. Inputs are those of calls of the guarded model; with several
    ranks those of rank 0. From the moment that a policy names this remedy, inputs stay in memory until their step is
    over.

    Args:
        limit: captures a run, >= 1; then it only says that there are as many already.
    """

    name = "capture"
    kind = "notice"
    rank = -10
    needs = frozenset({"buffers", "captures"})
    what = "Nothing is changed: a file is written from which the bad step can be taken again, away from the training."
    computed = "State dicts, arguments of the forward passes and torch's random states, written at once and atomically."
    source = "own; Megatron-LM reruns a suspicious step on the spot, a file can be looked at for longer"

    limit: int = Field(default=5, ge=1)

    def apply(self, target: Target, finding: Finding | None, rows: Sequence[int] | None) -> Change:
        """See `Remedy.apply`.

        Raises:
            Unavailable: there is no run directory or no room, or as many captures as the limit allows.
        """
        from gradguard.gradients.full_statistics import measure
        from gradguard.snapshots.plain import to_plain

        captures, stats = target.captures, target.stats
        if captures is None or captures.folder is None:
            raise Unavailable("a capture is a file in the run directory, and there is none: pass run_dir= to attach")
        if captures.num_written >= self.limit:
            raise Unavailable(f"{captures.num_written} captures were written already, the limit is {self.limit}")
        present = target.rows(None)
        gradients = measure([target.table.names[row] for row in present], target.grads(present), stats.step, None)
        facts = {
            "loss": stats.loss,
            "loss_scale": target.gradient_scale,
            "sample_ids": list(target.sample_ids),
            "finding": finding.model_dump_json() if finding is not None else None,
            "gradients": {key: to_plain(value) for key, value in gradients._asdict().items() if key != "histogram"},
        }
        try:
            path, size = captures.write(stats.step, facts, target.buffers)
        except OSError as error:
            raise Unavailable(f"the capture could not be written: {error}") from error
        inputs = len(captures.inputs.passes)
        seen = f"the inputs of {inputs} forward passes" if inputs else "no inputs, as no call of the model was seen"
        file = f"{path.parent.name}/{path.name}"
        return Change(
            summary=f"{file} written, {short(size / 1e6)} MB, with {seen}",
            before={"captures": captures.num_written - 1},
            after={"captures": captures.num_written, "file": file, "bytes": size, "forward_passes": inputs},
        )
