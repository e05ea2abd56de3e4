"""Samples of what goes into a model and comes out of it, and the numbers that they come to."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gradguard.evidence.probe_stats import InputStats, OutputStats
from gradguard.probes.unit_sample import MAX_ENTRIES, NUM_SAMPLES


Arrived = Mapping[str, npt.NDArray[np.float64]]


class BoundarySamples:
    """A few columns of every sample, for as many samples as a probe is about."""

    def __init__(self) -> None:
        self._inputs: dict[str, list[Tensor]] = {}
        self._input_shapes: dict[str, list[int]] = {}
        self._outputs: list[Tensor] = []
        self._output_shape: list[int] = []
        self._num_positions = 0
        self._has_output = True

    def take_inputs(self, tensors: Mapping[str, Tensor]) -> None:
        """Copy a sample of the tensors that the model was given."""
        for name, tensor in tensors.items():
            parts = self._inputs.setdefault(name, [])
            have = sum(map(len, parts))
            if have < NUM_SAMPLES:
                self._input_shapes.setdefault(name, list(tensor.shape))
                parts.append(_columns(tensor, NUM_SAMPLES - have))

    def take_output(self, tensor: Tensor | None) -> None:
        """Copy a sample of what the model returned; None when that was no tensor with samples."""
        if tensor is None:
            self._has_output = bool(self._outputs)
            return
        have = sum(map(len, self._outputs))
        if have >= NUM_SAMPLES:
            return
        part = _columns(tensor, NUM_SAMPLES - have)
        if not self._outputs:
            self._output_shape = list(tensor.shape)
        elif part.shape[1] != self._outputs[0].shape[1]:
            return  # of another length, as sequences are
        self._outputs.append(part)
        self._num_positions += math.prod(tensor.shape[:-1]) if tensor.ndim > 1 else len(tensor)

    def is_full(self) -> bool:
        """Return whether there is enough of the output: samples, or positions of its sequences."""
        return not self._has_output or self._num_positions >= NUM_SAMPLES

    @torch.no_grad()
    def measure(self) -> dict[str, Tensor]:
        """Return small tensors of numbers, on their devices, for `output_stats` and `input_stats`."""
        found = {f"input {name}": _input_numbers(parts) for name, parts in self._inputs.items()}
        if self._outputs:
            found["output"] = _output_numbers(self._outputs)
        return found

    def output_stats(self, arrived: Arrived) -> OutputStats | None:
        """Return what `measure` said about the output, None when there was none."""
        if "output" not in arrived:
            return None
        spread, level, dead = map(float, arrived["output"])
        num_units = math.prod(self._output_shape[1:])
        num_samples = sum(map(len, self._outputs))
        return OutputStats(num_samples, num_units, spread, level, dead, tuple(self._output_shape))

    def input_stats(self, arrived: Arrived) -> tuple[InputStats, ...]:
        """Return what `measure` said about the inputs."""
        found = []
        for name, shape in self._input_shapes.items():
            mean, std, largest, nonfinite = map(float, arrived[f"input {name}"])
            found.append(InputStats(name, mean, std, largest, int(nonfinite), tuple(shape)))
        return tuple(found)

    def state_dict(self) -> dict[str, Any]:
        """Return all samples."""
        return {key.removeprefix("_"): value for key, value in vars(self).items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Put samples in place of the present ones; tensors may have become numpy arrays."""
        vars(self).update({f"_{key}": value for key, value in state.items()})
        self._inputs = {name: [torch.as_tensor(part) for part in parts] for name, parts in self._inputs.items()}
        self._outputs = [torch.as_tensor(part) for part in self._outputs]


@torch.no_grad()
def _columns(tensor: Tensor, want: int) -> Tensor:
    """Return (samples, columns) float32, a copy: evenly chosen samples, and entries of each."""
    rows = tensor.detach()
    count = len(rows)
    if count > want:
        rows = rows[torch.arange(want, device=rows.device) * count // want]
    rows = rows.reshape(len(rows), -1)
    stride = -(-rows.shape[1] * NUM_SAMPLES // MAX_ENTRIES)
    return rows[:, ::stride].to(torch.float32, copy=True)


def _output_numbers(parts: list[Tensor]) -> Tensor:
    """Return (3,) spread, level, share of columns that are 0; the spread is within each pass: the weights move."""
    parts = [part.to(parts[-1].device) for part in parts]
    freedom = sum(len(part) - 1 for part in parts)
    squares = torch.stack([(part - part.mean(0)).square().sum(0) for part in parts]).sum(0)
    spread = (squares / freedom).sqrt().mean() if freedom else squares.new_full((), math.nan)
    together = torch.cat(parts)
    is_dead = (together == 0).all(0)
    return torch.stack([spread, together.abs().mean(), is_dead.float().mean()])


def _input_numbers(parts: list[Tensor]) -> Tensor:
    """Return (4,) mean, std and largest magnitude of the finite entries, and how many are not finite."""
    values = torch.cat([part.reshape(-1).to(parts[-1].device) for part in parts])
    is_finite = values.isfinite()
    count = is_finite.sum()
    kept = torch.where(is_finite, values, 0.0)
    largest = kept.abs().amax()
    unit = kept / largest.clamp_min(torch.finfo(torch.float32).tiny)  # squares of a mask's -3.4e38 would overflow
    mean = unit.sum() / count
    std = (torch.where(is_finite, unit - mean, 0.0).square().sum() / count).sqrt()
    return torch.stack([mean * largest, std * largest, largest, (values.numel() - count).to(mean)])
