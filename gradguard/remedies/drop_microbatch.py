"""Leave a micro-batch out of the accumulated gradient, and keep the mean right."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gradguard.contracts import REMEDIES, Remedy, Unavailable
from gradguard.records import Change, Finding


if TYPE_CHECKING:
    from gradguard.flow.target import Target


@REMEDIES.register
class DropMicrobatch(Remedy):
    """Under gradient accumulation the step is taken without the micro-batches whose gradients are not finite.

    Such a micro-batch is taken back as soon as its backward pass ends. At the step the others are multiplied by
    n / (n - k) for k dropped ones of n, as the loss of each is taken to be divided by n. Where none is left, or where
    none can be told apart, the step is skipped.
    """

    name = "drop_microbatch"
    kind = "gradient"
    rank = -10
    needs = frozenset({"buffers", "microbatches"})
    what = "One bad micro-batch costs itself, not the others that were accumulated for the same step."
    computed = "grad = sum over the n - k finite micro-batches of grad_i / n, times n / (n - k)."
    source = "optax.MultiSteps(should_skip_update_fn=skip_not_finite), by value for the mean of the others"

    def apply(self, target: Target, finding: Finding | None, rows: Sequence[int] | None) -> Change:
        """See `Remedy.apply`; `rows` is not used, a micro-batch is dropped as a whole.

        Raises:
            Unavailable: the model itself is damaged.
        """
        from gradguard.optimizer.microbatches import remaining_factor

        stats = target.stats
        num, dropped = stats.num_microbatches, stats.dropped_microbatches
        if stats.bad_state:
            raise Unavailable(f"{stats.bad_state[0]} itself is not finite: leaving micro-batches out does not help")
        before = {"microbatches": num, "global_norm": stats.global_norm}
        if not 0 < dropped < num:
            restored = target.drop_step()
            why = f"all {num} micro-batches were dropped" if dropped else "no micro-batch could be told apart"
            after = {"microbatches": 0, "buffers_restored": restored}
            return Change(summary=f"{why}: step skipped", before=before, after=after)
        target.scale_all(remaining_factor(num, dropped))
        return Change(
            summary=f"{dropped} of {num} micro-batches dropped, the mean is over the other {num - dropped}",
            before=before,
            after={"microbatches": num - dropped, "global_norm": stats.global_norm},
        )
