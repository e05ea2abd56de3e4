"""How far the loss has come: in shares of its start, NaN where shares mean nothing."""

import math

import pytest
from feed import diagnose

from gradguard.evidence.progress import NUM_RECENT, has_learned, recent_loss, share_left


def left(first, then, steps=20):
    feed = diagnose("dead_units")
    for loss in [first] * 5 + [then] * steps:
        feed.step(1.0, loss)
    return share_left(feed.stats)


@pytest.mark.parametrize("scale", [1e-20, 1.0, 1e20])
def test_it_is_the_recent_loss_over_the_first(scale):
    assert left(4 * scale, scale) == pytest.approx(0.25)


@pytest.mark.parametrize(("second", "share"), [(2.9, 1 / 2.9), (3.1, 1.0)])
def test_what_the_first_updates_made_of_the_loss_is_no_start(second, share):
    feed = diagnose("dead_units")
    for loss in [1.0] + [second] * 4 + [1.0] * 20:
        feed.step(1.0, loss)
    assert share_left(feed.stats) == pytest.approx(share)


def test_one_step_says_nothing():
    assert left(4.0, 1.0, steps=1) == 1.0


@pytest.mark.parametrize("first", [-1.0, 0.0])
def test_losses_that_are_not_positive_have_no_share(first):
    assert math.isnan(left(first, -2.0))


def test_without_a_loss_nothing_is_known():
    feed = diagnose("dead_units")
    feed.repeat(9)
    assert math.isnan(share_left(feed.stats))
    assert math.isnan(recent_loss(feed.judgement.losses[50]))
    assert not has_learned(math.nan)


def test_the_recent_loss_is_of_the_last_few():
    feed = diagnose("dead_units")
    for loss in [9.0] * 40 + [1.0] * NUM_RECENT:
        feed.step(1.0, loss)
    assert recent_loss(feed.judgement.losses[50]) == 1.0
