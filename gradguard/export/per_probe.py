"""The tables `gradients`, `activations` and `updates`: a row a probe and parameter, or place in the model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from gradguard.audit.read import Run
from gradguard.export.table import Block, Column, Table, masked


GRADIENTS = (
    Column("step", "int64", "Step whose gradients were looked at."),
    Column("parameter", "text", "Name of the parameter."),
    Column("mean", "float32", "Mean of the gradient's entries.", True),
    Column("std", "float32", "Standard deviation of the entries.", True),
    Column("max", "float32", "Largest entry.", True),
    Column("min", "float32", "Smallest entry.", True),
    Column("zero_ratio", "float32", "Share of entries that are exactly 0, in [0, 1].", True),
    Column("norm", "float32", "L2 norm of the gradient.", True),
)
ACTIVATIONS = (
    Column("step", "int64", "Step whose diagnoses were told."),
    Column("place", "text", "Where in the model: name of the module."),
    Column("kind", "text", "Kind of activation, or input or output of a layer."),
    Column("num_samples", "int64", "Samples that were seen."),
    Column("num_units", "int64", "Units: channels or features."),
    Column("dead", "float32", "Share of units that are 0 on every sample, in [0, 1]."),
    Column(
        "saturated", "float32", "Share of entries in the flat part of a sigmoid or tanh, in [0, 1]; NaN for others."
    ),
    Column("zero_ratio", "float32", "Share of entries that are exactly 0, in [0, 1]."),
    Column("mean", "float32", "Mean of the entries."),
    Column("std", "float32", "Standard deviation of the entries."),
    Column("nonfinite", "int64", "Entries that are NaN or infinite."),
)
UPDATES = (
    Column("step", "int64", "Step that changed the weights."),
    Column("parameter", "text", "Name of the parameter."),
    Column("update_norm", "float32", "L2 norm of the parameter's change; NaN where it was not looked at."),
    Column("weight_norm", "float32", "L2 norm of the parameter before it."),
    Column("lr", "float64", "Learning rate of the first param group, with the guard's factor."),
    Column("cosine", "float64", "Cosine between this change of all parameters and the one before; NaN if unknown."),
)


class Gradients(Table):
    """The full statistics of gradients: P rows a probe. A parameter without a gradient has missing numbers.

    Args:
        run: as read.
    """

    name = "gradients"
    columns = GRADIENTS

    def __init__(self, run: Run) -> None:
        self._run = run
        self._width = len(run.parameters)
        self.num_rows = run.gradients.num_steps * self._width

    def rows(self, start: int, stop: int) -> Block:
        """Return rows `start` to `stop`."""
        at, parameter = np.divmod(np.arange(start, stop), self._width)
        gradients, names = self._run.gradients, self._run.parameters
        is_absent = gradients["norm"][at, parameter] < 0
        numbers = (masked(gradients[column.name][at, parameter], is_absent) for column in GRADIENTS[2:])
        return [gradients["step"][at], [names[place] for place in parameter], *numbers]


class _Listed(Table):
    """A table that is built row by row from what probes saw."""

    def __init__(self, rows: Iterator[tuple[Any, ...]]) -> None:
        self._rows = list(rows)
        self.num_rows = len(self._rows)

    def rows(self, start: int, stop: int) -> Block:
        """Return rows `start` to `stop`."""
        columns = zip(*self._rows[start:stop], strict=True)
        return [
            list(values) if column.kind == "text" else np.array(values, dtype=column.kind)
            for column, values in zip(self.columns, columns, strict=True)
        ]


class Activations(_Listed):
    """What probes of activations saw: a row a place of the model and probe.

    Args:
        run: as read.
    """

    name = "activations"
    columns = ACTIVATIONS

    def __init__(self, run: Run) -> None:
        super().__init__(
            (
                step,
                seen.names[place],
                seen.kinds[place],
                *(getattr(seen, column.name)[place] for column in ACTIVATIONS[3:]),
            )
            for step, seen in run.activations.items()
            for place in range(len(seen.names))
        )


class Updates(_Listed):
    """What the optimizer did to each parameter: P rows a look.

    Args:
        run: as read.
    """

    name = "updates"
    columns = UPDATES

    def __init__(self, run: Run) -> None:
        super().__init__(
            (seen.step, name, seen.update_norms[place], seen.weight_norms[place], seen.lr, seen.cosine)
            for step, seen in run.updates.items()
            for place, name in enumerate(_names_at(run, len(seen.update_norms)))
        )


def _names_at(run: Run, count: int) -> list[str]:
    """Return the parameters of the layout that has so many; a look does not say which layout it was."""
    try:
        layouts = [[str(name) for name in layout["parameters"]] for layout in run.info["layouts"]]
    except (KeyError, TypeError):
        layouts = []
    fitting = [names for names in layouts if len(names) == count]
    if fitting:
        return fitting[-1]
    return [str(place) for place in range(count)]
