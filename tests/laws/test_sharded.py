"""A model that is cut over ranks (FSDP2): exact norms without gathering, one decision, rollback of the parts."""

from pathlib import Path

import pytest
from two_ranks import run_two_ranks

import gradguard


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """What both ranks tell of the run that waits at each step, and of the deferred one."""
    return run_two_ranks(Path(__file__).with_name("sharded_rank.py"), tmp_path_factory.mktemp("sharded"))


@pytest.fixture(params=[0, 1], ids=["immediate", "deferred"])
def ranks(told, request):
    return [lines[request.param] for lines in told]


def test_the_norm_is_that_of_the_whole_gradients(ranks):
    assert all(rank["worst"] < 1e-6 for rank in ranks)


def test_no_gradient_is_gathered_on_a_healthy_step(ranks):
    assert [rank["gathered"] for rank in ranks] == [0, 0]


def test_both_ranks_skip_and_roll_back_at_the_same_steps_and_keep_the_same_weights(ranks):
    first, second = ranks
    assert first["skipped"][0] == 12
    assert first["rolled_back"]
    assert {**first, "run": None} == second


def test_the_record_names_whole_parameters(ranks):
    run = gradguard.read_run(ranks[0]["run"])
    assert list(run.parameters) == ["0.weight", "0.bias", "2.weight", "2.bias", "4.weight", "4.bias"]
    assert run.statistics["norms"].shape[1] == 6


def test_the_device_decides_as_the_host_would(told):
    immediate, deferred = told[1]
    assert deferred["waits"] == []
    assert deferred == immediate
