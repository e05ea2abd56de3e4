"""Several snapshots: which one a rollback goes to, what makes room, what is kept for a restart, and where they lie."""

import copy
import math
import os

import pytest
import torch
from trained import assert_same, build, state_of, train

from gradguard.snapshots.ring import CONFIRM_AFTER, Snapshots


def fill(snapshots, model, optimizer, steps):
    """Take and confirm one snapshot at each of these steps; return the states."""
    states = {}
    for step in steps:
        states[step] = state_of(model, optimizer)
        assert snapshots.take(step, {}, is_confirmed=not states.keys() - {step})
        snapshots.confirm(step + CONFIRM_AFTER)
        train(model, optimizer, range(2))
    return states


@pytest.fixture(params=["memory", "disk"])
def keep(request, tmp_path):
    """Function that makes snapshots of a model, in memory or on disk."""

    def make(model, optimizer, **options):
        folder = tmp_path / "snapshots" if request.param == "disk" else None
        return Snapshots(model, optimizer, 10, 0.5, folder=folder, **options)

    return make


def test_a_rollback_that_recurs_before_another_state_was_confirmed_goes_further_back(keep):
    model, optimizer = build()
    snapshots = keep(model, optimizer, keep=3)
    states = fill(snapshots, model, optimizer, [0, 20, 40, 60])
    for step in (60, 40, 20, 20):
        assert snapshots.restore(70).step == step
        assert_same(state_of(model, optimizer), states[step])
        train(model, optimizer, range(2))


def test_a_rollback_after_another_state_was_confirmed_goes_to_that_one(keep):
    model, optimizer = build()
    snapshots = keep(model, optimizer, keep=3)
    fill(snapshots, model, optimizer, [0, 20])
    assert snapshots.restore(25).step == 20
    snapshots.take(40, {})
    snapshots.confirm(40 + CONFIRM_AFTER)
    assert snapshots.restore(55).step == 40


def test_a_state_that_was_not_confirmed_evicts_none(keep):
    model, optimizer = build()
    snapshots = keep(model, optimizer, keep=2)
    fill(snapshots, model, optimizer, [0, 20])
    for step in range(40, 400, 20):
        snapshots.take(step, {})
        snapshots.distrust()
        snapshots.confirm(step + CONFIRM_AFTER)
    assert snapshots.restore(400).step == 20
    assert snapshots.restore(401).step == 0


def test_the_first_state_is_kept_for_a_restart_and_what_came_after_it_is_dropped(keep):
    model, optimizer = build()
    snapshots = keep(model, optimizer, keep=1, keeps_start=math.inf)
    states = fill(snapshots, model, optimizer, [0, 20, 40, 60])
    assert snapshots.good.step == 60
    assert snapshots.restart(70, keeps_schedule=False).step == 0
    assert_same(state_of(model, optimizer), states[0])
    assert snapshots.good.step == 0
    assert snapshots.next_due(70) == 70 + CONFIRM_AFTER
    snapshots.take(80, {})
    snapshots.confirm(90)
    train(model, optimizer, range(3))
    assert snapshots.restart(95, keeps_schedule=False).step == 0
    assert_same(state_of(model, optimizer), states[0])


def test_the_first_state_is_let_go_when_nothing_can_go_back_to_it_any_more(keep):
    model, optimizer = build()
    snapshots = keep(model, optimizer, keep=1, keeps_start=50)
    states = fill(snapshots, model, optimizer, [0, 20])
    assert snapshots.restart(45, keeps_schedule=False).step == 0
    assert_same(state_of(model, optimizer), states[0])
    snapshots.confirm(51)
    expected = state_of(model, optimizer)
    assert snapshots.restart(52, keeps_schedule=False) is None
    assert_same(state_of(model, optimizer), expected)
    assert snapshots.restore(53).step == 0  # which the ring has


def test_without_need_the_first_state_is_not_kept(keep):
    model, optimizer = build()
    snapshots = keep(model, optimizer, keep=1)
    fill(snapshots, model, optimizer, [0, 20])
    expected = state_of(model, optimizer)
    assert snapshots.restart(30, keeps_schedule=False) is None
    assert_same(state_of(model, optimizer), expected)


def test_weights_that_were_loaded_after_attaching_are_the_start(keep):
    model, optimizer = build()
    snapshots = keep(model, optimizer, keeps_start=math.inf)
    snapshots.take(0, {}, is_confirmed=True)
    train(model, optimizer, range(3))
    expected = state_of(model, optimizer)
    snapshots.take(0, {}, is_confirmed=True)
    train(model, optimizer, range(3))
    assert snapshots.restart(9, keeps_schedule=False).step == 0
    assert_same(state_of(model, optimizer), expected)


