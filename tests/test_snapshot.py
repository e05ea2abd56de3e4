"""Snapshots: only of finite states, trusted only after a quiet while, and bit for bit on the way back."""

import copy
import itertools
import math

import pytest
import torch
from torch import nn

from gradguard.snapshot import (
    CONFIRM_AFTER,
    Snapshot,
    Snapshots,
    free_memory_bytes,
    host_copy,
    live_tensors,
    put_back,
    tensors_in,
)


def build():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    return model, torch.optim.Adam(model.parameters(), lr=0.01)


def train(model, optimizer, seeds):
    for seed in seeds:
        inputs = torch.randn(8, 3, generator=torch.Generator().manual_seed(seed))
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()


def state_of(model, optimizer):
    return copy.deepcopy((model.state_dict(), optimizer.state_dict()["state"]))


def assert_same(found, expected):
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


def keep(model, optimizer, every=200, share=0.5):
    return Snapshots(model, optimizer, every, share)


def test_a_host_copy_shares_nothing_and_keeps_the_structure():
    value = {"step": torch.tensor(3.0), "list": [torch.ones(2), None, (1, torch.zeros(1))], "flag": True}
    found = host_copy(value)
    assert_same(found, value)
    for copied, original in zip(tensors_in(found), tensors_in(value), strict=True):
        assert copied.data_ptr() != original.data_ptr()


def test_putting_back_writes_into_the_live_tensors_where_they_fit():
    live = {"exp_avg": torch.zeros(2), "step": torch.tensor(9.0), "gone": torch.ones(1), "wide": torch.zeros(3)}
    saved = {"exp_avg": torch.ones(2), "step": torch.tensor(1.0), "wide": torch.ones(2), "new": torch.ones(1), "n": 4}
    found = put_back(saved, live, torch.device("cpu"))
    assert_same(found, saved)
    assert found["exp_avg"] is live["exp_avg"]
    assert found["step"] is live["step"]
    assert found["wide"] is not saved["wide"]
    assert found["new"] is not saved["new"]


def test_every_tensor_that_a_step_can_change_is_in_a_snapshot_once():
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Linear(2, 2))
    model[2].weight = model[0].weight
    model[0].bias.requires_grad_(False)
    foreign = nn.Parameter(torch.ones(1))
    tensors = live_tensors(model, torch.optim.SGD([*model.parameters(), foreign], lr=0.1))
    pointers = [tensor.data_ptr() for tensor in tensors.values()]
    expected = [*model.parameters(), *model.buffers(), foreign]
    assert len(pointers) == len(set(pointers))
    assert set(pointers) == {tensor.data_ptr() for tensor in expected}


def test_a_restored_state_is_the_saved_one_and_goes_on_as_it_would_have():
    model, optimizer = build()
    train(model, optimizer, range(3))
    snapshot = Snapshot(3, model, optimizer, {})
    expected = state_of(model, optimizer)
    train(model, optimizer, range(3, 6))
    future = state_of(model, optimizer)
    snapshot.restore(model, optimizer)
    assert_same(state_of(model, optimizer), expected)
    train(model, optimizer, range(3, 6))
    assert_same(state_of(model, optimizer), future)


def test_a_snapshot_can_be_restored_many_times():
    model, optimizer = build()
    snapshot = Snapshot(0, model, optimizer, {})
    expected = state_of(model, optimizer)
    for _ in range(3):
        train(model, optimizer, range(2))
        snapshot.restore(model, optimizer)
        assert_same(state_of(model, optimizer), expected)


def test_state_that_did_not_exist_then_is_removed():
    model, optimizer = build()
    snapshot = Snapshot(0, model, optimizer, {})
    train(model, optimizer, range(2))
    snapshot.restore(model, optimizer)
    assert not optimizer.state


def test_learning_rates_belong_to_their_schedule_and_are_not_restored():
    model, optimizer = build()
    snapshot = Snapshot(0, model, optimizer, {})
    optimizer.param_groups[0]["lr"] = 0.5
    snapshot.restore(model, optimizer)
    assert optimizer.param_groups[0]["lr"] == 0.5


