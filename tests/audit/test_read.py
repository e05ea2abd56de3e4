import json
import os
import subprocess
import sys

import numpy as np
import pytest

from gradguard.audit.read import read_run, run_names
from gradguard.errors import RecordError
from gradguard.evidence.stats import ParameterTable
from gradguard.record.directory import RunDirectory
from gradguard.record.journal import Journal
from gradguard.records import Event


def edit_info(path, **changes):
    file = path / "run.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def record_steps(run, names, steps):
    run.write_layout(ParameterTable(names, [(1,)] * len(names), ["float32"] * len(names), [0] * len(names)))
    for step in steps:
        run.statistics.append(step, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0, np.full(len(names), step, dtype=np.float32))


def test_a_closed_run_reads_back_as_it_was_recorded(recorded):
    run = read_run(recorded)
    assert (run.status, run.is_torn, run.problems) == ("closed", False, [])
    assert [record.seq for record in run.records] == list(range(5))
    assert [(item.step, item.diagnosis, item.remedy) for item in run.interventions] == [
        (5, "nonfinite", "skip_step"),
        (8, "exploding_gradient", "clip_norm"),
    ]
    assert [item.reason for item in run.withheld] == ["cooldown"]
    assert [item.event for item in run.events] == ["attached"]
    assert run.policy == {"mode": "enforce"}
    assert run.parameters == ["wte.weight", "h.0.weight", "h.0.bias"]


def test_an_intervention_carries_its_outcome_when_it_was_judged(recorded):
    first, second = read_run(recorded).interventions
    assert first.outcome.verdict == "helped"
    assert second.outcome is None


def test_a_finding_that_several_records_share_is_one_finding(recorded):
    assert [finding.diagnosis for finding in read_run(recorded).findings] == ["nonfinite", "exploding_gradient"]


def test_statistics_are_arrays_by_name_over_steps_and_parameters(recorded):
    columns = read_run(recorded).statistics
    assert set(columns) == {
        "step", "loss", "lr", "global_norm", "lr_factor", "clip_coef", "loss_scale", "flags", "norms",
    }  # fmt: skip
    assert columns["norms"].shape == (12, 3)
    np.testing.assert_array_equal(columns["step"], np.arange(12))
    assert np.isnan(columns["loss"][5])
    np.testing.assert_array_equal(columns["norms"][8], np.array([300, 2, 0.5], np.float32))
    assert columns["norms"] is columns["norms"]


def test_numbers_that_are_not_finite_come_back_as_numbers(tmp_path):
    from gradguard.records import Change, Finding, Intervention

    run = RunDirectory.create(tmp_path / "exp")
    finding = Finding(diagnosis="d", step=0, value=float("nan"), baseline=float("inf"), threshold=-float("inf"))
    run.journal.append(Intervention(rule="r", diagnosis="d", remedy="m", finding=finding, change=Change(summary="s")))
    run.finish()
    (read,) = read_run(run.path).findings
    assert np.isnan(read.value)
    assert (read.baseline, read.threshold) == (np.inf, -np.inf)


def test_layouts_are_joined_and_a_parameter_that_was_not_there_is_absent(tmp_path):
    run = RunDirectory.create(tmp_path / "exp")
    record_steps(run, ["a", "b"], [0, 1])
    record_steps(run, ["c", "a"], [2])
    run.finish()
    read = read_run(run.path)
    assert read.parameters == ["a", "b", "c"]
    np.testing.assert_array_equal(read.statistics["norms"], [[0, 0, -1], [1, 1, -1], [2, -1, 2]])
    for start in range(4):
        for stop in range(start, 4):
            np.testing.assert_array_equal(
                read.statistics.norms_between(start, stop), read.statistics["norms"][start:stop]
            )


def test_an_empty_run_has_empty_arrays_of_the_right_shape(tmp_path):
    run = RunDirectory.create(tmp_path / "exp")
    record_steps(run, ["a", "b"], [])
    run.finish()
    read = read_run(run.path)
    assert read.statistics["norms"].shape == (0, 2)
    assert read.statistics["step"].shape == (0,)
    assert (read.findings, read.records) == ([], ())


def test_a_torn_last_line_is_said_and_everything_before_it_read(recorded):
    file = recorded / "interventions.jsonl"
    data = file.read_bytes()
    for cut in (1, 20, len(data.splitlines()[-1]) - 1):
        file.write_bytes(data[: -1 - cut])
        run = read_run(recorded)
        assert run.is_torn
        assert len(run.records) == 4
        assert run.problems == []


def test_a_last_line_that_only_lacks_its_line_break_is_whole(recorded):
    file = recorded / "interventions.jsonl"
    file.write_bytes(file.read_bytes().rstrip(b"\n"))
    assert not read_run(recorded).is_torn
    assert len(read_run(recorded).records) == 5


@pytest.mark.parametrize(
    "line", [b"not json", b"[1]", b'{"kind":"unheard"}', b'{"kind":"event"}', b"\xff\x00", b"", b"[" * 100_000]
)
def test_a_foreign_line_is_skipped_and_named(recorded, line):
    file = recorded / "interventions.jsonl"
    lines = file.read_bytes().splitlines()
    file.write_bytes(b"\n".join([*lines[:2], line, *lines[2:], b""]))
    run = read_run(recorded)
    assert len(run.records) == 5
    (problem,) = run.problems
    assert str(problem).startswith("interventions.jsonl:3: not a")


