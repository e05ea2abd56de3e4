"""Runs that fail because of what is learnt: the data, the targets, the loss and the layer before it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, mse_loss
from torch.optim import SGD, Adam, RMSprop

from benchmarks.zoo.data import Split, circles, diabetes, digits
from benchmarks.zoo.failing_signal import BLOWN_UP, STUCK
from benchmarks.zoo.models import mlp
from benchmarks.zoo.setup import Make, Setup, Training
from benchmarks.zoo.supervised import Loss, outputs, r_squared, regression, supervised


NAN_SHARE = 0.005  # of the rows
EPSILON = 1e-7  # least probability in a logarithm


def _run(
    data: Callable[[], Split],
    *,
    depth: int = 2,
    tail: Callable[[], nn.Module] | None = None,
    lr: float = 0.1,
    momentum: float = 0.0,
    loss: Loss = cross_entropy,
) -> Make:
    """Return a run with SGD; `tail` is what is put behind the last layer."""

    def make(seed: int) -> Training:
        torch.manual_seed(seed)
        model = mlp(depth)
        if tail is not None:
            model.append(tail())
        return supervised(model, SGD(model.parameters(), lr, momentum=momentum), data(), seed, loss=loss)

    return make


def _adam(data: Callable[[int], Split], tail: Callable[[], nn.Module] | None = None) -> Make:
    def make(seed: int) -> Training:
        torch.manual_seed(seed)
        model = mlp(2 if tail is None else 3)
        if tail is not None:
            model.append(tail())
        return supervised(model, Adam(model.parameters(), 1e-3), data(seed), seed)

    return make


def _logarithm_of_logits(output: Tensor, target: Tensor) -> Tensor:
    return -output.gather(1, target[:, None]).log().mean()


def _two_classes(model: nn.Module, data: Split) -> float:
    """Return the share that a single output, positive for class 1, gets right; not finite is wrong."""
    output = outputs(model, data.held_x).squeeze(1)
    return (((output > 0) == (data.held_y > 0)) & output.isfinite()).float().mean().item()


def _by_hand(factor: float, lr: float, loss: Loss) -> Make:
    def make(seed: int) -> Training:
        torch.manual_seed(seed)
        model = mlp(2, 32, inputs=2, outputs=1)
        data = circles().scaled(factor)
        return supervised(model, SGD(model.parameters(), lr), data, seed, loss=loss, score=_two_classes)

    return make


def _naive_entropy(output: Tensor, target: Tensor) -> Tensor:
    share, truth = output.squeeze(1).sigmoid(), target.float()
    return -(truth * share.log() + (1 - truth) * (1 - share).log()).mean()


def _safe_entropy(output: Tensor, target: Tensor) -> Tensor:
    return binary_cross_entropy_with_logits(output.squeeze(1), target.float())


def _softmax_entropy(output: Tensor, target: Tensor) -> Tensor:
    share, truth = output.softmax(1).squeeze(1).clamp(EPSILON, 1 - EPSILON), target.float()
    return -(truth * share.log() + (1 - truth) * (1 - share).log()).mean()


def _odd_digits(loss: Loss) -> Make:
    def make(seed: int) -> Training:
        torch.manual_seed(seed)
        data, model = digits(), mlp(2, outputs=1)
        data = replace(data, y=data.y % 2, held_y=data.held_y % 2)
        return supervised(model, RMSprop(model.parameters(), 1e-3), data, seed, loss=loss, score=_two_classes)

    return make


def _holes(seed: int) -> Split:
    """The digits with a NaN in a few rows."""
    data = digits()
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randperm(len(data.x), generator=generator)[: int(NAN_SHARE * len(data.x))]
    x = data.x.clone()
    x[rows, 20] = float("nan")
    return replace(data, x=x)


def _without_holes(seed: int) -> Split:
    data = _holes(seed)
    kept = data.x.isfinite().all(1)
    return replace(data, x=data.x[kept], y=data.y[kept])


def _broadcast(seed: int) -> Training:
    """Outputs (N, 1) and targets (N,): the loss compares every output with every target."""
    torch.manual_seed(seed)
    model = mlp(2, inputs=10, outputs=1)
    return supervised(
        model, Adam(model.parameters(), 1e-3), diabetes(), seed, loss=mse_loss, score=r_squared, is_classifier=False
    )


def _matching(seed: int) -> Training:
    torch.manual_seed(seed)
    model = mlp(2, inputs=10, outputs=1)
    return regression(model, Adam(model.parameters(), 1e-3), diabetes(), seed)


def _nothing_to_learn(seed: int) -> Training:
    torch.manual_seed(seed)
    x, y = -torch.rand(1000, 4), torch.randint(2, (1000,))
    model = mlp(4, 16, inputs=4, outputs=2)
    data = Split(x[:800], y[:800], x[800:], y[800:])
    return supervised(model, Adam(model.parameters(), 1e-2), data, seed)


FAILING_TASK = (
    Setup(
        "F09",
        "inputs x10,000",
        "failing",
        _run(lambda: digits().scaled(1e4)),
        repair="advice",
        expected=(*BLOWN_UP, "bad_inputs", "dead_units"),
        reference=_run(digits),
    ),
    Setup(
        "F13",
        "logarithm of raw outputs",
        "failing",
        _run(digits, loss=_logarithm_of_logits),
        repair="advice",
        expected=("nonfinite",),
        reference=_run(digits),
    ),
    Setup(
        "F14",
        "cross-entropy by hand, inputs x100, SGD 1",
        "failing",
        _by_hand(100.0, 1.0, _naive_entropy),
        repair="advice",
        expected=("nonfinite", "bad_inputs"),
        reference=_by_hand(1.0, 0.5, _safe_entropy),
    ),
    Setup(
        "F15",
        "NaN in 0.5 % of the rows",
        "failing",
        _adam(_holes),
        repair="loop",
        expected=("nonfinite", "bad_inputs"),
        reference=_adam(_without_holes),
    ),
    Setup(
        "F19",
        "ReLU behind the last layer",
        "failing",
        _adam(lambda seed: digits(), nn.ReLU),
        repair="surgery",
        expected=("dead_units", "bad_initialization", "plateau"),
        reference=_adam(lambda seed: digits(), nn.Identity),
    ),
    Setup(
        "F20",
        "pixels from 0 to 255, SGD 0.1 with momentum",
        "failing",
        _run(lambda: digits().scaled(255.0), depth=3, momentum=0.9),
        repair="loop",
        expected=(*BLOWN_UP, "bad_inputs", "dead_units", "loss_spike"),
        reference=_run(digits, depth=3, momentum=0.9),
    ),
    Setup(
        "F27",
        "softmax before the cross-entropy",
        "failing",
        _run(digits, tail=lambda: nn.Softmax(1)),
        repair="advice",
        expected=("bad_initialization", *STUCK),
        reference=_run(digits),
    ),
    Setup(
        "F29",
        "pixels divided by 255 twice",
        "failing",
        _run(lambda: digits().scaled(1 / 255)),
        repair="advice",
        expected=("bad_inputs", *STUCK),
        reference=_run(digits),
    ),
    Setup(
        "F30",
        "shuffled labels",
        "failing",
        _adam(lambda seed: digits().with_shuffled_labels(1.0, seed)),
        repair="advice",
        expected=("plateau",),
    ),
    Setup(
        "F32",
        "softmax over a single unit",
        "failing",
        _odd_digits(_softmax_entropy),
        repair="advice",
        expected=("bad_initialization", "frozen_parameters", "update_ratio", *STUCK),
        reference=_odd_digits(_safe_entropy),
    ),
    Setup(
        "F39",
        "outputs (N, 1) against targets (N,)",
        "failing",
        _broadcast,
        repair="advice",
        expected=("bad_inputs", *STUCK),
        reference=_matching,
    ),
    Setup(
        "F42",
        "random labels",
        "failing",
        _nothing_to_learn,
        repair="advice",
        expected=("dead_units", *STUCK),
    ),
)
