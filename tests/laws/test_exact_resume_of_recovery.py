"""A run that goes back, restarts, captures and drops micro-batches can be killed at any step and is the same after."""

import io
import math
from functools import cache

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.optim.swa_utils import AveragedModel

import gradguard


STEPS = 110
PARTS = 2
NAN_PARTS = {(8, 0), (21, 1), (47, 0), (90, 1)}
# Both parts: skipped, then rolled back, further back at once, and restarted from the start.
NAN_STEPS = {15, *range(50, 63), 80, 81}


def policy(where):
    return gradguard.Policy(
        horizon=15,
        snapshots={"every": 8, "keep": 3, "rng": True, "where": where},
        rules=[
            {
                "name": "parts",
                "when": {"nonfinite": {"where": "microbatch"}},
                "do": ["drop_microbatch", {"capture": {"limit": 3}}],
                "min_severity": "warn",
                "escalate": [
                    {"after": 2, "within": 4, "do": ["rollback", {"scale_lr": {"factor": 0.5, "recover_steps": 20}}]},
                    {
                        "after": 3,
                        "within": 20,
                        "do": [{"restart": {"schedule": "restart"}}, {"keep_clipping": {"max_norm": 1.0, "steps": 9}}],
                    },
                ],
            },
            {"name": "all", "when": {"nonfinite": {"where": "batch"}}, "do": "skip_step"},
        ],
        sinks=[],
    )


class Training:
    def __init__(self, where, run_dir):
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Dropout(0.3), nn.Tanh(), nn.Linear(5, 1))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.schedule = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, gamma=0.99)
        self.averaged = AveragedModel(self.model)
        also = {"schedule": self.schedule, "ema": self.averaged}
        self.guard = gradguard.attach(self.model, self.optimizer, policy(where), run_dir=run_dir, also=also)
        self.told = []

    def run(self, steps):
        for step in steps:
            self.optimizer.zero_grad()
            for part in range(PARTS):
                inputs = torch.randn(8, 4, generator=torch.Generator().manual_seed(PARTS * step + part))
                is_bad = (step, part) in NAN_PARTS or step in NAN_STEPS
                loss = (self.model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
                (loss * (math.nan if is_bad else 1.0) / PARTS).backward()
                self.guard.observe(loss)
            self.optimizer.step()
            self.averaged.update_parameters(self.model)
            self.schedule.step()
            last = self.guard.last
            self.told.append(repr((last.step, last.skipped, last.lr_factor, last.clip_coef, story(last.records))))
        return self

    def parts(self):
        return {name: getattr(self, name) for name in ("model", "optimizer", "schedule", "averaged", "guard")}

    def save(self):
        file = io.BytesIO()
        torch.save(
            {"random": torch.get_rng_state(), **{name: part.state_dict() for name, part in self.parts().items()}}, file
        )
        file.seek(0)
        return file

    def load(self, file):
        saved = torch.load(file, weights_only=True)
        for name, part in self.parts().items():
            part.load_state_dict(saved[name])
        torch.set_rng_state(saved["random"])


def story(records):
    """Records without their place in the file, the time, and the size of a file, which holds counters of the writer."""
    return [
        record.model_copy(update={"seq": 0, "time": ""}).model_dump(exclude={"change": {"after": {"bytes"}}})
        if record.kind == "intervention"
        else record.model_copy(update={"seq": 0, "time": ""})
        for record in records
    ]


@pytest.fixture(scope="module")
def uninterrupted(bits, tmp_path_factory):
    """Function: where snapshots lie -> (the training at its end, its bits)."""

    @cache
    def result(where):
        training = Training(where, tmp_path_factory.mktemp("whole") / "run").run(range(STEPS))
        return training, bits(training.model, training.averaged, training.optimizer)

    return result


@settings(max_examples=6, deadline=None, derandomize=True)
@given(stop=st.integers(0, STEPS), where=st.sampled_from(["memory", "disk"]))
@example(stop=9, where="memory")
@example(stop=52, where="memory")
@example(stop=56, where="disk")
@example(stop=82, where="disk")
def test_a_resumed_run_is_the_uninterrupted_one(bits, uninterrupted, tmp_path_factory, stop, where):
    whole, expected = uninterrupted(where)
    folder = tmp_path_factory.mktemp("halves")
    first = Training(where, folder / "first").run(range(stop))
    file = first.save()
    first.run(range(stop, min(stop + 30, STEPS)))  # what is saved must outlive what the dying run still does
    second = Training(where, folder / "second")
    torch.rand(stop)
    second.load(file)
    second.run(range(stop, STEPS))
    assert first.told[:stop] == whole.told[:stop]
    assert second.told == whole.told[stop:]
    assert bits(second.model, second.averaged, second.optimizer) == expected


@pytest.mark.parametrize("where", ["memory", "disk"])
def test_the_run_that_is_resumed_is_an_eventful_one(uninterrupted, where):
    """So that the law above is put to the test at all."""
    training, _ = uninterrupted(where)
    acted = [record for record in training.guard.records if record.kind == "intervention"]
    assert {"drop_microbatch", "capture", "rollback", "restart", "keep_clipping", "scale_lr"} <= {
        record.remedy for record in acted
    }
    gone_to = [record.change.after["step"] for record in acted if record.remedy == "rollback"]
    assert len(set(gone_to)) > 1
    assert [record.change.after["schedule"] for record in acted if record.remedy == "restart"]
