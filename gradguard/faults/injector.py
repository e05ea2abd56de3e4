"""Puts faults into a training loop through torch's hooks, and takes them out again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from random import Random
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from gradguard.errors import UsageError
from gradguard.faults.corruption import check_dtype, corrupt_
from gradguard.faults.fault import Fault
from gradguard.faults.targets import check_groups, clone_floating, find_module, match_parameters
from gradguard.model.inert_hook import InertHook, are_hooks_asleep


@dataclass(frozen=True)
class Injected:
    """One fault in one tensor, as it was carried out.

    Args:
        step: optimizer step (0-based) at which it strikes.
        fault: the fault.
        target: name of the parameter, "group 0" for a learning rate, or the module whose input was struck.
        index: position of the first entry that was struck.
        before: its value before.
        after: its value after.
        num_entries: how many entries were struck.
    """

    step: int
    fault: Fault
    target: str
    index: tuple[int, ...]
    before: float
    after: float
    num_entries: int


@contextmanager
def inject(model: nn.Module, optimizer: Optimizer, faults: Sequence[Fault], *, seed: int = 0) -> Iterator[Injector]:
    """Inject faults into the training that runs inside the `with` block.

    The faults strike before a guard measures, and a learning rate is put back after it has finished, whichever of the
    two was attached first. Which entries are struck depends on the seed, the fault's place in the list, the step and
    the tensor's name alone: it is the same on every rank and in every run, and no random generator of torch, numpy or
    Python is touched.

    Args:
        model: the model that is trained.
        optimizer: its optimizer; each call of its `step()` is one step.
        faults: what is to go wrong; several may strike at one step, in this order.
        seed: of the choice of entries.

    Yields:
        The injector; its `log` tells what has been injected so far.

    Raises:
        UsageError: a fault cannot strike this model; nothing was changed.

    Example:
        >>> model = nn.Linear(3, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> with inject(model, optimizer, [Fault("nan", "gradient", at=1, parameters="weight")]) as injector:
        ...     for _ in range(3):
        ...         optimizer.zero_grad()
        ...         model(torch.ones(4, 3)).mean().backward()
        ...         optimizer.step()
        >>> [(entry.step, entry.target, entry.after) for entry in injector.log]
        [(1, 'weight', nan)]
    """
    injector = Injector(model, optimizer, faults, seed)
    try:
        injector._attach()
        yield injector
    finally:
        injector._detach()


class Injector:
    """Holds the faults that strike one training loop; made by `inject`.

    Attributes:
        log: what was injected, in order.
        step: the optimizer step (0-based) that comes next.
    """

    def __init__(self, model: nn.Module, optimizer: Optimizer, faults: Sequence[Fault], seed: int) -> None:
        self.log: list[Injected] = []
        self.step = 0
        self._faults = tuple(faults)
        self._optimizer = optimizer
        self._seed = seed
        self._handles = ExitStack()
        self._learning_rates: list[Any] | None = None  # before the fault, while one is in force
        self._passes: Counter[str] = Counter()  # backward and forward passes since the last step, by name
        named = dict(model.named_parameters())
        self._parameters = {fault: match_parameters(fault, named) for fault in self._faults if fault.where != "batch"}
        check_groups(self._parameters, optimizer)
        self._modules = {fault: find_module(fault, model) for fault in self._faults if fault.where == "batch"}

    @property
    def missed(self) -> tuple[Fault, ...]:
        """The faults that have not struck: their step or micro-batch has not come."""
        struck = {entry.fault for entry in self.log}
        return tuple(fault for fault in self._faults if fault not in struck)

    def _attach(self) -> None:
        _move(self._keep(self._optimizer.register_step_pre_hook(self._before_step)), last=False)
        self._post = self._keep(self._optimizer.register_step_post_hook(self._after_step))
        for name, parameter in self._struck("gradient").items():
            hook = self._gradient_hook(name)
            handle = parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
            _move(self._keep(handle), last=False)
        for name, module in {fault.module: module for fault, module in self._modules.items()}.items():
            forward_hook = InertHook(self._batch_hook(name), sleeps=False)
            self._keep(module.register_forward_pre_hook(forward_hook, prepend=True, with_kwargs=True))
        self._strike_weights()

    def _keep(self, handle: RemovableHandle) -> RemovableHandle:
        self._handles.callback(handle.remove)
        return handle

    def _detach(self) -> None:
        self._restore_learning_rates()
        self._handles.close()

    def _before_step(self, _optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        self._restore_learning_rates()  # the step before may have raised, and then its post-hooks did not run
        # Whoever attached since must finish before the fault is taken back.
        _move(self._post, last=True)
        due = list(self._due("lr"))
        if due:
            self._learning_rates = [group["lr"] for group in self._optimizer.param_groups]
        for number, fault in due:
            struck = {id(parameter) for parameter in self._parameters[fault].values()}
            for place, group in enumerate(self._optimizer.param_groups):
                if any(id(parameter) in struck for parameter in group["params"]):
                    group["lr"] = self._strike_learning_rate(number, fault, f"group {place}", group["lr"])

    def _after_step(self, _optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        self._restore_learning_rates()
        self.step += 1
        self._passes.clear()
        self._strike_weights()

    def _strike_learning_rate(self, number: int, fault: Fault, target: str, rate: Any) -> Any:
        is_tensor = isinstance(rate, torch.Tensor)
        struck = rate.clone() if is_tensor else torch.tensor(rate, dtype=torch.float64)
        self._strike(number, fault, target, struck)
        return struck if is_tensor else struck.item()

    def _restore_learning_rates(self) -> None:
        if self._learning_rates is not None:
            for group, rate in zip(self._optimizer.param_groups, self._learning_rates, strict=False):
                group["lr"] = rate
            self._learning_rates = None

    def _strike_weights(self) -> None:
        for number, fault in self._due("weight"):
            for name, parameter in self._parameters[fault].items():
                self._strike(number, fault, name, parameter)

    def _gradient_hook(self, name: str) -> Callable[[torch.Tensor], None]:
        def strike(parameter: torch.Tensor) -> None:
            for number, fault in self._due("gradient", self._count(name)):
                if name in self._parameters[fault] and parameter.grad is not None:
                    self._strike(number, fault, name, parameter.grad)

        return strike

    def _batch_hook(self, name: str) -> Callable[..., tuple[Any, Any] | None]:
        def strike(module: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
            is_again = are_hooks_asleep()
            if not is_again and not (module.training and torch.is_grad_enabled()):
                return None  # an evaluation is no part of a step
            # The last pass, run once more, is struck as it was; nothing is counted or logged.
            number_of_pass = self._passes[f"module {name}"] - 1 if is_again else self._count(f"module {name}")
            due = [(number, fault) for number, fault in self._due("batch", number_of_pass) if fault.module == name]
            for number, fault in due:
                label = f"input of {name or type(module).__name__}"
                floating: list[torch.Tensor] = []
                args, kwargs = clone_floating((args, kwargs), floating)
                if not floating:
                    raise UsageError(
                        f"cannot strike the {label}: it takes no floating tensor; name a `module` inside that does"
                    )
                for tensor in floating:
                    check_dtype(tensor.dtype, fault, f"the {label}")
                    self._strike(number, fault, label, tensor, is_logged=not is_again)
            return (args, kwargs) if due else None

        return strike

    def _count(self, name: str) -> int:
        self._passes[name] += 1
        return self._passes[name] - 1

    def _due(self, where: str, micro_batch: int = 0) -> Iterator[tuple[int, Fault]]:
        for number, fault in enumerate(self._faults):
            if fault.where == where and fault.micro_batch == micro_batch and fault.strikes_at(self.step):
                if fault.rank is None or fault.rank == _rank():
                    yield number, fault

    def _strike(self, number: int, fault: Fault, target: str, tensor: torch.Tensor, is_logged: bool = True) -> None:
        # A generator of its own for every strike: what was struck before, and on which rank, must not matter.
        random = Random(f"{self._seed}/{number}/{self.step}/{target}")
        damage = corrupt_(tensor, fault, random)
        if damage is not None and is_logged:
            self.log.append(Injected(self.step, fault, target, **vars(damage)))

    def _struck(self, where: str) -> dict[str, nn.Parameter]:
        return {
            name: parameter
            for fault, parameters in self._parameters.items()
            if fault.where == where
            for name, parameter in parameters.items()
        }


def _rank() -> int:
    distributed = torch.distributed
    return distributed.get_rank() if distributed.is_available() and distributed.is_initialized() else 0


def _move(handle: RemovableHandle, *, last: bool) -> None:
    """Make a hook the first or the last of those that it was registered among."""
    hooks = handle.hooks_dict_ref()
    if hooks is not None:
        hooks.move_to_end(handle.id, last=last)
