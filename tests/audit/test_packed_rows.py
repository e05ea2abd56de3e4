"""Chunks that grow no more are packed: the same rows in fewer bytes, under the same seals."""

import os
import shutil
import struct
import zlib

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gradguard
from gradguard.audit.packed_rows import PackedRows
from gradguard.audit.verify import check_run
from gradguard.evidence.stats import ParameterTable
from gradguard.record.chunks import chunk_name, packed_name
from gradguard.record.directory import RunDirectory
from gradguard.record.packing import HEAD, MAGIC, pack, planes_of
from gradguard.record.statistics import row_dtype


NUM_STEPS, P = 1500, 30
PACKED, PLAIN = packed_name(0), chunk_name(0)
MOST = 1 << 25

law = settings(
    max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def norms_of(steps):
    return np.random.default_rng(3).lognormal(size=(steps, P)).astype(np.float32)


def open_run(path):
    run = RunDirectory.create(path)
    run.write_layout(ParameterTable([f"p{i}" for i in range(P)], [(2,)] * P, ["float32"] * P, [0] * P))
    return run


def write(run, steps=range(NUM_STEPS)):
    norms = norms_of(max(steps) + 1)
    for step in steps:
        run.statistics.append(step, 1.0 / (step + 1), 0.1, 2.0, 1.0, 1.0, 1.0, 0, norms[step])


@pytest.fixture(scope="module")
def closed(tmp_path_factory):
    run = open_run(tmp_path_factory.mktemp("runs") / "closed")
    write(run)
    run.finish()
    return run.path


@pytest.fixture
def copy(closed, tmp_path):
    return shutil.copytree(closed, tmp_path / "copy")


def rows_of(num_rows, seed=0):
    dtype = row_dtype(3)
    data = np.random.default_rng(seed).integers(0, 256, size=num_rows * dtype.itemsize, dtype=np.uint8)
    return data.view(dtype)


@pytest.mark.parametrize("num_rows", [0, 1, 7, 20_000])
def test_every_bit_comes_back_in_whole_and_in_parts(tmp_path, num_rows):
    rows = rows_of(num_rows)
    rows["lr"], rows["flags"] = 0.1, np.arange(num_rows) % 3
    (tmp_path / PACKED).write_bytes(pack(rows))
    packed = PackedRows(tmp_path / PACKED, rows.dtype, MOST)
    assert len(packed) == num_rows
    assert packed[:].tobytes() == b"".join(block.tobytes() for block in packed.blocks()) == rows.tobytes()
    assert packed[num_rows // 3 : num_rows // 2].tobytes() == rows[num_rows // 3 : num_rows // 2].tobytes()
    heads = packed.heads(np.dtype([("step", "<i8"), ("flags", "<u4")]))
    assert heads["step"].tobytes() == rows["step"].tobytes()
    assert heads["flags"].tobytes() == rows["flags"].tobytes()


def test_a_closed_run_is_packed_proven_and_reads_as_it_was_written(closed):
    assert [path.name for path in (closed / "statistics").iterdir()] == [PACKED]
    found = check_run(closed)
    assert (found.verdict, found.problems) == ("whole", ())
    assert {proof.file: proof.proven for proof in found.proofs}["statistics"] == NUM_STEPS
    run = gradguard.read_run(closed)
    np.testing.assert_array_equal(run.statistics["norms"], norms_of(NUM_STEPS))
    np.testing.assert_array_equal(run.statistics["step"], np.arange(NUM_STEPS))
    np.testing.assert_array_equal(run.statistics["loss"], 1.0 / (np.arange(NUM_STEPS) + 1))
    np.testing.assert_array_equal(run.statistics.norms_between(700, 800), norms_of(NUM_STEPS)[700:800])


def test_a_short_run_stays_as_numpy_loads_it(tmp_path):
    run = open_run(tmp_path / "run")
    write(run, range(100))
    run.finish()
    assert len(np.load(run.path / "statistics" / PLAIN)) == 100


def test_what_was_opened_while_the_run_went_on_reads_on_when_it_is_packed(tmp_path):
    run = open_run(tmp_path / "run")
    write(run, range(1000))
    run.statistics.flush()
    before = gradguard.read_run(run.path)
    assert before.statistics.num_steps == 1000
    write(run, range(1000, NUM_STEPS))
    run.finish()
    assert not (run.path / "statistics" / PLAIN).exists()
    np.testing.assert_array_equal(before.statistics["step"], np.arange(1000))
    np.testing.assert_array_equal(before.statistics["norms"], norms_of(NUM_STEPS)[:1000])


@law
@given(place=st.floats(0, 1, exclude_max=True), flip=st.integers(1, 255))
def test_a_changed_byte_never_passes_as_other_rows(closed, tmp_path, place, flip):
    copy = shutil.copytree(closed, tmp_path / "copy", dirs_exist_ok=True)
    path = copy / "statistics" / PACKED
    data = bytearray((closed / "statistics" / PACKED).read_bytes())
    data[int(place * len(data))] ^= flip
    path.write_bytes(data)
    found = check_run(copy)
    if found.verdict == "whole":  # some bits of a zlib stream mean nothing
        np.testing.assert_array_equal(gradguard.read_run(copy).statistics["norms"], norms_of(NUM_STEPS))
    else:
        assert found.verdict == "changed"
        assert found.problems[0].file.startswith("statistics")


@law
@given(keep=st.floats(0, 1, exclude_max=True))
def test_a_packed_chunk_that_was_cut_is_told_and_the_rest_of_the_record_is_read(closed, tmp_path, keep):
    copy = shutil.copytree(closed, tmp_path / "copy", dirs_exist_ok=True)
    data = (closed / "statistics" / PACKED).read_bytes()
    (copy / "statistics" / PACKED).write_bytes(data[: int(keep * len(data))])
    assert check_run(copy).verdict == "changed"
    run = gradguard.read_run(copy)
    assert run.statistics.num_steps == 0
    assert [problem.file for problem in run.problems] == [f"statistics/{PACKED}"]


def test_a_packed_chunk_that_is_gone_is_missed(copy):
    (copy / "statistics" / PACKED).unlink()
    found = check_run(copy)
    assert found.verdict == "changed"
    assert "missing" in {problem.kind for problem in found.problems}


def _head(rows, planes):
    return HEAD.pack(MAGIC, rows, planes)


BOMB = zlib.compress(bytes(10_000_000))
NUM_PLANES = len(planes_of(row_dtype(P)))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"PK\x03\x04",
        MAGIC,
        _head(2**32 - 1, 2**32 - 1),
        _head(2**32 - 1, NUM_PLANES) + bytes(4 * NUM_PLANES),
        _head(1, NUM_PLANES) + struct.pack("<I", 2**32 - 1) * NUM_PLANES,
        _head(1, NUM_PLANES) + struct.pack("<I", len(BOMB)) + bytes(4 * (NUM_PLANES - 1)) + BOMB,
    ],
)
def test_a_file_may_claim_anything(copy, data):
    (copy / "statistics" / PACKED).write_bytes(data)
    assert check_run(copy).verdict == "changed"
    assert gradguard.read_run(copy).statistics["norms"].shape == (0, P)


