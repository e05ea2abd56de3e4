"""Looks at what flows through a model in one forward pass: layers by hooks, activation functions by torch's overrides.

A function such as `torch.relu` called inside of `forward` is seen as well as the module `nn.ReLU`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from gradguard.checklist.batch import tensors_of
from gradguard.checklist.facts import Place
from gradguard.checklist.statistics import dense, num_nonfinite


ACTIVATIONS = {"relu": "relu", "relu_": "relu", "relu6": "relu", "tanh": "tanh", "tanh_": "tanh"}
ACTIVATIONS |= {"sigmoid": "sigmoid", "sigmoid_": "sigmoid", "softmax": "softmax"}
FLAT_TANH = 0.99
FLAT_SIGMOID = 0.0067  # the sigmoid of -5
MAX_CALLS = 4  # of one place that are looked at: a recurrent cell is called at every time step
WEIGHTED = (
    nn.Linear,
    nn.Bilinear,
    nn.Conv1d,
    nn.Conv2d,
    nn.Conv3d,
    nn.ConvTranspose1d,
    nn.ConvTranspose2d,
    nn.ConvTranspose3d,
)


class Probes(TorchFunctionMode):
    """A context in which every call of the model is looked at.

    Args:
        model: whose modules get hooks; they are taken off on the way out.
        names: fully qualified name of each module, by its id.
    """

    def __init__(self, model: nn.Module, names: dict[int, str]) -> None:
        super().__init__()
        self._model, self._names = model, names
        self._stack: list[nn.Module] = []
        self._seen: Counter[tuple[str, str]] = Counter()
        self.places: list[Place] = []
        self.order: dict[int, int] = {}  # id of a module -> place of its first call

    @property
    def innermost(self) -> str:
        """Name of the module that is being called; after an error, of the one that raised."""
        return self._names.get(id(self._stack[-1]), "") if self._stack else ""

    def __enter__(self) -> Probes:
        self._handles = []
        for module in self._model.modules():
            self._handles += [module.register_forward_pre_hook(self._before), module.register_forward_hook(self._after)]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        for handle in self._handles:
            handle.remove()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a torch function; look at what an activation gives."""
        result = func(*args, **(kwargs or {}))
        kind = ACTIVATIONS.get(getattr(func, "__name__", ""))
        if kind is not None and isinstance(result, Tensor) and result.is_floating_point():
            with torch._C.DisableTorchFunction(), torch.no_grad():
                self._look(kind, result, args)
        return result

    def _before(self, module: nn.Module, args: Any) -> None:
        self._stack.append(module)
        self.order.setdefault(id(module), len(self.order) + 1)
        if isinstance(module, nn.Embedding) and args and isinstance(args[0], Tensor) and args[0].numel():
            with torch._C.DisableTorchFunction():
                low, high = (int(bound) for bound in args[0].aminmax())
            if low < 0 or high >= module.num_embeddings:  # on a GPU this would end the process
                raise IndexError(
                    f"an embedding of {module.num_embeddings} rows was asked for row {high if low >= 0 else low}"
                )

    def _after(self, module: nn.Module, args: Any, output: Any) -> None:
        if self._stack:
            self._stack.pop()
        if next(module.children(), None) is not None and not isinstance(module, WEIGHTED):
            return
        tensors = [tensor for tensor in tensors_of(output) if tensor.is_floating_point()]
        kind = "weighted" if isinstance(module, WEIGHTED) else "other"
        with torch._C.DisableTorchFunction(), torch.no_grad():
            if tensors:
                self._look(kind, tensors[0], args, module)

    def _look(self, kind: str, result: Tensor, fed: Any, module: nn.Module | None = None) -> None:
        owner = module if module is not None else self._stack[-1] if self._stack else self._model
        name = self._names.get(id(owner), "")
        self._seen[name, kind] += 1
        if self._seen[name, kind] > MAX_CALLS or result.numel() == 0:
            return
        calls = self._seen[name, kind]
        shown = name or type(self._model).__name__
        if module is None and next(owner.children(), None) is not None:
            shown = f"{shown} ({kind})"
        shown += f", call {calls}" if calls > 1 else ""
        place = Place(shown, kind)
        entries = dense(result)
        place.nonfinite = num_nonfinite(result)
        place.is_fed_finite = all(num_nonfinite(tensor) == 0 for tensor in tensors_of(_plain(fed)))
        if isinstance(owner, WEIGHTED) and kind == "weighted":
            place.parameter = f"{name}.weight" if name else "weight"
        by_unit = units_last(entries, owner if kind == "weighted" else None)
        place.num_samples = len(by_unit)
        if len(by_unit) > 1:
            place.spread = float(by_unit.std(0, correction=0).mean())
        if kind == "relu":
            place.dead = float((by_unit == 0).all(0).float().mean())
        if kind == "tanh":
            place.saturated = float((entries.abs() > FLAT_TANH).float().mean())
        if kind == "sigmoid":
            place.saturated = float(((entries < FLAT_SIGMOID) | (entries > 1 - FLAT_SIGMOID)).float().mean())
        self.places.append(place)


def _plain(fed: Any) -> Iterable[Tensor]:
    return [tensor for tensor in tensors_of(tuple(fed)) if tensor.is_floating_point()]


def units_last(entries: Tensor, owner: nn.Module | None) -> Tensor:
    """Return (samples, units): channels are the units of images, features those of everything else."""
    if entries.ndim < 2:
        return entries.reshape(-1, 1)
    is_image = entries.ndim >= 4 or isinstance(owner, (nn.Conv1d, nn.ConvTranspose1d))
    if is_image:
        entries = entries.movedim(1, -1)
    return entries.reshape(-1, entries.shape[-1])