@pytest.mark.parametrize("steps", [[0], [0, 20], [0, 20, 40, 60]])
def test_a_saved_ring_goes_on_where_it_was(keep, steps):
    model, optimizer = build()
    snapshots = keep(model, optimizer, keep=3, keeps_start=math.inf)
    states = fill(snapshots, model, optimizer, steps)
    snapshots.restore(70)
    saved = copy.deepcopy(snapshots.state_dict())
    twin = keep(model, optimizer, keep=3, keeps_start=math.inf)
    twin.load_state_dict(saved)
    gone_to = [twin.restore(70 + i).step for i in range(3)]
    assert gone_to == [snapshots.restore(70 + i).step for i in range(3)]
    assert twin.restart(80, keeps_schedule=False).step == 0
    assert_same(state_of(model, optimizer), states[0])


def test_a_smaller_ring_takes_the_newest_and_the_first_of_a_larger_one(keep):
    model, optimizer = build()
    snapshots = keep(model, optimizer, keep=3, keeps_start=math.inf)
    fill(snapshots, model, optimizer, [0, 20, 40])
    twin = keep(model, optimizer, keep=1, keeps_start=math.inf)
    twin.load_state_dict(copy.deepcopy(snapshots.state_dict()))
    assert [twin.restore(50).step, twin.restore(51).step, twin.restart(52, keeps_schedule=False).step] == [40, 40, 0]


def test_no_more_copies_are_held_than_was_said():
    model, optimizer = build()
    snapshots = Snapshots(model, optimizer, 10, 0.5, keep=3, keeps_start=math.inf)
    snapshots.take(0, {}, is_confirmed=True)
    for step in range(1, 200):
        train(model, optimizer, [step])
        snapshots.confirm(step)
        if step >= snapshots.next_step:
            snapshots.take(step, {})
        held = {id(kept) for kept in (*snapshots._ring, snapshots._start, snapshots._pending, snapshots._spare) if kept}
        assert len(held) <= snapshots.num_copies
    assert len(held) == snapshots.num_copies == 5


def test_on_disk_no_more_files_lie_than_copies_are_kept_and_none_is_half_written(tmp_path):
    model, optimizer = build()
    snapshots = Snapshots(model, optimizer, 10, 1e-12, keep=2, keeps_start=math.inf, folder=tmp_path)
    fill(snapshots, model, optimizer, [0, 20, 40, 60, 80])
    assert sorted(os.listdir(tmp_path)) == ["step-00000000.pt", "step-00000060.pt", "step-00000080.pt"]
    snapshots.take(100, {})
    assert len(os.listdir(tmp_path)) == snapshots.num_copies
    snapshots.distrust()
    snapshots.restart(110, keeps_schedule=False)
    assert os.listdir(tmp_path) == ["step-00000000.pt"]


def test_on_disk_a_file_that_is_damaged_hands_over_to_the_one_before(tmp_path):
    model, optimizer = build()
    snapshots = Snapshots(model, optimizer, 10, 0.5, keep=2, keeps_start=math.inf, folder=tmp_path)
    states = fill(snapshots, model, optimizer, [0, 20, 40])
    (tmp_path / "step-00000040.pt").write_bytes(b"not a snapshot")
    assert snapshots.restore(50).step == 20
    assert_same(state_of(model, optimizer), states[20])
    (tmp_path / "step-00000020.pt").unlink()
    (tmp_path / "step-00000000.pt").unlink()
    expected = state_of(model, optimizer)
    assert snapshots.restore(51) is None
    assert "step-00000020.pt cannot be read" in snapshots.refusal
    assert snapshots.restart(52, keeps_schedule=False) is None
    assert "step-00000000.pt cannot be read" in snapshots.refusal
    assert_same(state_of(model, optimizer), expected)


def test_on_disk_what_cannot_be_written_costs_no_snapshot_that_is_there(tmp_path):
    model, optimizer = build()
    folder = tmp_path / "snapshots"
    snapshots = Snapshots(model, optimizer, 10, 0.5, folder=folder)
    fill(snapshots, model, optimizer, [0])
    kept = folder / "step-00000000.pt"
    kept.rename(tmp_path / "kept.pt")
    folder.rmdir()
    folder.write_text("a file where the folder should be")
    assert not snapshots.take(20, {})
    assert snapshots.refusal
    folder.unlink()
    folder.mkdir()
    (tmp_path / "kept.pt").rename(kept)
    assert snapshots.restore(30).step == 0


def test_on_disk_a_parameter_that_is_part_of_a_larger_tensor_does_not_write_all_of_that(tmp_path):
    flat = torch.zeros(1_000_000)
    model = torch.nn.Linear(2, 1)
    model.weight = torch.nn.Parameter(flat[:2].view(1, 2))
    snapshots = Snapshots(model, torch.optim.SGD(model.parameters(), lr=0.1), 10, 0.5, folder=tmp_path)
    snapshots.take(0, {}, is_confirmed=True)
    assert (tmp_path / "step-00000000.pt").stat().st_size < 10_000
