import numpy as np
import pytest
import torch
from torch import nn

import gradguard
from gradguard.audit.read import read_run
from gradguard.audit.step import describe_step
from gradguard.cli import main
from gradguard.errors import RecordError


def test_a_step_comes_with_its_numbers_neighbours_and_records(recorded):
    report = describe_step(read_run(recorded), 8)
    assert report.row.effective_lr == pytest.approx(0.05)
    assert report.row.clip_coef == pytest.approx(0.01)
    assert report.row.flags == ("intervention",)
    assert [row.step for row in report.rows] == [5, 6, 7, 8, 9, 10, 11]
    assert [record.remedy for record in report.records] == ["clip_norm"]


def test_the_largest_norms_come_first_and_nonfinite_ones_before_all(recorded):
    run = read_run(recorded)
    assert [parameter.name for parameter in describe_step(run, 8).parameters] == [
        "wte.weight",
        "h.0.weight",
        "h.0.bias",
    ]
    worst = describe_step(run, 5).parameters
    assert [parameter.name for parameter in worst] == ["h.0.weight", "wte.weight"]
    assert np.isnan(worst[0].norms[3])
    assert worst[0].norms[6] == 2.0


def test_a_parameter_without_a_gradient_has_no_norm_there(recorded):
    bias = describe_step(read_run(recorded), 8).parameters[2]
    assert bias.norms == (None, None, None, 0.5, None, None, None)


def test_the_neighbours_end_where_the_run_ends(recorded):
    run = read_run(recorded)
    assert [row.step for row in describe_step(run, 0).rows] == [0, 1, 2, 3]
    assert [row.step for row in describe_step(run, 11).rows] == [8, 9, 10, 11]


def test_a_judged_action_carries_its_outcome(recorded):
    done, left = describe_step(read_run(recorded), 5).records
    assert done.outcome.verdict == "helped"
    assert left.reason == "cooldown"


def test_a_step_whose_statistics_are_lost_is_told_from_the_journal(recorded):
    (recorded / "statistics" / "000000.npy").unlink()
    report = describe_step(read_run(recorded), 8)
    assert report.row is None
    assert len(report.records) == 1


@pytest.mark.parametrize("step", [-1, 12, 10**30])
def test_a_step_that_is_not_there_is_an_error_with_the_range(recorded, step):
    with pytest.raises(RecordError, match="which holds steps 0 to 11"):
        describe_step(read_run(recorded), step)


def test_the_latest_probe_of_gradients_up_to_the_step_is_shown(tmp_path, capsys):
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    policy = gradguard.Policy(monitor={"probe_every": 4}, sinks=[])
    with gradguard.attach(model, optimizer, policy, run_dir=tmp_path / "run"):
        for _ in range(7):
            optimizer.zero_grad()
            model(torch.ones(3, 2)).square().sum().backward()
            optimizer.step()
    run = gradguard.read_run(tmp_path / "run")
    report = describe_step(run, 6)
    assert report.probe_step == 4
    assert {row.name: row.norm for row in report.gradients} == {
        name: run.gradients["norm"][1, column] for column, name in enumerate(run.parameters)
    }
    assert main(["show", str(tmp_path / "run"), "--step", "6"]) == 0
    assert "Their gradients at step 4" in capsys.readouterr().out
