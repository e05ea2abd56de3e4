"""Stale gradients are noticed by version numbers alone, and no healthy way to train is taken for one."""

import pytest
import torch
from torch import nn

from gradguard.gradients.reset_watch import ResetWatch


class Loop:
    """A training loop that a test can lead astray, and what the watch thought at every step."""

    def __init__(self, model=None):
        self.model = model if model is not None else nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        self.watch = ResetWatch(list(self.model.parameters()))
        self.seen = []

    def backward(self, times=1):
        for _ in range(times):
            self.model(torch.randn(5, 3)).square().mean().backward()

    def step(self):
        self.seen.append(self.watch.is_stale)
        self.optimizer.step()
        self.watch.after_step()


@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("micro_batches", [1, 2, 3])
def test_a_loop_that_resets_once_a_step_is_never_stale(set_to_none, micro_batches):
    loop = Loop()
    for _ in range(6):
        loop.optimizer.zero_grad(set_to_none=set_to_none)
        loop.backward(micro_batches)
        loop.step()
    assert loop.seen == [False] * 6


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_every_step_after_the_first_is_stale_without_a_reset(micro_batches):
    loop = Loop()
    for _ in range(5):
        loop.backward(micro_batches)
        loop.step()
    assert loop.seen == [False, True, True, True, True]


def test_one_forgotten_reset_is_one_stale_step():
    loop = Loop()
    for step in range(5):
        if step != 2:
            loop.optimizer.zero_grad()
        loop.backward()
        loop.step()
    assert loop.seen == [False, False, True, False, False]


def test_a_reset_after_the_step_counts_as_well():
    loop = Loop()
    for _ in range(4):
        loop.backward()
        loop.step()
        loop.optimizer.zero_grad()
    assert loop.seen == [False] * 4


def test_a_reset_in_the_midst_of_the_accumulation_is_one():
    loop = Loop()
    loop.backward()
    loop.step()
    loop.backward()
    loop.optimizer.zero_grad()
    loop.backward()
    loop.step()
    assert loop.seen == [False, False]


def test_gradients_that_are_changed_in_place_before_the_step_are_not_stale():
    loop = Loop()
    for _ in range(4):
        loop.optimizer.zero_grad()
        loop.backward()
        nn.utils.clip_grad_norm_(loop.model.parameters(), 1e-3)
        loop.step()
    assert loop.seen == [False] * 4


def test_gradients_that_are_replaced_by_hand_are_not_stale():
    loop = Loop()
    for _ in range(4):
        for param in loop.model.parameters():
            param.grad = torch.zeros_like(param)
        loop.backward()
        loop.step()
    assert loop.seen == [False] * 4


def test_a_step_without_a_backward_is_not_stale():
    loop = Loop()
    loop.backward()
    loop.step()
    loop.step()
    assert loop.seen == [False, False]


@pytest.mark.parametrize(
    "model",
    [nn.Embedding(4, 3, sparse=True), nn.Linear(2, 2).requires_grad_(False), nn.Identity()],
    ids=["sparse", "frozen", "empty"],
)
def test_what_cannot_be_watched_is_never_stale(model):
    watch = ResetWatch(list(model.parameters()))
    for _ in range(3):
        if isinstance(model, nn.Embedding):
            model(torch.tensor([1])).sum().backward()
        assert not watch.is_stale
        watch.after_step()
    watch.close()


def test_a_closed_watch_leaves_no_hook():
    model = nn.Linear(2, 2)
    watch = ResetWatch(list(model.parameters()))
    assert any(param._post_accumulate_grad_hooks for param in model.parameters())
    watch.close()
    watch.close()
    assert not any(param._post_accumulate_grad_hooks for param in model.parameters())
