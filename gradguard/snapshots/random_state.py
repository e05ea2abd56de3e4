"""The states of the random generators that a training draws from, as values that load with `weights_only`."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch

from gradguard.snapshots.plain import from_plain, to_plain


def torch_random_state() -> dict[str, Any]:
    """Return the states of torch's default generators: {"cpu": (n,) uint8, "cuda": one for each device in use}."""
    is_used = torch.cuda.is_available() and torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    cuda = torch.cuda.get_rng_state_all() if is_used else []
    return {"cpu": torch.get_rng_state(), "cuda": cuda}


def set_torch_random_state(state: dict[str, Any]) -> None:
    """Put torch's default generators into a state that `torch_random_state` returned.

    Example:
        >>> state = torch_random_state()
        >>> first = torch.rand(2)
        >>> set_torch_random_state(state)
        >>> torch.equal(torch.rand(2), first)
        True
    """
    torch.set_rng_state(state["cpu"])
    for device, known in enumerate(state["cuda"][: torch.cuda.device_count()]):
        torch.cuda.set_rng_state(known, device)


def random_state() -> dict[str, Any]:
    """Return the states of torch's, numpy's and Python's default generators."""
    version, numbers, gauss = random.getstate()
    return {
        "torch": torch_random_state(),
        "numpy": to_plain(np.random.get_state(legacy=False)),
        "python": [version, list(numbers), gauss],
    }


def set_random_state(state: dict[str, Any]) -> None:
    """Put all of them into a state that `random_state` returned."""
    set_torch_random_state(state["torch"])
    np.random.set_state(from_plain(state["numpy"]))
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers), gauss))
