"""Is the model itself still finite: its parameters and buffers, but for what is infinite on purpose."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from gradguard.functional import dense_values, nonfinite_tensors


class FiniteCheck:
    """Looks for NaN and infinity in parameters and buffers.

    A buffer that is infinite when it is first seen (an attention mask of minus infinity) is meant to be; a NaN that
    turns up in it later is damage all the same.

    Args:
        model: its parameters and buffers are looked at.
        more: returns further named tensors to look at, such as parameters that the model does not own.
        clean: turns a name in the model into the one that is told.
    """

    def __init__(
        self, model: nn.Module, more: Callable[[], dict[str, Tensor]], clean: Callable[[str], str] = str
    ) -> None:
        self._model = model
        self._more = more
        self._clean = clean
        self._expected: dict[str, bool | None] = {}  # buffers: None finite, False infinite, True NaN when first seen

    def bad(self) -> tuple[str, ...]:
        """Return the names of damaged tensors: the parameters first, then the buffers."""
        named: dict[int, tuple[str, Tensor]] = {id(tensor): (name, tensor) for name, tensor in self._more().items()}
        for name, param in self._model.named_parameters():
            named.setdefault(id(param), (self._clean(name), param))
        parameters = list(named.values())
        buffers = [(self._clean(name), buffer) for name, buffer in self._model.named_buffers()]
        entries = [(name, tensor.detach()) for name, tensor in (*parameters, *buffers)]
        damaged = {entries[i][0]: entries[i][1] for i in nonfinite_tensors([tensor for _, tensor in entries])}
        for name, _ in buffers:
            if name not in self._expected:
                self._expected[name] = _has_nan(damaged[name]) if name in damaged else None
            if name in damaged and not self._is_news(name, damaged[name]):
                del damaged[name]
        return tuple(damaged)

    def _is_news(self, name: str, buffer: Tensor) -> bool:
        expected = self._expected[name]
        return expected is None or (expected is False and _has_nan(buffer))


def _has_nan(tensor: Tensor) -> bool:
    return bool(dense_values(tensor).isnan().any())
