"""What probes of activations and updates saw, read back as it was handed to the diagnoses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from gradguard.audit.problem import Problem
from gradguard.probe_stats import Activations, InputStats, OutputStats, Updates
from gradguard.record.probes import PROBES_FILE


COUNTS = ("num_samples", "num_units", "nonfinite")  # of `Activations`
ARRAYS = ("dead", "saturated", "zero_ratio", "mean", "std")
NORMS = ("update_norms", "weight_norms")  # of `Updates`


def read_probes(path: Path) -> tuple[dict[int, Activations], dict[int, Updates], list[Problem]]:
    """Return what probes saw by the step whose diagnoses were told, and which lines cannot be read.

    Args:
        path: the run directory. A run without probes has none, and the last line may be torn.
    """
    activations: dict[int, Activations] = {}
    updates: dict[int, Updates] = {}
    problems: list[Problem] = []
    file = path / PROBES_FILE
    text = file.read_text(encoding="ascii", errors="replace") if file.exists() else ""
    *lines, _ = text.split("\n")
    for number, line in enumerate(lines, start=1):
        try:
            told = json.loads(line)
            kind = told.pop("kind")
            step = _told_at(told, kind)
            if kind == "activations":
                activations[step] = _activations(told)
            elif kind == "updates":
                updates[step] = _updates(told)
            else:
                raise ValueError(f"unknown kind {kind!r}")
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            problems.append(Problem(kind="statistics", file=PROBES_FILE, line=number, message=f"not readable: {error}"))
    return activations, updates, problems


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
    fields |= {name: np.array(told[name], dtype=np.int64) for name in COUNTS}
    fields |= {name: np.array(told[name], dtype=np.float32) for name in ARRAYS}
    return Activations(**fields)


def _updates(told: dict[str, Any]) -> Updates:
    fields = _numbers(told)
    fields |= {name: tuple(value) for name, value in told.items() if isinstance(value, list)}
    fields |= {name: np.array(told[name], dtype=np.float32) for name in NORMS}
    return Updates(**fields)


def _numbers(told: dict[str, Any]) -> dict[str, Any]:
    """Return the values of one object, with numbers that JSON has no word for, and shapes as tuples."""
    odd = ("NaN", "Infinity", "-Infinity")
    return {
        key: float(value) if value in odd and key != "name" else tuple(value) if key == "shape" else value
        for key, value in told.items()
    }
