"""What the guard writes is data, and names that come from a model are text, whatever characters they hold."""

import io
import json
import math
import pickletools
import zipfile

import numpy as np
import pytest
import torch
from torch import nn

import gradguard


HOSTILE = [
    "\x1b[2J\x1b[31mred",
    "line\nbreak",
    "<red>{0}{record}</red>",
    "[bold]rich[/bold]",
    "\u202ereversed",
    "__import__('os')",
    "%(message)s%n",
]


def build(names):
    torch.manual_seed(0)
    model = nn.Module()
    for name in names:
        model.add_module(name, nn.Linear(2, 2))
    return model, torch.optim.SGD(model.parameters(), lr=0.01)


def backward(model, bad=None):
    for name, module in model.named_children():
        module(torch.ones(1, 2)).sum().backward()
        if name == bad:
            module.weight.grad[0, 0] = math.nan


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_reaches_neither_terminal_nor_file_as_anything_but_text(name, lines, tmp_path):
    model, optimizer = build(["calm", name])
    guard = gradguard.attach(model, optimizer, run_dir=tmp_path / "run")
    backward(model)
    optimizer.step()
    optimizer.zero_grad()
    backward(model, bad=name)
    optimizer.step()
    guard.close()
    assert guard.last.skipped
    assert all(line.isprintable() for line in lines)
    for path in (tmp_path / "run" / "run.json", tmp_path / "run" / "interventions.jsonl"):
        text = path.read_text(encoding="ascii")
        assert all(char.isprintable() or char == "\n" for char in text)
    run = gradguard.read_run(tmp_path / "run")
    assert run.interventions[0].finding.parameters == (f"{name}.weight",)
    assert f"{name}.weight" in run.parameters


@pytest.mark.parametrize("name", HOSTILE)
def test_errors_show_a_hostile_name_as_text_too(name):
    model, optimizer = build(["calm", name])
    policy = gradguard.Policy(rules=[{"when": "nonfinite", "do": "stop"}])
    gradguard.attach(model, optimizer, policy)
    backward(model, bad=name)
    with pytest.raises(gradguard.TrainingStopped) as caught:
        optimizer.step()
    assert str(caught.value).isprintable()


def test_a_pattern_that_matches_nothing_names_hostile_neighbours_as_text():
    model, optimizer = build(HOSTILE)
    policy = gradguard.Policy(monitor={"parameters": ["line\nbroke.weight"]})
    with pytest.raises(gradguard.PolicyError) as caught:
        gradguard.attach(model, optimizer, policy)
    assert all(problem.isprintable() for problem in caught.value.problems)


def record_a_run(path):
    model, optimizer = build(["a", "b"])
    with gradguard.attach(model, optimizer, run_dir=path) as guard:
        for step in range(30):
            optimizer.zero_grad()
            backward(model, bad="a" if step % 9 == 4 else None)
            optimizer.step()
        return guard.state_dict()


def test_the_record_holds_json_and_plain_arrays_only(tmp_path):
    record_a_run(tmp_path / "run")
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    for path in files:
        if path.suffix == ".npy":
            assert np.load(path, allow_pickle=False).dtype.hasobject is False
        elif path.suffix == ".jsonl":
            assert all(isinstance(json.loads(line), dict) for line in path.read_text().splitlines())
        else:
            assert path.suffix == ".json"
            assert isinstance(json.loads(path.read_text()), dict)
    assert {path.suffix for path in files} == {".npy", ".jsonl", ".json"}


def test_a_saved_state_names_no_class_but_those_that_torch_allows(tmp_path):
    state = record_a_run(tmp_path / "run")
    file = io.BytesIO()
    torch.save(state, file)
    with zipfile.ZipFile(file) as archive:
        (pickled,) = [name for name in archive.namelist() if name.endswith("data.pkl")]
        opcodes = list(pickletools.genops(archive.read(pickled)))
    named = {argument for opcode, argument, _ in opcodes if opcode.name in ("GLOBAL", "STACK_GLOBAL")}
    assert all(str(name).split(" ")[0].split(".")[0] in ("torch", "collections") for name in named), named
    file.seek(0)
    assert torch.load(file, weights_only=True)["step"] == 30
