"""What is written is read back to the same by the programs that it is meant for."""

import csv
import io
import json
import math
import subprocess
import sys
import tracemalloc

import numpy as np
import pandas
import polars
import pyarrow.parquet
import pytest
from made_runs import ACTED, HOSTILE, act, add_rows, judge, start_run
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import gradguard
from gradguard.errors import GradguardError, UsageError
from gradguard.export.destination import DESTINATIONS, destination, write_tables
from gradguard.export.tables import table_of


ODD = {2: math.nan, 3: math.inf, 4: -math.inf, 5: 1e300, 6: 5e-324, 7: 0.1}


@pytest.fixture
def run(tmp_path):
    """Nine steps with odd losses, an absent gradient, a layer with a hostile name, and an intervention on it."""
    made = start_run(tmp_path / "exp", names=(HOSTILE, "b"))
    add_rows(
        made,
        range(9),
        lambda step: [math.nan if step == 2 else 0.1 * step, math.inf if step == 3 else -1.0],
        loss=lambda step: ODD.get(step, 1.5),
        flags=lambda step: ACTED if step == 2 else 0,
    )
    judge(made, act(made, 2, parameter=HOSTILE, rule=HOSTILE), 8)
    columns = {name: np.array([0.5, 1.0]) for name in ("mean", "std", "max", "zero_ratio", "norm")}
    columns |= {"min": np.array([-0.5, -1.0]), "histogram": np.full((2, 25), 0.04)}
    made.gradients.append(2, columns, np.array([False, True]))
    made.finish()
    return gradguard.read_run(made.path)


def written(run, to, folder, *names):
    tables = [table_of(run, name) for name in names]
    return [path for path, _ in write_tables(destination(to), folder, tables, run)]


LOSSES = [ODD.get(step, 1.5) for step in range(9)]
NORMS = [np.float32(0.1 * step) if step != 2 else math.nan for step in range(9)]


def same(found, expected):
    np.testing.assert_array_equal(np.array(found, dtype=np.float64), np.array(expected, dtype=np.float64))


def test_csv_is_read_by_python_pandas_and_polars(run, tmp_path):
    path, *_ = written(run, "csv", tmp_path / "out", "statistics")
    rows = list(csv.DictReader(io.StringIO(path.read_text(encoding="utf-8"), newline="")))
    norm, other = list(rows[0])[-2:]
    same([float(row["loss"]) for row in rows], LOSSES)
    same([np.float32(row[norm]) for row in rows], NORMS)
    assert [row[other] for row in rows] == ["", "", "", "Infinity", "", "", "", "", ""]
    frame = pandas.read_csv(path)
    same(frame["loss"], LOSSES)
    assert frame["finding"].tolist() == [step == 2 for step in range(9)]
    same(polars.read_csv(path)["loss"], LOSSES)


def test_no_cell_of_a_csv_is_a_formula_or_a_line_of_its_own(run, tmp_path):
    paths = written(run, "csv", tmp_path / "out", "statistics", "interventions", "gradients")
    for path in paths:
        text = path.read_bytes().decode("utf-8")
        assert all(line.isprintable() for line in text.split("\r\n"))
        for row in csv.reader(io.StringIO(text, newline="")):
            for cell in row:
                assert not cell.startswith(("=", "+", "@", "\t")), cell
                assert not (cell.startswith("-") and not cell[1:2].isdigit() and cell != "-Infinity"), cell
    gradients = list(csv.DictReader(io.StringIO(paths[2].read_text(encoding="utf-8"))))
    assert gradients[0]["parameter"].startswith("'=cmd()\\x1b]0;pwned")


def test_json_lines_are_strict_and_keep_every_value(run, tmp_path):
    def refuse(constant):
        raise AssertionError(constant)

    path, other = written(run, "jsonl", tmp_path / "out", "statistics", "interventions")
    assert path.read_text().isascii()
    rows = [json.loads(line, parse_constant=refuse) for line in path.read_text().splitlines()]
    same([float(row["loss"]) for row in rows], LOSSES)
    same([np.float32(row[f"norm:{HOSTILE}"]) for row in rows], NORMS)
    assert [row["norm:b"] for row in rows] == [None, None, None, "Infinity", None, None, None, None, None]
    (row,) = map(json.loads, other.read_text().splitlines())
    assert (row["parameter"], row["verdict"], row["detail"]) == (HOSTILE, "helped", None)


def test_parquet_has_types_and_tells_missing_from_not_a_number(run, tmp_path):
    path, other = written(run, "parquet", tmp_path / "out", "statistics", "interventions")
    read = pyarrow.parquet.read_table(path)
    same(read["loss"].to_pylist(), LOSSES)
    same(read[f"norm:{HOSTILE}"].to_pylist(), NORMS)
    assert read["norm:b"].to_pylist() == [None, None, None, math.inf, None, None, None, None, None]
    assert [str(read.schema.field(name).type) for name in ("step", "loss", "finding", "norm:b")] == [
        "int64",
        "double",
        "bool",
        "float",
    ]
    assert read.schema.metadata[b"gradguard.schema"] == b"urn:gradguard:statistics:1"
    assert pyarrow.parquet.read_table(other)["parameter"].to_pylist() == [HOSTILE]


