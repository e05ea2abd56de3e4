"""Probes of activations and updates: no trace in the training, the same in every mode, and in the record."""

import io
import json

import numpy as np
import pytest
import torch
from probing import Witness, draw, mlp, num_hooks, policy, seen_by, train
from torch import nn
from torch.utils.checkpoint import checkpoint

import gradguard


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.LSTM(4, 5, num_layers=2, dropout=0.3, batch_first=True)
        self.head = nn.Linear(5, 2)

    def forward(self, x):
        return self.head(self.cell(x)[0][:, -1])


class Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        self.block, self.head = mlp(nn.ReLU(inplace=True), nn.Dropout(0.2)), nn.Linear(3, 1)

    def forward(self, x):
        return self.head(checkpoint(self.block, x, use_reentrant=False))


def convolutions():
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Dropout(0.2), nn.Flatten(), nn.Linear(144, 2)
    )


MODELS = {
    "mlp": (lambda: mlp(nn.ReLU(inplace=True), nn.GELU(), nn.Dropout(0.2), nn.Tanh()), (16, 8)),
    "conv": (convolutions, (8, 1, 8, 8)),
    "recurrent": (Recurrent, (6, 11, 4)),
    "checkpoint": (Checkpointed, (16, 8)),
    "encoder": (lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), (4, 5, 8)),
    "compiled": (lambda: torch.compile(mlp(nn.ReLU(), nn.Tanh()), backend="aot_eager"), (16, 8)),
    "compiled-part": (lambda: nn.Sequential(torch.compile(mlp(nn.ReLU()), backend="eager"), nn.Tanh()), (16, 8)),
}


def everything(model, optimizer):
    state = optimizer.state_dict()["state"]
    tensors = [*model.state_dict().values(), *(p.grad for p in model.parameters()), torch.get_rng_state()]
    return tensors + [value for entry in state.values() for value in entry.values()]


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
@pytest.mark.parametrize("sync", ["immediate", "deferred"])
@pytest.mark.parametrize("name", MODELS)
def test_a_run_with_probes_is_the_same_bit_for_bit(name, sync):
    make, shape = MODELS[name]
    found = []
    for is_guarded in (False, True):
        torch._dynamo.reset()
        torch.manual_seed(0)
        model = make()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
        guard = gradguard.attach(model, optimizer, policy(sync)) if is_guarded else None
        train(model, optimizer, draw(*shape), 35, guard)
        if guard is not None:
            assert {type(seen).__name__ for _, seen in seen_by(guard)} == {"Activations", "Updates"}
            guard.close()
            assert not [r for r in guard.records if getattr(r, "event", "") == "internal_error"]
        assert num_hooks(model) == 0
        found.append(everything(model, optimizer))
    assert all(torch.equal(bare, guarded) for bare, guarded in zip(*found, strict=True))


def test_no_rule_that_reads_means_no_hook():
    model = mlp(nn.ReLU())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rules = [{"when": "loss_spike", "do": "skip_step"}]
    with gradguard.attach(model, optimizer, gradguard.Policy(rules=rules)) as guard:
        assert num_hooks(model) == 0
        assert guard._pipeline.probes is None or guard._pipeline.probes._activations is None


def test_hooks_are_on_for_as_many_steps_as_the_samples_take():
    model = mlp(nn.ReLU())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    hooked = []
    with gradguard.attach(model, optimizer, policy(every=10)) as guard:
        for step in range(25):
            hooked.append(num_hooks(model))
            train(model, optimizer, lambda _, s=step: draw(100, 8)(s), 1, guard)
        steps = [step for step, seen in seen_by(guard) if type(seen).__name__ == "Activations"]
    assert [step for step, count in enumerate(hooked) if count] == [0, 1, 2, 10, 11, 12, 20, 21, 22]
    assert steps == [2, 12, 22]


def same(first, second):
    return type(first) is type(second) and all(
        np.array_equal(value, vars(second)[name], equal_nan=True) and value.dtype == vars(second)[name].dtype
        if isinstance(value, np.ndarray)
        else repr(value) == repr(vars(second)[name])
        for name, value in vars(first).items()
    )


def assert_same(first, second):
    assert [step for step, _ in first] == [step for step, _ in second]
    assert first
    for (_, one), (_, other) in zip(first, second, strict=True):
        assert same(one, other), (one, other)


