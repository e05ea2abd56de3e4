"""Which snapshot a rollback gets: only a finite state, trusted after a quiet while, within the memory that there is."""

import copy
import itertools
import math

import pytest
import torch
from torch import nn
from trained import assert_same, build, state_of, train

from gradguard.snapshots.free_memory import free_memory_bytes
from gradguard.snapshots.ring import CONFIRM_AFTER, Snapshots


def keep(model, optimizer, every=200, share=0.5):
    return Snapshots(model, optimizer, every, share)


def test_the_state_at_attach_time_counts_at_once_and_later_ones_after_a_quiet_while():
    model, optimizer = build()
    snapshots = keep(model, optimizer)
    assert snapshots.good is None
    assert snapshots.take(0, {}, is_confirmed=True)
    assert snapshots.take(10, {})
    for step in range(10, 10 + CONFIRM_AFTER):
        snapshots.confirm(step)
        assert snapshots.good.step == 0
    snapshots.confirm(10 + CONFIRM_AFTER)
    assert snapshots.good.step == 10


def test_a_snapshot_that_was_followed_by_a_finding_is_never_used():
    model, optimizer = build()
    snapshots = keep(model, optimizer)
    snapshots.take(0, {}, is_confirmed=True)
    snapshots.take(10, {})
    snapshots.distrust()
    snapshots.confirm(1000)
    assert snapshots.good.step == 0


def test_a_rollback_drops_the_snapshot_that_waits():
    model, optimizer = build()
    snapshots = keep(model, optimizer)
    snapshots.take(0, {}, is_confirmed=True)
    expected = state_of(model, optimizer)
    train(model, optimizer, range(3))
    snapshots.take(3, {})
    snapshots.restore(0)
    assert_same(state_of(model, optimizer), expected)
    snapshots.confirm(1000)
    assert snapshots.good.step == 0


def test_without_a_snapshot_nothing_is_restored():
    model, optimizer = build()
    expected = state_of(model, optimizer)
    keep(model, optimizer).restore(0)
    assert_same(state_of(model, optimizer), expected)


@pytest.mark.parametrize("place", ["parameter", "buffer", "optimizer state", "foreign parameter"])
@pytest.mark.parametrize("bad", [math.nan, -math.inf])
def test_a_state_that_is_not_finite_is_not_saved(place, bad):
    model, optimizer = build()
    foreign = nn.Parameter(torch.ones(1))
    optimizer.add_param_group({"params": [foreign]})
    train(model, optimizer, range(2))
    snapshots = keep(model, optimizer)
    snapshots.take(2, {}, is_confirmed=True)
    tensor = {
        "parameter": model[0].weight,
        "buffer": model[1].running_var,
        "optimizer state": optimizer.state[model[0].weight]["exp_avg_sq"],
        "foreign parameter": foreign,
    }[place]
    tensor.data.view(-1)[0] = bad
    assert not snapshots.take(3, {}, is_confirmed=True)
    assert snapshots.good.step == 2
    assert "not finite" in snapshots.refusal


def test_a_mask_of_minus_infinity_is_no_damage():
    """Such buffers are part of many a healthy attention layer."""
    model, optimizer = build()
    model.register_buffer("mask", torch.full((4, 4), -math.inf).triu(1))
    snapshots = keep(model, optimizer)
    assert snapshots.take(0, {}, is_confirmed=True), snapshots.refusal


def test_a_snapshot_that_would_take_too_much_memory_is_refused_with_what_to_do():
    model, optimizer = build()
    snapshots = keep(model, optimizer, share=1e-12)
    assert not snapshots.take(0, {}, is_confirmed=True)
    assert snapshots.good is None
    assert "snapshots.max_memory_share" in snapshots.refusal


@pytest.mark.skipif(free_memory_bytes() is None, reason="the system does not tell its free memory")
def test_free_memory_is_told_in_bytes():
    assert 1e6 < free_memory_bytes() < 1e15


