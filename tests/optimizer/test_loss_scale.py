"""GradScaler's scale and skips, as a real scaler makes them: with and without unscale_, fused and not."""

import math

import pytest
import torch
from torch import nn

from gradguard.evidence.stats import StepStats
from gradguard.optimizer.loss_scale import LossScale


class Loop:
    """A scaled training, driven as the guard would: asked before a step's own hooks, told after it."""

    def __init__(self, is_fused=False, does_unscale=False, **options):
        self.model = nn.Linear(2, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, fused=is_fused)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=1000, **options)
        self.scale = LossScale(self.scaler)
        self.stats = StepStats(2)
        self.does_unscale = does_unscale
        self.inverses = []
        self.missed = []
        self.optimizer.register_step_pre_hook(self.before)
        self.optimizer.register_step_post_hook(self.after)

    def before(self, *_):
        self.missed.append(self.scale.missed_skips())
        self.inverses.append(self.scale.read(self.optimizer, self.stats))

    def after(self, *_):
        self.scale.after_step(self.stats)

    def step(self, value=1.0):
        self.optimizer.zero_grad()
        self.scaler.scale(self.model(torch.full((4, 2), value)).mean()).backward()
        if self.does_unscale:
            self.scaler.unscale_(self.optimizer)
        self.scaler.step(self.optimizer)
        self.scaler.update()


@pytest.mark.parametrize("does_unscale", [False, True])
def test_a_plain_optimizer_s_skips_are_noticed_at_the_next_step_it_takes(does_unscale):
    loop = Loop(does_unscale=does_unscale)
    for value in [1.0, math.inf, math.inf, 1.0, 1.0]:
        loop.step(value)
    assert loop.missed == [0, 2, 0]
    assert loop.inverses == [1.0, 1.0, 1.0]
    assert loop.stats.loss_scale == 2.0**8


@pytest.mark.parametrize("does_unscale", [False, True])
def test_a_fused_optimizer_s_skips_are_seen_when_they_happen_and_counted_once(does_unscale):
    loop = Loop(is_fused=True, does_unscale=does_unscale)
    seen = []
    for value in [1.0, math.inf, 1.0, math.inf, 1.0]:
        loop.step(value)
        seen.append(loop.stats.found_inf)
    assert seen == [False, True, False, True, False]
    assert loop.missed == [0] * 5


def test_the_scale_is_taken_out_of_gradients_that_still_carry_it():
    """The factor turns what a fused optimizer finds in .grad into the gradient itself."""
    loop = Loop(is_fused=True)
    loop.optimizer.register_step_pre_hook(lambda *_: norms.append(float(loop.model.weight.grad.norm())))
    norms: list[float] = []
    loop.step()
    assert norms[0] * loop.inverses[0] == pytest.approx(math.sqrt(2))
    assert loop.inverses[0] == 2.0**-10


def test_gradients_that_were_unscaled_need_no_factor():
    loop = Loop(is_fused=True, does_unscale=True)
    loop.step()
    assert loop.inverses == [1.0]


@pytest.mark.parametrize("is_fused", [False, True])
def test_skips_in_a_row_are_counted_until_a_step_is_applied(is_fused):
    loop = Loop(is_fused=is_fused)
    counts = []
    for value in [1.0, math.inf, math.inf, math.inf]:
        loop.step(value)
        loop.scale.missed_skips()
        counts.append(loop.scale.skips)
    loop.step()
    counts.append(loop.scale.skips)
    assert counts == [0, 1, 2, 3, 0]


@pytest.mark.parametrize("is_fused", [False, True])
def test_skips_before_the_first_applied_step_are_the_scaler_finding_its_scale(is_fused):
    loop = Loop(is_fused=is_fused)
    for value in [math.inf] * 4 + [1.0]:
        loop.step(value)
        loop.scale.missed_skips()
        assert loop.scale.skips == 0


@pytest.mark.parametrize("backoff", [0.5, 0.25, 0.9])
def test_several_missed_skips_are_counted_whatever_the_backoff(backoff):
    loop = Loop(backoff_factor=backoff)
    for value in [1.0, *[math.inf] * 5, 1.0]:
        loop.step(value)
    assert loop.missed == [0, 5]


def test_a_scale_that_grows_is_no_skip():
    loop = Loop()
    loop.scaler.set_growth_interval(1)
    for _ in range(3):
        loop.step()
    assert loop.missed == [0, 0, 0]
    assert loop.stats.loss_scale == 2.0**12


@pytest.mark.parametrize("scaler", [None, torch.amp.GradScaler("cpu", enabled=False)], ids=["none", "disabled"])
def test_without_a_scaler_the_scale_is_one(scaler):
    scale = LossScale(scaler)
    stats = StepStats(1)
    assert not scale.is_used
    assert scale.read(torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=0.1), stats) == 1.0
    assert (stats.loss_scale, stats.found_inf, scale.missed_skips()) == (1.0, False, 0)


def test_saved_counts_go_on():
    loop = Loop()
    for value in [1.0, math.inf, math.inf]:
        loop.step(value)
    loop.scale.missed_skips()
    twin = LossScale(loop.scaler)
    twin.load_state_dict(loop.scale.state_dict())
    loop.step(math.inf)
    assert (twin.missed_skips(), twin.skips) == (1, 3)
