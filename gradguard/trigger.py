"""A condition on the step to come: what must be exceeded for a diagnosis to fire, told before anything is measured."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple


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
