"""`gradguard preflight MODULE:FUNCTION`."""

import json
import sys

import pytest

from gradguard.cli import main


CODE = """
import torch
from torch import nn

def build(*tail):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), *tail)
    x = torch.randn(32, 4)
    batch = x, x[:, :3].argmax(1)
    return model, torch.optim.SGD(model.parameters(), lr=2.0), batch, nn.CrossEntropyLoss()

def good():
    return build()

def bad():
    return build(nn.Softmax(1))

def nothing():
    return None

def short():
    return 1, 2

def wrong():
    return 1, 2, 3, 4

def broken():
    raise KeyError("data")

constant = 3
"""


@pytest.fixture(autouse=True)
def _own_module(tmp_path, monkeypatch):
    (tmp_path / "my_training.py").write_text(CODE, encoding="utf-8")
    (tmp_path / "raising.py").write_text("1 / 0", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    for name in ("my_training", "raising"):
        sys.modules.pop(name, None)


def test_a_good_training_exits_with_0(capsys):
    assert main(["preflight", "my_training:good", "--overfit"]) == 0
    assert "Ready for take-off" in capsys.readouterr().out


def test_a_bad_one_exits_with_1_and_says_why(capsys):
    assert main(["preflight", "my_training.py:bad"]) == 1
    assert "ends with a softmax" in " ".join(capsys.readouterr().out.split())


def test_a_check_can_be_left_out():
    assert main(["preflight", "my_training:bad", "--skip", "output_layer, initial_loss"]) == 0


def test_json(capsys):
    assert main(["preflight", "my_training:bad", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["findings"][0]["check"] == "output_layer"


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("my_training", "expected MODULE:FUNCTION, such as train:setup, got 'my_training'"),
        ("my_trainin:good", "cannot import 'my_trainin': ModuleNotFoundError"),
        ("raising:good", "cannot import 'raising': ZeroDivisionError: division by zero"),
        ("my_training:goot", "'my_training' has no function 'goot'; did you mean 'good'?"),
        ("my_training:constant", "'my_training' has no function 'constant'"),
        ("my_training:nothing", "must return (model, optimizer, batch, loss_fn), got NoneType"),
        ("my_training:short", "must return (model, optimizer, batch, loss_fn), got tuple of 2"),
        ("my_training:wrong", "expects a torch.nn.Module first, got int"),
        ("my_training:broken", "my_training:broken raised KeyError: 'data'"),
    ],
)
def test_a_wrong_call_exits_with_2(target, words, capsys):
    assert main(["preflight", target]) == 2
    assert words in capsys.readouterr().err
