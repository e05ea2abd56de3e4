"""Every optimizer of torch.optim: a healthy run is untouched, and a skipped batch leaves no trace."""

import math

import pytest


def spoiled(batch, value):
    batch = batch.clone()
    batch[3, 1] = value
    return batch


def with_bad_batches(batches, value):
    """Return the batches with a bad one before the first step and another in the middle."""
    bad = spoiled(batches[0], value)
    return [bad, *batches[:3], bad, *batches[3:]]


def acted(record):
    """Return whether a record is about a change; that the batch held NaN is told besides."""
    return record.kind == "intervention" and record.remedy != "notify"


@pytest.mark.parametrize("is_closure", [False, True], ids=["step()", "step(closure)"])
def test_a_healthy_run_is_bit_identical_to_the_unguarded_one(variant, is_closure, batches, train, bits):
    is_closure |= variant.needs_closure
    model, optimizer = variant.build()
    train(model, optimizer, batches, is_guarded=False, is_closure=is_closure)
    expected = bits(model, optimizer)

    model, optimizer = variant.build()
    guard = train(model, optimizer, batches, is_closure=is_closure)
    assert bits(model, optimizer) == expected
    assert guard.step == len(batches)
    assert [record.kind for record in guard.records] == ["event"]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_run_with_skipped_batches_is_bit_identical_to_one_that_never_saw_them(variant, value, batches, train, bits):
    is_closure = variant.needs_closure
    more = {"weight_decay": 0.1} if variant.takes_weight_decay and not math.isnan(value) else {}
    model, optimizer = variant.build(**more)
    train(model, optimizer, batches, is_guarded=False, is_closure=is_closure)
    expected = bits(model, optimizer)

    model, optimizer = variant.build(**more)
    guard = train(model, optimizer, with_bad_batches(batches, value), is_closure=is_closure)
    assert bits(model, optimizer) == expected
    skipped = [(record.step, record.remedy) for record in guard.records if acted(record)]
    assert skipped == [(0, "skip_step"), (4, "skip_step")]


def test_a_closure_hands_over_the_loss_and_its_bad_batches_leave_no_trace(variant, batches, train, bits):
    model, optimizer = variant.build()
    train(model, optimizer, batches, is_guarded=False, is_closure=True)
    expected = bits(model, optimizer)

    model, optimizer = variant.build()
    guard = train(model, optimizer, with_bad_batches(batches, math.nan), is_closure=True)
    assert bits(model, optimizer) == expected
    findings = [record.finding for record in guard.records if acted(record)]
    assert [finding.step for finding in findings] == [0, 4]
    assert all(math.isnan(finding.evidence["loss"]) for finding in findings)
