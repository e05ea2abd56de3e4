"""The text that the demo trains on: the help topics of the Python language, which every Python carries."""

from __future__ import annotations

from collections.abc import Iterator
from pydoc_data.topics import topics

import torch


VOCABULARY = 256  # the tokens are bytes
HELD_OUT_SHARE = 0.1


def load_tokens() -> tuple[torch.Tensor, torch.Tensor]:
    """Return the text as byte tokens: (N,) int64 to train on, and (M,) int64 held out.

    Example:
        >>> tokens, held_out = load_tokens()
        >>> len(tokens) > 8 * len(held_out) > 100_000
        True
    """
    text = "\n".join(topics[name] for name in sorted(topics)).encode()
    tokens = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
    split = int(len(tokens) * (1 - HELD_OUT_SHARE))
    return tokens[:split], tokens[split:]


def batches(tokens: torch.Tensor, size: int, context: int, seed: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield random pieces of the text for ever, in an order that depends on the seed alone.

    Args:
        tokens: (N,) int64.
        size: pieces a batch, B.
        context: tokens a piece, T.
        seed: of the order.

    Yields:
        Inputs (B, T) and targets (B, T): the targets are one token ahead.
    """
    generator = torch.Generator().manual_seed(seed)
    window = torch.arange(context + 1)
    while True:
        starts = torch.randint(len(tokens) - context, (size, 1), generator=generator)
        pieces = tokens[starts + window]
        yield pieces[:, :-1], pieces[:, 1:]
