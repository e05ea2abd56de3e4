"""Is the model itself still finite: its parameters and buffers, but for what is infinite on purpose."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import compress
from typing import NamedTuple

import numpy as np
from torch import Tensor, nn

from gradguard.evidence.stats import FloatArray
from gradguard.functional import dense_values, grad_norms, has_nonfinite
from gradguard.model.module_walk import named_tensors


class Looked(NamedTuple):
    """What is looked at: names and tensors, parameters first, then the buffers from `first_buffer` on."""

    names: list[str]
    tensors: list[Tensor]
    first_buffer: int


class FiniteCheck:
    """Looks for NaN and infinity in parameters and buffers.

    A buffer that is infinite when it is first seen (an attention mask of minus infinity) is meant to be; a NaN that
    turns up in it later is damage all the same.

    Args:
        model: its parameters and buffers are looked at.
        more: returns further named tensors to look at, before all others, such as parameters that the model does not
            own.
        clean: turns a name in the model into the one that is told.

    Attributes:
        expected: of every buffer, by name, what it was when it was first seen: None finite, False infinite, True NaN.
    """

    def __init__(
        self, model: nn.Module, more: Callable[[], Mapping[str, Tensor]], clean: Callable[[str], str] = str
    ) -> None:
        self._model = model
        self._more = more
        self._clean = clean
        self.expected: dict[str, bool | None] = {}

    def look(self) -> Looked:
        """Return all floating tensors as they are now."""
        more = self._more()
        names, tensors = list(more), list(more.values())
        known = set(map(id, tensors))
        held = named_tensors(self._model)
        for name, param in held.parameters:
            if id(param) not in known:
                names.append(self._clean(name))
                tensors.append(param)
        first_buffer = len(names)
        for name, buffer in held.buffers:
            names.append(self._clean(name))
            tensors.append(buffer)
        floating = [tensor.is_floating_point() or tensor.is_complex() for tensor in tensors]
        return Looked(
            list(compress(names, floating)),
            [tensor.detach() for tensor in compress(tensors, floating)],
            sum(floating[:first_buffer]),
        )

    def bad(self, looked: Looked | None = None, norms: FloatArray | None = None) -> tuple[str, ...]:
        """Return the names of damaged tensors: the parameters first, then the buffers.

        Args:
            looked: what `look` returned, None for what it returns now.
            norms: the norm of each, None when they are not known yet.
        """
        if looked is None or norms is None:
            looked = self.look()
            norms = grad_norms(looked.tensors)
        names, tensors, first_buffer = looked
        suspects = [i for i in np.flatnonzero(~np.isfinite(norms)).tolist() if has_nonfinite(tensors[i])]
        for i in range(first_buffer, len(names)):
            if names[i] not in self.expected:
                self.expected[names[i]] = _has_nan(tensors[i]) if i in suspects else None
        return tuple(names[i] for i in suspects if i < first_buffer or self._is_news(names[i], tensors[i]))

    def _is_news(self, name: str, buffer: Tensor) -> bool:
        expected = self.expected[name]
        return expected is None or (expected is False and _has_nan(buffer))


def _has_nan(tensor: Tensor) -> bool:
    return bool(dense_values(tensor).isnan().any())
