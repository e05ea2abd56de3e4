"""The forms of batches, models and losses that are taken, and those that are refused with a word of what to do."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.optim import SGD

import gradguard
from gradguard.errors import UsageError


class Sum(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 3), nn.Linear(5, 3)

    def forward(self, left, right):
        return self.a(left) + self.b(right)


class Answer:
    def __init__(self, loss, logits):
        self.loss, self.logits = loss, logits


class OwnLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 3)

    def forward(self, pixels, labels=None):
        logits = self.head(pixels)
        return Answer(None if labels is None else cross_entropy(logits, labels), logits)


LEFT, RIGHT, LABELS = torch.randn(16, 4), torch.randn(16, 5), torch.arange(16) % 3


@pytest.mark.parametrize(
    ("model", "batch", "loss"),
    [
        (lambda: nn.Linear(4, 3), (LEFT, LABELS), cross_entropy),
        (lambda: nn.Linear(4, 3), [LEFT, LABELS], nn.CrossEntropyLoss()),
        (Sum, ((LEFT, RIGHT), LABELS), cross_entropy),
        (Sum, ({"left": LEFT, "right": RIGHT}, LABELS), cross_entropy),
        (OwnLoss, {"pixels": LEFT, "labels": LABELS}, None),
        (OwnLoss, {"pixels": LEFT}, lambda output, batch: cross_entropy(output.logits, LABELS)),
        (
            lambda: nn.Linear(4, 3),
            (LEFT, {"kind": LABELS}),
            lambda output, target: cross_entropy(output, target["kind"]),
        ),
    ],
)
def test_a_form_is_taken(model, batch, loss):
    made = model()
    report = gradguard.preflight(made, SGD(made.parameters(), 0.1), batch, loss)
    assert report.ok, str(report)
    assert not report.unseen
    assert 0.5 < report.loss < 2.5


NET = nn.Linear(4, 3)
SHARDED = nn.Linear(4, 3)
SHARDED.weight.device_mesh = "of eight"  # what tells a DTensor
GOOD = {"model": NET, "optimizer": SGD(NET.parameters(), 0.1), "batch": (LEFT, LABELS), "loss_fn": cross_entropy}
LOADER = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(LEFT, LABELS))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model": "net"}, "expects a torch.nn.Module first, got str"),
        ({"optimizer": NET}, "expects a torch.optim.Optimizer second, got Linear"),
        ({"model": nn.ReLU()}, "no parameters"),
        ({"model": nn.LazyLinear(3)}, "lazy layers without weights; run it once"),
        ({"model": nn.Linear(4, 3, device="meta")}, "meta device"),
        ({"model": SHARDED}, "sharded .FSDP.; run the pre-flight on it before fully_shard"),
        ({"batch": LEFT}, r"got a tensor of shape \(16, 4\); pass the targets too"),
        ({"batch": (LEFT, RIGHT, LABELS)}, r"got a tuple of 3; for several inputs pass \(\(first, second\), targets\)"),
        ({"batch": LOADER}, r"got DataLoader; pass one batch: next\(iter\(loader\)\)"),
        ({"batch": None}, "batch must be .*; got NoneType"),
        ({"batch": ("text", LABELS)}, "holds no input tensor, got str"),
        ({"loss_fn": None}, "loss_fn=None needs a batch that is a dict"),
        ({"loss_fn": "mse"}, "must be a function of .*, got str"),
        ({"num_classes": 1}, "num_classes must be a whole number from 2 on or None, got 1"),
        ({"num_classes": True}, "num_classes"),
        ({"overfit_steps": 0}, "overfit_steps must be a whole number from 1 on, got 0"),
        ({"skip": "signal"}, r"skip takes a list of names, got the text 'signal'; pass \['signal'\]"),
        ({"skip": ["signals"]}, "unknown check 'signals' in skip; did you mean 'signal'"),
    ],
)
def test_another_form_is_refused_and_nothing_is_run(change, words, bits):
    before = bits(NET)
    with pytest.raises(UsageError, match=words):
        gradguard.preflight(**{**GOOD, **change})
    assert bits(NET) == before


def test_a_check_can_be_left_out():
    model = nn.Sequential(nn.Linear(4, 3), nn.Softmax(1))
    report = gradguard.preflight(
        model, SGD(model.parameters(), 0.1), (LEFT, LABELS), cross_entropy, skip=["output_layer"]
    )
    assert report.ok
    assert report.skipped == ("output_layer",)
    assert "output_layer" not in report.checked


def test_a_model_without_its_loss_is_told_so():
    made = OwnLoss()
    report = gradguard.preflight(made, SGD(made.parameters(), 0.1), {"pixels": LEFT}, None)
    assert "without a loss; pass labels in the batch, or a loss_fn" in report.findings[0].message


@pytest.mark.parametrize("wrap", [lambda m: nn.DataParallel(m), lambda m: torch.compile(m, backend="eager")])
def test_a_wrapped_model_is_looked_at_inside(wrap):
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3), nn.Softmax(1))
    report = gradguard.preflight(wrap(model), SGD(model.parameters(), 0.1), (LEFT, LABELS), cross_entropy)
    assert [found.check for found in report.findings] == ["output_layer"]
    assert "Sequential" in report.subject


def test_a_model_compiled_in_place_is_run_as_it_is_and_stays_compiled():
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    nn.init.constant_(model[0].bias, -50.0)
    model.compile(backend="eager")
    compiled = model._compiled_call_impl
    report = gradguard.preflight(model, SGD(model.parameters(), 0.1), (LEFT, LABELS), cross_entropy)
    assert "dead_units" in [found.check for found in report.findings]
    assert model._compiled_call_impl is compiled


def test_it_runs_under_no_grad_inference_mode_and_autocast():
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    arguments = model, SGD(model.parameters(), 0.1), (LEFT, LABELS), cross_entropy
    for context in (torch.no_grad(), torch.inference_mode(), torch.autocast("cpu", torch.bfloat16)):
        with context:
            report = gradguard.preflight(*arguments)
        assert report.ok, str(report)
        assert not report.unseen


def test_reentrant_checkpointing_is_measured_too():
    from torch.utils.checkpoint import checkpoint

    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second, self.head = nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 1)

        def forward(self, x):
            return self.head(checkpoint(self.second, self.first(x), use_reentrant=True))

    model = Checkpointed()
    report = gradguard.preflight(model, SGD(model.parameters(), 0.01), (LEFT, torch.randn(16, 1)), mse_loss)
    assert report.ok, str(report)
    assert not report.unseen
    assert all(p.grad is None for p in model.parameters())
