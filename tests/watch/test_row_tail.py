import numpy as np
import pytest
from made_runs import NAMES, add_rows, start_run, table

import gradguard
from gradguard.record.statistics import StatisticsWriter
from gradguard.watch.row_tail import RECENT, RowTail


@pytest.fixture
def run(tmp_path):
    return start_run(tmp_path / "exp")


def follow(run, keep=100):
    return RowTail(run.path / "statistics", keep)


def steps_of(tail):
    return tail.scalars["step"].tolist()


def with_chunks_of(run, rows):
    run.statistics = StatisticsWriter(run.path / "statistics", len(NAMES), chunk_rows=rows)


def test_each_look_takes_in_the_rows_that_are_new(run):
    tail = follow(run)
    assert tail.poll(run.info["layouts"]) == 0
    add_rows(run, range(10))
    assert tail.poll(run.info["layouts"]) == 0  # still in the buffer of the process
    run.statistics.flush()
    assert tail.poll(run.info["layouts"]) == 10
    add_rows(run, range(10, 13))
    run.statistics.flush()
    assert tail.poll(run.info["layouts"]) == 3
    assert steps_of(tail) == list(range(13))
    assert tail.parameters == list(NAMES)
    np.testing.assert_array_equal(tail.norms, np.tile([1, 2, 3], (13, 1)))


@pytest.mark.parametrize("rows", [1, 3, 7, 64, 500])
@pytest.mark.parametrize("keep", [1, 10, 100, 1000])
def test_the_last_rows_are_read_however_they_are_spread_over_chunks(run, rows, keep):
    with_chunks_of(run, rows)
    add_rows(run, range(200))
    run.statistics.flush()
    tail = follow(run, keep)
    tail.poll(run.info["layouts"])
    assert steps_of(tail) == list(range(200))[-keep:]
    assert tail.num_rows == 200
    assert len(tail.norms) == min(RECENT, keep, 200)


@pytest.mark.parametrize("rows", [1, 3, 64])
def test_rows_are_followed_from_one_chunk_into_the_next(run, rows):
    with_chunks_of(run, rows)
    tail = follow(run, 1000)
    taken = 0
    for first in range(0, 60, 4):
        add_rows(run, range(first, first + 4))
        run.statistics.flush()
        taken += tail.poll(run.info["layouts"])
    assert taken == tail.num_rows == 60
    assert steps_of(tail) == list(range(60))


def test_rows_are_followed_through_chunks_that_are_packed_meanwhile(run, monkeypatch):
    monkeypatch.setattr("gradguard.record.chunks.PACK_BYTES", 1)
    with_chunks_of(run, 10)
    tail = follow(run, 1000)
    for first in range(0, 60, 7):
        add_rows(run, range(first, first + 7))
        run.statistics.flush()
        tail.poll(run.info["layouts"])
    run.finish()
    assert tail.poll(run.info["layouts"]) == 0
    assert steps_of(tail) == list(range(63))
    assert tail.last_chunk.exists()
    assert {path.suffix for path in tail.folder.iterdir()} == {".packed"}
    late = follow(run, 25)
    late.poll(run.info["layouts"])
    assert (late.num_rows, steps_of(late)) == (63, list(range(38, 63)))


def test_rows_of_other_parameters_start_afresh(run):
    tail = follow(run)
    add_rows(run, range(5))
    run.statistics.flush()
    tail.poll(run.info["layouts"])
    run.write_layout(table((*NAMES, "head.weight")))
    add_rows(run, range(5, 8))
    run.statistics.flush()
    assert tail.poll(run.info["layouts"]) == 3
    assert steps_of(tail) == list(range(8))
    assert tail.norms.shape == (3, 4)
    assert tail.parameters[-1] == "head.weight"


def test_a_row_that_is_half_written_waits_for_its_end(run):
    add_rows(run, range(4))
    run.finish()
    path = run.path / "statistics" / "000000.npy"
    whole = path.read_bytes()
    tail = follow(run)
    for size in range(0, len(whole), 13):
        path.write_bytes(whole[:size])
        tail.poll(run.info["layouts"])
    path.write_bytes(whole)
    tail.poll(run.info["layouts"])
    assert steps_of(tail) == [0, 1, 2, 3]


@pytest.mark.parametrize("data", [b"", b"hello", b"\x93NUMPY\x02\x00", b"\x93NUMPY\x01\x00\xff\xff{", b"\0" * 4096])
def test_a_damaged_chunk_is_no_row_and_no_error(run, data):
    add_rows(run, range(4))
    run.finish()
    (run.path / "statistics" / "000001.npy").write_bytes(data)
    tail = follow(run)
    tail.poll(run.info["layouts"])
    assert tail.num_rows in (0, 4)


@pytest.mark.parametrize("layouts", [None, [], [{}], "x", [{"first_chunk": 0, "parameters": ["one"]}]])
def test_layouts_that_do_not_fit_are_no_rows_and_no_error(run, layouts):
    add_rows(run, range(4))
    run.finish()
    tail = follow(run)
    tail.poll(layouts)
    assert tail.num_rows == 0


def test_a_look_at_a_long_run_reads_its_end_only(run):
    """A run of 4,000 steps in chunks of 100: no chunk but the last ones is opened for its rows."""
    with_chunks_of(run, 100)
    add_rows(run, range(4000))
    run.finish()
    assert len(gradguard.read_run(run.path).statistics["step"]) == 4000
    for path in sorted((run.path / "statistics").glob("*.npy"))[:-3]:  # all but the header and the size is gone
        size, header = path.stat().st_size, path.stat().st_size % 48
        with open(path, "r+b") as file:
            file.truncate(4096 if header > 4096 else 1024)
            file.truncate(size)
    tail = follow(run, 200)
    tail.poll(run.info["layouts"])
    assert steps_of(tail) == list(range(3800, 4000))
    assert tail.num_rows == 4000
