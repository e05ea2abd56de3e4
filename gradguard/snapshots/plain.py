"""Numpy arrays to tensors and back, so that a state_dict loads with torch.load(weights_only=True)."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch


def to_plain(value: Any) -> Any:
    """Return nested state with every numpy array as a tensor, and tuples as lists.

    Example:
        >>> to_plain({"a": np.ones(2, dtype=np.float32)})
        {'a': tensor([1., 1.])}
    """
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value.copy())
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, dict):
        return {key: to_plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(item) for item in value]
    return value


def from_plain(value: Any) -> Any:
    """Return nested state with every tensor as a numpy array."""
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().numpy().copy()
    if isinstance(value, dict):
        return {key: from_plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [from_plain(item) for item in value]
    return value
