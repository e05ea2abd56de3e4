"""The data sets: small ones that scikit-learn and Python itself carry, each split once and for all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import torch
from sklearn import datasets
from torch import Tensor


@dataclass(frozen=True)
class Split:
    """Data to train on and to be judged by.

    Args:
        x: (N, D) float32 inputs to train on.
        y: (N,) int64 classes or float32 targets.
        held_x: (M, D) float32 inputs held out.
        held_y: (M,) their classes or targets.
    """

    x: Tensor
    y: Tensor
    held_x: Tensor
    held_y: Tensor

    def scaled(self, factor: float) -> Split:
        """Return it with all inputs times a factor."""
        return replace(self, x=self.x * factor, held_x=self.held_x * factor)

    def standardised(self) -> Split:
        """Return it with inputs of mean 0 and variance 1 a feature; constant features become 0."""
        mean, std = self.x.mean(0), self.x.std(0)
        std = torch.where(std > 0, std, torch.ones_like(std))
        return replace(self, x=(self.x - mean) / std, held_x=(self.held_x - mean) / std)

    def only(self, *classes: int) -> Split:
        """Return the samples of these classes."""
        kept, held = (torch.isin(y, torch.tensor(classes)) for y in (self.y, self.held_y))
        return Split(self.x[kept], self.y[kept], self.held_x[held], self.held_y[held])

    def with_shuffled_labels(self, share: float, seed: int) -> Split:
        """Return it with the labels of a share of the training samples permuted among themselves."""
        generator = torch.Generator().manual_seed(seed)
        chosen = torch.randperm(len(self.y), generator=generator)[: int(share * len(self.y))]
        y = self.y.clone()
        y[chosen] = y[chosen[torch.randperm(len(chosen), generator=generator)]]
        return replace(self, y=y)


def _split(x: np.ndarray, y: np.ndarray, num_held: int, kind: torch.dtype) -> Split:
    order = np.random.RandomState(0).permutation(len(x))
    inputs = torch.tensor(x[order], dtype=torch.float32)
    targets = torch.tensor(y[order], dtype=kind)
    return Split(inputs[num_held:], targets[num_held:], inputs[:num_held], targets[:num_held])


@cache
def digits() -> Split:
    """8x8 images of digits, pixels from 0 to 1: 1437 to train on, 360 held out."""
    x, y = datasets.load_digits(return_X_y=True)
    return _split(x / 16.0, y, 360, torch.int64)


@cache
def diabetes() -> Split:
    """Ten measurements and the progress of a disease, all standardised: 353 to train on, 89 held out."""
    x, y = datasets.load_diabetes(return_X_y=True)
    x, y = (x - x.mean(0)) / x.std(0), (y - y.mean()) / y.std()
    return _split(x, y, 89, torch.float32)


@cache
def circles() -> Split:
    """Two noisy rings in the plane, one inside the other: 800 to train on, 200 held out."""
    x, y = datasets.make_circles(1000, noise=0.2, factor=0.5, random_state=0)
    return _split(x, y, 200, torch.int64)


@cache
def blobs() -> Split:
    """Three overlapping clouds in the plane: 800 to train on, 200 held out."""
    x, y = datasets.make_blobs(1000, centers=3, cluster_std=2.0, random_state=0)
    return _split(x, y, 200, torch.int64)


@cache
def wine() -> Split:
    """Thirteen measurements of wines of three growers, standardised: 142 to train on, 36 held out."""
    x, y = datasets.load_wine(return_X_y=True)
    return _split(x, y, 36, torch.int64).standardised()


@cache
def raw_tumours() -> Split:
    """Thirty measurements of tumours, from 0.001 to 4000, benign or not: 455 to train on, 114 held out."""
    x, y = datasets.load_breast_cancer(return_X_y=True)
    return _split(x, y, 114, torch.int64)


@cache
def tumours() -> Split:
    """The same, standardised."""
    return raw_tumours().standardised()


@cache
def moons() -> Split:
    """Two noisy half-moons in the plane: 960 to train on, 240 held out."""
    x, y = datasets.make_moons(1200, noise=0.25, random_state=1)
    return _split(x, y, 240, torch.int64)


@cache
def friedman() -> Split:
    """Ten inputs, five of which make the target (Friedman 1991), all standardised: 720 to train on, 180 held out."""
    x, y = datasets.make_friedman1(900, noise=0.5, random_state=1)
    return _split((x - x.mean(0)) / x.std(0), (y - y.mean()) / y.std(), 180, torch.float32)


@cache
def roll() -> Split:
    """Points of a rolled sheet in space and how far along it they lie, standardised: 800 to train on, 200 held out."""
    x, y = datasets.make_swiss_roll(1000, noise=0.1, random_state=1)
    return _split((x - x.mean(0)) / x.std(0), (y - y.mean()) / y.std(), 200, torch.float32)


def batches(count: int, size: int, seed: int) -> Iterator[Tensor]:
    """Yield (size,) int64 indices for ever: shuffled epochs of `count` samples, without their last, short batch."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        order = torch.randperm(count, generator=generator)
        for start in range(0, count - size + 1, size):
            yield order[start : start + size]
