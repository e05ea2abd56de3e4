"""Describes what an activation layer did to one batch."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.zoo.models import Apply
from benchmarks.zoo.signals import Activation, Kind


ACTIVATIONS = (
    nn.ReLU,
    nn.LeakyReLU,
    nn.ELU,
    nn.SELU,
    nn.GELU,
    nn.SiLU,
    nn.Tanh,
    nn.Sigmoid,
    nn.Softplus,
    nn.Softmax,
    Apply,
)
ACTIVE, NEAR_ZERO, NEAR_LIMIT, FAR = 1e-5, 1e-6, 0.95, 5.0  # see `Activation`
RANGES = {"tanh": (-9.4999, 9.4999), "sigmoid": (-23.0, 16.99999)}  # inputs
FLAT = {"tanh": (-0.99, 0.99), "sigmoid": (0.0067, 0.9933)}  # outputs


@torch.no_grad()
def describe(name: str, module: nn.Module, given: Tensor, output: Tensor) -> Activation:
    """Return the statistics of one layer; the units are the last dimension, or the channels of images.

    Args:
        name: of the module.
        module: the activation.
        given: its input, (B, units), (B, T, units) or (B, channels, H, W).
        output: of the same shape.
    """
    kind = _kind(module)
    a, z = _rows(output), _rows(given)
    is_bounded = kind in RANGES
    scaled = 2 * a - 1 if kind == "sigmoid" else a
    ones, zeros = np.ones(a.shape[1]), np.zeros(a.shape[1])
    return Activation(
        name=name,
        kind=kind,
        num_rows=len(a),
        activity=_per_unit(a.abs() > ACTIVE),
        extremity=_per_unit(scaled.abs()) if is_bounded else zeros,
        inside=_per_unit((z > RANGES[kind][0]) & (z < RANGES[kind][1])) if is_bounded else ones,
        not_positive=_share(a <= 0),
        near_zero=_share(a.abs() < NEAR_ZERO),
        near_limit=_share(a.abs() > NEAR_LIMIT) if is_bounded else 0.0,
        far_input=_share(z.abs() >= FAR),
        flat=_share((a < FLAT[kind][0]) | (a > FLAT[kind][1])) if is_bounded else 0.0,
        std=float(a.std(correction=0)),
        input_std=float(z.std(correction=0)),
    )


def _kind(module: nn.Module) -> Kind:
    if isinstance(module, nn.ReLU):
        return "relu"
    if isinstance(module, nn.Tanh):
        return "tanh"
    return "sigmoid" if isinstance(module, nn.Sigmoid) else "other"


def _rows(tensor: Tensor) -> Tensor:
    tensor = tensor.float()
    return (tensor.movedim(1, -1) if tensor.ndim == 4 else tensor).flatten(0, -2)


def _per_unit(values: Tensor) -> np.ndarray:
    return values.float().mean(0).double().numpy()


def _share(values: Tensor) -> float:
    return float(values.float().mean())
