"""Every remedy fires through a policy and is on record, and a run saved after it fired goes on as if never saved.

Guards that were never seen to fire are the ones that turn out broken when they must.
"""

import copy
import io
import math

import pytest
import torch
from guarded import noise
from torch import nn

import gradguard
from gradguard.contracts import REMEDIES
from gradguard.records import Event


NONFINITE, EXPLODING, DEAD = "nonfinite", "exploding_gradient", "dead_units"
FIRST, SAVED, SECOND, END = 30, 40, 50, 70
# The diagnosis that fires each remedy, and its options.
FIRED_BY = {
    "clip_adaptive": (EXPLODING, {}),
    "capture": (EXPLODING, {}),
    "damp_optimizer_state": (EXPLODING, {"factor": 0.5}),
    "scale_weight_decay": (EXPLODING, {"factor": 0.0, "recover_steps": 40}),
    "reinitialize": (EXPLODING, {"scheme": "lsuv"}),
    "replace_activation": (EXPLODING, {"kinds": ["tanh"], "to": "elu"}),
    "clip_norm": (EXPLODING, {"max_norm": {"median_times": 3}}),
    "revive_units": (DEAD, {}),
    "clip_value": (EXPLODING, {"max_value": 0.1}),
    "drop_microbatch": (NONFINITE, {}),
    "keep_clipping": (EXPLODING, {"max_norm": {"median_times": 2}, "steps": 30}),
    "notify": (EXPLODING, {}),
    "rebaseline": (EXPLODING, {}),
    "rescale": (EXPLODING, {"factor": 0.01}),
    "restart": (NONFINITE, {}),
    "rollback": (NONFINITE, {}),
    "scale_lr": (EXPLODING, {"factor": 0.5, "recover_steps": 40}),
    "skip_step": (NONFINITE, {}),
    "stop": (NONFINITE, {}),
    "zero_nonfinite": (NONFINITE, {}),
}


SURGERY = {name for name in FIRED_BY if REMEDIES.get(name).kind == "surgery"}
LATER = {"revive_units": 7}  # steps that a probe takes until it has seen enough


class Job:
    """A training that can be saved and resumed, with one fault at each of two steps."""

    def __init__(self, remedy, run_dir):
        self.diagnosis, options = FIRED_BY[remedy]
        policy = {"rules": [{"when": self.diagnosis, "do": {remedy: options}}], "monitor": {"probe_every": 10}}
        torch.manual_seed(0)
        act = nn.ReLU() if self.diagnosis == DEAD else nn.Tanh()
        self.model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), act, nn.Linear(6, 1))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-2)
        self.scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.99)
        policy = gradguard.Policy.model_validate(policy)
        self.guard = gradguard.attach(self.model, self.optimizer, policy, run_dir=run_dir)

    def train(self, start, end):
        for step in range(start, end):
            self.optimizer.zero_grad()
            if step in (FIRST, SECOND) and self.diagnosis == DEAD:
                nn.init.constant_(self.model[1].bias, -100.0)
            inputs = noise(step, 16, 4)
            loss = (self.model(inputs) - inputs[:, :1]).square().mean()
            if step in (FIRST, SECOND) and self.diagnosis != DEAD:
                loss = loss * (math.nan if self.diagnosis == NONFINITE else 1e6)
            loss.backward()
            self.guard.observe(loss)
            self.optimizer.step()
            self.scheduler.step()

    def parts(self):
        return {"model": self.model, "optimizer": self.optimizer, "scheduler": self.scheduler, "guard": self.guard}

    def save(self):
        file = io.BytesIO()
        torch.save({name: part.state_dict() for name, part in self.parts().items()}, file)
        file.seek(0)
        return torch.load(file, weights_only=True)

    def resume(self, saved):
        for name, part in self.parts().items():
            part.load_state_dict(copy.deepcopy(saved[name]))

    def story(self, since=0):
        """What was done from a step on, without the place and the time of the record."""
        return [
            record.model_dump(exclude={"seq", "time"})
            for record in self.guard.records
            if record.step >= since and not isinstance(record, Event) and record.kind != "outcome"
        ]


def test_none_is_forgotten_here():
    assert sorted(FIRED_BY) == REMEDIES.names()


@pytest.mark.parametrize("remedy", FIRED_BY)
def test_it_fires_and_a_run_that_was_saved_afterwards_decides_and_trains_on_bit_by_bit(remedy, bits, tmp_path):
    job = Job(remedy, tmp_path / "first")
    if remedy == "stop":
        with pytest.raises(gradguard.TrainingStopped):
            job.train(0, END)
        assert [(record["step"], record["remedy"]) for record in job.story()] == [(FIRST, "stop")]
        return
    job.train(0, SAVED)
    assert [(record["step"], record["remedy"]) for record in job.story()] == [(FIRST + LATER.get(remedy, 0), remedy)]
    saved = job.save()
    job.train(SAVED, END)
    assert job.story(SAVED) or remedy == "rebaseline" or remedy in SURGERY  # which starts the baselines afresh
    resumed = Job(remedy, tmp_path / "second")
    resumed.resume(saved)
    resumed.train(SAVED, END)
    assert repr(resumed.story(SAVED)) == repr(job.story(SAVED))  # NaN in the evidence does not equal itself
    assert bits(resumed.model, resumed.optimizer) == bits(job.model, job.optimizer)
