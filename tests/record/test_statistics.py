import subprocess
import sys

import numpy as np
import pytest

from gradguard.record.chunks import BUFFER_BYTES, BUFFER_ROWS
from gradguard.record.statistics import Flag, StatisticsWriter, row_dtype


def append(writer, step, num_parameters, **changes):
    row = {
        "loss": step / 3,
        "lr": 1e-3,
        "global_norm": 2.5,
        "lr_factor": 0.5,
        "clip_coef": 1.0,
        "loss_scale": 65536.0,
        "flags": Flag.FINDING | Flag.STALE,
        "norms": np.arange(num_parameters, dtype=np.float32) + step,
    }
    writer.append(step, **{**row, **changes})


def load(path):
    return np.load(path, allow_pickle=False)


@pytest.mark.parametrize("num_parameters", [0, 1, 4, 148])
def test_what_is_appended_is_what_plain_numpy_loads(tmp_path, num_parameters):
    writer = StatisticsWriter(tmp_path, num_parameters)
    for step in range(150):
        append(writer, step, num_parameters)
    writer.close()
    rows = load(tmp_path / "000000.npy")
    assert rows.dtype == row_dtype(num_parameters)
    assert not rows.dtype.hasobject
    np.testing.assert_array_equal(rows["step"], np.arange(150))
    np.testing.assert_array_equal(rows["loss"], np.arange(150) / 3)
    np.testing.assert_array_equal(rows["loss_scale"], np.full(150, 65536, np.float32))
    assert set(rows["flags"]) == {20}
    np.testing.assert_array_equal(rows["norms"], np.arange(150)[:, None] + np.arange(num_parameters)[None, :])


def test_nonfinite_values_and_absent_gradients_keep_their_marks(tmp_path):
    writer = StatisticsWriter(tmp_path, 4)
    norms = np.array([-1, np.nan, np.inf, 0], dtype=np.float32)
    append(writer, 0, 4, loss=float("nan"), global_norm=float("inf"), loss_scale=1e300, norms=norms)
    writer.close()
    (row,) = load(tmp_path / "000000.npy")
    np.testing.assert_array_equal(row["norms"], norms)
    assert np.isnan(row["loss"])
    assert row["global_norm"] == row["loss_scale"] == np.inf


def test_the_buffer_copies_the_norms(tmp_path):
    writer = StatisticsWriter(tmp_path, 2)
    norms = np.ones(2, dtype=np.float32)
    append(writer, 0, 2, norms=norms)
    norms[:] = 9
    writer.close()
    np.testing.assert_array_equal(load(tmp_path / "000000.npy")["norms"], [[1, 1]])


def test_a_row_is_on_disk_after_the_buffer_is_full_or_flushed_and_an_open_chunk_loads(tmp_path):
    writer = StatisticsWriter(tmp_path, 4)
    for step in range(BUFFER_ROWS - 1):
        append(writer, step, 4)
    assert list(tmp_path.iterdir()) == []
    append(writer, BUFFER_ROWS - 1, 4)
    assert len(load(tmp_path / "000000.npy")) == BUFFER_ROWS
    append(writer, BUFFER_ROWS, 4)
    writer.flush()
    assert len(load(tmp_path / "000000.npy")) == BUFFER_ROWS + 1
    writer.close()


def test_wide_rows_are_flushed_before_the_buffer_outgrows_its_bytes(tmp_path):
    num_parameters = BUFFER_BYTES // 4 // 3
    writer = StatisticsWriter(tmp_path, num_parameters)
    for step in range(3):
        append(writer, step, num_parameters)
    assert len(load(tmp_path / "000000.npy")) == 2
    writer.flush()
    assert len(load(tmp_path / "000000.npy")) == 3
    writer.close()


def test_chunks_follow_one_another_without_losing_a_row(tmp_path):
    writer = StatisticsWriter(tmp_path, 2, chunk_rows=10)
    for step in range(35):
        append(writer, step, 2)
        if step == 12:
            writer.flush()
    writer.close()
    chunks = [load(path) for path in sorted(tmp_path.iterdir())]
    assert len(chunks) == 4
    np.testing.assert_array_equal(np.concatenate([chunk["step"] for chunk in chunks]), np.arange(35))


def test_reshape_starts_a_chunk_for_the_new_parameters(tmp_path):
    writer = StatisticsWriter(tmp_path, 2)
    assert writer.reshape(3) == 0
    append(writer, 0, 3)
    assert writer.reshape(5) == 1
    append(writer, 1, 5)
    writer.close()
    writer.close()
    assert [load(path)["norms"].shape for path in sorted(tmp_path.iterdir())] == [(1, 3), (1, 5)]
    assert writer.num_rows == 2


def test_a_full_disk_raises_keeps_what_is_on_disk_and_goes_on_when_there_is_room(tmp_path):
    script = """
import resource, signal, sys
from pathlib import Path
import numpy as np
from gradguard.record.statistics import StatisticsWriter
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
writer = StatisticsWriter(Path(sys.argv[1]), 4)
norms = np.ones(4, dtype=np.float32)
def append(step):
    writer.append(step, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0, norms)
for step in range(64):
    append(step)
size = (Path(sys.argv[1]) / "000000.npy").stat().st_size
resource.setrlimit(resource.RLIMIT_FSIZE, (size + 100, resource.RLIM_INFINITY))
append(64)
append(65)
try:
    writer.flush()
except OSError:
    print("kept", writer.num_lost)
try:
    for step in range(66, 128):
        append(step)
except OSError:
    print("lost", writer.num_lost, writer.num_rows)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
append(128)
writer.close()
"""
    out = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=True)
    assert out.stdout.splitlines() == ["kept 0", "lost 64 64"]
    np.testing.assert_array_equal(load(tmp_path / "000000.npy")["step"], [*range(64), 128])


def test_memory_does_not_grow_with_the_run(tmp_path):
    import tracemalloc

    writer = StatisticsWriter(tmp_path, 16, chunk_rows=256)
    norms = np.ones(16, dtype=np.float32)

    def run(steps):
        for step in steps:
            append(writer, step, 16, norms=norms)

    run(range(1000))
    tracemalloc.start()
    run(range(1000, 6000))
    grown, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    writer.close()
    assert grown < 10_000
