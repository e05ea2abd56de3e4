"""Of a long record only what is asked for is read, and little of it is in memory at a time."""

import os
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from gradguard.audit.read import read_run
from gradguard.audit.summary import summarise
from gradguard.evidence.stats import ParameterTable
from gradguard.record.directory import RunDirectory
from gradguard.records import Event


IO = Path("/proc/self/io")
counted = pytest.mark.skipif(not IO.exists(), reason="asks Linux for the bytes that were read")


def bytes_read(action):
    """Return how many bytes a call read from files, and what it returned."""

    def total():
        return int(IO.read_text().split("rchar: ")[1].split()[0])

    own = total()
    own = total() - own  # what asking takes
    before = total()
    result = action()
    return total() - before - own, result


def write(path, num_parameters, num_steps, num_records):
    run = RunDirectory.create(path)
    names = [f"p{n}" for n in range(num_parameters)]
    run.write_layout(ParameterTable(names, [(1,)] * num_parameters, ["float32"] * num_parameters, [0] * num_parameters))
    norms = np.ones(num_parameters, dtype=np.float32)
    for step in range(num_steps):
        run.statistics.append(step, 4.0 - step / num_steps, 0.1, 1.0, 1.0, 1.0, 1.0, 0, norms)
    for step in range(num_records):
        run.journal.append(Event(event="e", step=step, message="x" * 500), durable=False)
    run.finish()
    return run.path


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    """Rows of 12 kB, 24 MB of them: a row is wider than what a disk hands out at a time."""
    return write(tmp_path_factory.mktemp("wide") / "run", 3000, 2000, 2000)


@pytest.fixture(scope="module")
def narrow(tmp_path_factory):
    return write(tmp_path_factory.mktemp("narrow") / "run", 150, 20_000, 0)


@counted
def test_opening_a_run_reads_neither_its_journal_nor_its_rows(wide):
    num_bytes, _ = bytes_read(lambda: read_run(wide))
    assert num_bytes < os.path.getsize(wide / "run.json") + 100_000
    assert os.path.getsize(wide / "interventions.jsonl") > 1_000_000


@counted
def test_the_losses_of_wide_rows_are_read_without_the_norms(wide):
    run = read_run(wide)
    num_bytes, loss = bytes_read(lambda: run.statistics["loss"])
    assert len(loss) == 2000
    assert num_bytes < 0.02 * 2000 * 3000 * 4
    assert bytes_read(lambda: run.statistics["lr"])[0] < 100  # it came with them


@counted
def test_a_few_rows_of_norms_are_read_without_the_others(wide):
    run = read_run(wide)
    run.statistics["step"]
    num_bytes, norms = bytes_read(lambda: run.statistics.norms_between(1000, 1010))
    assert norms.shape == (10, 3000)
    assert num_bytes < 100 * 12_048


@pytest.mark.parametrize("look", [lambda run: run.statistics["loss"], summarise])
def test_an_audit_holds_a_small_part_of_the_rows_in_memory(narrow, look):
    run = read_run(narrow)
    tracemalloc.start()
    look(run)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 0.5 * 20_000 * (48 + 4 * 150)


def test_columns_are_the_same_however_they_are_read(wide, narrow):
    for path, num_steps in ((wide, 2000), (narrow, 20_000)):
        columns = read_run(path).statistics
        np.testing.assert_array_equal(columns["step"], np.arange(num_steps))
        np.testing.assert_allclose(columns["loss"], 4.0 - np.arange(num_steps) / num_steps)
        assert set(columns["flags"].tolist()) == {0}
        assert columns["clip_coef"].dtype == np.float32
        assert columns.norms_between(5, 7).tolist() == [[1.0] * len(read_run(path).parameters)] * 2
