"""TensorBoard: one event file with curves, histograms of gradients, and the interventions as text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gradguard.audit.read import Run
from gradguard.export.clock import Clock
from gradguard.export.destination import DESTINATIONS, Destination
from gradguard.export.histograms import Histogram, histograms
from gradguard.export.per_step import NORM
from gradguard.export.table import Table
from gradguard.printable import printable


FILE = "events.out.tfevents.gradguard"
FLOAT32_MAX = float(np.finfo(np.float32).max)
VERSION = "brain.Event:2"  # of the format: readers of it do not take a step that comes again for a restart
LABELS = ("parameter", "place")  # columns whose values become part of a curve's name
WORDS = {"activations": "activation", "gradients": "gradient", "updates": "update"}


@DESTINATIONS.register
class TensorBoard(Destination):
    """Curves named `gradguard/loss`, `norm/<parameter>`, `gradient_std/<parameter>`, `activation_dead/<place>`, ...

    NaN and infinity are themselves; what is finite and beyond float32 is the largest float32. The record has no time of
    each step: it is interpolated between the times of the records around it.
    """

    name = "tensorboard"
    what = "One event file with curves, histograms and texts."
    needs = "tensorboard.summary.writer.record_writer"
    extra = "tensorboard"
    most_steps = 10_000

    def file_name(self, table: str) -> str:
        """Return the name of the one file."""
        return FILE

    def write(self, path: Path, tables: Sequence[Table], run: Run) -> None:
        """Write all tables, one after the other."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.record_writer import RecordWriter

        clock = Clock(run)
        with open(path, "xb") as file:
            writer = RecordWriter(file)
            writer.write(Event(wall_time=clock.time(0), file_version=VERSION).SerializeToString())
            for table in tables:
                for step, values in _summaries(table, run):
                    event = Event(wall_time=clock.time(step), step=step)
                    event.summary.value.extend(values)
                    writer.write(event.SerializeToString())


def _summaries(table: Table, run: Run) -> Iterator[tuple[int, list[Any]]]:
    names = [column.name for column in table.columns]
    if table.name in ("interventions", "events"):
        yield from _texts(table, names)
    elif table.name == "statistics":
        yield from _curves(table, lambda name: name.replace(NORM, "norm/", 1) if NORM in name else f"gradguard/{name}")
    else:
        yield from _labelled_curves(table, names)
        if table.name == "gradients":
            yield from ((step, [_histogram(name, found)]) for step, name, found in histograms(run))


def _curves(table: Table, tag: Callable[[str], str]) -> Iterator[tuple[int, list[Any]]]:
    """Yield all numbers of a row; of flags those that are set."""
    kinds = [column.kind for column in table.columns]
    tags = [printable(tag(column.name)) for column in table.columns]
    for block in table.blocks():
        for row in zip(*(np.ma.asarray(values).tolist() for values in block), strict=True):
            shown = [
                _scalar(name, float(value))
                for name, kind, value in zip(tags[1:], kinds[1:], row[1:], strict=True)
                if value is not None and (kind != "bool" or value)
            ]
            yield row[0], shown


def _labelled_curves(table: Table, names: list[str]) -> Iterator[tuple[int, list[Any]]]:
    """Yield the numbers of each row, in curves named by the row's parameter or place."""
    label = next(index for index, name in enumerate(names) if name in LABELS)
    numbers = [index for index, column in enumerate(table.columns) if column.kind not in ("text",) and index]
    word = WORDS[table.name]
    for block in table.blocks():
        columns = [values if isinstance(values, list) else np.ma.asarray(values).tolist() for values in block]
        for row in zip(*columns, strict=True):
            shown = [
                _scalar(printable(f"{word}_{names[index].removeprefix('update_')}/{row[label]}"), float(row[index]))
                for index in numbers
                if row[index] is not None
            ]
            yield row[0], shown


def _texts(table: Table, names: list[str]) -> Iterator[tuple[int, list[Any]]]:
    for block in table.blocks():
        columns = [values if isinstance(values, list) else np.ma.asarray(values).tolist() for values in block]
        for row in zip(*columns, strict=True):
            cells = dict(zip(names, row, strict=True))
            lines = [f"{name}: {value}" for name, value in cells.items() if value not in (None, "", "{}")]
            yield cells["step"], [_text(f"gradguard/{table.name}", lines)]


def _scalar(tag: str, value: float) -> Any:
    from tensorboard.compat.proto.summary_pb2 import Summary

    if np.isfinite(value):
        value = min(max(value, -FLOAT32_MAX), FLOAT32_MAX)
    return Summary.Value(tag=tag, simple_value=value)


def _text(tag: str, lines: list[str]) -> Any:
    """Return a text that is shown as it is: four spaces make a block of code of it, in which nothing is interpreted."""
    from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
    from tensorboard.compat.proto.tensor_pb2 import TensorProto
    from tensorboard.compat.proto.types_pb2 import DT_STRING

    text = "\n".join("    " + printable(line) for line in lines)
    metadata = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text"))
    tensor = TensorProto(dtype=DT_STRING, string_val=[text.encode("utf-8")])
    tensor.tensor_shape.dim.add(size=1)
    return Summary.Value(tag=tag, tensor=tensor, metadata=metadata)


def _histogram(name: str, found: Histogram) -> Any:
    from tensorboard.compat.proto.summary_pb2 import HistogramProto, Summary

    proto = HistogramProto(
        min=found.min,
        max=found.max,
        num=found.num,
        sum=found.sum,
        sum_squares=found.sum_squares,
        bucket_limit=found.limits,
        bucket=found.counts,
    )
    return Summary.Value(tag=printable(f"gradient/{name}"), histo=proto)
