"""Trainings that look odd to a check and are healthy: each builds (model, optimizer, batch, loss function)."""

import math

import torch
from torch import nn
from torch.nn import functional
from torch.optim import SGD, Adam, AdamW


def labels(count, classes):
    return torch.randint(classes, (count,))


class Bottleneck(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm = nn.BatchNorm2d(outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.last_norm = nn.BatchNorm2d(outputs)
        nn.init.zeros_(self.last_norm.weight)
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x):
        inner = functional.relu(self.norm(self.first(x)), inplace=True)
        return functional.relu(self.last_norm(self.second(inner)) + self.shortcut(x), inplace=True)


def resnet_with_zero_initialised_branches():
    blocks = [Bottleneck(8, 8, 1), Bottleneck(8, 16, 2), Bottleneck(16, 16, 1)]
    model = nn.Sequential(nn.Conv2d(3, 8, 3, 1, 1), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))
    batch = torch.randn(16, 3, 16, 16), labels(16, 10)
    return model, SGD(model.parameters(), 0.1, momentum=0.9), batch, nn.CrossEntropyLoss(label_smoothing=0.1)


class LanguageModel(nn.Module):
    def __init__(self, has_zero_head):
        super().__init__()
        self.embed = nn.Embedding(50, 32)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, norm_first=True, activation="gelu")
            for _ in range(3)
        )
        self.norm, self.head = nn.LayerNorm(32), nn.Linear(32, 50, bias=False)
        for layer in self.layers:
            nn.init.zeros_(layer.self_attn.out_proj.weight)
            nn.init.zeros_(layer.linear2.weight)
        if has_zero_head:
            nn.init.zeros_(self.head.weight)

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def token_loss(output, targets):
    return functional.cross_entropy(output.transpose(1, 2), targets)


def transformer_with_zero_initialised_branches(has_zero_head=False):
    model = LanguageModel(has_zero_head)
    batch = torch.randint(50, (8, 12)), torch.randint(50, (8, 12))
    return model, AdamW(model.parameters(), 3e-4), batch, token_loss


def transformer_with_a_zero_initialised_head_too():
    return transformer_with_zero_initialised_branches(has_zero_head=True)


class Sentiment(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(100, 32)
        self.cell = nn.LSTM(32, 32, 2, batch_first=True, bidirectional=True, dropout=0.3)
        self.head = nn.Linear(64, 2)

    def forward(self, tokens):
        return self.head(self.cell(self.embed(tokens))[0][:, -1])


def embedding_and_lstm():
    model = Sentiment()
    return (
        model,
        Adam(model.parameters(), 1e-3),
        (torch.randint(100, (32, 10)), labels(32, 2)),
        functional.cross_entropy,
    )


class Variational(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = nn.Linear(64, 16), nn.Sequential(nn.Linear(8, 64), nn.Sigmoid())

    def forward(self, x):
        mean, log_variance = self.encoder(x).chunk(2, dim=1)
        return self.decoder(mean + torch.randn_like(mean) * (log_variance / 2).exp()), mean, log_variance


def variational_autoencoder():
    model, x = Variational(), (torch.rand(32, 64) > 0.7).float()

    def loss(output, target):
        rebuilt, mean, log_variance = output
        divergence = (mean.square() + log_variance.exp() - log_variance - 1).sum() / 2
        return functional.binary_cross_entropy(rebuilt, target, reduction="sum") + divergence

    return model, Adam(model.parameters(), 1e-3), (x, x), loss


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down, self.bottom = nn.Conv2d(3, 8, 3, 1, 1), nn.Conv2d(8, 16, 3, 1, 1)
        self.up, self.out = nn.ConvTranspose2d(16, 8, 2, 2), nn.Conv2d(16, 4, 1)

    def forward(self, x):
        high = functional.silu(self.down(x))
        low = functional.silu(self.bottom(functional.max_pool2d(high, 2)))
        return self.out(torch.cat([high, self.up(low)], dim=1))


def segmentation_with_ignored_labels():
    model, target = UNet(), torch.randint(4, (4, 16, 16))
    target[:, 0] = 255
    batch = torch.randn(4, 3, 16, 16), target
    return model, AdamW(model.parameters(), 1e-3), batch, nn.CrossEntropyLoss(ignore_index=255)


def generator_of_a_gan():
    generator = nn.Sequential(
        nn.ConvTranspose2d(16, 32, 4, bias=False),
        nn.BatchNorm2d(32),
        nn.ReLU(True),
        nn.ConvTranspose2d(32, 1, 4, 2, 1, bias=False),
        nn.Tanh(),
    )
    critic = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
    for module in generator.modules():
        if isinstance(module, nn.ConvTranspose2d):
            nn.init.normal_(module.weight, 0, 0.02)

    def loss(images, ones):
        return functional.binary_cross_entropy_with_logits(critic(images), ones)

    batch = torch.randn(32, 16, 1, 1), torch.ones(32, 1)
    return generator, Adam(generator.parameters(), 2e-4, betas=(0.5, 0.999)), batch, loss


class Sine(nn.Module):
    def forward(self, x):
        return torch.sin(30 * x)


def siren():
    layers, inputs = [], 2
    for index in range(3):
        layer = nn.Linear(inputs, 64)
        limit = 1 / inputs if index == 0 else math.sqrt(6 / inputs) / 30
        nn.init.uniform_(layer.weight, -limit, limit)
        layers, inputs = [*layers, layer, Sine()], 64
    model, x = nn.Sequential(*layers, nn.Linear(64, 1)), torch.rand(128, 2) * 2 - 1
    return model, Adam(model.parameters(), 1e-4), (x, torch.sin(9 * x[:, :1])), functional.mse_loss


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
        self.policy, self.value = nn.Linear(64, 4), nn.Linear(64, 1)
        nn.init.orthogonal_(self.policy.weight, 0.01)

    def forward(self, state):
        hidden = self.body(state)
        return self.policy(hidden), self.value(hidden).squeeze(1)


def actor_critic_with_a_small_head():
    model = ActorCritic()

    def loss(output, played):
        scores, values = output
        action, advantage, gain = played
        chosen = scores.log_softmax(1).gather(1, action[:, None])[:, 0]
        return -(chosen * advantage).mean() + functional.mse_loss(values, gain)

    batch = torch.randn(64, 8), (labels(64, 4), torch.randn(64), torch.randn(64))
    return model, Adam(model.parameters(), 3e-4), batch, loss


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.kind, self.size = nn.Linear(20, 64), nn.Linear(64, 5), nn.Linear(64, 1)

    def forward(self, x):
        hidden = functional.relu(self.body(x))
        return {"kind": self.kind(hidden), "size": self.size(hidden).squeeze(1)}


def two_heads_and_a_dict_of_targets():
    def loss(output, target):
        return functional.cross_entropy(output["kind"], target["kind"]) + functional.mse_loss(
            output["size"], target["size"]
        )

    model = TwoHeads()
    batch = torch.randn(32, 20), {"kind": labels(32, 5), "size": torch.randn(32)}
    return model, Adam(model.parameters(), 1e-3), batch, loss


def dropout():
    hidden = [nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.5)]
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Dropout(0.5), *hidden, nn.Linear(64, 3))
    return model, Adam(model.parameters(), 1e-3), (torch.randn(32, 20), labels(32, 3)), functional.cross_entropy


