"""Healthy language models on the text that every Python carries."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, logsigmoid
from torch.optim import SGD, AdamW, SparseAdam

from benchmarks.zoo.data import batches
from benchmarks.zoo.setup import Opening, Setup, Training
from benchmarks.zoo.supervised import outputs, plain_turn
from gradguard.demo.model import GPT
from gradguard.demo.text import VOCABULARY, load_tokens
from gradguard.demo.text import batches as pieces


CONTEXT = 32
NUM_HELD = 64  # pieces of held-out text that a model is judged by


def _score(model: nn.Module) -> float:
    inputs, targets = next(pieces(load_tokens()[1], NUM_HELD, CONTEXT, seed=0))
    return -cross_entropy(outputs(model, inputs).flatten(0, -2), targets.flatten()).item()


def _language(model: nn.Module, optimizer: torch.optim.Optimizer, seed: int, size: int) -> Training:
    loader = pieces(load_tokens()[0], size, CONTEXT, seed)

    def loss_at(step: int) -> Tensor:
        inputs, targets = next(loader)
        return cross_entropy(model(inputs).flatten(0, -2), targets.flatten())

    def loss(output: Tensor, targets: Tensor) -> Tensor:
        return cross_entropy(output.flatten(0, -2), targets.flatten())

    opening = Opening(model, next(pieces(load_tokens()[0], size, CONTEXT, seed)), loss)
    return Training(model, [plain_turn(optimizer, loss_at)], lambda: _score(model), opening)


def _gpt(seed: int) -> Training:
    torch.manual_seed(seed)
    model = GPT(VOCABULARY, CONTEXT, 32)
    return _language(model, AdamW(model.parameters(), 3e-3), seed, size=8)


class Tied(nn.Module):
    """A recurrent model whose embedding is its output layer too."""

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        nn.init.normal_(self.embed.weight, std=0.1)
        self.cell = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.cell(self.embed(tokens))[0])


def _tied(seed: int) -> Training:
    torch.manual_seed(seed)
    model = Tied()
    return _language(model, AdamW(model.parameters(), 5e-3), seed, size=16)


@cache
def _words() -> tuple[Tensor, int]:
    """Return the pairs of neighbouring words, (N, 2) int64, and the number of words; rare words are one word."""
    text = bytes(load_tokens()[0].tolist()).decode(errors="replace").lower().split()
    counts: dict[str, int] = {}
    for word in text:
        counts[word] = counts.get(word, 0) + 1
    known = sorted((word for word, count in counts.items() if count >= 5), key=lambda word: (-counts[word], word))
    index = {word: place + 1 for place, word in enumerate(known)}
    ids = torch.tensor([index.get(word, 0) for word in text])
    return torch.stack([ids[:-1], ids[1:]], dim=1), len(known) + 1


class SkipGram(nn.Module):
    """Two embeddings with sparse gradients; forward gives the similarity of pairs of words."""

    def __init__(self, words: int, width: int = 32) -> None:
        super().__init__()
        self.centre = nn.Embedding(words, width, sparse=True)
        self.context = nn.Embedding(words, width, sparse=True)
        nn.init.normal_(self.centre.weight, std=0.1)
        nn.init.normal_(self.context.weight, std=0.1)

    def forward(self, centre: Tensor, context: Tensor) -> Tensor:
        return (self.centre(centre) * self.context(context)).sum(-1)


def _skip_gram(seed: int, is_adam: bool) -> Training:
    """Which words are neighbours, told from random ones."""
    torch.manual_seed(seed)
    pairs, words = _words()
    held, pairs = pairs[:2000], pairs[2000:]
    model = SkipGram(words)
    optimizer = SparseAdam(list(model.parameters()), 0.01) if is_adam else SGD(model.parameters(), 5.0)
    order = batches(len(pairs), 256, seed)

    def loss_of(centre: Tensor, context: Tensor, random: Tensor) -> Tensor:
        return -(logsigmoid(model(centre, context)) + logsigmoid(-model(centre, random))).mean()

    def loss_at(step: int) -> Tensor:
        centre, context = pairs[next(order)].unbind(1)
        return loss_of(centre, context, context[torch.randperm(len(context))])

    def score() -> float:
        with torch.no_grad():
            return -loss_of(held[:, 0], held[:, 1], held[:, 1].roll(1000)).item()

    near, far = (pairs[:128], pairs[:128].roll(1000))
    both = torch.cat([near, torch.stack([near[:, 0], far[:, 1]], dim=1)])
    truth = torch.cat([torch.ones(128), torch.zeros(128)])
    opening = Opening(model, ((both[:, 0], both[:, 1]), truth), binary_cross_entropy_with_logits)
    return Training(model, [plain_turn(optimizer, loss_at)], score, opening)


HEALTHY_LANGUAGE = (
    Setup("H40", "small GPT on bytes, AdamW", "healthy", _gpt),
    Setup("H41", "GRU with tied embeddings", "healthy", _tied, 200),
    Setup("H42", "sparse embeddings, SparseAdam", "healthy", lambda seed: _skip_gram(seed, is_adam=True)),
    Setup("H43", "sparse embeddings, SGD", "healthy", lambda seed: _skip_gram(seed, is_adam=False)),
)
