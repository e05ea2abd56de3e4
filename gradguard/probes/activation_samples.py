"""What a probe has sampled so far, over one forward pass or several, and the numbers that it comes to."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from gradguard.evidence.probe_stats import Activations
from gradguard.gradients.transfer import Transfer
from gradguard.probes import unit_statistics as unit
from gradguard.probes.activation_places import INPUT, Place
from gradguard.probes.boundary_statistics import BoundarySamples
from gradguard.probes.time_gradient import Sequence as TimeSequence
from gradguard.probes.time_gradient import gradient_over_time, remaining
from gradguard.probes.unit_sample import MAX_ENTRIES, sample_units, unit_stride


MAX_CALLS = 4  # of one module in one pass, as of a layer that is used several times
TOTAL_ENTRIES = 1 << 22  # of all places together: 16 MB
MIN_ENTRIES = 4096


@dataclass
class Taken:
    """The samples of one place, of one of its calls.

    Args:
        place: name of the module.
        kind: of activation.
        num_units: units of the whole activation.
        wanted: samples that there should be.
        num_samples: samples so far.
        parts: (rows, units) float32 each.
    """

    place: str
    kind: str
    num_units: int
    wanted: int
    num_samples: int = 0
    parts: list[Tensor] = field(default_factory=list)

    @property
    def is_full(self) -> bool:
        """Whether there are as many samples as there should be."""
        return self.num_samples >= self.wanted


class Samples:
    """Small copies of activations.

    Attributes:
        num_passes: forward passes that ended.
        boundary: what went into the model and came out.
        sequences: a few rows of what recurrent modules were given.
        unseen: what could not be looked at, as the keys.
    """

    def __init__(self) -> None:
        self.num_passes = 0
        self.boundary = BoundarySamples()
        self.sequences: dict[str, TimeSequence] = {}
        self.unseen: dict[str, None] = {}
        self._taken: dict[str, Taken] = {}
        self._max_entries = MAX_ENTRIES

    def limit(self, num_places: int) -> None:
        """Share the memory between so many places."""
        self._max_entries = max(MIN_ENTRIES, min(MAX_ENTRIES, TOTAL_ENTRIES // max(1, num_places)))

    def take(self, place: Place, call: int, value: Tensor) -> None:
        """Copy a sample of an activation, of the module's `call`-th call in this pass, counted from 1."""
        if call > MAX_CALLS:
            self.unseen.setdefault(f"of the calls of {place.name!r} in one pass only the first {MAX_CALLS} are seen")
            return
        name = place.name if call == 1 else f"{place.name} (call {call})"
        have = self._taken.get(name)
        if have is not None and have.is_full:
            return
        num_have = have.num_samples if have is not None else 0
        sample = sample_units(value, place.num_spatial, num_have, self._max_entries)
        if have is None:
            have = self._taken[name] = Taken(place.name, place.kind, sample.num_units, sample.wanted)
        if have.num_units != sample.num_units:
            self.unseen.setdefault(f"{place.name!r} has another number of units from pass to pass")
            return
        have.parts.append(sample.values)
        have.num_samples += len(sample.values)

    def is_full(self, place: str) -> bool:
        """Return whether no more samples of a place are needed."""
        calls = [taken.is_full for taken in self._taken.values() if taken.place == place]
        return bool(calls) and all(calls)

    def is_complete(self) -> bool:
        """Return whether there is enough of everything that was seen."""
        return self.num_passes > 0 and self.boundary.is_full() and all(t.is_full for t in self._taken.values())

    def launch(
        self,
        unseen: Sequence[str],
        recurrent: Mapping[str, nn.RNNBase],
        signed: set[str],
        keeps_dead: bool = False,
    ) -> Callable[[], Activations]:
        """Start to measure on the samples' devices; return what waits for the numbers.

        Args:
            unseen: what could not be looked at, beside what was noted here.
            recurrent: the modules of `sequences`; they run once more.
            signed: takes the names of weighted modules whose inputs are no ReLU's: some are below 0.
            keeps_dead: say which units are dead.
        """
        taken = self._taken
        joined = [torch.cat([part.to(t.parts[-1].device) for part in t.parts]) for t in taken.values()]
        columns = unit.unit_columns(joined, [t.kind for t in taken.values()])
        by_device: dict[torch.device, dict[str, Tensor]] = {}
        for part in columns:
            by_device.setdefault(part.values.device, {})["units"] = part.values
        for name, sequence in self.sequences.items():
            if name in recurrent:
                over_time = gradient_over_time(recurrent[name], sequence)
                by_device.setdefault(over_time.device, {})[f"time {name}"] = over_time
        for name, numbers in self.boundary.measure().items():
            by_device.setdefault(numbers.device, {})[name] = numbers
        transfers = {device: Transfer(parts) for device, parts in by_device.items()}
        num_passes = self.num_passes

        def read() -> Activations:
            arrived = {device: transfer.read() for device, transfer in transfers.items()}
            table = np.full((len(taken), unit.COLUMNS), np.nan)
            for part in columns:
                table[part.rows] = arrived[part.values.device]["units"].reshape(-1, unit.COLUMNS)
            flat = {name: values for parts in arrived.values() for name, values in parts.items()}
            is_bad = ~np.isfinite(table[:, unit.MEAN])
            nonfinite = [int((~joined[i].isfinite()).sum()) if is_bad[i] else 0 for i in range(len(taken))]
            for i in np.flatnonzero(is_bad):  # a NaN was counted as a zero
                table[i, unit.ZERO_RATIO] = float((joined[i] == 0).double().mean())
            numbers = table.T.astype(np.float32)
            signed.update(
                t.place
                for t, row in zip(taken.values(), table, strict=True)
                if t.kind == INPUT and row[unit.LOWEST] < 0.0
            )
            return Activations(
                names=tuple(f"input of {name}" if t.kind == INPUT else name for name, t in taken.items()),
                kinds=tuple(_kind(t.kind, row) for t, row in zip(taken.values(), table, strict=True)),
                num_samples=np.array([t.num_samples for t in taken.values()], dtype=np.int64),
                num_units=np.array([t.num_units for t in taken.values()], dtype=np.int64),
                dead=numbers[unit.DEAD],
                saturated=numbers[unit.SATURATED],
                zero_ratio=numbers[unit.ZERO_RATIO],
                mean=numbers[unit.MEAN],
                std=numbers[unit.STD],
                nonfinite=np.array(nonfinite, dtype=np.int64),
                output=self.boundary.output_stats(flat),
                inputs=self.boundary.input_stats(flat),
                through_time={
                    name.removeprefix("time "): remaining(values)
                    for name, values in flat.items()
                    if name.startswith("time ")
                },
                num_passes=num_passes,
                dead_units=tuple(map(self._dead_units, taken.values(), joined)) if keeps_dead else (),
                unseen=tuple(dict.fromkeys([*unseen, *self.unseen])),
            )

        return read

    def _dead_units(self, taken: Taken, sample: Tensor) -> npt.NDArray[np.int64]:
        """Return the indices of a place's dead units among all of its units, as far as they were sampled."""
        stride = unit_stride(taken.num_units, self._max_entries)
        if len(range(0, taken.num_units, stride)) != sample.shape[1]:
            return np.empty(0, dtype=np.int64)  # other places were added while it was sampled
        return np.flatnonzero(unit.dead_units(sample, taken.kind).cpu().numpy()) * stride

    def state_dict(self) -> dict[str, Any]:
        """Return all samples, as numbers, tensors and containers of these."""
        return {
            "num_passes": self.num_passes,
            "boundary": self.boundary.state_dict(),
            "sequences": {name: [sequence.values, sequence.state] for name, sequence in self.sequences.items()},
            "unseen": list(self.unseen),
            "taken": {name: vars(taken) for name, taken in self._taken.items()},
        }

    @classmethod
    def from_state_dict(cls, state: dict[str, Any]) -> Samples:
        """Return the samples that a state describes; its tensors may have become numpy arrays."""
        samples = cls()
        samples.num_passes = state["num_passes"]
        samples.boundary.load_state_dict(state["boundary"])
        samples.sequences = {name: TimeSequence(*map(_tensors, pair)) for name, pair in state["sequences"].items()}
        samples.unseen = dict.fromkeys(state["unseen"])
        samples._taken = {
            name: Taken(**{**taken, "parts": [_tensors(part) for part in taken["parts"]]})
            for name, taken in state["taken"].items()
        }
        return samples


def _tensors(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return tuple(_tensors(part) for part in value)
    return torch.from_numpy(value) if isinstance(value, np.ndarray) else value


def _kind(kind: str, row: npt.NDArray[np.float64]) -> str:
    """Return the kind of the function that a weighted module's input came from, where its values tell."""
    is_relu = kind == INPUT and row[unit.LOWEST] >= 0.0 and row[unit.ZERO_RATIO] > 0.0 and math.isfinite(row[unit.MEAN])
    return "relu" if is_relu else kind