class LowRank(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.down = nn.Linear(layer.in_features, 4, bias=False)
        self.up = nn.Linear(4, layer.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x):
        return self.layer(x) + self.up(self.down(x))


def low_rank_adaptation():
    model = nn.Sequential(LowRank(nn.Linear(20, 64)), nn.ReLU(), LowRank(nn.Linear(64, 3)))
    trained = [p for p in model.parameters() if p.requires_grad]
    return model, AdamW(trained, 1e-3), (torch.randn(32, 20), labels(32, 3)), functional.cross_entropy


class ReZero(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.gate = nn.Sequential(nn.Linear(64, 64), nn.ReLU()), nn.Parameter(torch.zeros(()))

    def forward(self, x):
        return x + self.gate * self.inner(x)


def rezero_behind_a_zero_initialised_head():
    model = nn.Sequential(nn.Linear(20, 64), *(ReZero() for _ in range(6)), nn.Linear(64, 3))
    nn.init.zeros_(model[-1].weight)
    return model, Adam(model.parameters(), 1e-3), (torch.randn(32, 20), labels(32, 3)), functional.cross_entropy


def plain_regression():
    model = nn.Sequential(nn.Linear(13, 64), nn.ReLU(), nn.Linear(64, 1))
    return model, Adam(model.parameters(), 1e-3), (torch.randn(64, 13), 22 + 9 * torch.randn(64, 1)), nn.MSELoss()


def half_precision():
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 3)).bfloat16()
    return (
        model,
        AdamW(model.parameters(), 1e-3),
        (torch.randn(32, 20).bfloat16(), labels(32, 3)),
        functional.cross_entropy,
    )


HEALTHY = (
    resnet_with_zero_initialised_branches,
    transformer_with_zero_initialised_branches,
    transformer_with_a_zero_initialised_head_too,
    embedding_and_lstm,
    variational_autoencoder,
    segmentation_with_ignored_labels,
    generator_of_a_gan,
    siren,
    actor_critic_with_a_small_head,
    two_heads_and_a_dict_of_targets,
    dropout,
    low_rank_adaptation,
    rezero_behind_a_zero_initialised_head,
    plain_regression,
    half_precision,
)
