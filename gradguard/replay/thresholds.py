"""The thresholds of a diagnosis: its options that are numbers with a fraction. Windows and counts of steps are none."""

from __future__ import annotations

from typing import Any, NamedTuple

from pydantic import ValidationError

from gradguard.contracts import Diagnosis


FURTHEST = 10.0  # factor on a threshold up to which it is tried
HALVINGS = 30  # of the way to a bound that an option may not pass


def thresholds(diagnosis: Diagnosis[Any]) -> dict[str, float]:
    """Return the thresholds by name.

    Example:
        >>> from gradguard.contracts import DIAGNOSES
        >>> thresholds(DIAGNOSES.get("loss_spike")())
        {'ratio': 3.0, 'zscore': 10.0}
    """
    fields = type(diagnosis).model_fields
    return {name: getattr(diagnosis, name) for name, field in fields.items() if field.annotation is float}


class Move(NamedTuple):
    """Thresholds that move together: each is multiplied by the factor to its power.

    Args:
        names: of the thresholds.
        powers: 1, or -1 for one that moves the other way.
    """

    names: tuple[str, ...]
    powers: tuple[int, ...]

    def values(self, diagnosis: Diagnosis[Any], factor: float) -> dict[str, float]:
        """Return the thresholds of a diagnosis after the move.

        Example:
            >>> from gradguard.contracts import DIAGNOSES
            >>> Move(("ratio", "zscore"), (1, -1)).values(DIAGNOSES.get("loss_spike")(), 2.0)
            {'ratio': 6.0, 'zscore': 5.0}
        """
        known = thresholds(diagnosis)
        return {name: known[name] * factor**power for name, power in zip(self.names, self.powers, strict=True)}


def moves(diagnosis: Diagnosis[Any]) -> list[Move]:
    """Return each threshold by itself, and all of them together; of two also in opposite directions."""
    names = tuple(thresholds(diagnosis))
    alone = [Move((name,), (1,)) for name in names]
    together = [Move(names, (1,) * len(names))] if len(names) > 1 else []
    opposed = [Move(names, (1, -1))] if len(names) == 2 else []
    return alone + together + opposed


def moved(diagnosis: Diagnosis[Any], move: Move, factor: float) -> Diagnosis[Any] | None:
    """Return a diagnosis after a move, None where one of the thresholds may not have such a value.

    Example:
        >>> from gradguard.contracts import DIAGNOSES
        >>> spike, ratio = DIAGNOSES.get("loss_spike")(), Move(("ratio",), (1,))
        >>> moved(spike, ratio, 2.0).ratio, moved(spike, ratio, 0.1)  # a ratio must be above 1
        (6.0, None)
    """
    options = {name: getattr(diagnosis, name) for name in type(diagnosis).model_fields}
    try:
        return type(diagnosis).model_validate({**options, **move.values(diagnosis, factor)})
    except ValidationError:
        return None


def furthest(diagnosis: Diagnosis[Any], move: Move, factor: float) -> float:
    """Return the factor nearest to `factor`, between it and 1, that the thresholds may be moved by.

    Example:
        >>> from gradguard.contracts import DIAGNOSES
        >>> round(furthest(DIAGNOSES.get("loss_spike")(), Move(("ratio",), (1,)), 0.1), 6)
        0.333333
    """
    if moved(diagnosis, move, factor) is not None:
        return factor
    allowed, refused = 1.0, factor
    for _ in range(HALVINGS):
        middle = (allowed * refused) ** 0.5
        if moved(diagnosis, move, middle) is not None:
            allowed = middle
        else:
            refused = middle
    return allowed
