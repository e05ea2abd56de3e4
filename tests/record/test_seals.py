import json

import numpy as np
import pytest

from gradguard.audit.verify import check_run
from gradguard.evidence.stats import ParameterTable, StepStats
from gradguard.record.chain import ReplacedError
from gradguard.record.directory import RunDirectory
from gradguard.record.recorder import Recorder
from gradguard.records import Event


def open_run(path):
    run = RunDirectory.create(path)
    run.write_layout(ParameterTable(["a"], [(1,)], ["float32"], [0]))
    return run


def write_rows(run, steps):
    for step in steps:
        run.statistics.append(step, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0, np.ones(1, np.float32))


def seals_of(run):
    return [json.loads(line) for line in (run.path / "seals.jsonl").read_text().splitlines()]


def test_a_healthy_run_is_sealed_every_thousand_steps_for_less_than_a_byte_a_step(tmp_path):
    run = open_run(tmp_path / "run")
    write_rows(run, range(10_000))
    run.finish()
    seals = seals_of(run)
    assert 10 <= len(seals) <= 14
    assert (tmp_path / "run" / "seals.jsonl").stat().st_size < 10_000
    blocks = [(row["start"], row["stop"]) for seal in seals for row in seal["rows"]]
    assert blocks[0][0] == 0
    assert [stop for _, stop in blocks[:-1]] == [start for start, _ in blocks[1:]]
    assert blocks[-1][1] == 10_000
    assert [seal["is_last"] for seal in seals] == [False] * (len(seals) - 1) + [True]


def test_an_intervention_is_sealed_at_once_with_the_rows_before_it(tmp_path):
    run = open_run(tmp_path / "run")
    recorder = Recorder(run, [], on_fault=pytest.fail)
    write_rows(run, range(10))
    recorder.write(Event(event="e"))
    assert seals_of(run)[-1]["lines"]["interventions.jsonl"]["lines"] == 1
    assert seals_of(run)[-1]["rows"][-1]["stop"] == 10
    recorder.finish("closed")
    assert check_run(run.path).verdict == "whole"


def test_a_directory_that_was_made_anew_is_told_once_and_left_alone(tmp_path):
    run = open_run(tmp_path / "run")
    faults = []
    recorder = Recorder(run, [], on_fault=lambda what, error: faults.append((what, type(error))))
    (tmp_path / "run").rename(tmp_path / "moved")
    other = open_run(tmp_path / "run")
    other.journal.append(Event(event="of another run"))
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    stats = StepStats(1)
    for step in range(200):
        stats.step = step
        recorder.row(stats, 1.0, 1.0, 0)
        recorder.write(Event(event="e", step=step))
    recorder.finish("closed")
    assert faults == [("recording to disk", ReplacedError)]
    assert len(recorder.kept) == 200
    assert {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()} == before
    other.finish()


def test_rows_alone_notice_within_a_buffer_that_their_directory_is_gone(tmp_path):
    run = open_run(tmp_path / "run")
    (tmp_path / "run").rename(tmp_path / "moved")
    with pytest.raises(ReplacedError, match="was deleted or replaced: nothing more of this run is recorded"):
        write_rows(run, range(64))
    run.abandon()
