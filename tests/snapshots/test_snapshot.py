"""A snapshot: a copy of everything that a step can change, and the way back to it, bit for bit."""

import copy
import math

import torch
from torch import nn
from trained import assert_same, build, state_of, train

from gradguard.snapshots.snapshot import Snapshot, live_tensors
from gradguard.snapshots.state_copy import host_copy, put_back, tensors_in


def test_a_host_copy_shares_nothing_and_keeps_the_structure():
    value = {"step": torch.tensor(3.0), "list": [torch.ones(2), None, (1, torch.zeros(1))], "flag": True}
    found = host_copy(value)
    assert_same(found, value)
    for copied, original in zip(tensors_in(found), tensors_in(value), strict=True):
        assert copied.data_ptr() != original.data_ptr()


def test_putting_back_writes_into_the_live_tensors_where_they_fit():
    live = {"exp_avg": torch.zeros(2), "step": torch.tensor(9.0), "gone": torch.ones(1), "wide": torch.zeros(3)}
    saved = {"exp_avg": torch.ones(2), "step": torch.tensor(1.0), "wide": torch.ones(2), "new": torch.ones(1), "n": 4}
    found = put_back(saved, live, torch.zeros(2))
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
