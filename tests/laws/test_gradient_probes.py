"""The statistics that a guard takes of gradients: when, of what, and that the training does not notice."""

import math
import os
import resource
import signal
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import gradguard
from gradguard.audit.verify import verify_run
from gradguard.evidence.stats import StepStats
from gradguard.gradients.columns import gradient_columns
from gradguard.gradients.full_statistics import measure
from gradguard.gradients.monitor import Monitor
from gradguard.probes.entry_sample import NUM_SAMPLED
from gradguard.probes.gradient_probe import GradientProbe
from gradguard.record.directory import RunDirectory
from gradguard.record.recorder import Recorder


RULES = [{"when": "nonfinite", "do": "skip_step"}, {"when": "always", "do": {"clip_norm": {"max_norm": 1e-3}}}]


def policy(statistics="sampled", probe_every=10, rules=()):
    monitor = {"statistics": statistics, "probe_every": probe_every}
    return gradguard.Policy(monitor=monitor, rules=list(rules), sinks=[])


class Training:
    """Dropout draws from torch's global generator, so that a number drawn elsewhere would change all that follows."""

    def __init__(self, run_dir=None, policy=None, is_guarded=True):
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 400), nn.Dropout(0.3), nn.Linear(400, 200), nn.Linear(200, 1))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.guard = gradguard.attach(self.model, self.optimizer, policy, run_dir=run_dir) if is_guarded else None
        self.seen = []

    def step(self, value=1.0):
        self.optimizer.zero_grad()
        (self.model(torch.randn(8, 4)) * value).square().mean().backward()
        self.seen.append([param.grad.clone() for param in self.model.parameters()])
        self.optimizer.step()

    def run(self, num_steps):
        for _ in range(num_steps):
            self.step()
        return self


@pytest.mark.parametrize("statistics", ["sampled", "exact"])
def test_a_probed_run_is_bit_identical_and_draws_no_random_number(statistics, bits, tmp_path):
    guarded = Training(tmp_path / "run", policy(statistics, 3)).run(20)
    free_state = torch.get_rng_state()
    free = Training(is_guarded=False).run(20)
    assert bits(guarded.model, guarded.optimizer) == bits(free.model, free.optimizer)
    assert torch.equal(free_state, torch.get_rng_state())


@pytest.mark.parametrize(("statistics", "sample"), [("sampled", NUM_SAMPLED), ("exact", None)])
def test_the_gradients_are_recorded_as_they_were_before_any_remedy(statistics, sample, tmp_path):
    training = Training(tmp_path / "run", policy(statistics, 10, RULES)).run(25)
    training.guard.close()
    run = gradguard.read_run(tmp_path / "run")
    found = run.gradients
    assert found["step"].tolist() == [0, 10, 20]
    for row, step in enumerate(found["step"]):
        expected = measure(run.parameters, training.seen[step], int(step), sample)
        for name in ("mean", "std", "max", "min", "zero_ratio", "norm"):
            rtol = 4e-6 if sample and name in ("norm", "std") else 0.0  # the norm is the one that the step took
            np.testing.assert_allclose(found[name][row], getattr(expected, name).astype(np.float32), rtol=rtol)
        np.testing.assert_allclose(found["histogram"][row], expected.histogram, rtol=0.045)
    assert verify_run(tmp_path / "run") == []


def test_none_writes_nothing(tmp_path):
    Training(tmp_path / "run", policy("none")).run(3).guard.close()
    assert not (tmp_path / "run" / "gradients").exists()
    assert len(gradguard.read_run(tmp_path / "run").gradients["step"]) == 0


def test_without_a_run_directory_nothing_is_measured():
    training = Training(None, policy("exact", 1))
    calls = count(training.run(1).step)
    assert "bincount" not in calls


