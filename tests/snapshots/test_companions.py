"""Schedulers, scalers, averaged models and random generators go back with model and optimizer."""

import copy
import io
import math
import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.optim.swa_utils import AveragedModel
from trained import assert_same, build, train

import gradguard
from gradguard.snapshots.companions import Companions
from gradguard.snapshots.ring import Snapshots


SCHEDULES = {
    "ExponentialLR": lambda o: lr_scheduler.ExponentialLR(o, 0.9),
    "StepLR": lambda o: lr_scheduler.StepLR(o, 3, 0.5),
    "MultiStepLR": lambda o: lr_scheduler.MultiStepLR(o, [2, 5, 5], 0.5),
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, 20),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=40),
    "SequentialLR": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, 0.1, 1.0, 4), lr_scheduler.CosineAnnealingLR(o, 20)], [4]
    ),
}


def rates(optimizer, schedule, steps):
    found = []
    for _ in range(steps):
        optimizer.step()
        schedule.step()
        found.append([(group["lr"], group["betas"]) for group in optimizer.param_groups])
    return found


def through_file(state):
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("send", [lambda state: state, through_file], ids=["kept", "filed"])
def test_a_schedule_goes_on_from_where_it_was(name, send):
    _, optimizer = build()
    schedule = SCHEDULES[name](optimizer)
    rates(optimizer, schedule, 3)
    companions = Companions(optimizer, {"schedule": schedule})
    saved = send(companions.save())
    expected = rates(optimizer, schedule, 8)
    for _ in range(2):
        companions.restore(saved)
        assert rates(optimizer, schedule, 8) == expected


def test_a_schedule_may_be_left_where_it_is():
    _, optimizer = build()
    schedule = SCHEDULES["ExponentialLR"](optimizer)
    companions = Companions(optimizer, {"schedule": schedule})
    saved = companions.save()
    rates(optimizer, schedule, 3)
    companions.restore(saved, keeps_schedule=True)
    assert schedule.last_epoch == 3
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.01 * 0.9**3)


def test_a_learning_rate_that_is_a_tensor_stays_that_tensor():
    model, _ = build()
    rate = torch.tensor(0.1)
    optimizer = torch.optim.Adam(model.parameters(), lr=rate, foreach=False)
    companions = Companions(optimizer, {"schedule": SCHEDULES["StepLR"](optimizer)})
    saved = companions.save()
    rate.fill_(0.5)
    companions.restore(saved)
    assert optimizer.param_groups[0]["lr"] is rate
    assert rate.item() == pytest.approx(0.1)


def test_a_scaler_gets_its_scale_back():
    _, optimizer = build()
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    scaler.scale(torch.ones(()))
    companions = Companions(optimizer, {"scaler": scaler})
    saved = companions.save()
    scaler.update(2.0)
    companions.restore(saved)
    assert scaler.get_scale() == 64.0


def test_an_averaged_model_goes_back_in_the_very_tensors_that_it_has():
    model, optimizer = build()
    averaged = AveragedModel(model)
    companions = Companions(optimizer, {"ema": averaged})
    train(model, optimizer, range(2))
    averaged.update_parameters(model)
    expected = copy.deepcopy(averaged.state_dict())
    places = [tensor.data_ptr() for tensor in averaged.state_dict().values()]
    saved = companions.save()
    train(model, optimizer, range(2))
    averaged.update_parameters(model)
    companions.restore(saved)
    assert_same(averaged.state_dict(), expected)
    assert [tensor.data_ptr() for tensor in averaged.state_dict().values()] == places


def test_a_module_with_state_of_another_kind_is_loaded_by_itself():
    class Counting(nn.Linear):
        count = 0

        def get_extra_state(self):
            return {"count": self.count}

        def set_extra_state(self, state):
            self.count = state["count"]

    _, optimizer = build()
    module = Counting(1, 1)
    companions = Companions(optimizer, {"module": module})
    saved = companions.save()
    module.count = 7
    companions.restore(saved)
    assert module.count == 0


@pytest.mark.parametrize("has_random", [True, False])
def test_random_generators_go_back_if_asked(has_random):
    _, optimizer = build()
    companions = Companions(optimizer, has_random=has_random)
    saved = through_file(companions.save())
    first = torch.rand(3).tolist(), np.random.random(), random.random(), random.gauss(0, 1)
    companions.restore(saved)
    second = torch.rand(3).tolist(), np.random.random(), random.random(), random.gauss(0, 1)
    assert (first == second) == has_random


def test_what_has_no_state_is_refused_by_name():
    _, optimizer = build()
    with pytest.raises(gradguard.AttachError, match=r"also\['schedule'\] must have state_dict.* got str"):
        Companions(optimizer, {"schedule": "cosine"})


def test_the_optimizer_itself_is_refused():
    _, optimizer = build()
    with pytest.raises(gradguard.AttachError, match="is the optimizer itself"):
        Companions(optimizer, {"optimizer": optimizer})


def test_a_state_with_an_average_that_is_not_finite_is_not_saved():
    model, optimizer = build()
    averaged = AveragedModel(model)
    with torch.no_grad():
        next(averaged.parameters()).fill_(math.nan)
    snapshots = Snapshots(model, optimizer, 10, 0.5, companions=Companions(optimizer, {"ema": averaged}))
    assert not snapshots.take(0, {})
    assert snapshots.refusal == "ema is not finite"


def test_the_average_counts_for_the_size():
    model, optimizer = build()
    alone = Snapshots(model, optimizer, 10, 0.5)
    alone.take(0, {})
    both = Snapshots(model, optimizer, 10, 0.5, companions=Companions(optimizer, {"ema": AveragedModel(model)}))
    both.take(0, {})
    assert both.nbytes > 1.9 * alone.nbytes
