"""Several backward passes, one step: one decision, from the gradient that the step is about to use."""

import math

import pytest
import torch

import gradguard


def build(make_net):
    model = make_net()
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


def accumulate(model, optimizer, batches, loss_of, guard=None, bad_at=None):
    """One step from all batches; the loss of the one at `bad_at` is NaN."""
    optimizer.zero_grad()
    for index, batch in enumerate(batches):
        loss = loss_of(model, batch) * (math.nan if index == bad_at else 1.0)
        (loss / len(batches)).backward()
        if guard is not None:
            guard.observe(loss)
    optimizer.step()


@pytest.mark.parametrize("bad_at", [0, 1, 3])
def test_a_bad_micro_batch_drops_its_step_once_and_leaves_no_trace(make_net, loss_of, batches, bits, bad_at):
    model, optimizer = build(make_net)
    for _ in range(3):
        accumulate(model, optimizer, batches[:4], loss_of)
    expected = bits(model, optimizer)

    model, optimizer = build(make_net)
    guard = gradguard.attach(model, optimizer)
    for step in range(4):
        accumulate(model, optimizer, batches[:4], loss_of, guard, bad_at if step == 1 else None)
        assert guard.last.skipped == (step == 1)
    assert bits(model, optimizer) == expected
    assert [record.step for record in guard.records if record.kind == "intervention"] == [1]


def test_only_the_sum_is_judged_not_the_parts(make_net):
    """Partial sums a million times the usual gradient cancel before the step: there is nothing to find."""
    model, optimizer = build(make_net)
    guard = gradguard.attach(model, optimizer)
    num_entries = sum(param.numel() for param in model.parameters())
    for step in range(40):
        optimizer.zero_grad()
        for factor in (1e6, -1e6, 1.0) if step > 25 else (1.0,):
            (sum(param.sum() for param in model.parameters()) * factor).backward()
        optimizer.step()
        assert guard.last.global_norm == pytest.approx(math.sqrt(num_entries))
        assert not guard.last.findings


def test_the_loss_of_a_step_is_the_mean_of_its_micro_batches(make_net, loss_of, batches, tmp_path):
    model, optimizer = build(make_net)
    guard = gradguard.attach(model, optimizer, run_dir=tmp_path / "run")
    expected = []
    for _ in range(3):
        with torch.no_grad():
            expected.append(sum(float(loss_of(model.eval(), batch)) for batch in batches[:2]) / 2)
        accumulate(model, optimizer, batches[:2], lambda model, batch: loss_of(model.eval(), batch), guard)
    guard.close()
    assert list(gradguard.read_run(guard.run_dir).statistics["loss"]) == pytest.approx(expected, rel=1e-6)


def test_accumulating_is_not_taken_for_gradients_that_nobody_reset(make_net, loss_of, batches):
    model, optimizer = build(make_net)
    guard = gradguard.attach(model, optimizer)
    for _ in range(10):
        accumulate(model, optimizer, batches[:4], loss_of, guard)
    assert not [record for record in guard.records if record.kind != "event"]


@pytest.mark.parametrize("set_to_none", [True, False])
def test_gradients_that_nobody_reset_are_told_and_a_reset_of_either_kind_ends_it(
    make_net, loss_of, batches, set_to_none
):
    model, optimizer = build(make_net)
    guard = gradguard.attach(model, optimizer)
    for step in range(8):
        loss_of(model, batches[step]).backward()
        optimizer.step()
    told = [record.diagnosis for record in guard.records if record.kind == "intervention"]
    assert told == ["stale_gradients"]
    for step in range(8):
        optimizer.zero_grad(set_to_none=set_to_none)
        loss_of(model, batches[step]).backward()
        optimizer.step()
        assert not guard.last.findings


def test_a_skip_drops_the_accumulated_gradient_so_that_a_loop_that_resets_later_is_safe(make_net, loss_of, batches):
    """Loops that call zero_grad after the step, or none at all for a while, must not add to a NaN."""
    model, optimizer = build(make_net)
    guard = gradguard.attach(model, optimizer)
    accumulate(model, optimizer, batches[:2], loss_of, guard, bad_at=0)
    assert guard.last.skipped
    loss_of(model, batches[2]).backward()
    optimizer.step()
    assert not guard.last.skipped