def count(work):
    """Return the names of torch's operations that `work` runs."""
    names = []

    class Counting(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            names.append(func.overloadpacket.__name__)
            return func(*args, **(kwargs or {}))

    with Counting():
        work()
    return names


def test_between_probes_a_step_does_what_it_does_without_statistics(tmp_path):
    probed, free = Training(tmp_path / "a", policy("exact", 50)), Training(tmp_path / "b", policy("none", 50))
    for training in (probed, free):
        training.run(3)
    assert count(probed.step) == count(free.step)


@pytest.mark.parametrize("sample", [None, NUM_SAMPLED])
def test_measuring_never_waits_for_a_number(sample):
    grads = [torch.randn(3), torch.randn(300, 300), torch.randn(70_000).to(torch.bfloat16), None]
    assert "_local_scalar_dense" not in count(lambda: gradient_columns(grads, 0, sample))


def test_a_resumed_run_probes_at_the_same_steps_with_the_same_samples(tmp_path):
    whole = Training(tmp_path / "whole", policy("sampled", 10)).run(25)
    whole.guard.close()
    first = Training(tmp_path / "first", policy("sampled", 10)).run(14)
    saved = first.model.state_dict(), first.optimizer.state_dict(), first.guard.state_dict()
    rng = torch.get_rng_state()
    second = Training(tmp_path / "second", policy("sampled", 10))
    second.model.load_state_dict(saved[0])
    second.optimizer.load_state_dict(saved[1])
    second.guard.load_state_dict(saved[2])
    torch.set_rng_state(rng)
    second.run(11).guard.close()
    expected, found = (
        gradguard.read_run(tmp_path / "whole").gradients,
        gradguard.read_run(tmp_path / "second").gradients,
    )
    assert found["step"].tolist() == [20]
    for name in expected:
        np.testing.assert_array_equal(found[name][0], expected[name][2])


def test_going_back_to_an_earlier_state_probes_its_steps_again(tmp_path):
    training = Training(tmp_path / "run", policy("sampled", 10)).run(5)
    saved = training.guard.state_dict()
    training.run(20)
    training.guard.load_state_dict(saved)
    training.run(10)
    training.guard.close()
    assert gradguard.read_run(tmp_path / "run").gradients["step"].tolist() == [0, 10, 20, 10]
    assert verify_run(tmp_path / "run") == []


def test_a_loss_scale_that_is_still_in_the_gradients_is_taken_out(tmp_path):
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    guard = gradguard.attach(model, optimizer, policy(), run_dir=tmp_path / "run", scaler=scaler)
    loss = model(torch.randn(8, 4)).square().mean()
    scaler.scale(loss).backward()
    expected = measure(["weight", "bias"], [param.grad / 1024 for param in model.parameters()], 0, None)
    scaler.step(optimizer)
    scaler.update()
    guard.close()
    found = gradguard.read_run(tmp_path / "run").gradients
    for name in ("mean", "std", "max", "min", "zero_ratio", "norm"):
        np.testing.assert_allclose(found[name][0], getattr(expected, name), rtol=1e-6)
    np.testing.assert_allclose(found["histogram"][0], expected.histogram, rtol=0.045)


def test_bad_entries_at_a_probe_are_told_and_raise_nothing(tmp_path):
    training = Training(tmp_path / "run", policy("sampled", 1, RULES))
    for value in (1.0, math.nan, 1.0):
        training.step(value)
    training.guard.close()
    run = gradguard.read_run(tmp_path / "run")
    assert np.isnan(run.gradients["mean"]).all(axis=1).tolist() == [False, True, False]
    assert np.isnan(run.gradients.edges()[1]).all()
    assert [record.step for record in run.interventions] == [1]
    assert run.events[-1].event != "fault"


def test_absent_gradients_and_added_parameters(tmp_path):
    model, late = nn.ModuleList([nn.Linear(2, 1), nn.Linear(2, 1)]), nn.Linear(2, 1)
    model.append(late)
    optimizer = torch.optim.SGD(model[:2].parameters(), lr=0.1)
    with gradguard.attach(model, optimizer, policy("sampled", 1), run_dir=tmp_path / "run"):
        for added in (False, True):
            if added:
                optimizer.add_param_group({"params": list(late.parameters())})
            optimizer.zero_grad()
            (model[0](torch.ones(1, 2)) + late(torch.ones(1, 2))).sum().backward()
            optimizer.step()
    norms = gradguard.read_run(tmp_path / "run").gradients["norm"]
    assert (norms >= 0).tolist() == [[True, True, False, False, False, False], [True, True, False, False, True, True]]


def test_a_full_disk_costs_rows_and_never_the_training(bits, lines, tmp_path):
    free = Training(is_guarded=False).run(30)
    training = Training(tmp_path / "run", policy("sampled", 1)).run(10)
    path = tmp_path / "run" / "gradients" / "000000.npy"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 30, before[1]))
    try:
        training.run(10)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    training.run(10)
    training.guard.close()
    assert bits(training.model, training.optimizer) == bits(free.model, free.optimizer)
    assert gradguard.read_run(tmp_path / "run").gradients["step"].tolist() == list(range(30))
    assert len([line for line in lines if "statistics of gradients" in line]) == 1


def test_a_fault_of_the_probe_is_told_once_and_ends_the_probes(tmp_path):
    class Unreadable(torch.Tensor):
        device_mesh = None

        def full_tensor(self):
            raise MemoryError("no room to gather it")

    model = nn.Linear(2, 1)
    monitor = Monitor(model, torch.optim.SGD(model.parameters(), lr=0.1), ["*"])
    model.weight.grad = torch.ones(1, 2).as_subclass(Unreadable)
    told = []
    recorder = Recorder(RunDirectory.create(tmp_path / "run"), [], lambda *fault: None)
    recorder.write_layout(monitor.table)
    probe = GradientProbe(policy().monitor, recorder, lambda *fault: told.append(fault))
    for step in range(25):
        if step >= probe.next_step:
            probe.take(step, monitor, StepStats(len(monitor.table)), 1.0)
    recorder.finish("closed")
    ((what, error),) = told
    assert what == "taking the statistics of gradients"
    assert isinstance(error, MemoryError)


KILLED = """
import os, signal, sys
import torch
from torch import nn
import gradguard
model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
policy = gradguard.Policy(monitor={"probe_every": 5}, sinks=[])
gradguard.attach(model, optimizer, policy, run_dir=sys.argv[1])
for step in range(23):
    optimizer.zero_grad()
    model(torch.ones(2, 3)).square().mean().backward()
    optimizer.step()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_rows_outlive_a_process_that_was_killed(tmp_path):
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "run")], capture_output=True, env=os.environ)
    assert done.returncode == -signal.SIGKILL
    run = gradguard.read_run(tmp_path / "run")
    assert run.gradients["step"].tolist() == [0, 5, 10, 15, 20]
    assert (run.gradients["norm"] > 0).all()
    assert [problem for problem in verify_run(tmp_path / "run") if problem.file.startswith("gradients")] == []
