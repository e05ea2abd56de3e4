"""Replace only the bad gradient entries by zero."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gradguard.contracts import REMEDIES, Remedy
from gradguard.records import Change, Finding


if TYPE_CHECKING:
    from gradguard.flow.target import Target


@REMEDIES.register
class ZeroNonfinite(Remedy):
    """Set NaN and infinite gradient entries to 0 and keep the others.

    The step is taken with a gradient that is not the loss's: prefer `skip_step` unless a few bad entries are expected.
    """

    name = "zero_nonfinite"
    kind = "gradient"
    rank = 10
    what = "Bad entries become 0, the rest of the gradient is used."
    computed = "grad = nan_to_num(grad, nan=0, posinf=0, neginf=0)"
    source = "torch.nan_to_num; optax.zero_nans"

    def apply(self, target: Target, finding: Finding | None, rows: Sequence[int] | None) -> Change | None:
        """See `Remedy.apply`."""
        from gradguard import functional

        stats = target.stats
        bad = [row for row in stats.nonfinite if rows is None or row in set(rows)]
        if not bad:
            return None
        entries = sum(sum(stats.nonfinite[row]) for row in bad)
        for values in map(functional.writable_values, target.grads(bad)):
            values.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)
        target.measure_again(bad)
        return Change(
            summary=f"{entries} non-finite entries of {len(bad)} gradients set to 0; the step was taken without them",
            before={"nonfinite_entries": entries},
            after={"nonfinite_entries": 0, "global_norm": stats.global_norm},
        )
