"""Rows about gradients: what is appended is what is read, also after a full disk and with new parameters."""

import subprocess
import sys

import numpy as np
import pytest

from gradguard.audit.read import read_run
from gradguard.audit.verify import verify_run
from gradguard.evidence.stats import ParameterTable
from gradguard.gradients.magnitude_bins import NUM_BINS, bin_edges
from gradguard.record.directory import RunDirectory
from gradguard.record.gradients import NUMBERS, GradientsWriter, gradients_dtype


def table(names):
    return ParameterTable(list(names), [(2, 2)] * len(names), ["float32"] * len(names), [0] * len(names))


def columns(num_parameters, seed=0):
    random = np.random.default_rng(seed)
    found = {name: random.standard_normal(num_parameters) for name in NUMBERS}
    shares = random.random((num_parameters, NUM_BINS))
    return {**found, "histogram": shares / shares.sum(1, keepdims=True)}


PRESENT = np.zeros(2, dtype=bool)


def test_a_parameter_takes_49_bytes_a_row():
    """With a probe every 50 steps and 4 bytes of norm a step, 5 bytes a parameter and step in all."""
    assert gradients_dtype(100).itemsize - gradients_dtype(0).itemsize == 4900


def test_what_is_appended_is_read_back(tmp_path):
    run = RunDirectory.create(tmp_path / "exp")
    run.write_layout(table("ab"))
    rows = [columns(2, seed) for seed in range(20)]
    for step, row in enumerate(rows):
        run.gradients.append(50 * step, row, PRESENT)
    run.finish()
    found = read_run(tmp_path / "exp").gradients
    assert list(found) == ["step", *NUMBERS, "histogram"]
    assert len(found) == 8
    np.testing.assert_array_equal(found["step"], 50 * np.arange(20))
    for name in NUMBERS:
        np.testing.assert_array_equal(found[name], np.stack([row[name] for row in rows]).astype(np.float32))
    np.testing.assert_allclose(found["histogram"], np.stack([row["histogram"] for row in rows]), rtol=0.045)
    np.testing.assert_array_equal(found.edges(), bin_edges(found["max"], found["min"]))
    assert found.edges().shape == (20, 2, NUM_BINS + 1)
    assert verify_run(tmp_path / "exp") == []
    with pytest.raises(KeyError):
        found["surprise"]


def test_what_is_not_finite_absent_or_beyond_float32_is_told_apart(tmp_path):
    run = RunDirectory.create(tmp_path / "exp")
    run.write_layout(table("abcd"))
    row = {name: np.array([np.nan, np.nan, np.inf, 1e300]) for name in NUMBERS}
    run.gradients.append(0, {**row, "histogram": columns(4)["histogram"]}, np.array([True, False, False, False]))
    run.finish()
    found = read_run(tmp_path / "exp").gradients
    largest = np.finfo(np.float32).max
    np.testing.assert_array_equal(found["norm"], [[-1, np.nan, np.inf, largest]])
    np.testing.assert_array_equal(found["max"], [[np.nan, np.nan, np.inf, largest]])
    assert np.isnan(found["histogram"]).all(axis=-1).tolist() == [[True, True, True, False]]


def test_a_row_is_on_disk_at_once(tmp_path):
    writer = GradientsWriter(tmp_path / "gradients", 2)
    for step in range(3):
        writer.append(step, columns(2), PRESENT)
        assert len(np.load(tmp_path / "gradients" / "000000.npy", allow_pickle=False)) == step + 1
    writer.close()


def test_new_parameters_start_a_chunk_and_are_joined_by_name(tmp_path):
    run = RunDirectory.create(tmp_path / "exp")
    run.write_layout(table("ab"))
    run.gradients.append(0, columns(2), PRESENT)
    run.write_layout(table("cab"))
    run.gradients.append(50, columns(3, 1), np.zeros(3, dtype=bool))
    run.finish()
    recorded = read_run(tmp_path / "exp")
    found = recorded.gradients
    assert recorded.parameters == ["a", "b", "c"]
    np.testing.assert_allclose(found["mean"][0], [*columns(2)["mean"], np.nan], rtol=1e-6)
    np.testing.assert_allclose(found["mean"][1], np.roll(columns(3, 1)["mean"], -1), rtol=1e-6)
    assert found["norm"][0, 2] == -1
    assert found["histogram"].shape == (2, 3, NUM_BINS)


@pytest.mark.parametrize("damage", ["cut", "gone", "foreign"])
def test_damage_is_found(tmp_path, damage):
    run = RunDirectory.create(tmp_path / "exp")
    run.write_layout(table("ab"))
    for step in range(3):
        run.gradients.append(step, columns(2), PRESENT)
    run.finish()
    path = tmp_path / "exp" / "gradients" / "000000.npy"
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-7])
    elif damage == "gone":
        path.unlink()
    else:
        path.write_bytes(b"no array")
    (problem,) = verify_run(tmp_path / "exp")
    assert problem.kind == {"cut": "cut_off", "gone": "missing", "foreign": "statistics"}[damage]
    assert problem.file.startswith("gradients")
    assert len(read_run(tmp_path / "exp").gradients["step"]) == (2 if damage == "cut" else 0)


def test_rows_that_the_disk_does_not_take_are_kept_until_the_buffer_is_full_and_then_counted(tmp_path):
    script = """
import resource, signal, sys
from pathlib import Path
import numpy as np
from gradguard.gradients.magnitude_bins import NUM_BINS
from gradguard.record.gradients import NUMBERS, GradientsWriter
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
writer = GradientsWriter(Path(sys.argv[1]) / "gradients", 2)
row = {name: np.ones(2) for name in NUMBERS} | {"histogram": np.ones((2, NUM_BINS)) / NUM_BINS}
def append(step):
    try:
        writer.append(step, row, np.zeros(2, dtype=bool))
        return 0
    except OSError:
        return 1
def limit(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
append(0)
limit((Path(sys.argv[1]) / "gradients" / "000000.npy").stat().st_size)
print(append(1), append(2), writer.num_lost)
limit(resource.RLIM_INFINITY)
print(append(3), writer.num_lost)
limit((Path(sys.argv[1]) / "gradients" / "000000.npy").stat().st_size)
print(sum(append(step) for step in range(4, 70)), writer.num_lost, writer.num_rows)
limit(resource.RLIM_INFINITY)
writer.close()
"""
    out = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=True)
    assert out.stdout.splitlines() == ["1 1 0", "0 0", "66 64 6"]
    steps = np.load(tmp_path / "gradients" / "000000.npy", allow_pickle=False)["step"]
    np.testing.assert_array_equal(steps, [0, 1, 2, 3, 68, 69])
