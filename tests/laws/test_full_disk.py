"""A disk that fills up or goes away costs records, never the training, and what is on it stays whole."""

import math
import resource
import shutil
from contextlib import contextmanager

import pytest
import torch
from torch import nn

import gradguard
from gradguard.audit.verify import verify_run


POLICY = gradguard.Policy(rules=[{"name": "drop", "when": "nonfinite", "do": "skip_step"}], horizon=5)


@contextmanager
def no_file_beyond(num_bytes):
    """As on a disk that is full: what would let a file grow further fails, in the middle of a line if need be."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


class Training:
    def __init__(self, run_dir=None, policy=POLICY):
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.guard = gradguard.attach(self.model, self.optimizer, policy, run_dir=run_dir) if run_dir else None
        self.num_good = 0

    def good(self, count):
        for _ in range(count):
            inputs = torch.randn(8, 4, generator=torch.Generator().manual_seed(self.num_good))
            self.optimizer.zero_grad()
            loss = (self.model(inputs) - 1.0).square().mean()
            loss.backward()
            if self.guard is not None:
                self.guard.observe(loss)
            self.optimizer.step()
            self.num_good += 1

    def bad(self, count):
        for _ in range(count):
            self.guard.observe(math.nan)
            self.optimizer.zero_grad()
            self.optimizer.step()
            assert self.guard.last.skipped


@pytest.fixture
def expected(bits):
    training = Training()
    training.good(40)
    return bits(training.model, training.optimizer)


@pytest.mark.parametrize("room", [0, 10, 300])
def test_a_full_disk_does_not_touch_the_training_and_leaves_no_torn_line(room, expected, bits, lines, tmp_path):
    """`room` more bytes fit into the journal, so that a record is cut off somewhere in its middle."""
    training = Training(tmp_path / "run")
    training.good(10)
    training.bad(1)
    with no_file_beyond((tmp_path / "run" / "interventions.jsonl").stat().st_size + room):
        training.bad(2)
        training.good(20)
    training.bad(1)
    training.good(10)
    training.guard.close()
    assert bits(training.model, training.optimizer) == expected
    assert len([line for line in lines if line.startswith("ERROR|gradguard: writing the record failed")]) == 1
    assert verify_run(tmp_path / "run") == []


def test_after_a_full_disk_outcomes_belong_to_the_interventions_that_they_judge(tmp_path):
    training = Training(tmp_path / "run")
    training.good(10)
    with no_file_beyond((tmp_path / "run" / "interventions.jsonl").stat().st_size):
        training.bad(2)
    training.bad(1)
    training.good(20)
    training.guard.close()
    run = gradguard.read_run(tmp_path / "run")
    steps = {record.seq: record.step for record in run.interventions}
    outcomes = [record for record in run.records if record.kind == "outcome"]
    assert outcomes
    for outcome in outcomes:
        assert outcome.of in steps
        assert outcome.step - outcome.horizon == steps[outcome.of]


def test_what_the_full_disk_cost_is_in_the_record_once_there_is_room_again(tmp_path):
    training = Training(tmp_path / "run")
    training.good(10)
    with no_file_beyond((tmp_path / "run" / "interventions.jsonl").stat().st_size):
        training.bad(2)
    training.good(10)
    training.bad(1)
    training.guard.close()
    run = gradguard.read_run(tmp_path / "run")
    events = [event.event for event in run.events]
    assert (events[0], events[-1]) == ("attached", "closed")
    assert "internal_error" in events


def test_a_run_dir_that_is_deleted_does_not_end_the_training(expected, bits, lines, tmp_path):
    training = Training(tmp_path / "run")
    training.good(10)
    shutil.rmtree(tmp_path / "run")
    training.bad(1)
    training.good(30)
    training.guard.close()
    assert bits(training.model, training.optimizer) == expected
    assert [line for line in lines if line.startswith("ERROR|gradguard")]


def test_those_who_prefer_an_error_get_that_of_the_disk(tmp_path):
    training = Training(tmp_path / "run", POLICY.model_copy(update={"on_internal_error": "raise"}))
    training.good(3)
    with no_file_beyond(1), pytest.raises(OSError, match=r"File too large|the disk took"):
        training.bad(1)
    training.guard.close()