def test_nothing_is_replaced_by_a_restore():
    """A scheduler, a compiled model or an EMA may hold on to the tensors."""
    model, optimizer = build()
    train(model, optimizer, range(2))
    snapshot = Snapshot(2, model, optimizer, {})
    train(model, optimizer, range(2))
    before = [*map(id, (*model.parameters(), *model.buffers())), *map(id, tensors_in(dict(optimizer.state)))]
    snapshot.restore(model, optimizer)
    assert [*map(id, (*model.parameters(), *model.buffers())), *map(id, tensors_in(dict(optimizer.state)))] == before


def test_damage_of_every_kind_is_undone():
    model, optimizer = build()
    train(model, optimizer, range(2))
    snapshot = Snapshot(2, model, optimizer, {})
    expected = state_of(model, optimizer)
    with torch.no_grad():
        for tensor in (*model.parameters(), *[b for b in model.buffers() if b.is_floating_point()]):
            tensor.fill_(math.nan)
    for state in optimizer.state.values():
        state["exp_avg"] = torch.full((7,), math.inf)
        del state["exp_avg_sq"]
    snapshot.restore(model, optimizer)
    assert_same(state_of(model, optimizer), expected)


def test_a_buffer_that_the_model_has_gained_since_does_not_shift_the_others():
    model, optimizer = build()
    snapshot = Snapshot(0, model, optimizer, {})
    expected = {name: buffer.clone() for name, buffer in model.named_buffers()}
    model[0].register_buffer("cache", torch.full((4,), 7.0))
    train(model, optimizer, range(2))
    snapshot.restore(model, optimizer)
    assert_same({name: buffer for name, buffer in model.named_buffers() if name in expected}, expected)
    assert model[0].cache.tolist() == [7.0] * 4


def test_a_parameter_that_the_model_has_gained_since_does_not_shift_the_others():
    model, optimizer = build()
    snapshot = Snapshot(0, model, optimizer, {})
    expected = {name: value.clone() for name, value in model.state_dict().items()}
    model[0].register_parameter("scale", nn.Parameter(torch.full((4, 3), 7.0)))
    train(model, optimizer, range(2))
    snapshot.restore(model, optimizer)
    assert_same({name: value for name, value in model.state_dict().items() if name in expected}, expected)


def test_a_buffer_of_another_shape_is_put_back_and_stops_nothing():
    model, optimizer = build()
    model[0].register_buffer("cache", torch.zeros(2))
    snapshot = Snapshot(0, model, optimizer, {})
    expected = state_of(model, optimizer)
    model[0].cache = torch.ones(5)
    train(model, optimizer, range(2))
    snapshot.restore(model, optimizer)
    assert_same(state_of(model, optimizer), expected)


def test_a_buffer_whose_entries_share_memory_stops_nothing():
    model, optimizer = build()
    model[0].register_buffer("table", torch.zeros(1).expand(3))
    snapshot = Snapshot(0, model, optimizer, {})
    expected = state_of(model, optimizer)
    train(model, optimizer, range(2))
    snapshot.restore(model, optimizer)
    assert_same(state_of(model, optimizer), expected)


def test_a_saved_snapshot_is_the_same_snapshot():
    model, optimizer = build()
    train(model, optimizer, range(2))
    snapshot = Snapshot(2, model, optimizer, {"key": 1})
    expected = state_of(model, optimizer)
    twin = Snapshot.from_state_dict(copy.deepcopy(snapshot.state_dict()))
    train(model, optimizer, range(2))
    twin.restore(model, optimizer)
    assert_same(state_of(model, optimizer), expected)
    assert (twin.step, twin.windows) == (2, {"key": 1})


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


def test_the_size_of_a_snapshot_is_known_beforehand():
    model = nn.Sequential(nn.Linear(10, 10), nn.BatchNorm1d(10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert keep(model, optimizer).nbytes_needed() == 4 * (100 + 10 + 10 + 10 + 10 + 10) + 8


def test_snapshots_are_taken_more_often_at_first():
    model, optimizer = build()
    snapshots = keep(model, optimizer, every=200)
    taken = [0]
    while taken[-1] < 700:
        snapshots.take(taken[-1], {})
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
