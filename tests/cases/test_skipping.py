"""A skipped step is no step: nothing moves, nothing stays behind, and whoever asks is told."""

import math

import pytest
import torch
from guarded import noise, train, without
from torch import nn

import gradguard


def linear(optimizer, bad):
    """A linear regression; the targets of some steps are NaN."""

    def make():
        model = nn.Linear(3, 1)

        def loss_at(step):
            inputs = noise(step, 8, 3)
            return (model(inputs) - inputs.sum(1, keepdim=True)).square().mean() * (math.nan if step in bad else 1.0)

        return model, optimizer(model.parameters()), loss_at

    return make


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
        lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.1),
        lambda p: torch.optim.AdamW(p, lr=0.1, weight_decay=0.1),
        lambda p: torch.optim.RMSprop(p, lr=0.1, momentum=0.5),
    ],
    ids=["momentum", "weight decay", "AdamW", "RMSprop"],
)
def test_neither_momentum_nor_weight_decay_nor_a_counter_moves_in_a_skipped_step(optimizer, bits):
    """Gradients of zero would let each of them go on."""
    before = train(linear(optimizer, {3}), 3)
    after = train(linear(optimizer, {3}), 4)
    assert after.guard.last.skipped
    assert after.guard.last.skipped_by == "guard"
    assert bits(after.model, after.optimizer) == bits(before.model, before.optimizer)
    zeroed = gradguard.Policy.model_validate({"rules": [{"when": "nonfinite", "do": "zero_nonfinite"}]})
    moved = train(linear(optimizer, {3}), 4, policy=zeroed)
    assert bits(moved.model, moved.optimizer) != bits(before.model, before.optimizer)


def test_a_loop_that_clears_gradients_after_good_steps_only_is_not_stuck_on_bad_ones():
    """A NaN left in .grad would be added to by every backward from then on."""
    model, optimizer, loss_at = linear(lambda p: torch.optim.SGD(p, lr=0.05), {4, 5, 11})()
    guard = gradguard.attach(model, optimizer)
    applied = []
    for step in range(20):
        loss = loss_at(step)
        loss.backward()
        guard.observe(loss)
        optimizer.step()
        if guard.last.skipped:
            assert all(parameter.grad is None for parameter in model.parameters())
            continue
        optimizer.zero_grad()
        applied.append(step)
    assert applied == without(20, {4, 5, 11})


@pytest.mark.parametrize("is_held", [True, False])
def test_a_scheduler_may_be_held_on_skipped_steps_or_not_and_never_warns(is_held):
    """Warnings are errors here, also torch's about a scheduler that steps before the optimizer did."""
    model, optimizer, loss_at = linear(lambda p: torch.optim.SGD(p, lr=1e-3), {0, 1})()
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    guard = gradguard.attach(model, optimizer)
    for step in range(5):
        optimizer.zero_grad()
        loss = loss_at(step)
        loss.backward()
        guard.observe(loss)
        optimizer.step()
        if not (is_held and guard.last.skipped):
            scheduler.step()
    assert optimizer.param_groups[0]["lr"] == pytest.approx(1e-3 * 0.5 ** (3 if is_held else 5))


class Window:
    """Four micro-batches a step, whose gradients point along x and y in turn."""

    def __init__(self, policy=None):
        self.weight = nn.Parameter(torch.zeros(2))
        self.model = nn.ParameterList([self.weight])
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1.0)
        self.guard = gradguard.attach(self.model, self.optimizer, policy)

    def step(self, bad=None):
        self.optimizer.zero_grad()
        for i in range(4):
            loss = self.weight[i % 2] * 3.0 / 4 * (math.nan if i == bad else 1.0)
            loss.backward()
            self.guard.observe(loss)
        self.optimizer.step()


def test_clipping_acts_once_a_step_on_the_accumulated_gradient():
    """Clipped after every micro-batch, the sum would lean towards the last one."""
    policy = {"rules": [{"when": "always", "do": {"clip_norm": {"max_norm": 0.5}}}]}
    window = Window(gradguard.Policy.model_validate(policy))
    window.step()
    assert window.weight.norm().item() == pytest.approx(0.5, rel=1e-4)
    assert window.weight[0].item() == window.weight[1].item()


@pytest.mark.parametrize("bad", range(4))
def test_a_window_with_one_bad_micro_batch_is_dropped_and_said_so_once(bad):
    window = Window()
    for step in range(3):
        window.step(bad if step == 1 else None)
    assert torch.equal(window.weight.detach(), torch.full((2,), -3.0))
    records = [record for record in window.guard.records if record.kind == "intervention"]
    assert [(record.step, record.remedy) for record in records] == [(1, "skip_step")]
    assert "NaN" in records[0].finding.message
