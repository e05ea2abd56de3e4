"""Small results on their way from a device to the host, without anyone waiting for them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


class Transfer:
    """One non-blocking copy of several small tensors of one device.

    They are packed into one float64 tensor (float32 where the device has no float64) and copied into pinned memory
    behind whatever the device is doing; `read` waits for that copy alone. On the CPU there is nothing to wait for.

    Args:
        parts: the tensors by name, at least one, of any shape, all on one device.

    Example:
        >>> transfer = Transfer({"norms": torch.tensor([3.0, 4.0]), "loss": torch.tensor(0.5)})
        >>> transfer.read()["norms"]
        array([3., 4.])
    """

    def __init__(self, parts: Mapping[str, Tensor]) -> None:
        flat = [part.detach().reshape(-1) for part in parts.values()]
        device = flat[0].device
        wide = torch.float32 if device.type == "mps" else torch.float64
        self._sizes = {name: part.numel() for name, part in zip(parts, flat, strict=True)}
        self._packed = torch.cat([part.to(wide) for part in flat]).to("cpu", non_blocking=True)
        self._arrival: torch.Event | None = None
        if device.type != "cpu":
            self._arrival = torch.Event(device)
            self._arrival.record()

    def read(self) -> dict[str, npt.NDArray[np.float64]]:
        """Return the values of each part, flat; waits until they are there."""
        if self._arrival is not None:
            self._arrival.synchronize()
        values = self._packed.numpy().astype(np.float64, copy=False)
        ends = np.cumsum(list(self._sizes.values()))
        return dict(zip(self._sizes, np.split(values, ends[:-1]), strict=True))