def test_tensorboard_shows_curves_histograms_and_texts(run, tmp_path):
    names = ("statistics", "gradients", "interventions", "events")
    (path,) = written(run, "tensorboard", tmp_path / "out", *names)
    read = EventAccumulator(str(path.parent), size_guidance={"scalars": 0, "tensors": 0, "histograms": 0})
    read.Reload()
    tags = read.Tags()
    losses = read.Scalars("gradguard/loss")
    assert [event.step for event in losses] == list(range(9))
    largest = float(np.finfo(np.float32).max)
    same(
        [event.value for event in losses],
        [np.float32(min(loss, largest)) if loss != math.inf else loss for loss in LOSSES],
    )
    (norm,) = [tag for tag in tags["scalars"] if tag.startswith("norm/=cmd()")]
    same([event.value for event in read.Scalars(norm)], NORMS)
    assert [event.step for event in read.Scalars("norm/b")] == [3]
    assert [event.step for event in read.Scalars("gradguard/finding")] == [2]
    assert all(tag.isprintable() for kind in ("scalars", "histograms", "tensors") for tag in tags[kind])
    (histogram,) = tags["histograms"]
    (event,) = read.Histograms(histogram)
    assert (event.step, event.histogram_value.num, len(event.histogram_value.bucket)) == (2, 4, 25)
    (text,) = read.Tensors("gradguard/interventions")
    lines = text.tensor_proto.string_val[0].decode().split("\n")
    assert all(
        line.startswith("    ") and line.isprintable() for line in lines
    )  # a block of code: nothing in it is markup
    assert "    verdict: helped" in lines
    created = pandas.Timestamp(run.info["created"]).timestamp()
    assert all(created - 1 <= event.wall_time <= created + 60 for event in losses)


@pytest.mark.parametrize("to", DESTINATIONS.names())
def test_nothing_that_is_there_is_replaced_unless_forced(run, tmp_path, to):
    folder = tmp_path / "out"
    (path,) = written(run, to, folder, "statistics")
    path.write_text("mine")
    (folder / "notes.txt").write_text("mine too")
    with pytest.raises(UsageError, match="--force"):
        written(run, to, folder, "statistics")
    assert path.read_text() == "mine"
    write_tables(destination(to), folder, [table_of(run, "statistics")], run, is_forced=True)
    assert path.read_bytes() != b"mine"
    assert sorted(entry.name for entry in folder.iterdir()) == sorted([path.name, "notes.txt"])


@pytest.mark.parametrize("to", DESTINATIONS.names())
def test_what_fails_half_way_leaves_nothing(run, tmp_path, to):
    class Broken(type(table_of(run, "statistics"))):
        def rows(self, start, stop):
            raise OSError(28, "No space left on device")

    tables = [table_of(run, "interventions"), Broken(run)]
    with pytest.raises(GradguardError, match="No space left on device; nothing was changed"):
        write_tables(destination(to), tmp_path / "deep" / "out", tables, run)
    assert not (tmp_path / "deep").exists()


def test_an_interrupted_export_leaves_nothing(run, tmp_path):
    class Interrupted(type(table_of(run, "statistics"))):
        def rows(self, start, stop):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_tables(destination("csv"), tmp_path / "out", [Interrupted(run)], run)
    assert not (tmp_path / "out").exists()


def test_a_folder_that_is_a_file_is_refused(run, tmp_path):
    (tmp_path / "out").write_text("")
    with pytest.raises(UsageError, match="is a file"):
        written(run, "csv", tmp_path / "out", "statistics")


def test_an_unknown_destination_is_answered_with_the_nearest():
    with pytest.raises(UsageError, match="did you mean 'parquet'"):
        destination("parket")


@pytest.mark.parametrize(("to", "package"), [("parquet", "pyarrow"), ("tensorboard", "tensorboard")])
def test_without_its_package_a_destination_says_what_to_install(run, tmp_path, to, package):
    script = (
        f"import sys; sys.modules[{package!r}] = None; from gradguard.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", script, "export", str(run.path), "--to", to, "-o", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert f"pip install 'gradguard[{to}]'" in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("to", ["csv", "jsonl", "parquet"])
def test_a_long_run_is_written_in_pieces(tmp_path, to):
    """20,000 steps of 150 layers are 13 MB; as Python numbers all at once they would take 100 MB."""
    names = [f"layer.{index}" for index in range(150)]
    made = start_run(tmp_path / "exp", names=names)
    row = np.linspace(0.1, 1.0, 150, dtype=np.float32)
    add_rows(made, range(20_000), lambda step: row)
    made.finish()
    run = gradguard.read_run(made.path)
    table = table_of(run, "statistics")
    tracemalloc.start()
    write_tables(destination(to), tmp_path / "out", [table], run)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 70e6
