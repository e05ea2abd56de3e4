"""The two models of the league that are not in the demo: a recurrent one over characters, and a convolutional one."""

from __future__ import annotations

from torch import Tensor, nn


class CharacterLSTM(nn.Module):
    """Predicts the next byte from those before.

    Args:
        vocabulary: number of tokens.
        width: features of the embedding and of the state.
    """

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, width, batch_first=True)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map tokens (B, T) int64 to logits (B, T, vocabulary)."""
        logits: Tensor = self.head(self.lstm(self.embedding(tokens))[0])
        return logits


class PlainCNN(nn.Module):
    """Three convolutions without any normalisation, which makes it the one most easily broken."""

    def __init__(self, num_classes: int, width: int) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, 2 * width, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(2 * width, 2 * width, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Flatten(),
        )
        self.head = nn.Linear(2 * width * 16, num_classes)
        for layer in self.features:
            if isinstance(layer, nn.Conv2d):
                # He: with torch's own initialisation it sits still for 40 steps and then leaves with a jolt.
                nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        """Map images (B, 1, 16, 16) to logits (B, num_classes)."""
        logits: Tensor = self.head(self.features(images))
        return logits
