"""Copies and files of an attached model and optimizer: whole, not guarded, and silent in the original's record."""

import copy
import io
import math
import pickle

import pytest
import torch

import gradguard


def deepcopied(model, optimizer):
    return copy.deepcopy((model, optimizer))


def pickled(model, optimizer):
    return pickle.loads(pickle.dumps((model, optimizer)))


def saved_whole(model, optimizer):
    file = io.BytesIO()
    torch.save((model, optimizer), file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def saved_state(model, optimizer):
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    file.seek(0)
    state = torch.load(file, weights_only=True)
    torch.manual_seed(1)
    fresh = type(model)()
    fresh_optimizer = torch.optim.AdamW(fresh.parameters())
    fresh.load_state_dict(state["model"])
    fresh_optimizer.load_state_dict(state["optimizer"])
    return fresh, fresh_optimizer


def copied_apart(model, optimizer):
    """The model alone, with an optimizer of its own, as an exponential moving average or a target network has."""
    twin = copy.deepcopy(model)
    twin_optimizer = torch.optim.AdamW(twin.parameters())
    twin_optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    return twin, twin_optimizer


@pytest.fixture(params=[deepcopied, pickled, saved_whole, saved_state, copied_apart], ids=lambda f: f.__name__)
def duplicate(request):
    return request.param


@pytest.fixture
def training(make_net):
    model = make_net()
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


def test_a_copy_trains_on_bit_by_bit_like_the_original(duplicate, training, batches, train, bits):
    model, optimizer = training
    guard = train(model, optimizer, batches[:3])
    twin, twin_optimizer = duplicate(model, optimizer)
    random_state = torch.get_rng_state()
    train(model, optimizer, batches[3:], is_guarded=False)
    assert guard.step == len(batches)
    expected = bits(model, optimizer)
    torch.set_rng_state(random_state)
    train(twin, twin_optimizer, batches[3:], is_guarded=False)
    assert bits(twin, twin_optimizer) == expected


def test_a_copy_is_not_guarded_and_never_reports_into_the_original_s_record(duplicate, training, batches, train, bits):
    model, optimizer = training
    guard = train(model, optimizer, batches[:3])
    before, records = guard.step, guard.records
    twin, twin_optimizer = duplicate(model, optimizer)
    untouched = bits(model, optimizer)
    train(twin, twin_optimizer, [batches[0] * math.nan], is_guarded=False)
    assert not any(param.isfinite().any() for param in twin.parameters())
    assert (guard.step, guard.records) == (before, records)
    assert {key: value for key, value in bits(model, optimizer).items() if "random" not in key} == {
        key: value for key, value in untouched.items() if "random" not in key
    }


def test_a_copy_takes_a_guard_of_its_own(duplicate, training, batches, train):
    model, optimizer = training
    guard = train(model, optimizer, batches[:3])
    twin, twin_optimizer = duplicate(model, optimizer)
    other = train(twin, twin_optimizer, [batches[0] * math.nan])
    assert other.last.skipped
    assert guard.step == 3


def test_the_original_is_still_guarded_after_it_was_copied(duplicate, training, batches, train):
    model, optimizer = training
    guard = train(model, optimizer, batches[:3])
    duplicate(model, optimizer)
    train(model, optimizer, [batches[0] * math.nan], is_guarded=False)
    assert guard.last.skipped


def test_what_is_saved_holds_nothing_of_the_guard(training, batches, train):
    """A file of an attached training loads where gradguard is not installed."""
    model, optimizer = training
    train(model, optimizer, batches[:3])
    assert b"gradguard" not in pickle.dumps((model, optimizer))


def test_copies_after_a_learning_rate_cut_have_the_schedule_s_learning_rate(training, batches, train, duplicate):
    model, optimizer = training
    policy = gradguard.Policy(rules=[{"when": "nonfinite", "do": ["skip_step", {"scale_lr": {"factor": 0.1}}]}])
    guard = train(model, optimizer, [*batches[:3], batches[0] * math.nan, batches[3]], policy=policy)
    assert guard.last.lr_factor == 0.1
    _, twin_optimizer = duplicate(model, optimizer)
    assert [group["lr"] for group in twin_optimizer.param_groups] == [0.01]
