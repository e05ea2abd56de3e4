"""What probes of activations and updates saw, read back as it was handed to the diagnoses."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gradguard.audit.line import Line, read_lines
from gradguard.audit.problem import MAX_PROBLEMS, Problem
from gradguard.evidence.probe_stats import Activations, InputStats, OutputStats, Updates
from gradguard.printable import printable
from gradguard.record.probes import PROBES_FILE


COUNTS = ("num_samples", "num_units", "nonfinite")  # of `Activations`
ARRAYS = ("dead", "saturated", "zero_ratio", "mean", "std")
NORMS = ("update_norms", "weight_norms")  # of `Updates`


class Probes(NamedTuple):
    """What probes saw, by the step whose diagnoses were told.

    Attributes:
        activations: of the activations.
        updates: of the optimizer's updates.
        problems: lines that cannot be read.
    """

    activations: dict[int, Activations]
    updates: dict[int, Updates]
    problems: list[Problem]


def read_probes(path: Path) -> Probes:
    """Return what probes saw.

    Args:
        path: the run directory. A run without probes has none, and the last line may be torn.
    """
    told, problems = read_probe_lines(path)
    activations = {step: seen for step, seen in told if isinstance(seen, Activations)}
    updates = {step: seen for step, seen in told if isinstance(seen, Updates)}
    return Probes(activations, updates, problems)


def read_probe_lines(path: Path) -> tuple[list[tuple[int, Activations | Updates]], list[Problem]]:
    """Return what probes saw in the order in which it was told, each with its step; see `read_probes`."""
    seen: list[tuple[int, Activations | Updates]] = []
    problems: list[Problem] = []
    for line in read_lines(path / PROBES_FILE):
        if not line.has_break:
            break
        try:
            with np.errstate(all="ignore"):  # numbers beyond float32 are infinite
                seen.append(_take(line))
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
            message = f"not readable: {printable(str(error))[:200]}"
            problems.append(Problem(kind="statistics", file=PROBES_FILE, line=line.number, message=message))
            if len(problems) >= MAX_PROBLEMS:
                break
    return seen, problems


def _take(line: Line) -> tuple[int, Activations | Updates]:
    if line.fields is None:
        raise ValueError(line.fault)
    told = line.fields
    kind = told.pop("kind")
    step = _told_at(told, kind)
    if kind == "activations":
        return step, _activations(told)
    if kind == "updates":
        return step, _updates(told)
    raise ValueError(f"unknown kind {kind!r}")


def _told_at(told: dict[str, Any], kind: str) -> int:
    """Return the step whose diagnoses were told; the first records call it `step`, and updates are told one later."""
    if "at" in told:
        return int(told.pop("at"))
    return int(told.pop("step")) if kind == "activations" else int(told["step"]) + 1


def _activations(told: dict[str, Any]) -> Activations:
    output = told["output"]
    fields: dict[str, Any] = {
        **told,
        "names": tuple(told["names"]),
        "kinds": tuple(told["kinds"]),
        "output": None if output is None else OutputStats(**_numbers(output)),
        "inputs": tuple(InputStats(**_numbers(entry)) for entry in told["inputs"]),
        "through_time": {name: float(value) for name, value in told["through_time"].items()},
        "unseen": tuple(told["unseen"]),
        "dead_units": tuple(np.array(units, dtype=np.int64) for units in told.get("dead_units", ())),
    }
    num_places = len(fields["names"])
    fields |= {name: _vector(told[name], np.int64, num_places) for name in COUNTS}
    fields |= {name: _vector(told[name], np.float32, num_places) for name in ARRAYS}
    if not all(isinstance(name, str) for key in ("names", "kinds") for name in fields[key]):
        raise ValueError("names and kinds of places are text")
    if len(fields["kinds"]) != num_places:
        raise ValueError(f"{len(fields['kinds'])} kinds of {num_places} places")
    return Activations(**fields)


def _updates(told: dict[str, Any]) -> Updates:
    fields = _numbers(told)
    fields |= {name: tuple(value) for name, value in told.items() if isinstance(value, list)}
    num_parameters = len(told["update_norms"])
    fields |= {name: _vector(told[name], np.float32, num_parameters) for name in NORMS}
    fields |= {name: float(fields[name]) for name in ("lr", "lr_max", "cosine")}
    fields["step"] = _whole(fields["step"])
    return Updates(**fields)


def _vector(values: Any, dtype: Any, length: int) -> npt.NDArray[Any]:
    with np.errstate(over="ignore"):  # what is beyond the type becomes infinite
        array = np.array(values, dtype=dtype)
    if array.shape != (length,):
        raise ValueError(f"an array of shape {array.shape}, expected ({length},)")
    return array


def _whole(value: Any) -> int:
    """Return a number that fits the column of steps."""
    number = int(value)
    if abs(number) >= 2**63:
        raise ValueError("a step of more than 64 bits")
    return number


def _numbers(told: dict[str, Any]) -> dict[str, Any]:
    """Return the values of one object, with numbers that JSON has no word for, and shapes as tuples."""
    odd = ("NaN", "Infinity", "-Infinity")
    return {
        key: float(value) if value in odd and key != "name" else tuple(value) if key == "shape" else value
        for key, value in told.items()
    }
