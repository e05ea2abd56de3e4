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

from gradguard.finite_check import FiniteCheck, Looked
from gradguard.functional import FLOAT32_MAX, device_norms, exact_norm, grad_norms, nonfinite_tensors
from gradguard.mean_loss import mean_loss
from gradguard.policy.patterns import select
from gradguard.stats import ABSENT, FloatArray, ParameterTable, StepStats
from gradguard.transfer import Transfer


FLOAT64_MAX = float(np.finfo(np.float64).max)
DOUBLE = (torch.float64, torch.complex128)
LARGEST_SQUARABLE = math.sqrt(FLOAT32_MAX)
WRAPPERS = ("module", "_orig_mod", "_fsdp_wrapped_module")  # added to names by DDP, torch.compile and FSDP1


def clean_name(name: str, wrappers: Sequence[str]) -> str:
    """Return a fully qualified name without the parts that wrapping the model added.

    Example:
        >>> clean_name("_orig_mod.head.weight", ["_orig_mod"])
        'head.weight'
    """
    if not wrappers and not any(wrapper in name for wrapper in WRAPPERS[1:]):
        return name
    parts = name.split(".")
    for wrapper in wrappers:
        if parts[0] == wrapper:
            parts.pop(0)
    return ".".join(part for part in parts if part not in WRAPPERS[1:])


def wrappers_of(model: nn.Module) -> list[str]:
    """Return the prefixes that belong to wrappers around the user's model (DDP, DataParallel, torch.compile)."""
    found = []
    while True:
        if isinstance(model, (nn.parallel.DistributedDataParallel, nn.DataParallel)):
            found.append("module")
            model = model.module
        elif isinstance(inner := getattr(model, "_orig_mod", None), nn.Module):
            found.append("_orig_mod")
            model = inner
        else:
            return found


def is_compiled(model: nn.Module) -> bool:
    """Return whether the model, or a module in it, went through torch.compile."""
    return any("_orig_mod" in m._modules or m._compiled_call_impl is not None for m in model.modules())


def parameter_names(model: nn.Module) -> dict[int, str]:
    """Return {id(parameter): fully qualified name}; tied parameters have the name that comes first."""
    wrappers = wrappers_of(model)
    return {id(param): clean_name(name, wrappers) for name, param in model.named_parameters()}


