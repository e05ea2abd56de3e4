"""What is trained: a model, its optimizer, its batches and what it is judged by."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, interpolate
from torch.optim import Optimizer

from benchmarks.league.models import CharacterLSTM, PlainCNN
from gradguard.demo.model import GPT
from gradguard.demo.text import VOCABULARY, batches, load_tokens


NUM_STEPS = 400
CONTEXT = 32
NUM_HELD_OUT = 256  # pieces of text that a language model is judged by
WARMUP_SHARE = 0.1
NUM_DIGITS = 10
NUM_SEEN = 1347  # images to train on; the other 450 are held out
NUM_HELD_OUT_IMAGES = 2000  # each with noise of its own

Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Training:
    """A run that is ready to begin.

    Args:
        model: its last layer is called `head`.
        optimizer: with its peak learning rate.
        batches: inputs and targets, for ever.
        num_classes: targets are integers below it.
        entrance: name of the module whose input is the first floating tensor.
        held_out: one batch that the model is judged by.
    """

    model: nn.Module
    optimizer: Optimizer
    batches: Iterator[Batch]
    num_classes: int
    entrance: str
    held_out: Batch

    def loss(self, batch: Batch) -> Tensor:
        """Return the mean cross-entropy of a batch, ()."""
        inputs, targets = batch
        return cross_entropy(self.model(inputs).flatten(0, -2), targets.flatten())

    @torch.no_grad()
    def validate(self) -> float:
        """Return the mean cross-entropy on held-out data."""
        self.model.eval()
        value = self.loss(self.held_out).item()
        self.model.train()
        return value


def gpt(seed: int) -> Training:
    """Return a pre-norm GPT of two blocks over bytes, with AdamW."""
    torch.manual_seed(seed)
    model = GPT(VOCABULARY, CONTEXT, width=64, num_layers=2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.95))
    return _on_text(model, optimizer, "blocks.0", batch_size=8, seed=seed)


def lstm(seed: int) -> Training:
    """Return an LSTM over bytes, with Adam."""
    torch.manual_seed(seed)
    model = CharacterLSTM(VOCABULARY, width=96)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-2)
    return _on_text(model, optimizer, "lstm", batch_size=16, seed=seed)


def cnn(seed: int) -> Training:
    """Return a plain CNN on handwritten digits, with SGD and momentum."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32)[:, None]
    images = interpolate((images - images.mean()) / images.std(), scale_factor=2, mode="bilinear")
    targets = torch.tensor(digits.target)
    shuffled = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    seen, unseen = shuffled[:NUM_SEEN], shuffled[NUM_SEEN:]
    torch.manual_seed(seed)
    model = PlainCNN(NUM_DIGITS, width=12)
    return Training(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9),
        batches=_noisy(images[seen], targets[seen], 32, seed),
        num_classes=NUM_DIGITS,
        entrance="",
        held_out=next(_noisy(images[unseen], targets[unseen], NUM_HELD_OUT_IMAGES, seed=0)),
    )


TASKS: dict[str, Callable[[int], Training]] = {"gpt": gpt, "lstm": lstm, "cnn": cnn}


def rate_factor(step: int, num_steps: int) -> float:
    """Return the share of the peak learning rate: a linear warm-up, then a cosine down to a tenth.

    Example:
        >>> [round(rate_factor(step, 300), 2) for step in (0, 29, 150, 300)]
        [0.03, 0.98, 0.55, 0.1]
    """
    cosine = (1 + math.cos(math.pi * step / num_steps)) / 2
    return min(1.0, (step + 1) / max(1.0, WARMUP_SHARE * num_steps)) * (0.1 + 0.9 * cosine)


def _on_text(model: nn.Module, optimizer: Optimizer, entrance: str, batch_size: int, seed: int) -> Training:
    tokens, held_out = load_tokens()
    return Training(
        model=model,
        optimizer=optimizer,
        batches=batches(tokens, batch_size, CONTEXT, seed),
        num_classes=VOCABULARY,
        entrance=entrance,
        held_out=next(batches(held_out, NUM_HELD_OUT, CONTEXT, seed=0)),
    )


def _noisy(images: Tensor, targets: Tensor, size: int, seed: int) -> Iterator[Batch]:
    """Yield random batches for ever; the noise keeps so small a set of images from being learnt by heart."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        chosen = torch.randint(len(images), (size,), generator=generator)
        noise = torch.randn(size, *images.shape[1:], generator=generator)
        yield images[chosen] + noise, targets[chosen]
