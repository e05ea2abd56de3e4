"""Reads the gradients at a step: one batched pass, one host transfer, never a write.

optimizer.param_groups --layout--> P tensors --measure--> StepStats
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from gradguard.evidence.stats import ABSENT, FloatArray, ParameterTable, StepStats
from gradguard.flow.mean_loss import mean_loss
from gradguard.functional import FLOAT32_MAX, device_norms, exact_norm, grad_norms, nonfinite_tensors, sum_up
from gradguard.gradients.flat_norms import FlatNorms
from gradguard.gradients.sharded import is_sharded
from gradguard.gradients.transfer import Transfer
from gradguard.model.finite_check import FiniteCheck, Looked
from gradguard.model.parameter_names import clean_name, named_parameters, wrappers_of
from gradguard.optimizer.weight_decay import shrinkage
from gradguard.policy.patterns import select
from gradguard.probes.row_spread import row_spreads


FLOAT64_MAX = float(np.finfo(np.float64).max)
DOUBLE = (torch.float64, torch.complex128)
LARGEST_SQUARABLE = math.sqrt(FLOAT32_MAX)


class Monitor:
    """Measures the gradients of one optimizer's parameters.

    Args:
        model: gives the parameters their names.
        optimizer: gives the parameters; read afresh whenever its groups grow.
        patterns: which parameters are monitored.

    Attributes:
        named: (name, parameter) of all that the model has.
        packs_loss: the loss takes the same transfer as the norms; on the CPU, reading it apart is cheaper.
    """

    def __init__(self, model: nn.Module, optimizer: Optimizer, patterns: Sequence[str]) -> None:
        self.model = model
        self.optimizer = optimizer
        self.patterns = patterns
        self.params: list[Tensor] = []
        self.packs_loss = False
        self.table = ParameterTable([], [], [], [])
        self._signature: tuple[int, ...] = ()
        wrappers = wrappers_of(model)
        self.finite_check = FiniteCheck(
            model,
            more=lambda: dict(zip(self.table.names, self.params, strict=True)),
            clean=lambda name: clean_name(name, wrappers),
        )
        self.read_layout()

    def layout_signature(self) -> tuple[int, ...]:
        """Return the number of parameters in each group, which changes when groups are added."""
        return tuple([len(group["params"]) for group in self.optimizer.param_groups])

    def has_new_layout(self) -> bool:
        """Return whether param groups were added since the layout was read."""
        groups = self.optimizer.param_groups
        if len(groups) == 1 == len(self._signature):
            return len(groups[0]["params"]) != self._signature[0]
        return self.layout_signature() != self._signature

    def read_layout(self) -> None:
        """Read the optimizer's parameters afresh and choose how they are measured."""
        self._signature = self.layout_signature()
        self.named = named_parameters(self.model)
        known = {id(param): name for name, param in self.named}
        members: list[tuple[str, Tensor, int]] = []
        for group_index, group in enumerate(self.optimizer.param_groups):
            for position, param in enumerate(group["params"]):
                name = known.get(id(param), f"param_groups.{group_index}.{position}")
                members.append((name, param, group_index))
        kept = select(self.patterns, [name for name, _, _ in members])
        members = [members[i] for i in kept]
        self.params = [param for _, param, _ in members]
        self.table = ParameterTable(
            [name for name, _, _ in members],
            [tuple(param.shape) for param in self.params],
            [str(param.dtype).removeprefix("torch.") for param in self.params],
            [group for _, _, group in members],
        )
        kinds = {(p.device, p.dtype, p.layout, type(p.data)) for p in self.params}
        self._is_uniform = len(kinds) == 1 and next(iter(kinds))[2:] == (torch.strided, Tensor)
        dtype = self.params[0].dtype if self.params else torch.float32
        self._is_uniform &= dtype in (torch.float32, torch.bfloat16, torch.float16)
        self._wide = None if dtype == torch.float32 else torch.float32  # None takes a microsecond less
        self._is_sometimes_absent = False
        self.is_sharded = any(map(is_sharded, self.params))
        self._device = self.params[0].device if self.params else torch.device("cpu")
        self.packs_loss |= self._device.type != "cpu"
        self._every_row = list(range(len(members)))
        self._flat = FlatNorms.of(self.params) if self._is_uniform else None

    def grads(self) -> list[Tensor | None]:
        """Return the gradient of each parameter, None where there is none."""
        return [param.grad for param in self.params]

    def measure(self, stats: StepStats, inverse_scale: float = 1.0, losses: Sequence[Any] | None = ()) -> None:
        """Fill `stats` with this step's gradient norms and its loss, in one transfer where that is possible.

        Args:
            stats: its `levels`, `norms`, `global_norm`, `finite`, `overflowed`, `nonfinite`, `loss` and `has_loss` are
                written.
            inverse_scale: factor that undoes a loss scale that is still in the gradients.
            losses: observed for this step; numbers or one-element tensors. None when the loss is there already.
        """
        grads = self.grads()
        loss = None
        if losses is not None:
            stats.has_loss = bool(losses)
            loss = self._loss_to_pack(losses)
            if loss is None:
                stats.loss = mean_loss(losses) if losses else math.nan
        if self._is_sometimes_absent or not self._is_uniform:
            self._measure_any(grads, stats)
        else:
            try:
                if loss is None:
                    stats.levels[1:] = _numpy(self._norms(grads))
                else:
                    numbers = _numpy(torch.cat([self._norms(grads), loss.reshape(1)]))
                    stats.levels[1:] = numbers[:-1]
                    stats.loss, loss = float(numbers[-1]), None
            except (TypeError, RuntimeError):  # a None or a sparse gradient is among them
                self._is_sometimes_absent = True
                self._measure_any(grads, stats)
        if loss is not None:
            stats.loss = float(loss)
        if inverse_scale != 1.0:
            present = stats.norms != ABSENT
            stats.norms[present] *= inverse_scale
        self._finish(grads, stats, inverse_scale)

    def plain_norms(self) -> FloatArray | None:
        """Return the (P,) float32 gradient norms if every parameter has a dense one of the same kind, else None."""
        if self._is_sometimes_absent or not self._is_uniform:
            return None
        try:
            return _numpy(self._norms([param.grad for param in self.params]))
        except (TypeError, RuntimeError):  # as in `measure`
            return None

    def _norms(self, grads: list[Tensor | None]) -> Tensor:
        """Return the (P,) float32 norms of dense gradients of one kind where they are; raises if they are not."""
        if self._flat is not None:
            return self._flat.measure(grads)  # type: ignore[arg-type]
        return torch.stack(torch._foreach_norm(grads, 2, dtype=self._wide))  # type: ignore[arg-type]

    def _loss_to_pack(self, losses: Sequence[Any]) -> Tensor | None:
        """Return the loss that may take the norms' transfer: one float32 tensor where the gradients are."""
        loss = losses[0] if len(losses) == 1 and self.packs_loss else None
        is_fit = isinstance(loss, Tensor) and loss.dtype == torch.float32 and loss.device == self._device
        return loss if is_fit else None

    def _measure_any(self, grads: list[Tensor | None], stats: StepStats) -> None:
        present = [i for i, grad in enumerate(grads) if grad is not None]
        stats.norms.fill(ABSENT)
        if present:
            stats.norms[present] = grad_norms([grads[i] for i in present])  # type: ignore[misc]

    def _finish(self, grads: list[Tensor | None], stats: StepStats, inverse_scale: float) -> None:
        norms = stats.norms
        if self._is_sometimes_absent or not self._is_uniform:
            norms = np.maximum(norms, 0.0)  # an absent gradient has none
        total, stats.is_plain = sum_up(norms)
        stats.finite = True
        stats.overflowed = ()
        stats.exact_norms = {}
        stats.nonfinite = {}
        if not total < math.inf:
            stats.is_plain = False
            total = self._look_closer(grads, stats, norms.astype(np.float64), inverse_scale)
        stats.global_norm = total
        stats.levels[0] = min(total, FLOAT32_MAX) if stats.finite else total

    def _look_closer(
        self,
        grads: list[Tensor | None],
        stats: StepStats,
        wide: np.ndarray[tuple[int], np.dtype[np.float64]],
        inverse: float,
    ) -> float:
        """Tell overflowed norms from non-finite entries; return the global norm, NaN or inf if entries are."""
        for row in np.flatnonzero(~np.isfinite(stats.norms)).tolist():
            grad = grads[row]
            if grad is None:
                continue
            norm, num_nan, num_inf = exact_norm(grad)
            if num_nan or num_inf:
                stats.nonfinite[row] = (num_nan, num_inf)
                stats.norms[row] = math.nan if num_nan else math.inf
            else:
                wide[row] = min(norm * inverse, FLOAT64_MAX)
                stats.exact_norms[row] = float(wide[row])
                if grad.dtype not in DOUBLE and wide[row] > LARGEST_SQUARABLE:  # else only the loss scale made it so
                    stats.overflowed += (row,)
                stats.norms[row] = min(wide[row], FLOAT32_MAX)
        if stats.nonfinite:
            stats.finite = False
            return math.nan if any(num_nan for num_nan, _ in stats.nonfinite.values()) else math.inf
        largest = float(wide.max())
        return min(largest * math.sqrt(float(np.square(wide / largest).sum())), FLOAT64_MAX)

    def can_launch(self) -> bool:
        """Return whether the gradients can be measured without waiting: they are dense and on one device."""
        if self._is_uniform:
            return True
        kinds = {(grad.device, grad.layout) for grad in self.grads() if grad is not None}
        return len(kinds) == 1 and next(iter(kinds))[1] == torch.strided

    def launch(self) -> tuple[list[int], Tensor]:
        """Start to measure the gradients where they are: (rows that have one, (n,) float32 norms on their device)."""
        grads = self.grads()
        if self._is_uniform and not self._is_sometimes_absent:
            try:
                return self._every_row, self._norms(grads)
            except (TypeError, RuntimeError):  # a None or a sparse gradient is among them
                self._is_sometimes_absent = True
        rows = [row for row, grad in enumerate(grads) if grad is not None]
        parts = device_norms([grad for grad in grads if grad is not None])
        order = [rows[i] for where, _ in parts for i in where]
        norms = [values.float() for _, values in parts]
        return order, torch.cat(norms) if norms else torch.zeros(0, device=self._device)

    def read_late(self, stats: StepStats, rows: list[int], norms: np.ndarray[tuple[int], np.dtype[np.float64]]) -> None:
        """Fill `stats` with norms that `launch` measured, when the gradients may be gone.

        Non-finite entries can then not be counted, nor told from entries whose square does not fit float32: one stands
        for "some".
        """
        stats.norms.fill(ABSENT)
        stats.norms[rows] = norms
        stats.exact_norms, stats.overflowed = {}, ()
        stats.global_norm, is_plain = sum_up(np.maximum(stats.norms, 0.0))
        stats.finite = stats.global_norm < math.inf
        stats.is_plain = stats.finite and is_plain
        stats.nonfinite = {}
        if not stats.finite:
            bad = np.flatnonzero(~np.isfinite(stats.norms)).tolist()
            stats.nonfinite = {row: (1, 0) if math.isnan(stats.norms[row]) else (0, 1) for row in bad}
            stats.global_norm = math.nan if np.isnan(stats.norms).any() else math.inf
        stats.levels[0] = min(stats.global_norm, FLOAT32_MAX) if stats.finite else stats.global_norm

    def probe(self, stats: StepStats) -> None:
        """Sample what is too dear for every step: weight norms, and whether parameters and buffers are finite.

        Args:
            stats: its `weight_norms`, `sgd_reach`, `shrinkage` and `bad_state` are written.
        """
        looked = self.finite_check.look()
        self._read_probe(stats, looked, grad_norms(looked.tensors))

    def launch_probe(self) -> Callable[[StepStats], None]:
        """Start a probe; return what fills the stats once the device is done with it."""
        looked = self.finite_check.look()
        transfers = [(where, Transfer({"norms": norms})) for where, norms in device_norms(looked.tensors)]

        def read(stats: StepStats) -> None:
            norms = np.empty(len(looked.names), dtype=np.float32)
            for where, transfer in transfers:
                norms[where] = transfer.read()["norms"]
            self._read_probe(stats, looked, norms)

        return read

    def _read_probe(self, stats: StepStats, looked: Looked, norms: FloatArray) -> None:
        position = {name: i for i, name in enumerate(looked.names)}
        rows = [position.get(name, len(norms)) for name in self.table.names]  # what is no floating number is not there
        stats.weight_norms = np.append(norms, np.float32(np.nan))[rows]
        total = float(np.linalg.norm(stats.weight_norms.astype(np.float64)))
        usual = math.sqrt(2.0 * sum(shape[0] for shape in self.table.shapes if len(shape) >= 2))  # He initialisation
        if isinstance(self.optimizer, torch.optim.SGD) and 0 < total < math.inf:
            stats.sgd_reach = max(total, usual)
        stats.shrinkage = shrinkage(self.optimizer)
        stats.bad_state = self.finite_check.bad(looked, norms)

    def read_spreads(self, stats: StepStats) -> None:
        """Look at how the units of each weight differ; `weight_spreads` of the stats is written."""
        stats.weight_spreads = row_spreads(self.params)

    def nonfinite_parameters(self) -> tuple[str, ...]:
        """Return the names of monitored parameters that hold NaN or infinite entries."""
        return tuple(self.table.names[i] for i in nonfinite_tensors([param.detach() for param in self.params]))


def _numpy(values: Tensor) -> FloatArray:
    return (values if values.is_cpu else values.to("cpu")).numpy()