class Monitor:
    """Measures the gradients of one optimizer's parameters.

    Args:
        model: gives the parameters their names.
        optimizer: gives the parameters; read afresh whenever its groups grow.
        patterns: which parameters are monitored.
    """

    def __init__(self, model: nn.Module, optimizer: Optimizer, patterns: Sequence[str]) -> None:
        self.model = model
        self.optimizer = optimizer
        self.patterns = patterns
        self.params: list[Tensor] = []
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
        return self.layout_signature() != self._signature

    def read_layout(self) -> None:
        """Read the optimizer's parameters afresh and choose how they are measured."""
        self._signature = self.layout_signature()
        known = parameter_names(self.model)
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
        self._is_sometimes_absent = False
        self._device = self.params[0].device if self.params else torch.device("cpu")
        self._every_row = list(range(len(members)))

    def grads(self) -> list[Tensor | None]:
        """Return the gradient of each parameter, None where there is none."""
        return [param.grad for param in self.params]

    def measure(self, stats: StepStats, inverse_scale: float = 1.0, losses: Sequence[Any] = ()) -> None:
        """Fill `stats` with this step's gradient norms and its loss, in one transfer where that is possible.

        Args:
            stats: its `levels`, `norms`, `global_norm`, `finite`, `overflowed`, `nonfinite`, `loss` and `has_loss` are
                written.
            inverse_scale: factor that undoes a loss scale that is still in the gradients.
            losses: observed for this step; numbers or one-element tensors.
        """
        grads = self.grads()
        stats.has_loss = bool(losses)
        loss = losses[0] if len(losses) == 1 else None
        if loss.__class__ is not Tensor or loss.dtype != torch.float32 or loss.device != self._device:
            stats.loss = mean_loss(losses) if losses else math.nan
            loss = None
        if self._is_sometimes_absent or not self._is_uniform:
            self._measure_any(grads, stats)
        else:
            try:
                norms = torch._foreach_norm(grads, 2, dtype=torch.float32)  # type: ignore[arg-type]
                if loss is None:
                    stats.levels[1:] = torch.stack(norms).to("cpu").numpy()
                else:
                    numbers = torch.stack([*norms, loss.reshape(())]).to("cpu").numpy()
                    stats.levels[1:] = numbers[:-1]
                    stats.loss, loss = float(numbers[-1]), None
            except (TypeError, NotImplementedError, RuntimeError):  # a None or a sparse gradient is among them
                self._is_sometimes_absent = True
                self._measure_any(grads, stats)
        if loss is not None:
            stats.loss = float(loss)
        if inverse_scale != 1.0:
            present = stats.norms != ABSENT
            stats.norms[present] *= inverse_scale
        self._finish(grads, stats, inverse_scale)

    def _measure_any(self, grads: list[Tensor | None], stats: StepStats) -> None:
        present = [i for i, grad in enumerate(grads) if grad is not None]
        stats.norms.fill(ABSENT)
        if present:
            stats.norms[present] = grad_norms([grads[i] for i in present])  # type: ignore[misc]

    def _finish(self, grads: list[Tensor | None], stats: StepStats, inverse_scale: float) -> None:
        wide = stats.norms.astype(np.float64)
        if self._is_sometimes_absent or not self._is_uniform:
            wide[wide == ABSENT] = 0.0
        total = math.sqrt(float(wide.dot(wide)))
        stats.finite = True
        stats.overflowed = ()
        stats.exact_norms = {}
        stats.nonfinite = {}
        if not total < math.inf:
            total = self._look_closer(grads, stats, wide, inverse_scale)
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

    def launch(self) -> tuple[list[int], Tensor] | None:
        """Start to measure the gradients where they are: (rows that have one, (n,) float32 norms on their device).

        Returns:
            None where that is not possible without waiting: sharded or sparse gradients, or several devices.
        """
        grads = self.grads()
        if self._is_uniform and not self._is_sometimes_absent:
            try:
                return self._every_row, torch.stack(torch._foreach_norm(grads, 2, dtype=torch.float32))  # type: ignore[arg-type]
            except (TypeError, NotImplementedError, RuntimeError):  # a None or a sparse gradient is among them
                self._is_sometimes_absent = True
        rows = [row for row, grad in enumerate(grads) if grad is not None]
        present: list[Tensor] = [grad for grad in grads if grad is not None]
        kinds = {(grad.device, grad.layout, type(grad)) for grad in present}
        if len(kinds) != 1 or next(iter(kinds))[1:] != (torch.strided, Tensor):
            return None
        parts = device_norms(present)
        order = [rows[i] for where, _ in parts for i in where]
        return order, torch.cat([norms.float() for _, norms in parts])

    def read_late(self, stats: StepStats, rows: list[int], norms: np.ndarray[tuple[int], np.dtype[np.float64]]) -> None:
        """Fill `stats` with norms that `launch` measured, when the gradients may be gone.

        Non-finite entries can then not be counted, nor told from entries whose square does not fit float32: one stands
        for "some".
        """
        stats.norms.fill(ABSENT)
        stats.norms[rows] = norms
        stats.exact_norms, stats.overflowed = {}, ()
        wide = stats.norms.astype(np.float64)
        wide[wide == ABSENT] = 0.0
        total = float(wide.dot(wide))
        stats.finite = total < math.inf
        stats.nonfinite = {}
        if not stats.finite:
            bad = np.flatnonzero(~np.isfinite(stats.norms)).tolist()
            stats.nonfinite = {row: (1, 0) if math.isnan(stats.norms[row]) else (0, 1) for row in bad}
        stats.global_norm = math.sqrt(total)
        stats.levels[0] = min(stats.global_norm, FLOAT32_MAX) if stats.finite else stats.global_norm

    def probe(self, stats: StepStats) -> None:
        """Sample what is too dear for every step: weight norms, and whether parameters and buffers are finite.

        Args:
            stats: its `weight_norms`, `sgd_reach` and `bad_state` are written.
        """
        looked = self.finite_check.look()
        self._read_probe(stats, looked, grad_norms(looked.tensors))

    def launch_probe(self) -> Callable[[StepStats], None]:
        """Start a probe; return what fills the stats once the device is done with it."""
        looked = self.finite_check.look()
        parts = device_norms(looked.tensors)
        transfers = [(where, Transfer({"norms": norms})) for where, norms in parts]

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
        stats.bad_state = self.finite_check.bad(looked, norms)

    def nonfinite_parameters(self) -> tuple[str, ...]:
        """Return the names of monitored parameters that hold NaN or infinite entries."""
        return tuple(self.table.names[i] for i in nonfinite_tensors([param.detach() for param in self.params]))
