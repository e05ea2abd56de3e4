"""Trainings that look strange and are healthy: nothing is found, and not one bit is different."""

import math

import pytest
import torch
from guarded import classification, noise, train
from torch import nn
from torch.nn.functional import cross_entropy, gaussian_nll_loss, mse_loss, softplus
from torch.optim import lr_scheduler


def line(batch_size, lr, scale=1.0, spread=1.0):
    """The line 3x + 5, the first regression that everybody writes."""

    def make():
        model = nn.Linear(1, 1)

        def loss_at(step):
            inputs = spread * noise(step, batch_size, 1)
            return mse_loss(model(inputs), scale * (3 * inputs + 5))

        return model, torch.optim.SGD(model.parameters(), lr=lr), loss_at

    return make


def small_weights(std, lr):
    """A linear regression whose weights start close to zero, so that the first updates are many times their size."""

    def make():
        model = nn.Linear(2, 1)
        nn.init.normal_(model.weight, std=std)
        nn.init.zeros_(model.bias)

        def loss_at(step):
            inputs = noise(step, 10, 2)
            return mse_loss(model(inputs), inputs @ torch.tensor([[2.0], [-3.4]]) + 4.2)

        return model, torch.optim.SGD(model.parameters(), lr=lr), loss_at

    return make


def unscaled_targets(optimizer, lr, scale):
    """Targets in the thousands and losses in the millions."""

    def make():
        model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))

        def loss_at(step):
            inputs = noise(step, 32, 8)
            return mse_loss(model(inputs), scale * (inputs[:, :1] + inputs[:, 1:2].abs()))

        return model, optimizer(model.parameters(), lr=lr), loss_at

    return make


def likelihood():
    """A loss that falls below zero."""
    model = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 2))

    def loss_at(step):
        inputs = noise(step, 64, 4)
        targets = inputs[:, :1] + 0.3 * noise(step + 10**5, 64, 1)
        mean, scale = model(inputs).chunk(2, 1)
        return gaussian_nll_loss(mean, targets, softplus(scale) ** 2)

    return model, torch.optim.SGD(model.parameters(), lr=0.02), loss_at


def two_tasks():
    """A shared trunk with two heads that take turns, one with a hundred times the loss of the other."""
    trunk, heads = nn.Linear(6, 32), nn.ModuleList([nn.Linear(32, 1), nn.Linear(32, 1)])
    model = nn.ModuleDict({"trunk": trunk, "heads": heads})

    def loss_at(step):
        inputs = noise(step, 32, 6)
        hidden = trunk(inputs).relu()
        if step % 2:
            return mse_loss(heads[0](hidden), 3 * inputs[:, :1] + 3)
        return 0.1 * mse_loss(heads[1](hidden), inputs[:, 1:2])

    return model, torch.optim.Adam(model.parameters(), lr=1e-3), loss_at


def margin():
    """A hinge loss that is exactly zero on many batches of one or two samples."""
    model = nn.Linear(8, 1)

    def loss_at(step):
        inputs = noise(step, 2, 8)
        return (1 - inputs[:, :1].sign() * model(inputs)).clamp(min=0).mean()

    return model, torch.optim.SGD(model.parameters(), lr=0.05), loss_at


def adapter():
    """A low-rank adapter that starts at zero: half of its parameters have no gradient at first."""
    base, down, up = nn.Linear(16, 16), nn.Linear(16, 4, bias=False), nn.Linear(4, 16, bias=False)
    base.requires_grad_(False)
    nn.init.zeros_(up.weight)
    model = nn.ModuleList([base, down, up])
    target = 0.3 * noise(10**6, 16, 16)

    def loss_at(step):
        inputs = noise(step, 32, 16)
        return mse_loss(base(inputs) + up(down(inputs)), inputs @ target)

    return model, torch.optim.AdamW([down.weight, up.weight], lr=3e-3), loss_at


def single_images():
    """Batch normalisation over batches of one."""
    model = nn.Sequential(nn.Conv1d(2, 8, 3), nn.BatchNorm1d(8), nn.ReLU(), nn.Flatten(), nn.Linear(48, 2))

    def loss_at(step):
        inputs = noise(step, 1, 2, 8)
        return cross_entropy(model(inputs), (inputs[:, 0].sum(1) > 0).long())

    return model, torch.optim.SGD(model.parameters(), lr=0.02), loss_at


def frozen_statistics():
    """A model that stays in evaluation mode while it is trained."""
    model = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.Dropout(), nn.ReLU(), nn.Linear(32, 1)).eval()

    def loss_at(step):
        inputs = noise(step, 32, 8)
        return mse_loss(model(inputs), inputs[:, :1])

    return model, torch.optim.Adam(model.parameters(), lr=1e-2), loss_at


def lengths():
    """A loss that is summed over sequences of 4 to 500 tokens."""
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4))

    def loss_at(step):
        size = int(torch.randint(4, 500, (1,), generator=torch.Generator().manual_seed(step)))
        inputs = noise(step, size, 8)
        return cross_entropy(model(inputs), inputs[:, :4].argmax(1), reduction="sum")

    return model, torch.optim.Adam(model.parameters(), lr=1e-3), loss_at