def test_the_size_of_a_snapshot_is_told_even_if_it_is_refused():
    model = nn.Sequential(nn.Linear(10, 10), nn.BatchNorm1d(10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    snapshots = keep(model, optimizer, share=1e-12)
    assert not snapshots.take(0, {})
    assert snapshots.nbytes == 4 * (100 + 10 + 10 + 10 + 10 + 10) + 8


def test_snapshots_are_taken_more_often_at_first():
    model, optimizer = build()
    snapshots = keep(model, optimizer, every=200)
    taken = [0]
    while taken[-1] < 700:
        snapshots.confirm(taken[-1])
        assert snapshots.take(taken[-1], {})
        taken.append(snapshots.next_step)
    assert taken[:6] == [0, 10, 20, 30, 40, 50]
    gaps = [late - early for early, late in itertools.pairwise(taken)]
    assert gaps == sorted(gaps)
    assert len(taken) < 20


def test_the_next_time_something_is_due_is_always_ahead_and_never_missed():
    model, optimizer = build()
    snapshots = keep(model, optimizer, every=20)
    snapshots.take(0, {}, is_confirmed=True)
    step, confirmed = 0, []
    while step < 200:
        due = snapshots.next_due(step)
        assert due > step
        step = due
        snapshots.confirm(step)
        if step >= snapshots.next_step:
            snapshots.take(step, {})
        confirmed.append(snapshots.good.step)
    assert confirmed == sorted(confirmed)
    assert confirmed[-1] >= 160


@pytest.mark.parametrize("every", [1, 3, 9, 10, 11, 50])
def test_however_often_they_are_taken_a_quiet_run_always_has_a_recent_good_one(every):
    model, optimizer = build()
    snapshots = keep(model, optimizer, every=every)
    snapshots.take(0, {}, is_confirmed=True)
    for step in range(1, 301):
        snapshots.confirm(step)
        if step >= snapshots.next_step:
            snapshots.take(step, {})
    assert 300 - snapshots.good.step <= every + 2 * CONFIRM_AFTER


def test_one_that_waits_is_not_replaced():
    model, optimizer = build()
    snapshots = keep(model, optimizer, every=1)
    assert snapshots.take(5, {})
    assert not snapshots.take(6, {})
    assert snapshots.next_due(6) == 5 + CONFIRM_AFTER
    snapshots.confirm(5 + CONFIRM_AFTER)
    assert snapshots.good.step == 5


def test_saved_snapshots_go_on_where_they_were():
    model, optimizer = build()
    snapshots = keep(model, optimizer)
    snapshots.take(0, {}, is_confirmed=True)
    train(model, optimizer, range(2))
    expected = state_of(model, optimizer)
    snapshots.take(10, {"key": 1})
    twin = keep(model, optimizer)
    twin.load_state_dict(copy.deepcopy(snapshots.state_dict()))
    assert twin.next_due(10) == snapshots.next_due(10)
    twin.confirm(10 + CONFIRM_AFTER)
    train(model, optimizer, range(2))
    twin.restore(0)
    assert twin.good.windows == {"key": 1}
    assert_same(state_of(model, optimizer), expected)


def test_saved_snapshots_may_be_none():
    model, optimizer = build()
    twin = keep(model, optimizer)
    twin.take(0, {}, is_confirmed=True)
    twin.load_state_dict(keep(model, optimizer).state_dict())
    assert twin.good is None


def test_a_snapshot_takes_the_memory_of_the_one_before_the_last_good_one():
    model, optimizer = build()
    snapshots = keep(model, optimizer, every=10)
    snapshots.take(0, {}, is_confirmed=True)
    first = {key: tensor.data_ptr() for key, tensor in snapshots.good._tensors.items()}
    train(model, optimizer, range(3))
    snapshots.take(10, {})
    snapshots.confirm(10 + CONFIRM_AFTER)
    middle = state_of(model, optimizer)
    train(model, optimizer, range(3))
    snapshots.take(20, {})
    assert {key: tensor.data_ptr() for key, tensor in snapshots._pending._tensors.items()} == first
    snapshots.restore(25)
    assert_same(state_of(model, optimizer), middle)


def test_a_snapshot_that_was_handed_out_in_a_state_is_never_written_to():
    model, optimizer = build()
    snapshots = keep(model, optimizer, every=10)
    snapshots.take(0, {}, is_confirmed=True)
    saved = snapshots.state_dict()
    expected = copy.deepcopy(saved)
    for step in range(10, 100, 10):
        train(model, optimizer, range(3))
        snapshots.take(step, {})
        snapshots.confirm(step + CONFIRM_AFTER)
    assert_same(saved["good"][0]["tensors"], expected["good"][0]["tensors"])
