"""What is measured: the same random numbers in every pass, calls in order, functions inside of forward."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD

from gradguard.checklist.batch import Batch
from gradguard.checklist.measure import Wanted, measure


def facts_of(model, batch=None, loss=cross_entropy):
    batch = (torch.randn(64, 8), torch.randint(3, (64,))) if batch is None else batch
    return measure(model, SGD(model.parameters(), 0.1), Batch(batch, loss), Wanted())


def test_dropout_falls_on_the_same_units_in_every_pass():
    """Otherwise a small step could not be told from the noise, and the slope would be left out."""
    model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, 3))
    ratios = facts_of(model).trial.slope_ratios
    assert len(ratios) == 2
    assert all(abs(ratio - 1) < 0.1 for ratio in ratios.values())


class Functional(nn.Module):
    def __init__(self):
        super().__init__()
        self.last, self.first = nn.Linear(16, 3), nn.Linear(8, 16)

    def forward(self, x):
        return self.last(torch.tanh(torch.relu(self.first(x))))


def test_activation_functions_inside_of_forward_are_seen_and_layers_are_in_order_of_their_calls():
    facts = facts_of(Functional())
    assert [(place.kind, place.name) for place in facts.places] == [
        ("weighted", "first"),
        ("relu", "Functional (relu)"),
        ("tanh", "Functional (tanh)"),
        ("weighted", "last"),
    ]
    order = {parameter.name: parameter.order for parameter in facts.parameters}
    assert order["first.weight"] < order["last.weight"]


def test_a_loss_in_the_users_own_words_is_recognised():
    by_hand = {
        "cross_entropy": lambda o, t: -o.log_softmax(1)[torch.arange(64), t].mean(),
        "mse": lambda o, t: (o[:, 0] - t).square().mean(),
        "other": lambda o, t: o.square().mean() + o[:, 0].mean() * t.float().mean(),
    }
    for kind, loss in by_hand.items():
        outputs = 1 if kind == "mse" else 3
        targets = torch.randn(64) if kind == "mse" else torch.randint(3, (64,))
        facts = facts_of(nn.Linear(8, outputs), (torch.randn(64, 8), targets), loss)
        assert facts.loss.kind == kind
