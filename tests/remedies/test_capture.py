"""A capture holds what it takes to take the bad step again, elsewhere; and costs no more than that."""

import copy
import math
import os

import pytest
import torch
from aim import aim, finding_about
from guarded import noise
from torch import nn
from torch.optim.swa_utils import AveragedModel

import gradguard
from gradguard.cli import main
from gradguard.contracts import REMEDIES, Unavailable


Capture = REMEDIES.get("capture")


class Net(nn.Module):
    """With everything that a forward pass can depend on, and an output that grows with the input."""

    def __init__(self):
        super().__init__()
        self.first = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Dropout(0.5))
        self.last = nn.Linear(8, 1)

    def forward(self, inputs):
        return 0.1 * self.last(self.first(inputs)) + inputs.sum(1, keepdim=True)


def build():
    torch.manual_seed(0)
    return Net()


def loss_of(model, inputs):
    """Of an output above 1 the root has an infinite slope and what is under it none: a NaN gradient, a finite loss."""
    outputs = model(inputs)
    return torch.where(outputs < 1.0, 1.0 - outputs, 0.0 * outputs).sqrt().mean()


class Run:
    def __init__(self, run_dir, do=("capture", "skip_step"), micro_batches=1, **options):
        self.model = build()
        self.averaged = AveragedModel(self.model)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01)
        policy = gradguard.Policy(rules=[{"when": "nonfinite", "do": list(do)}], sinks=[])
        self.guard = gradguard.attach(
            self.model, self.optimizer, policy, run_dir=run_dir, also={"ema": self.averaged}, **options
        )
        self.micro_batches = micro_batches
        self.before = None

    def train(self, steps, bad=(12,)):
        for step in steps:
            self.before = copy.deepcopy((self.model.state_dict(), self.optimizer.state_dict()))
            self.optimizer.zero_grad()
            for part in range(self.micro_batches):
                inputs = noise(step * 10 + part, 16, 3) * (30.0 if step in bad and part == 0 else 0.1)
                loss = loss_of(self.model, inputs)
                loss.backward()
                self.guard.observe(loss, sample_ids=[step, part])
            self.gradients = [param.grad.clone() for param in self.model.parameters()]
            self.optimizer.step()
        return self

    def captured(self):
        return [record for record in self.guard.records if record.kind == "intervention" and record.remedy == "capture"]


def load(run, record):
    return torch.load(os.path.join(run.guard.run_dir, record.change.after["file"]), weights_only=True)


@pytest.mark.parametrize("micro_batches", [1, 3])
def test_the_step_can_be_taken_again_from_it_bit_for_bit(micro_batches, tmp_path):
    run = Run(tmp_path / "run", micro_batches=micro_batches).train(range(13))
    (record,) = run.captured()
    found = load(run, record)
    assert len(found["passes"]) == micro_batches
    torch.manual_seed(99)
    model = build()
    model.load_state_dict(found["model"])
    for call in found["passes"]:
        torch.set_rng_state(call["random"]["cpu"])
        loss_of(model, *call["args"]).backward()
    again = [param.grad for param in model.parameters()]
    assert any(bool(grad.isnan().any()) for grad in again)
    torch.testing.assert_close(again, run.gradients, rtol=0, atol=0, equal_nan=True)


def test_it_holds_the_state_from_before_the_step(tmp_path):
    """BatchNorm's statistics too, which the bad forward pass has moved by then."""
    run = Run(tmp_path / "run").train(range(13))
    found = load(run, run.captured()[0])
    torch.testing.assert_close((found["model"], found["optimizer"]), run.before, rtol=0, atol=0)
    torch.testing.assert_close(found["also"]["ema"], dict(run.averaged.state_dict()), rtol=0, atol=0)


def test_it_says_what_was_wrong_and_with_which_samples(tmp_path):
    run = Run(tmp_path / "run").train(range(13))
    found = load(run, run.captured()[0])
    assert (found["step"], found["sample_ids"], found["loss_scale"]) == (12, [12, 0], 1.0)
    assert math.isfinite(found["loss"])
    assert '"diagnosis":"nonfinite"' in found["finding"]
    assert found["gradients"]["names"] == [name for name, _ in run.model.named_parameters()]
    assert bool(found["gradients"]["norm"].isnan().any())


def test_show_names_the_file(tmp_path, capsys):
    run = Run(tmp_path / "run").train(range(13))
    run.guard.close()
    assert main(["show", run.guard.run_dir, "--step", "12"]) == 0
    assert "capture: captures/step-00000012.pt written" in capsys.readouterr().out


