"""Healthy runs in which something changes on purpose: the learning rate, the data, the loss, what is trained."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import LBFGS, SGD, Adam
from torch.optim.lr_scheduler import CosineAnnealingWarmRestarts, OneCycleLR

from benchmarks.zoo.data import Split, batches, digits
from benchmarks.zoo.models import NUM_CLASSES, cnn, he, mlp
from benchmarks.zoo.setup import Observe, Opening, Setup, Training, Turn
from benchmarks.zoo.supervised import accuracy, first_batch, plain_turn, supervised


STEPS = 300
CHANGE = 150  # step of the change, where there is one


def _level_times_5(seed: int) -> Training:
    """From one step on the gradient is five times as large for good; the loss's value shows nothing of it."""
    torch.manual_seed(seed)
    model = mlp(2)
    seen = [0]

    def loss(output: Tensor, target: Tensor) -> Tensor:
        seen[0] += 1
        value = cross_entropy(output, target)
        return value if seen[0] <= CHANGE else value + 4 * (value - value.detach())

    return supervised(model, Adam(model.parameters(), 1e-3), digits(), seed, loss=loss)


def _loss_times_5(seed: int) -> Training:
    """From one step on the loss has five times the weight, as when the reduction or the weighting is changed."""
    torch.manual_seed(seed)
    model = mlp(2)
    seen = [0]

    def loss(output: Tensor, target: Tensor) -> Tensor:
        seen[0] += 1
        return cross_entropy(output, target) * (1 if seen[0] <= CHANGE else 5)

    return supervised(model, Adam(model.parameters(), 1e-3), digits(), seed, loss=loss)


def _one_cycle(seed: int) -> Training:
    torch.manual_seed(seed)
    model = cnn(norm=True)
    optimizer = SGD(model.parameters(), 0.01, momentum=0.9)
    scheduler = OneCycleLR(optimizer, max_lr=0.3, total_steps=STEPS + 1)
    return supervised(model, optimizer, digits(), seed, scheduler=scheduler)


def _warm_restarts(seed: int) -> Training:
    torch.manual_seed(seed)
    model = mlp(3, init=he)
    optimizer = SGD(model.parameters(), 0.2, momentum=0.9)
    scheduler = CosineAnnealingWarmRestarts(optimizer, 75, eta_min=1e-4)
    return supervised(model, optimizer, digits(), seed, scheduler=scheduler)


def _harder_inputs(seed: int) -> Training:
    """Halfway through, the images become noisy and the loss jumps; it stays below its start."""
    torch.manual_seed(seed)
    data = digits()
    noise = torch.Generator().manual_seed(seed + 1)
    harder = replace(data, x=data.x + 0.5 * torch.randn(data.x.shape, generator=noise))
    return _two_stages(mlp(2), (data, harder), seed)


def _new_classes(seed: int) -> Training:
    """Halfway through, classes come that were never seen: the loss jumps far above its start, and is learnt."""
    torch.manual_seed(seed)
    return _two_stages(mlp(2), (digits().only(0, 1, 2, 3, 4), digits()), seed)


def _two_stages(model: nn.Module, stages: tuple[Split, Split], seed: int) -> Training:
    orders = [batches(len(stage.x), 64, seed) for stage in stages]

    def loss_at(step: int) -> Tensor:
        index = int(step >= CHANGE)
        rows = next(orders[index])
        return cross_entropy(model(stages[index].x[rows]), stages[index].y[rows])

    turn = plain_turn(Adam(model.parameters(), 1e-3), loss_at)
    return Training(model, [turn], lambda: accuracy(model, digits()), first_batch(model, stages[0], 64, seed))


def _pretrained(seed: int) -> tuple[nn.Sequential, nn.Linear]:
    """Return a frozen backbone that has learnt half of the classes, with a fresh head, and that head."""
    torch.manual_seed(seed)
    model = mlp(3, init=he)
    before = supervised(model, Adam(model.parameters(), 2e-3), digits().only(0, 1, 2, 3, 4), seed)
    for step in range(100):
        before.turns[0].run(step, lambda loss: None)
    head = nn.Linear(64, NUM_CLASSES)
    model[-1] = head
    for name, parameter in model.named_parameters():
        parameter.grad = None
        parameter.requires_grad_(name.startswith(f"{len(model) - 1}."))
    return model, head


def _frozen_backbone(seed: int) -> Training:
    """All parameters are handed to the optimizer, although only the head's get gradients."""
    model, _ = _pretrained(seed)
    return supervised(model, Adam(model.parameters(), 5e-3), digits(), seed)


def _thawing_backbone(seed: int) -> Training:
    """The backbone joins halfway through, as a new param group with a smaller learning rate."""
    model, head = _pretrained(seed)
    optimizer = Adam(head.parameters(), 5e-3)
    order = batches(len(digits().x), 64, seed)

    def loss_at(step: int) -> Tensor:
        if step == CHANGE:
            backbone = [p for p in model.parameters() if not p.requires_grad]
            for parameter in backbone:
                parameter.requires_grad_()
            optimizer.add_param_group({"params": backbone, "lr": 1e-3})
        rows = next(order)
        return cross_entropy(model(digits().x[rows]), digits().y[rows])

    opening = first_batch(model, digits(), 64, seed)
    return Training(model, [plain_turn(optimizer, loss_at)], lambda: accuracy(model, digits()), opening)


def _accumulation(seed: int) -> Training:
    """Four micro-batches a step, each with its loss."""
    torch.manual_seed(seed)
    model, data = mlp(2, init=he), digits()
    optimizer = SGD(model.parameters(), 0.1, momentum=0.9)
    order = batches(len(data.x), 16, seed)

    def run(step: int, observe: Observe) -> None:
        optimizer.zero_grad()
        for _ in range(4):
            rows = next(order)
            loss = cross_entropy(model(data.x[rows]), data.y[rows])
            (loss / 4).backward()
            observe(loss)
        optimizer.step()

    opening = first_batch(model, data, 16, seed)
    return Training(model, [Turn(optimizer, run)], lambda: accuracy(model, data), opening)


def _lbfgs(seed: int) -> Training:
    """The whole data in every step, and an optimizer that takes a closure."""
    torch.manual_seed(seed)
    model, data = mlp(1, 32, act=nn.Tanh), digits()
    optimizer = LBFGS(model.parameters(), lr=0.5, max_iter=4, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = cross_entropy(model(data.x), data.y) + 1e-3 * sum(p.square().sum() for p in model.parameters())
        loss.backward()
        return loss

    return Training(
        model,
        [Turn(optimizer, lambda step, observe: optimizer.step(closure))],
        lambda: accuracy(model, data),
        Opening(model, (data.x, data.y), cross_entropy),
    )


HEALTHY_CHANGES = (
    Setup("H23", "gradients x5 for good at half", "healthy", _level_times_5),
    Setup("H24", "loss x5 for good at half", "healthy", _loss_times_5),
    Setup("H25", "one-cycle schedule", "healthy", _one_cycle),
    Setup("H26", "warm restarts of the learning rate", "healthy", _warm_restarts),
    Setup("H27", "curriculum: harder inputs at half", "healthy", _harder_inputs),
    Setup("H28", "curriculum: new classes at half", "healthy", _new_classes),
    Setup("H29", "frozen backbone, new head", "healthy", _frozen_backbone),
    Setup("H30", "backbone thaws at half", "healthy", _thawing_backbone),
    Setup("H31", "four micro-batches a step", "healthy", _accumulation),
    Setup("H32", "L-BFGS with a closure", "healthy", _lbfgs, 60),
)
