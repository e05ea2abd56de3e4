"""What a diagnosis can say about steps to come, before anything is measured: on what it fires, and on what not."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

from gradguard.evidence.stats import FloatArray


MANY = 1 << 62


class Trigger(NamedTuple):
    """A number of the step to come and the value above which a diagnosis fires.

    Args:
        quantity: "global_norm" (rounded to float32), "loss", or "nonfinite": a NaN or Inf in loss or gradients.
        above: the diagnosis fires when the quantity is larger; not used for "nonfinite".
        has_baseline: the finding will be one against the rolling median.
    """

    quantity: Literal["global_norm", "loss", "nonfinite"]
    above: float = math.inf
    has_baseline: bool = True


class Calm(NamedTuple):
    """A promise: on quiet steps within these bounds a diagnosis surely finds nothing.

    Args:
        steps: how many steps from here on it holds for.
        loss_above: every observed loss is above this,
        loss_most: and at most this.
        levels: (P + 1,) float32, what no norm exceeds; None for no bound.
        reach: what learning rate times global norm does not exceed.
    """

    steps: int = MANY
    loss_above: float = -math.inf
    loss_most: float = math.inf
    levels: FloatArray | None = None
    reach: float = math.inf
