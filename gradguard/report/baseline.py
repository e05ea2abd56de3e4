"""What the guard took for usual: the rolling level of the gradient norm, and from where on it would alarm."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gradguard.evidence.running import MAD_TO_SIGMA


FloatArray = npt.NDArray[np.float64]
WINDOW = 50  # steps, where no rule says otherwise
MAX_WINDOW = 100_000  # as policies have it
LEAST = 5  # accepted norms from which there is a level
MIN_DEVIATION = 0.1  # in ln units, as the alarm has it
BAND = 3.0  # robust standard deviations on either side: nearly all of a healthy run lies in it
NUMBERS_AT_ONCE = 1_000_000


class Alarm(NamedTuple):
    """From where on the norm is an alarm.

    Args:
        window: steps that the level is taken over.
        ratios: times the level, ascending: from the first on a step is looked at, from the last on it is enough.
        clip: norm that every step is clipped to; None when no rule does.
    """

    window: int = WINDOW
    ratios: tuple[float, ...] = ()
    clip: float | None = None


class Level(NamedTuple):
    """Level of the norm before some steps, (N,) each: rolling median and the band of usual norms; NaN if unknown."""

    median: FloatArray
    low: FloatArray
    high: FloatArray


def alarm_of(policy: Mapping[str, Any]) -> Alarm:
    """Return what a policy says about the gradient norm, as far as it says it.

    Example:
        >>> rule = {"when": {"exploding_gradient": {"window": 30, "ratio": 20.0, "extreme_ratio": 100.0}}}
        >>> alarm_of({"rules": [rule]})
        Alarm(window=30, ratios=(20.0, 100.0), clip=None)
    """
    window = WINDOW
    ratios: tuple[float, ...] = ()
    clip: float | None = None
    for rule in rules_of(policy):
        when = rule.get("when")
        for options in _options(when):
            found = [options[key] for key in ("ratio", "extreme_ratio") if isinstance(options.get(key), (int, float))]
            if len(found) == 2 and not ratios and options.get("about") != "overflow":
                ratios = tuple(sorted(map(float, found)))
                size = options.get("window")
                window = min(max(1, size), MAX_WINDOW) if isinstance(size, int) else WINDOW
        if when == "always" or (isinstance(when, dict) and "always" in when):
            remedies = rule.get("do")
            limits = [
                options.get("max_norm")
                for remedy in (remedies if isinstance(remedies, list) else ())
                for options in _options(remedy)
            ]
            numbers = [float(limit) for limit in limits if isinstance(limit, (int, float))]
            clip = min([*numbers, *([] if clip is None else [clip])], default=None)
    return Alarm(window, ratios, clip)


def rules_of(policy: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the rules of a policy as it was recorded, whatever else stands among them."""
    rules = policy.get("rules")
    return [rule for rule in rules if isinstance(rule, dict)] if isinstance(rules, list) else []


def level_before(norms: FloatArray, rows: npt.NDArray[np.int64], window: int) -> Level:
    """Return the level of the `window` rows before each of some rows.

    Args:
        norms: (S,) of all rows; what is not finite and above 0 is left out.
        rows: (N,) at which the level is wanted.
        window: W, >= 1.

    Example:
        >>> level_before(np.full(20, 2.0), np.array([0, 10]), 5).median.tolist()
        [nan, 2.0]
    """
    logs = np.full(len(norms) + window, np.nan)
    is_accepted = np.isfinite(norms) & (norms > 0)
    logs[window:][is_accepted] = np.log(norms[is_accepted])
    size = max(1, NUMBERS_AT_ONCE // window)
    parts = [_levels(logs[part[:, None] + np.arange(window)]) for part in _parts(rows, size)]
    if not parts:
        return Level(*np.empty((3, 0)))
    return Level(*np.concatenate(parts, axis=1))


def _levels(logs: FloatArray) -> FloatArray:
    counts = np.count_nonzero(~np.isnan(logs), axis=1)
    is_known = counts >= LEAST
    result = np.full((3, len(logs)), np.nan)
    if is_known.any():
        known = logs[is_known]
        middle = np.nanmedian(known, axis=1)
        spread = MAD_TO_SIGMA * np.nanmedian(np.abs(known - middle[:, None]), axis=1)
        reach = BAND * np.maximum(spread, MIN_DEVIATION)
        result[:, is_known] = np.exp([middle, middle - reach, middle + reach])
    return result


def _parts(rows: npt.NDArray[np.int64], size: int) -> Iterator[npt.NDArray[np.int64]]:
    for start in range(0, len(rows), size):
        yield rows[start : start + size]


def _options(component: Any) -> list[Mapping[str, Any]]:
    return [item for item in component.values() if isinstance(item, dict)] if isinstance(component, dict) else []
