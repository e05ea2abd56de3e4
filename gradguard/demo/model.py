"""A small GPT: pre-norm blocks of causal attention and a two-layer MLP over byte tokens."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


class Attention(nn.Module):
    """Causal self-attention.

    Args:
        width: features, a multiple of `num_heads`.
        num_heads: attention heads.
    """

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.query_key_value = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (B, T, width) to (B, T, width)."""
        batch, context, width = x.shape
        heads = self.query_key_value(x).view(batch, context, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(heads[0], heads[1], heads[2], is_causal=True)
        output: torch.Tensor = self.output(mixed.transpose(1, 2).reshape(batch, context, width))
        return output


class Block(nn.Module):
    """Attention and MLP, each behind a layer norm and beside a skip connection."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.attention = Attention(width, num_heads)
        self.mlp_norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (B, T, width) to (B, T, width)."""
        x = x + self.attention(self.attention_norm(x))
        update: torch.Tensor = self.mlp(self.mlp_norm(x))
        return x + update


class GPT(nn.Module):
    """A language model over a small vocabulary.

    Args:
        vocabulary: number of tokens.
        context: longest sequence, T.
        width: features.
        num_layers: blocks.
        num_heads: attention heads in each.

    Example:
        >>> GPT(256, context=8, width=32)(torch.zeros(2, 8, dtype=torch.long)).shape
        torch.Size([2, 8, 256])
    """

    def __init__(self, vocabulary: int, context: int, width: int, num_layers: int = 4, num_heads: int = 4) -> None:
        super().__init__()
        self.token_embedding = nn.Embedding(vocabulary, width)
        self.position_embedding = nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, num_heads) for _ in range(num_layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.apply(_initialize)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Map tokens (B, T) int64 to the logits (B, T, vocabulary) of the next token."""
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        logits: torch.Tensor = self.head(
            self.norm(self.blocks(self.token_embedding(tokens) + self.position_embedding(positions)))
        )
        return logits


def _initialize(module: nn.Module) -> None:
    # Standard deviation 0.02, as GPT-2 has it.
    if isinstance(module, (nn.Linear, nn.Embedding)):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
