"""With `sync: deferred` a healthy step makes nobody wait for the device."""

import pytest
import torch
from deferring import FUSED, Net, batch, policy_of
from probing import policy
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import gradguard


PRESETS = ["default", "pretrain", "finetune", "rnn"]


class Waiting(TorchDispatchMode):
    """Lists what makes the host wait for the device, while it is on: what hands a value over, at every level of torch.

    A copy that does not block is no wait, and reading it at a later step is none either.
    """

    def __init__(self, monkeypatch):
        super().__init__()
        self.waits = []
        self.sent = []
        for name in ("item", "tolist", "__bool__", "__float__", "__int__", "__index__", "cpu", "numpy", "to"):
            monkeypatch.setattr(Tensor, name, self.noting(name, getattr(Tensor, name)))

    def noting(self, name, known):
        def call(tensor, *args, **kwargs):
            result = known(tensor, *args, **kwargs)
            if name == "to":
                is_to_host = any(isinstance(arg, str) and arg == "cpu" for arg in args)  # torch's kernels name a device
                if is_to_host and kwargs.get("non_blocking"):
                    self.sent.append((len(self.waits), result))
                elif is_to_host:
                    self.waits[-1].append("to cpu")
            elif name != "numpy" or not any(t is tensor and step < len(self.waits) for step, t in self.sent):
                self.waits[-1].append(name)
            return result

        return call

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.__name__.partition(".")[0] in ("_local_scalar_dense", "is_nonzero", "equal", "nonzero"):
            self.waits[-1].append(func.__name__)
        return func(*args, **(kwargs or {}))


def waits(policy, sync, make, steps=90, **options):
    """Return what made the host wait from `observe` to the end of each step."""
    torch.manual_seed(0)
    model = Net()
    optimizer = make(model.parameters())
    chosen = policy if isinstance(policy, gradguard.Policy) else policy_of(policy, sync, **options)
    guard = gradguard.attach(model, optimizer, chosen)
    with pytest.MonkeyPatch.context() as monkeypatch:
        waiting = Waiting(monkeypatch)
        for step in range(steps):
            optimizer.zero_grad()
            loss = (model(batch(step)) - batch(step).sum(1, keepdim=True)).square().mean()
            loss.backward()
            waiting.waits.append([])
            with waiting:
                guard.observe(loss)
                optimizer.step()
    guard.close()
    return waiting.waits


PLAIN = [
    {"when": "nonfinite", "do": "skip_step"},
    {"when": "exploding_gradient", "do": {"clip_norm": {"max_norm": {"median_times": 3}}}},
    {"when": "loss_spike", "do": "skip_step"},
    {"name": "always", "when": "always", "do": {"clip_norm": {"max_norm": 1.0}}},
]


@pytest.mark.parametrize("optimizer", sorted(FUSED))
def test_a_healthy_step_makes_nobody_wait_but_the_first(optimizer):
    """Nine probes are among them; without `deferred` every step waits."""
    monitor = {"probe_every": 10, "sync": "deferred"}
    found = waits(PLAIN, "deferred", FUSED[optimizer], monitor=monitor)
    assert found[0]
    assert [step for step, reasons in enumerate(found) if reasons] == [0]
    assert all(waits(PLAIN, "immediate", FUSED[optimizer], steps=20))


def test_probes_of_activations_and_updates_make_nobody_wait():
    monitor = {"probe_every": 10, "sync": "deferred"}
    plain = policy_of(PLAIN, "deferred", monitor=monitor)
    found = waits(plain.model_copy(update={"rules": (*plain.rules, *policy().rules)}), "deferred", FUSED["adamw"])
    assert [step for step, reasons in enumerate(found) if reasons] == [0]


@pytest.mark.parametrize("preset", PRESETS)
def test_what_waits_in_a_preset_are_the_steps_after_which_a_snapshot_is_taken_or_confirmed(preset):
    found = waits(preset, "deferred", FUSED["adamw"])
    assert [step for step, reasons in enumerate(found) if reasons][:6] == [0, 9, 19, 29, 39, 49]
    assert sum(map(bool, found)) < 12


@pytest.mark.parametrize("make", [torch.optim.RMSprop, torch.optim.Adadelta, FUSED["adamw"]])
def test_only_observing_makes_nobody_wait_whatever_the_optimizer(make):
    found = waits("observe", "deferred", make)
    assert [step for step, reasons in enumerate(found) if "to cpu" in reasons or "numpy" in reasons] == [0]
