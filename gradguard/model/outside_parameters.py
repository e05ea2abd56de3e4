"""Parameters of the model that its guarded optimizer does not have: does anyone train them?"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.parameter import UninitializedParameter

from gradguard.gradients.monitor import Monitor
from gradguard.gradients.sharded import is_sharded
from gradguard.probes.parameter_entries import ParameterEntries


MIN_STEPS = 20  # before it another optimizer, or one for every few steps, may just not have had its turn


class OutsideParameters:
    """Remembers what they were when the guard was attached; one that is written to has a trainer.

    Another optimizer counts a tensor's version up, and what writes past the version changes its entries.

    Args:
        monitor: its optimizer's parameters are the others.
    """

    def __init__(self, monitor: Monitor) -> None:
        self._monitor = monitor
        self._params: dict[str, Tensor] = {}
        self._start: list[Tensor] = []
        self._versions: dict[str, int] = {}
        self._moved: set[str] = set()

    def read_layout(self) -> None:
        """Look anew which parameters are in no group of the optimizer."""
        trained = {id(param) for group in self._monitor.optimizer.param_groups for param in group["params"]}
        self._params = {
            name: param
            for name, param in self._monitor.named
            if id(param) not in trained and param.requires_grad and not is_sharded(param) and not _is_lazy(param)
        }
        self._moved &= set(self._params)
        self._remember()

    def _remember(self) -> None:
        params = list(self._params.values())
        self._entries = ParameterEntries(params)
        self._start = self._entries.copy(params)
        self._versions = {name: param._version for name, param in self._params.items()}

    def untrained(self, step: int) -> tuple[str, ...]:
        """Return the names of those that have a gradient and were not written to; () in the first steps.

        It waits for the device where there are any.
        """
        self._moved |= {name for name, param in self._params.items() if param._version != self._versions[name]}
        open_names = [
            name for name, param in self._params.items() if name not in self._moved and param.grad is not None
        ]
        if not open_names or step < MIN_STEPS:
            return ()
        names = list(self._params)
        now = self._entries.split(self._entries.copy(list(self._params.values())))
        start = self._entries.split(self._start)
        pairs = [pair for new, old in zip(now, start, strict=True) for pair in zip(new, old, strict=True)]
        for row, (new, old) in zip(self._entries.rows, pairs, strict=True):
            if names[row] in open_names and not torch.equal(new, old):
                self._moved.add(names[row])
        return tuple(name for name in open_names if name not in self._moved)

    def state_dict(self) -> dict[str, Any]:
        """Return which of them moved so far."""
        self._moved |= {name for name, param in self._params.items() if param._version != self._versions[name]}
        return {"moved": sorted(self._moved)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there: the parameters as they are now are what is compared with."""
        self._moved = set(state["moved"])
        self._remember()


def _is_lazy(param: Tensor) -> bool:
    return isinstance(param, UninitializedParameter)
