"""What the drill trains: a small classifier with embedding, batch normalisation and residual path, on made data."""

from __future__ import annotations

import torch
from torch import nn


NUM_FEATURES = 16
NUM_SYMBOLS = 32
NUM_CLASSES = 8
BATCH_SIZE = 64
NUM_HELD_OUT = 4096
SYMBOL_WIDTH = 8
WIDTH = 32
NOISE = 1.0  # of the targets: what nobody can learn, so that the loss does not fall to zero

Batch = tuple[torch.Tensor, torch.Tensor, torch.Tensor]  # features (B, F), symbols (B,) and classes (B,)


class Classifier(nn.Module):
    """Features and a symbol to a class, by a residual block with batch normalisation before it."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(NUM_SYMBOLS, SYMBOL_WIDTH)
        self.inputs = nn.Linear(NUM_FEATURES + SYMBOL_WIDTH, WIDTH)
        self.norm = nn.BatchNorm1d(WIDTH)
        self.block = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))
        self.head = nn.Linear(WIDTH, NUM_CLASSES)

    def forward(self, features: torch.Tensor, symbols: torch.Tensor) -> torch.Tensor:
        """Return scores (B, C) of features (B, F) and symbols (B,) int64."""
        signal = self.inputs(torch.cat([features, self.embedding(symbols)], dim=1))
        scores: torch.Tensor = self.head(signal + self.block(self.norm(signal)))
        return scores


class Task:
    """Made data: what a fixed random network says about random inputs, with noise.

    Args:
        num_batches: batches to train on.
        seed: of the network and of the data.

    Attributes:
        batches: what to train on, nothing twice.
        held_out: what to judge by.
    """

    def __init__(self, num_batches: int, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)
        self._embedding = self._normal(NUM_SYMBOLS, SYMBOL_WIDTH)
        self._first = self._normal(NUM_FEATURES + SYMBOL_WIDTH, WIDTH) / (NUM_FEATURES + SYMBOL_WIDTH) ** 0.5
        self._second = self._normal(WIDTH, NUM_CLASSES)
        self.held_out = self._draw(NUM_HELD_OUT)
        self.batches = [self._draw(BATCH_SIZE) for _ in range(num_batches)]

    def _draw(self, size: int) -> Batch:
        features = self._normal(size, NUM_FEATURES)
        symbols = torch.randint(NUM_SYMBOLS, (size,), generator=self._generator)
        scores = torch.relu(torch.cat([features, self._embedding[symbols]], dim=1) @ self._first) @ self._second
        return features, symbols, (scores + NOISE * self._normal(size, NUM_CLASSES)).argmax(dim=1)

    def _normal(self, *shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=self._generator)
