"""Trainings with one mistake each: (check, severity, a word of the message, what builds the arguments)."""

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy, cross_entropy, mse_loss
from torch.optim import SGD


def net(*, depth=2, tail=(), inputs=20, outputs=3, act=nn.ReLU, std=None):
    layers = []
    for index in range(depth):
        layers += [nn.Linear(inputs if index == 0 else 64, 64), act()]
    model = nn.Sequential(*layers, nn.Linear(64, outputs), *tail)
    if std is not None:
        for layer in model:
            if isinstance(layer, nn.Linear):
                nn.init.normal_(layer.weight, std=std)
    return model


def case(
    model=None, *, x=None, y=None, loss=cross_entropy, lr=0.05, optimizer=None, change=lambda model: None, **options
):
    def build():
        made = net() if model is None else model()
        change(made)
        inputs = torch.randn(64, 20) if x is None else x()
        targets = torch.randint(3, (64,)) if y is None else y()
        steps = SGD(made.parameters(), lr) if optimizer is None else optimizer(made)
        return (made, steps, (inputs, targets), loss), options

    return build


def set_all(value):
    def change(model):
        for parameter in model.parameters():
            nn.init.constant_(parameter, value)

    return change


def dead(model):
    nn.init.constant_(model[0].bias, -50.0)


def one_layer(model):
    return SGD(model[-1].parameters(), 0.1)


def nan_weight(model):
    model[2].weight.data[0, 0] = float("nan")


def double_entry(model):
    optimizer = SGD(model.parameters(), 0.1)
    optimizer.param_groups[0]["params"].append(model[0].weight)
    return optimizer


class Mixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = net()

    def forward(self, x):
        return self.inner(x + x.mean(0))


