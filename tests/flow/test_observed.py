"""Which loss belongs to which step."""

import math

import torch
from torch import nn

import gradguard


def build():
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    return model, torch.optim.SGD(model.parameters(), lr=0.01)


def backward(model, optimizer, factor=1.0, is_reset=True):
    if is_reset:
        optimizer.zero_grad()
    loss = model(torch.ones(2, 3)).square().mean() * factor
    loss.backward()
    return loss


def test_the_loss_of_a_batch_that_the_user_skips_by_hand_does_not_cost_the_next_one():
    model, optimizer = build()
    with gradguard.attach(model, optimizer, "default") as guard:
        for step in range(10):
            loss = backward(model, optimizer, math.nan if step == 4 else 1.0)
            guard.observe(loss)
            if not loss.isfinite():
                continue
            optimizer.step()
            assert not guard.last.skipped


def test_losses_observed_before_their_backward_belong_to_their_own_step():
    model, optimizer = build()
    with gradguard.attach(model, optimizer) as guard:
        for step in range(6):
            optimizer.zero_grad()
            loss = model(torch.ones(2, 3)).square().mean() * (math.nan if step == 3 else 1.0)
            guard.observe(loss)
            if not loss.isfinite():
                continue
            loss.backward()
            optimizer.step()
            assert not guard.last.skipped


def test_micro_batches_of_one_step_are_averaged(tmp_path):
    model, optimizer = build()
    with gradguard.attach(model, optimizer, run_dir=tmp_path / "run") as guard:
        losses = []
        for micro_batch in range(3):
            loss = backward(model, optimizer, 1.0 + micro_batch, is_reset=micro_batch == 0)
            losses.append(loss.item())
            guard.observe(loss, sample_ids=[micro_batch])
        optimizer.step()
    recorded = gradguard.read_run(tmp_path / "run").statistics["loss"]
    assert abs(float(recorded[0]) - sum(losses) / 3) < 1e-6


def test_a_skip_of_a_plain_optimizer_by_the_scaler_is_told_at_once():
    model = nn.Linear(3, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    with gradguard.attach(model, optimizer, scaler=scaler) as guard:
        told = []
        for step in range(4):
            optimizer.zero_grad()
            loss = model(torch.ones(2, 3)).square().mean()
            scaler.scale(loss * (math.inf if step == 2 else 1.0)).backward()
            guard.observe(loss)
            scaler.step(optimizer)
            scaler.update()
            told.append(guard.last.skipped_by)
    assert told == [None, None, "scaler", None]