def test_rows_of_planes_that_hold_nothing_are_zero_and_no_more_than_they_claim(tmp_path):
    """A stream that would unpack to far more than its plane is read to the end of the plane only."""
    planes, rows = planes_of(row_dtype(1)), 20_000
    sizes = [len(BOMB), *[0] * (len(planes) - 1)]
    data = HEAD.pack(MAGIC, rows, len(planes)) + struct.pack(f"<{len(planes)}I", *sizes) + BOMB
    (tmp_path / PACKED).write_bytes(data)
    packed = PackedRows(tmp_path / PACKED, row_dtype(1), MOST)
    assert packed[:].tobytes() == bytes(rows * row_dtype(1).itemsize)


def test_if_the_process_died_before_the_plain_file_went_it_is_the_one_that_is_read(closed, copy):
    folder = copy / "statistics"
    rows = PackedRows(folder / PACKED, row_dtype(P), MOST)[:]
    np.save(folder / PLAIN, rows)
    (folder / PACKED).write_bytes(b"half")
    assert check_run(copy).verdict == "whole"
    assert gradguard.read_run(copy).statistics.num_steps == NUM_STEPS


def test_a_disk_that_does_not_take_the_packed_file_keeps_the_plain_one(tmp_path, monkeypatch):
    run = open_run(tmp_path / "run")
    write(run)

    def refuse(source, target):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("gradguard.record.chunks.os.replace", refuse)
        run.statistics.close()
    assert [path.name for path in (run.path / "statistics").iterdir()] == [PLAIN]
    run.finish()
    assert check_run(run.path).verdict == "whole"


@pytest.mark.skipif(os.name != "posix", reason="an open file cannot be moved there")
def test_another_runs_chunk_is_not_touched(tmp_path):
    run = open_run(tmp_path / "run")
    write(run)
    run.statistics.flush()
    (tmp_path / "run").rename(tmp_path / "moved")
    other = open_run(tmp_path / "run")
    write(other, range(70))
    other.statistics.flush()
    before = (other.path / "statistics" / PLAIN).read_bytes()
    run.statistics.close()
    assert (other.path / "statistics" / PLAIN).read_bytes() == before
    assert [path.name for path in (other.path / "statistics").iterdir()] == [PLAIN]
    other.finish()
    run.abandon()
