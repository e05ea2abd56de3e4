"""The report: shown, asserted, written as JSON."""

import io
import json

import pytest
import torch
from rich.console import Console
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD

import gradguard
from gradguard.checklist.finding import PreflightFinding
from gradguard.checklist.report import PreflightReport
from gradguard.errors import UsageError


@pytest.fixture
def bad():
    model = nn.Sequential(nn.Linear(4, 3), nn.Softmax(1))
    batch = 100 + torch.randn(32, 4), torch.randint(3, (32,))
    return gradguard.preflight(model, SGD(model.parameters(), 0.1), batch, nn.CrossEntropyLoss())


def test_the_worst_comes_first_and_counts(bad):
    severities = [found.severity for found in bad.findings]
    assert severities[0] == "critical"
    assert severities == sorted(severities, key=["critical", "warn", "info"].index)
    assert not bad.ok
    assert bad.exit_code == 1


def test_it_fails_a_test_with_its_own_text(bad):
    with pytest.raises(AssertionError, match="ends with a softmax") as caught:
        bad.raise_for_findings()
    assert caught.value.findings == bad.at_least("warn")
    with pytest.raises(gradguard.PreflightFailed):
        bad.raise_for_findings(min_severity="critical")


def test_only_what_is_severe_enough_raises():
    report = PreflightReport(subject="x", findings=(PreflightFinding(check="c", severity="info", message="m"),))
    report.raise_for_findings()
    assert report.exit_code == 0
    with pytest.raises(gradguard.PreflightFailed):
        report.raise_for_findings("info")
    with pytest.raises(UsageError, match="unknown severity 'warning'; did you mean 'warn'"):
        report.raise_for_findings("warning")


def test_the_text_says_what_and_what_to_do(bad):
    text = str(bad)
    assert text.startswith("Pre-flight  Sequential of 15 parameters, SGD lr 0.1, batch 32 x 4")
    for told in (
        "critical  output layer",
        "          The model ends with",
        "-> remove the last softmax",
        "Not ready.",
        "fine      broadcasting",
    ):
        assert told in text
    shown = io.StringIO()
    bad.show(Console(file=shown, width=60))
    assert all(len(line.rstrip()) <= 60 for line in shown.getvalue().splitlines())


def test_names_from_the_model_cannot_write_to_the_terminal():
    model = nn.Module()
    model.add_module("\x1b[2J[red]x", nn.Linear(4, 3))
    model.forward = lambda x: model._modules["\x1b[2J[red]x"](x)
    other = nn.Linear(4, 3)
    optimizer = SGD(other.parameters(), 0.1)
    optimizer.add_param_group({"params": [model._modules["\x1b[2J[red]x"].bias]})
    report = gradguard.preflight(model, optimizer, (torch.randn(8, 4), torch.randint(3, (8,))), cross_entropy)
    assert "\x1b" not in str(report)
    assert "[red]x.weight" in str(report)


def test_json_holds_it_all_and_nan_stays_readable():
    model = nn.Linear(4, 3)
    x = torch.full((8, 4), float("nan"))
    report = gradguard.preflight(model, SGD(model.parameters(), 0.1), (x, torch.randint(3, (8,))), cross_entropy)
    written = json.loads(report.to_json(), parse_constant=pytest.fail)
    assert written["loss"] == "NaN"
    assert written["findings"][0]["check"] == "inputs"
    assert written["findings"][0]["evidence"]["nonfinite"] == 32
    assert PreflightReport.model_validate_json(report.to_json()).findings == report.findings


def test_what_cannot_be_measured_is_said():
    class Stubborn(SGD):
        def __deepcopy__(self, memo):
            raise TypeError("no")

        def step(self, closure=None):
            raise ArithmeticError("no step today")

    model = nn.Linear(4, 3)
    batch = torch.randn(8, 4), torch.randint(3, (8,))
    report = gradguard.preflight(model, Stubborn(model.parameters(), 0.1), batch, cross_entropy)
    assert report.unseen == ("what a step of Stubborn does: ArithmeticError: no step today",)
    assert "no step today" in str(report)
    assert report.ok
