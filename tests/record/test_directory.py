import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from loguru import logger

from gradguard.errors import RunDirectoryError
from gradguard.evidence.stats import ParameterTable
from gradguard.record.atomic_write import write_atomically
from gradguard.record.directory import RunDirectory
from gradguard.records import Event


def table(*names):
    return ParameterTable(list(names), [(2, 3)] * len(names), ["float32"] * len(names), [0] * len(names))


def info_of(run):
    return json.loads((run.path / "run.json").read_text())


@pytest.fixture
def warnings():
    lines = []
    handler = logger.add(lines.append, format="{level}|{message}", level="WARNING")
    logger.enable("gradguard")
    yield lines
    logger.remove(handler)


def test_a_new_run_says_what_it_is_and_that_it_is_running(tmp_path):
    run = RunDirectory.create(tmp_path / "a" / "exp", info={"policy": {"x": float("inf")}, "versions": {"torch": "9"}})
    info = info_of(run)
    assert run.path == tmp_path / "a" / "exp"
    assert (info["v"], info["status"], info["pid"], info["layouts"]) == (2, "running", os.getpid(), [])
    assert info["policy"] == {"x": "Infinity"}
    assert info["versions"] == {"torch": "9"}
    assert len(info["policy_sha256"]) == 64
    run.finish()


def test_equal_policies_have_equal_hashes_and_runs_never_share_an_id(tmp_path):
    runs = [RunDirectory.create(tmp_path / f"{n}", info={"policy": {"n": n // 2}}) for n in range(3)]
    hashes = [run.info["policy_sha256"] for run in runs]
    assert hashes[0] == hashes[1] != hashes[2]
    assert len({run.info["run_id"] for run in runs}) == 3
    for run in runs:
        run.finish()


def test_finish_closes_the_files_and_the_first_status_stays(tmp_path):
    run = RunDirectory.create(tmp_path / "exp")
    run.write_layout(table("a"))
    run.statistics.append(0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0, np.ones(1, np.float32))
    run.journal.append(Event(event="attached"))
    run.finish("stopped")
    run.finish("closed")
    info = info_of(run)
    assert (info["status"], info["num_records"], info["last_hash"]) == ("stopped", 1, run.journal.last_hash)
    assert info["ended"] >= info["created"]
    assert len(np.load(run.path / "statistics" / "000000.npy")) == 1


def test_every_layout_names_the_chunk_that_it_starts_with(tmp_path):
    run = RunDirectory.create(tmp_path / "exp")
    for names in (["a"], ["a", "b"]):
        run.write_layout(table(*names))
        run.statistics.append(0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0, np.ones(len(names), np.float32))
    run.finish()
    layouts = info_of(run)["layouts"]
    assert [(layout["first_chunk"], layout["parameters"]) for layout in layouts] == [(0, ["a"]), (1, ["a", "b"])]
    assert layouts[0]["shapes"] == [[2, 3]]
    assert layouts[0]["dtypes"] == ["float32"]


def test_an_earlier_run_is_left_alone_and_the_new_place_is_said(tmp_path, warnings):
    runs = [RunDirectory.create(tmp_path / "exp1") for _ in range(3)]
    assert [run.path.name for run in runs] == ["exp1", "exp1-2", "exp1-3"]
    assert len(warnings) == 2
    assert "exp1-3" in warnings[1]
    for run in runs:
        run.finish()


def test_a_folder_of_the_users_own_is_used_and_its_files_stay(tmp_path):
    (tmp_path / "config.yaml").write_text("mine")
    run = RunDirectory.create(tmp_path)
    run.finish()
    assert run.path == tmp_path
    assert (tmp_path / "config.yaml").read_text() == "mine"


def test_a_journal_without_its_run_json_counts_as_an_earlier_run(tmp_path, warnings):
    (tmp_path / "exp").mkdir()
    (tmp_path / "exp" / "interventions.jsonl").write_text("precious")
    run = RunDirectory.create(tmp_path / "exp")
    run.finish()
    assert run.path.name == "exp-2"
    assert [path.name for path in (tmp_path / "exp").iterdir()] == ["interventions.jsonl"]


def test_named_guards_share_a_run_until_a_name_is_taken(tmp_path, warnings):
    paths = []
    for name in ("G", "D", "G", "D"):
        run = RunDirectory.create(tmp_path / "gan", name=name)
        run.finish()
        paths.append(str(run.path.relative_to(tmp_path)))
    assert paths == ["gan/G", "gan/D", "gan-2/G", "gan-2/D"]


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a\\b", "a\nb", "\x1b[2J", "statistics", "run.json"])
def test_a_name_that_is_no_folder_name_is_refused(tmp_path, name):
    with pytest.raises(RunDirectoryError, match="name must be usable"):
        RunDirectory.create(tmp_path / "exp", name=name)
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_the_way_is_named_and_nothing_is_left_behind(tmp_path):
    (tmp_path / "file").write_text("mine")
    for path in (tmp_path / "file", tmp_path / "file" / "deep" / "exp"):
        with pytest.raises(RunDirectoryError, match="file' is a file; give a directory"):
            RunDirectory.create(path)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_text() == "mine"


def test_a_place_that_cannot_be_written_is_refused(tmp_path):
    with pytest.raises(RunDirectoryError, match="cannot be written"):
        RunDirectory.create("/proc/gradguard/exp")
    with pytest.raises(RunDirectoryError, match="cannot be written"):
        RunDirectory.create(tmp_path / ("x" * 300))
    assert list(tmp_path.iterdir()) == []


def test_a_creation_that_fails_half_way_removes_what_it_made(tmp_path):
    script = """
import resource, signal, sys
from gradguard.errors import RunDirectoryError
from gradguard.record.directory import RunDirectory
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))
try:
    RunDirectory.create(sys.argv[1] + "/a/b/exp")
except RunDirectoryError as error:
    print(error)
"""
    out = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=True)
    assert "cannot be written" in out.stdout
    assert "the disk took 10 of " in out.stdout
    assert list(tmp_path.iterdir()) == []


def test_runs_that_start_at_once_never_get_the_same_directory(tmp_path, warnings):
    with ThreadPoolExecutor(8) as pool:
        runs = list(pool.map(lambda _: RunDirectory.create(tmp_path / "exp"), range(16)))
    assert len({run.path for run in runs}) == 16
    for run in runs:
        assert info_of(run)["run_id"] == run.info["run_id"]
        run.finish()


def test_a_run_directory_stays_put_when_the_process_changes_its_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = RunDirectory.create("exp")
    monkeypatch.chdir("/")
    run.finish()
    assert json.loads((tmp_path / "exp" / "run.json").read_text())["status"] == "closed"


def test_an_atomic_write_that_fails_leaves_the_old_text_and_no_other_file(tmp_path):
    path = tmp_path / "run.json"
    write_atomically(path, "old")
    path.unlink()
    path.mkdir()
    with pytest.raises(OSError, match="directory"):
        write_atomically(path, "new")
    assert list(tmp_path.iterdir()) == [path]