class Cut(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(20, 64), nn.Linear(64, 3)

    def forward(self, x):
        return self.last(self.first(x).detach())


class Unused(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.spare = net(), nn.Linear(3, 3)

    def forward(self, x):
        return self.used(x)


class Exponential(nn.Module):
    def forward(self, x):
        return (1000 * x).exp()


class Root(nn.Module):
    def forward(self, x):
        return (x * 0).sqrt()


def holes(row=3):
    x = torch.randn(64, 20)
    x[row, 2] = float("nan")
    return x


def uneven():
    return torch.randn(64, 20) * torch.cat([torch.ones(19), torch.tensor([1e-5])])


def uphill(output, target):
    loss = cross_entropy(output, target)
    return loss - 2 * (loss - loss.detach())


def logarithm(output, target):
    return -output.gather(1, target[:, None]).log().mean()


def softmax_of_one(output, target):
    return binary_cross_entropy(output.softmax(1).squeeze(1), (target % 2).float())


def column():
    return torch.randn(64)


def single():
    return net(outputs=1)


def resting():
    return nn.Sequential(nn.Linear(20, 64), nn.Dropout(0.5), nn.Linear(64, 3)).eval()


def half_resting():
    model = resting().train()
    model[1].eval()
    return model


def frozen(model):
    model.requires_grad_(False)


FAULTS = [
    ("runs", "critical", "out of bounds|cannot be multiplied", case(x=lambda: torch.randn(64, 21))),
    ("runs", "critical", "more than one entry", case(loss=nn.CrossEntropyLoss(reduction="none"))),
    ("runs", "critical", "nothing that is trained", case(loss=lambda o, t: cross_entropy(o.detach(), t))),
    (
        "runs",
        "critical",
        "asked for row 100",
        case(
            lambda: nn.Sequential(nn.Embedding(50, 8), nn.Flatten(), nn.Linear(16, 3)),
            x=lambda: torch.full((64, 2), 100),
        ),
    ),
    ("nonfinite", "critical", "holds NaN", case(change=nan_weight)),
    ("nonfinite", "critical", "finite inputs turn into", case(lambda: net(act=Exponential))),
    ("nonfinite", "critical", "loss is nan", case(loss=logarithm)),
    ("nonfinite", "critical", "gradient of", case(lambda: net(act=Root))),
    ("inputs", "critical", "NaN or infinite", case(x=holes)),
    ("inputs", "warn", "raw pixels", case(x=lambda: torch.randint(256, (64, 20)).float())),
    ("inputs", "warn", "are large", case(x=lambda: 1e4 * torch.randn(64, 20))),
    ("inputs", "warn", "are tiny", case(x=lambda: 1e-3 * torch.randn(64, 20))),
    ("inputs", "warn", "far from zero", case(x=lambda: 100 + torch.randn(64, 20))),
    ("inputs", "info", "same number", case(x=lambda: torch.ones(64, 20))),
    ("inputs", "warn", "different scales", case(x=uneven)),
    ("targets", "critical", "none of the classes 0 to 2", case(y=lambda: torch.randint(4, (64,)).clamp_min(3))),
    ("targets", "critical", "3 units, but there are 5 classes", case(num_classes=5)),
    ("targets", "critical", "targets are NaN", case(single, y=lambda: column() * float("nan"), loss=mse_loss)),
    ("targets", "warn", "targets are large", case(single, y=lambda: 100 * torch.randn(64, 1), loss=mse_loss)),
    (
        "targets",
        "warn",
        "ends with a relu",
        case(lambda: net(outputs=1, tail=[nn.ReLU()]), y=lambda: torch.randn(64, 1), loss=mse_loss),
    ),
    ("targets", "info", "All 64 labels", case(y=lambda: torch.ones(64, dtype=torch.int64))),
    ("output_layer", "critical", "ends with a softmax", case(lambda: net(tail=[nn.Softmax(1)]))),
    ("output_layer", "critical", "ends with a ReLU", case(lambda: net(tail=[nn.ReLU()]))),
    ("output_layer", "warn", "ends with a sigmoid", case(lambda: net(tail=[nn.Sigmoid()]))),
    ("output_layer", "critical", "NLLLoss wants", case(loss=nn.NLLLoss())),
    ("output_layer", "critical", "whatever the model gives", case(single, loss=softmax_of_one)),
    (
        "output_layer",
        "warn",
        "ends with a sigmoid",
        case(
            lambda: net(outputs=1, tail=[nn.Sigmoid()]),
            y=lambda: torch.randint(2, (64, 1)).float(),
            loss=nn.BCEWithLogitsLoss(),
        ),
    ),
    ("broadcasting", "critical", "broadcast", case(single, y=column, loss=mse_loss)),
    ("broadcasting", "critical", "broadcast", case(single, y=column, loss=lambda o, t: (o - t).square().mean())),
    ("broadcasting", "info", "does not change with the targets", case(loss=lambda o, t: o.square().mean())),
    ("initial_loss", "warn", "ln 3", case(lambda: net(std=0.5), x=lambda: 3 * torch.randn(64, 20))),
    ("initial_loss", "warn", "targets' mean", case(single, y=lambda: 15 + torch.randn(64, 1), loss=mse_loss)),
    ("symmetry", "critical", "All their weights are 0.01", case(change=set_all(0.01))),
    ("symmetry", "critical", "All their weights are 0", case(change=set_all(0.0))),
    ("signal", "warn", "shrinks", case(lambda: net(depth=8, std=0.01))),
    ("signal", "critical", "grows", case(lambda: net(depth=8, std=1.0))),
    ("weight_scale", "info", "times He's", case(lambda: net(std=0.005))),
    ("dead_units", "critical", "no signal gets through", case(change=dead)),
    ("dead_units", "warn", "little is left", case(change=lambda model: nn.init.constant_(model[0].bias[:40], -50.0))),
    ("saturation", "warn", "flat part of the tanh", case(lambda: net(act=nn.Tanh, std=2.0))),
    ("saturation", "warn", "flat part of the sigmoid", case(lambda: net(act=nn.Sigmoid, std=5.0))),
    ("optimizer_coverage", "critical", "4 parameters want gradients", case(optimizer=one_layer)),
    ("optimizer_coverage", "critical", "is frozen", case(change=frozen)),
    ("optimizer_coverage", "critical", "belongs to this model", case(optimizer=lambda m: SGD(net().parameters(), 0.1))),
    ("optimizer_coverage", "warn", "more than once", case(optimizer=double_entry)),
    (
        "optimizer_coverage",
        "warn",
        "get no gradient",
        case(optimizer=lambda m: SGD([*m.parameters(), *net().parameters()], 0.1)),
    ),
    ("optimizer_coverage", "info", "are frozen", case(change=lambda model: model[0].requires_grad_(False))),
    ("gradient_flow", "warn", "does not reach them", case(Cut)),
    ("gradient_flow", "info", "nothing on the way", case(Unused)),
    ("gradient_flow", "critical", "exactly zero", case(change=dead)),
    ("gradient_flow", "warn", "fades", case(lambda: net(depth=8, act=nn.Sigmoid))),
    ("train_mode", "warn", "evaluation mode: layer '1' rest", case(resting)),
    ("train_mode", "info", "layer '1' are in evaluation mode", case(half_resting)),
    ("train_mode", "info", "in evaluation mode.", case(lambda: net().eval())),
    ("sample_independence", "warn", "batch dimension is mixed", case(Mixed)),
    ("learning_rate", "critical", "is 0", case(lr=0.0)),
    ("learning_rate", "warn", "at most; 0.001 is usual", case(lr=1e-6)),
    (
        "learning_rate",
        "warn",
        "too high. A few steps",
        case(single, y=lambda: 20 * torch.randn(64, 1), loss=mse_loss, lr=0.5),
    ),
    ("learning_rate", "warn", "too high. One step takes", case(loss=nn.CrossEntropyLoss(reduction="sum"), lr=0.3)),
    ("gradient_direction", "critical", "its sign is wrong", case(loss=uphill)),
    (
        "gradient_direction",
        "critical",
        "It maximizes",
        case(optimizer=lambda model: SGD(model.parameters(), 0.1, maximize=True)),
    ),
    ("regularisation", "warn", "drop 90%", case(lambda: net(tail=[nn.Dropout(0.9), nn.Linear(3, 3)]))),
    (
        "regularisation",
        "warn",
        "Weight decay times",
        case(optimizer=lambda model: SGD(model.parameters(), 0.1, weight_decay=0.5)),
    ),
    ("overfit", "critical", "only", case(lr=1e-3, overfit=True, overfit_steps=20)),
    (
        "overfit",
        "critical",
        "ends in a loss of",
        case(single, y=lambda: 20 * torch.randn(64, 1), loss=mse_loss, lr=5.0, overfit=True),
    ),
]