def test_what_a_newer_version_wrote_is_refused_with_advice(recorded):
    file = recorded / "interventions.jsonl"
    text = file.read_text()
    file.write_text(text.replace('"v":1', '"v":2', 1))
    with pytest.raises(RecordError, match=r"interventions.jsonl:1: written by a newer gradguard \(record version 2"):
        read_run(recorded)
    file.write_text(text)
    edit_info(recorded, v=9)
    with pytest.raises(RecordError, match=r"version 9; this one reads up to 2\); upgrade"):
        read_run(recorded)


def test_a_path_that_is_no_run_says_so_and_names_runs_near_it(recorded, tmp_path):
    far = tmp_path / "far"
    (far / "deeper").mkdir(parents=True)
    os.rename(recorded, far / "deeper" / "exp")
    for path, words in ((tmp_path, "is not a run directory"), (tmp_path / "nope", "does not exist")):
        with pytest.raises(RecordError, match=f"{words}.*runs near it: .*far/deeper/exp"):
            read_run(path)
    with pytest.raises(RecordError, match=r"is a file; give the run directory; runs near it: .*exp"):
        read_run(far / "deeper" / "exp" / "run.json")


def test_a_folder_of_runs_is_not_taken_for_a_run_of_several_guards(recorded, tmp_path):
    assert run_names(tmp_path) == []
    with pytest.raises(RecordError, match=r"is not a run directory \(no run\.json\); runs near it: .*exp"):
        read_run(tmp_path)


@pytest.mark.parametrize("content", ["", "{", "[]", "{}"])
def test_a_run_json_that_cannot_be_read_is_an_error_that_names_it(recorded, content):
    (recorded / "run.json").write_text(content)
    with pytest.raises(RecordError, match=r"run\.json: not"):
        read_run(recorded)


def test_guards_are_told_apart_by_name(tmp_path):
    for name in ("G", "D"):
        run = RunDirectory.create(tmp_path / "gan", name=name)
        run.journal.append(Event(event=name))
        run.finish()
        if name == "G":
            assert read_run(tmp_path / "gan").events[0].event == "G"
    assert run_names(tmp_path / "gan") == ["D", "G"]
    assert read_run(tmp_path / "gan", name="D").events[0].event == "D"
    with pytest.raises(RecordError, match="several guards recorded here, say which by name: D, G"):
        read_run(tmp_path / "gan")
    with pytest.raises(RecordError, match="no guard named 'Gen'"):
        read_run(tmp_path / "gan", name="Gen")


def test_a_running_process_is_told_from_one_that_died(recorded):
    edit_info(recorded, status="running", pid=os.getpid())
    assert read_run(recorded).status == "running"
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    edit_info(recorded, status="running", pid=gone.pid)
    assert read_run(recorded).status == "interrupted"
    edit_info(recorded, host="elsewhere")
    assert read_run(recorded).status == "running"


def test_rows_behind_the_count_of_the_header_and_half_a_row_are_coped_with(recorded):
    chunk = recorded / "statistics" / "000000.npy"
    data = chunk.read_bytes()
    row_bytes = 48 + 3 * 4
    chunk.write_bytes(data.replace(b"'shape': (12,)", b"'shape': (3,) ")[: -row_bytes // 2])
    np.testing.assert_array_equal(read_run(recorded).statistics["step"], np.arange(11))


def test_a_chunk_of_something_else_is_skipped_and_named(recorded):
    np.save(recorded / "statistics" / "000001.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    (recorded / "statistics" / "000002.npy").write_bytes(b"garbage")
    (recorded / "statistics" / "000003.npy").write_bytes(b"")
    run = read_run(recorded)
    assert [problem.file for problem in run.problems] == ["statistics/000001.npy", "statistics/000002.npy"]
    assert run.statistics["norms"].shape == (12, 3)


def test_a_killed_run_reads_back_without_a_gap(tmp_path):
    script = """
import sys
import numpy as np
from gradguard.record.directory import RunDirectory
from gradguard.records import Event
from gradguard.evidence.stats import ParameterTable
run = RunDirectory.create(sys.argv[1])
run.write_layout(ParameterTable(["a"], [(1,)], ["float32"], [0]))
for step in range(10**9):
    run.statistics.append(step, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0, np.full(1, step, dtype=np.float32))
    if step % 10 == 9:
        run.statistics.flush()
        run.journal.append(Event(event="e", step=step, message="x" * 3000), durable=step % 100 == 9)
    if step == 500:
        print("going", flush=True)
"""
    process = subprocess.Popen([sys.executable, "-c", script, str(tmp_path / "exp")], stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"going\n"
    process.kill()
    process.wait()
    process.stdout.close()
    run = read_run(tmp_path / "exp")
    steps = run.statistics["step"]
    assert run.status == "interrupted"
    assert run.problems == []
    assert len(run.records) >= 50
    assert [record.seq for record in run.records] == list(range(len(run.records)))
    np.testing.assert_array_equal(steps, np.arange(len(steps)))
    assert steps[-1] >= run.records[-1].step


def test_a_second_journal_in_the_same_place_is_impossible(recorded):
    with pytest.raises(FileExistsError):
        Journal(recorded / "interventions.jsonl")


def test_reading_does_not_import_torch(recorded):
    script = f"""
import sys
from gradguard.audit.read import read_run
from gradguard.audit.summary import summarise
from gradguard.audit.verify import verify_run
summarise(read_run({str(recorded)!r}))
verify_run({str(recorded)!r})
print("torch" in sys.modules)
"""
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert out.stdout == "False\n"
