"""Healthy runs with an unusual loss: of any sign, of two parts, or almost zero."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cosine_similarity, cross_entropy, gaussian_nll_loss
from torch.optim import SGD, Adam

from benchmarks.zoo.data import Split, batches, diabetes, digits
from benchmarks.zoo.models import NUM_PIXELS, mlp
from benchmarks.zoo.setup import Opening, Setup, Training
from benchmarks.zoo.supervised import first_batch, outputs, plain_turn, regression, supervised


def _linear(seed: int) -> Training:
    torch.manual_seed(seed)
    model = nn.Linear(10, 1)
    return regression(model, SGD(model.parameters(), 0.02), diabetes(), seed)


def _exact_fit(seed: int) -> Training:
    """A line without noise: loss and gradient fall to the limits of float32."""
    torch.manual_seed(seed)
    model, x = nn.Linear(3, 1), torch.randn(256, 3)
    y = x @ torch.tensor([1.0, -2.0, 0.5]) + 0.3
    return regression(model, SGD(model.parameters(), 0.1), Split(x, y, x, y), seed)


def _memorised(seed: int) -> Training:
    """128 samples until the loss is almost nothing."""
    torch.manual_seed(seed)
    data = digits()
    few = Split(data.x[:128], data.y[:128], data.held_x, data.held_y)
    model = mlp(2, 128)
    return supervised(model, Adam(model.parameters(), 3e-3), few, seed, batch=32)


def _likelihood(seed: int) -> Training:
    """A Gaussian's negative log-likelihood, mean and variance learnt: the loss falls through zero."""
    torch.manual_seed(seed)
    x = torch.rand(800, 1, generator=torch.Generator().manual_seed(seed)) * 4 - 2
    noise = torch.randn(800, generator=torch.Generator().manual_seed(seed + 1))
    y = torch.sin(2 * x[:, 0]) + (0.02 + 0.1 * x[:, 0].abs()) * noise
    data = Split(x[:640], y[:640], x[640:], y[640:])
    model = mlp(2, inputs=1, outputs=2, act=nn.Tanh)

    def loss(output: Tensor, target: Tensor) -> Tensor:
        return gaussian_nll_loss(output[:, 0], target, output[:, 1].exp())

    return supervised(
        model,
        Adam(model.parameters(), 3e-3),
        data,
        seed,
        loss=loss,
        score=lambda m, d: -loss(outputs(m, d.held_x), d.held_y).item(),
        is_classifier=False,
    )


def _similarity(seed: int) -> Training:
    """Minus a cosine: the loss is negative from almost the first step on."""
    torch.manual_seed(seed)
    model, data = mlp(2, outputs=NUM_PIXELS), digits()
    order = batches(len(data.x), 64, seed)

    def loss_at(step: int) -> Tensor:
        x = data.x[next(order)]
        noisy = x + 0.3 * torch.randn_like(x)
        return -cosine_similarity(model(noisy), x).mean()

    def score() -> float:
        return cosine_similarity(outputs(model, data.held_x), data.held_x).mean().item()

    def loss(output: Tensor, target: Tensor) -> Tensor:
        return -cosine_similarity(output, target).mean()

    opening = Opening(model, (data.x[:64] + 0.3, data.x[:64]), loss)
    return Training(model, [plain_turn(Adam(model.parameters(), 1e-3), loss_at)], score, opening)


class Autoencoder(nn.Module):
    """A variational autoencoder with 8 latent variables."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = mlp(1, outputs=16)
        self.decoder = mlp(1, inputs=8, outputs=NUM_PIXELS)

    def forward(self, x: Tensor, weight: float) -> Tensor:
        """Return the loss () of inputs (B, 64); `weight` is that of the divergence from the prior."""
        mean, log_variance = self.encoder(x).chunk(2, dim=1)
        latent = mean + torch.randn_like(mean) * (log_variance / 2).exp() if self.training else mean
        error = binary_cross_entropy_with_logits(self.decoder(latent), x, reduction="none").sum(1)
        divergence = (mean.square() + log_variance.exp() - log_variance - 1).sum(1) / 2
        return (error + weight * divergence).mean()


def _vae(seed: int) -> Training:
    """The divergence from the prior is weighted up from 0 to 1 over the first half."""
    torch.manual_seed(seed)
    model, data = Autoencoder(), digits()
    order = batches(len(data.x), 64, seed)

    def loss_at(step: int) -> Tensor:
        return model(data.x[next(order)], min(1.0, step / 150))

    def score() -> float:
        model.eval()
        with torch.no_grad():
            loss = model(data.held_x, 1.0)
        model.train()
        return -loss.item()

    opening = Opening(model, ((data.x[:64], 0.0), data.x[:64]), lambda loss, _: loss)
    return Training(model, [plain_turn(Adam(model.parameters(), 2e-3), loss_at)], score, opening)


def _bfloat16(seed: int) -> Training:
    """The forward pass in bfloat16, the weights in float32."""
    torch.manual_seed(seed)
    model, data = mlp(2), digits()
    order = batches(len(data.x), 64, seed)

    def loss_at(step: int) -> Tensor:
        rows = next(order)
        with torch.autocast("cpu", torch.bfloat16):
            return cross_entropy(model(data.x[rows]), data.y[rows])

    def score() -> float:
        return (outputs(model, data.held_x).argmax(1) == data.held_y).float().mean().item()

    opening = first_batch(model, data, 64, seed)
    return Training(model, [plain_turn(Adam(model.parameters(), 1e-3), loss_at)], score, opening)


HEALTHY_LOSSES = (
    Setup("H33", "linear regression, SGD", "healthy", _linear),
    Setup("H34", "a line fitted exactly, SGD", "healthy", _exact_fit),
    Setup("H35", "128 samples memorised, 1500 steps", "healthy", _memorised, 1500),
    Setup("H36", "Gaussian likelihood, loss falls below zero", "healthy", _likelihood),
    Setup("H37", "negative cosine as loss", "healthy", _similarity),
    Setup("H38", "VAE with a divergence warm-up", "healthy", _vae),
    Setup("H39", "bfloat16 autocast", "healthy", _bfloat16),
)