def fitted():
    """Fine-tuning on data that the model has fitted already, with a loss near zero."""
    model, _, _ = classification()()
    teacher = noise(10**6, 16, 10)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    def loss_on(inputs):
        return cross_entropy(model(inputs), (inputs @ teacher).argmax(1))

    fixed = noise(1, 256, 16)
    for _ in range(150):
        optimizer.zero_grad()
        loss_on(fixed).backward()
        optimizer.step()
    return model, torch.optim.AdamW(model.parameters(), lr=1e-4), lambda step: loss_on(fixed[step % 16 :: 16])


HEALTHY = {
    "line": (line(32, 0.1), 300),
    "line, one sample at a time": (line(1, 0.1), 300),
    "line, full steps": (line(64, 0.4), 300),
    "line, unscaled inputs": (line(32, 0.001, spread=10.0), 300),
    "line, targets x100": (line(32, 0.1, scale=100.0), 300),
    "line, targets x100000": (line(32, 0.1, scale=1e5), 300),
    "weights near zero": (small_weights(0.01, 0.03), 300),
    "weights nearer zero": (small_weights(1e-4, 0.1), 300),
    "weights at zero": (small_weights(0.0, 0.1), 300),
    "losses of a million, Adam": (unscaled_targets(torch.optim.Adam, 1e-2, 1e3), 300),
    "losses of 10^10, Adam": (unscaled_targets(torch.optim.Adam, 1e-2, 1e5), 300),
    "losses of a million, SGD": (unscaled_targets(torch.optim.SGD, 1e-5, 1e3), 300),
    "negative losses": (likelihood, 400),
    "two tasks in turn": (two_tasks, 400),
    "losses of zero": (margin, 300),
    "adapter": (adapter, 300),
    "batches of one": (single_images, 300),
    "evaluation mode": (frozen_statistics, 300),
    "lengths": (lengths, 300),
    "fitted already": (fitted, 300),
}


@pytest.mark.parametrize("is_observed", [True, False], ids=["loss observed", "loss unknown"])
@pytest.mark.parametrize("name", HEALTHY)
def test_it_is_left_alone(name, is_observed, bits):
    make, steps = HEALTHY[name]
    run = train(make, steps, is_observed=is_observed)
    assert run.alarms == []
    plain = train(make, steps, is_guarded=False)
    assert bits(run.model, run.optimizer) == bits(plain.model, plain.optimizer)


SCHEDULES = {
    "warm restarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 50),
    "one cycle": lambda o: lr_scheduler.OneCycleLR(o, 0.3, total_steps=301),
    "saw teeth": lambda o: lr_scheduler.CyclicLR(o, 1e-4, 0.2, step_size_up=25),
    "warm-up from zero": lambda o: lr_scheduler.LambdaLR(o, lambda step: min(1.0, step / 50)),
    "decay in jumps": lambda o: lr_scheduler.StepLR(o, 100),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_that_moves_the_loss_is_left_alone(name, bits):
    run = train(classification("sgd"), 300, schedule=SCHEDULES[name])
    assert run.alarms == []
    plain = train(classification("sgd"), 300, schedule=SCHEDULES[name], is_guarded=False)
    assert bits(run.model, run.optimizer) == bits(plain.model, plain.optimizer)


@pytest.mark.parametrize("factor", [3.0, 10.0, 50.0])
def test_harder_data_for_good_cost_a_few_steps_and_become_the_new_normal(factor):
    """A curriculum: from step 100 on the loss cannot fall below a multiple of what it was."""

    def make():
        model = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 1))

        def loss_at(step):
            inputs = noise(step, 32, 6)
            deviation = 1.0 if step < 100 else math.sqrt(factor)
            return mse_loss(model(inputs), inputs[:, :1] + deviation * noise(step + 10**5, 32, 1))

        return model, torch.optim.Adam(model.parameters(), lr=1e-3), loss_at

    run = train(make, 400)
    assert run.stopped is None
    assert len(run.alarms) <= 10
    assert all(record.step < 150 for record in run.interventions)
    plain = train(make, 400, is_guarded=False)
    assert run.end() == pytest.approx(plain.end(), rel=0.05)


def test_a_second_task_at_every_tenth_step_is_not_trained_away():
    """Its loss and gradient are a hundred times those of the other steps, each time anew."""

    def make():
        trunk, heads = nn.Linear(6, 32), nn.ModuleList([nn.Linear(32, 1), nn.Linear(32, 1)])
        model = nn.ModuleDict({"trunk": trunk, "heads": heads})

        def loss_at(step):
            inputs = noise(step, 32, 6)
            hidden = trunk(inputs).relu()
            if step % 10 == 9:
                return 10 * mse_loss(heads[0](hidden), 2 + inputs[:, :1])
            return 0.1 * mse_loss(heads[1](hidden), inputs[:, 1:2])

        return model, torch.optim.Adam(model.parameters(), lr=6e-3), loss_at

    def second(run):
        return sum(run.losses[step] for step in range(359, 400, 10))

    run, plain = train(make, 400), train(make, 400, is_guarded=False)
    assert second(run) < 2 * second(plain)
