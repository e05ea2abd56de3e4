"""What probes of activations and updates saw, read back as it was handed to the diagnoses."""

from __future__ import annotations

import base64
import binascii
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gradguard.audit.line import Line, read_lines
from gradguard.audit.problem import MAX_PROBLEMS, Problem
from gradguard.evidence.probe_stats import Activations, InputStats, OutputStats, Updates
from gradguard.printable import printable
from gradguard.record.exact import from_exact
from gradguard.record.probes import PROBES_FILE
from gradguard.record.replay import REPLAY_FILE


COUNTS = ("num_samples", "num_units", "nonfinite")  # of `Activations`
ARRAYS = ("dead", "saturated", "zero_ratio", "mean", "std")
NORMS = ("update_norms", "weight_norms")  # of `Updates`
MAX_NUMBERS_BYTES = 1 << 26  # of one field: no line may claim all of the memory


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
    filled = _Filled(path)
    problems: list[Problem] = []
    for line in read_lines(path / PROBES_FILE):
        if not line.has_break:
            break
        try:
            with np.errstate(all="ignore"):  # numbers beyond float32 are infinite
                seen.append(_take(filled.fields(line)))
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
            message = f"not readable: {printable(str(error))[:200]}"
            problems.append(Problem(kind="statistics", file=PROBES_FILE, line=line.number, message=message))
            if len(problems) >= MAX_PROBLEMS:
                break
    if filled.unread:
        number, note = filled.unread[0]
        more = f", nor those of {len(filled.unread) - 1:,} more lines" if len(filled.unread) > 1 else ""
        message = printable(f"norms of weights cannot be read: they stand in line {note} of {REPLAY_FILE}{more}")[:200]
        problems.append(Problem(kind="statistics", file=PROBES_FILE, line=number, message=message))
    return seen, problems


class _Filled:
    """Lines with what they leave out because it stands elsewhere already.

    Args:
        path: the run directory.

    Attributes:
        unread: (line, line of the notes) where norms of weights cannot be read; they are NaN then.
    """

    def __init__(self, path: Path) -> None:
        self.unread: list[tuple[int, Any]] = []
        self._path = path
        self._whole: dict[Any, tuple[int, dict[str, Any]]] = {}  # by kind: the last line that leaves nothing out
        self._noted: dict[int, Any] | None = None

    def fields(self, line: Line) -> dict[str, Any]:
        """Return all fields of a line.

        Raises:
            ValueError: it is not one, or what it goes on from cannot be read.
        """
        told = line.fields
        if told is None:
            raise ValueError(line.fault)
        kind = told["kind"]
        if "like" not in told:
            self._whole[kind] = line.number, told
        else:
            number, whole = self._whole.get(kind, (0, {}))
            if number != told["like"]:
                raise ValueError(f"line {told['like']}, which this one goes on from, cannot be read")
            told = {**whole, **told}
            del told["like"]
        weights = told.get("weight_norms")
        if isinstance(weights, dict) and "note" in weights:
            self._noted = _noted_weights(self._path) if self._noted is None else self._noted
            if weights["note"] not in self._noted:
                self.unread.append((line.number, weights["note"]))
            unknown = np.full(len(_array(told["update_norms"])), np.nan, dtype=np.float32)
            told = {**told, "weight_norms": self._noted.get(weights["note"], unknown)}
        return dict(told)


def _noted_weights(path: Path) -> dict[int, Any]:
    """Return the norms of weights that were noted for a replay, by the line of the file."""
    noted = {}
    for line in read_lines(path / REPLAY_FILE):
        if line.fields is not None and line.fields.get("kind") == "weights":
            try:
                noted[line.number] = from_exact(line.fields.get("norms"))
            except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
                continue
    return noted


def _take(told: dict[str, Any]) -> tuple[int, Activations | Updates]:
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
    norms = _array(told["update_norms"])
    fields |= {name: _vector(told[name], np.float32, len(norms)) for name in NORMS}
    fields |= {name: float(fields[name]) for name in ("lr", "lr_max", "cosine")}
    fields["step"] = _whole(fields["step"])
    return Updates(**fields)


def _array(values: Any) -> Any:
    """Return the numbers of a field; the first records have them as a list."""
    if not isinstance(values, dict):
        return values
    try:
        if "f4" in values:
            return np.frombuffer(base64.b64decode(values["f4"], validate=True), dtype="<f4")
        packed = base64.b64decode(values["f4z"], validate=True)
        planes = zlib.decompressobj().decompress(packed, MAX_NUMBERS_BYTES)
        return np.frombuffer(planes, dtype=np.uint8).reshape(4, -1).T.copy().view("<f4")[:, 0]
    except (zlib.error, binascii.Error) as error:
        raise ValueError(f"damaged numbers: {error}") from None


def _vector(values: Any, dtype: Any, length: int) -> npt.NDArray[Any]:
    with np.errstate(over="ignore"):  # what is beyond the type becomes infinite
        array = np.array(_array(values), dtype=dtype)
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
    return {
        key: value if key == "name" else tuple(value) if key == "shape" else _number(value)
        for key, value in told.items()
    }


def _number(value: Any) -> Any:
    if isinstance(value, str) and value in ("NaN", "Infinity", "-Infinity"):
        return float(value)
    return value