def test_nothing_is_changed_and_the_run_is_the_same_with_it(tmp_path, bits):
    plain, watched = Run(None, do=["skip_step"]), Run(tmp_path / "run")
    for run in (plain, watched):
        torch.manual_seed(5)
        run.train(range(20))
    assert watched.captured()
    assert bits(watched.model, watched.optimizer) == bits(plain.model, plain.optimizer)


def test_no_more_are_written_than_the_limit_says_even_after_a_resume(tmp_path):
    run = Run(tmp_path / "run", do=[{"capture": {"limit": 2}}, "skip_step"]).train(range(20), bad={12})
    saved = copy.deepcopy(run.guard.state_dict())
    resumed = Run(tmp_path / "run", do=[{"capture": {"limit": 2}}, "skip_step"])
    resumed.guard.load_state_dict(saved)
    resumed.train(range(20, 40), bad={22, 24, 26})
    assert [record.step for record in resumed.captured()] == [22]
    withheld = [record for record in resumed.guard.records if record.kind == "withheld"]
    assert {record.detail for record in withheld} == {"2 captures were written already, the limit is 2"}
    assert [record.step for record in withheld] == [24, 26]


def test_inputs_are_let_go_of_when_their_step_is_over(tmp_path):
    run = Run(tmp_path / "run").train(range(5))
    passes = run.guard._pipeline.target.captures.inputs.passes
    assert len(passes) == 0
    run.model.eval()
    run.model(noise(0, 4, 3))
    run.model.train()
    with torch.no_grad():
        run.model(noise(0, 4, 3))
    assert len(passes) == 0
    run.model(noise(0, 4, 3))
    assert len(passes) == 1
    run.guard.close()
    assert len(passes) == 0
    run.model(noise(0, 4, 3))
    assert len(passes) == 0


@pytest.mark.parametrize("rule", [{"do": "skip_step"}, {"do": "capture"}])
def test_a_hook_is_on_the_model_only_when_a_rule_names_it(rule):
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard = gradguard.attach(model, optimizer, gradguard.Policy(rules=[{"when": "loss_spike", **rule}], sinks=[]))
    assert len(model._forward_pre_hooks) == (rule["do"] == "capture")
    assert copy.deepcopy(model)(noise(0, 2, 3)).shape == (2, 1)
    guard.close()
    assert not model._forward_pre_hooks


def test_a_model_that_is_never_called_itself_gives_a_capture_without_inputs(tmp_path):
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    policy = gradguard.Policy(rules=[{"when": "nonfinite", "do": ["capture", "skip_step"]}], sinks=[])
    with gradguard.attach(model, optimizer, policy, run_dir=tmp_path / "run") as guard:
        model.first(noise(0, 2, 3) * math.nan).sum().backward()
        optimizer.step()
        summary = guard.last.interventions[0].change.summary
    assert "with no inputs, as no call of the model was seen" in summary


def test_without_a_run_directory_it_says_so_at_attach_and_at_the_step():
    run = Run(None).train(range(13))
    assert "no captures: they are files of a run_dir" in run.guard.records[0].data["notes"]
    details = [record.detail for record in run.guard.records if record.kind == "withheld"]
    assert details == ["a capture is a file in the run directory, and there is none: pass run_dir= to attach"]


def test_its_size_is_told_at_attach(tmp_path):
    notes = Run(tmp_path / "run").guard.records[0].data["notes"]
    assert any(note.startswith("a capture takes ") for note in notes)


def test_where_the_disk_does_not_take_it_training_goes_on_and_the_record_says_why(tmp_path):
    run = Run(tmp_path / "run")
    (tmp_path / "run" / "captures").write_text("a file where the folder should be")
    run.train(range(14))
    details = [record.detail for record in run.guard.records if record.kind == "withheld"]
    assert len(details) == 1
    assert details[0].startswith("the capture could not be written: ")
    assert run.guard.step == 14


def test_a_rule_for_nothing_that_is_kept_is_unavailable():
    with pytest.raises(Unavailable, match="pass run_dir="):
        Capture().apply(aim(torch.ones(2)), finding_about(), None)


def test_a_fault_of_the_hook_costs_the_inputs_and_nothing_else(tmp_path, monkeypatch):
    from gradguard.model import forward_inputs

    def broken():
        raise RuntimeError("broken on purpose")

    run = Run(tmp_path / "run")
    monkeypatch.setattr(forward_inputs, "torch_random_state", broken)
    run.train(range(13))
    faults = [record.message for record in run.guard.records if getattr(record, "event", "") == "internal_error"]
    assert len(faults) == 1
    assert "keeping the model's inputs" in faults[0]
    assert "no inputs" in run.captured()[0].change.summary