def run(steps, sync="immediate", run_dir=None, save_at=None, **monitor):
    torch.manual_seed(0)
    model = mlp(nn.ReLU(), nn.Tanh())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
    guard = gradguard.attach(model, optimizer, policy(sync, **monitor), run_dir=run_dir)
    seen = []
    for step in range(steps):
        if step == save_at:
            file = io.BytesIO()
            torch.save([model.state_dict(), optimizer.state_dict(), guard.state_dict()], file)
            file.seek(0)
            seen = seen_by(guard)
            guard.close()
            saved = torch.load(file, weights_only=True)
            model = mlp(nn.ReLU(), nn.Tanh())
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
            model.load_state_dict(saved[0])
            optimizer.load_state_dict(saved[1])
            guard = gradguard.attach(model, optimizer, policy(sync, **monitor))
            guard.load_state_dict(saved[2])
        train(model, optimizer, lambda _, s=step: draw(70, 8)(s), 1, guard)
    guard.close()
    return seen + seen_by(guard)


@pytest.mark.parametrize("updates", ["sampled", "every_step"])
def test_the_device_first_sees_the_same(updates):
    assert_same(run(40, updates=updates), run(40, "deferred", updates=updates))


def test_the_record_gives_back_what_the_diagnoses_were_told(tmp_path):
    seen = run(40, run_dir=tmp_path / "run")
    recorded = gradguard.read_run(tmp_path / "run")
    told = [(step, what) for kind in (recorded.activations, recorded.updates) for step, what in kind.items()]
    assert recorded.problems == []
    key = lambda item: (item[0], type(item[1]).__name__)  # noqa: E731
    assert_same(sorted(seen, key=key), sorted(told, key=key))


def test_a_damaged_line_of_the_record_is_told_and_the_others_are_read(tmp_path):
    run(40, run_dir=tmp_path / "run")
    file = tmp_path / "run" / "probes.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    places = [place for place, line in enumerate(lines) if '"like"' in line][:2]
    lines[places[0]] = '{"at":3,"kind":"else"}\n'
    lines[places[1]] = "torn\n"
    file.write_text("".join(lines)[:-5])
    recorded = gradguard.read_run(tmp_path / "run")
    assert [problem.line for problem in recorded.problems] == [place + 1 for place in places]
    assert len(recorded.activations) + len(recorded.updates) == len(lines) - 3


def test_what_goes_on_from_a_damaged_line_is_told_with_it(tmp_path):
    run(40, run_dir=tmp_path / "run")
    file = tmp_path / "run" / "probes.jsonl"
    whole, *others = [json.loads(line) for line in file.read_text().splitlines() if '"updates"' in line]
    file.write_text(file.read_text().replace(f'"at":{whole["at"]},"kind":"updates"', '"at":1,"kind":"else"', 1))
    recorded = gradguard.read_run(tmp_path / "run")
    assert len(recorded.problems) == 1 + len(others) > 1
    assert "which this one goes on from, cannot be read" in str(recorded.problems[1])
    assert not recorded.updates
    assert recorded.activations


def test_norms_of_weights_stand_in_the_notes_and_are_unknown_without_them(tmp_path):
    run(40, run_dir=tmp_path / "run")
    before = gradguard.read_run(tmp_path / "run").updates
    assert '"weight_norms":{"note":' in (tmp_path / "run" / "probes.jsonl").read_text()
    (tmp_path / "run" / "replay.jsonl").unlink()
    recorded = gradguard.read_run(tmp_path / "run")
    assert list(recorded.updates) == list(before)
    for step, seen in recorded.updates.items():
        np.testing.assert_array_equal(seen.update_norms, before[step].update_norms)
        assert np.isnan(seen.weight_norms).all()
        assert np.isfinite(before[step].weight_norms).all()
    (problem,) = recorded.problems
    assert "norms of weights cannot be read: they stand in line" in str(problem)


@pytest.mark.parametrize("sync", ["immediate", "deferred"])
@pytest.mark.parametrize("save_at", [1, 2, 3, 10, 11, 12, 13, 20])
def test_a_resumed_run_sees_the_same(save_at, sync):
    assert_same(run(30, sync), run(30, sync, save_at=save_at))


def test_observing_probes_too():
    model = mlp(nn.ReLU())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rules = policy().rules
    with gradguard.attach(model, optimizer, gradguard.Policy(mode="observe", rules=rules, sinks=[])) as guard:
        train(model, optimizer, draw(256, 8), 3, guard)
        assert len(seen_by(guard)) == 2


def test_probes_are_fresh_on_one_step_only():
    assert Witness.reads == {"activations", "updates"}
    steps = [step for step, seen in run(12) if type(seen).__name__ == "Activations"]
    assert len(steps) == len(set(steps))
