"""NaN and infinities: named, dropped before they touch anything, and never an excuse to give up a healthy run."""

import math
import statistics

import pytest
import torch
from guarded import OPTIMIZERS, Setup, classification, noise, regression, train, without
from torch import nn

import gradguard


BAD = 7  # the step with the bad batch


def distance_that_is_zero(optimizer):
    """A twin network whose two inputs are equal once: the derivative of the root of zero."""

    def make() -> Setup:
        model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))

        def loss_at(step):
            left, right = noise(step, 12, 5), noise(step + 1000, 12, 5)
            if step == BAD:
                right[4] = left[4]
            return (((model(left) - model(right)) ** 2).sum(1).sqrt() - 1.0).abs().mean()

        return model, OPTIMIZERS[optimizer](model.parameters()), loss_at

    return make


def angle_that_is_zero(optimizer):
    """The angle between a vector and itself: the derivative of the arc cosine at 1."""

    def make() -> Setup:
        model = nn.Linear(4, 4)

        def loss_at(step):
            out = model(noise(step, 6, 4))
            cosine = nn.functional.cosine_similarity(out, out.roll(1, 0)) * 0.9
            if step == BAD:
                cosine = cosine * 0 + 1
            return torch.acos(cosine).mean()

        return model, OPTIMIZERS[optimizer](model.parameters()), loss_at

    return make


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize("task", [distance_that_is_zero, angle_that_is_zero])
def test_a_nan_gradient_under_a_finite_loss_costs_that_step_only(task, optimizer, bits):
    run = train(task(optimizer), 20)
    assert run.acted == [(BAD, "nonfinite", "skip_step")]
    (record,) = run.interventions
    assert math.isfinite(run.losses[BAD])
    assert (record.finding.parameters, record.finding.num_parameters) == ((), len(list(run.model.parameters())))
    assert "although the loss is finite" in record.finding.message
    unseen = train(task(optimizer), without(20, [BAD]), is_guarded=False)
    assert bits(run.model, run.optimizer) == bits(unseen.model, unseen.optimizer)


def attention(optimizer):
    """Self-attention in which one sample is nothing but padding once; the loss leaves that sample out."""

    def make() -> Setup:
        model = nn.MultiheadAttention(8, 2, batch_first=True)

        def loss_at(step):
            tokens = noise(step, 4, 5, 8)
            is_padding = torch.zeros(4, 5, dtype=torch.bool)
            is_padding[2] = step == BAD
            scores, _ = model(tokens, tokens, tokens, key_padding_mask=is_padding)
            return (scores - tokens)[[0, 1, 3]].square().mean()

        return model, OPTIMIZERS[optimizer](model.parameters()), loss_at

    return make


def attention_by_hand(optimizer):
    """The same with scores, mask and softmax written out."""

    def make() -> Setup:
        model = nn.ModuleDict({"in_proj": nn.Linear(6, 12), "out": nn.Linear(6, 6)})

        def loss_at(step):
            tokens = noise(step, 3, 4, 6)
            query, key = model["in_proj"](tokens).chunk(2, dim=-1)
            scores = query @ key.transpose(1, 2)
            if step == BAD:
                scores = scores + torch.tensor([0.0, -math.inf, 0.0])[:, None, None]
            mixed = model["out"](scores.softmax(-1) @ tokens)
            return (mixed - tokens)[[0, 2]].square().mean()

        return model, OPTIMIZERS[optimizer](model.parameters()), loss_at

    return make


@pytest.mark.parametrize("task", [attention("adamw"), attention("sgd"), attention_by_hand("adamw")])
def test_a_fully_masked_row_is_skipped_and_the_projection_is_named_where_the_model_is_called(task):
    run = train(task, 14)
    assert run.acted == [(BAD, "nonfinite", "skip_step")]
    assert math.isfinite(run.losses[BAD])
    finding = run.interventions[0].finding
    if isinstance(run.model, nn.MultiheadAttention):
        assert "it began at the output of the model itself (MultiheadAttention)" in finding.message
        assert any(name.startswith("in_proj") for name in finding.parameters)
        assert "a row of attention that is masked everywhere" in finding.advice
    else:
        assert "no call of the model was seen" in finding.message
    assert run.is_finite


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("where", ["inputs", "targets"])
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_one_corrupt_sample_costs_one_step_and_the_message_points_at_the_data(optimizer, where, value, bits):
    def spoil(step, inputs, targets):
        if step == BAD:
            {"inputs": inputs, "targets": targets}[where][3, 0] = value
        return inputs, targets

    run = train(regression(optimizer, spoil), 30)
    (finding,) = [record.finding for record in run.interventions if record.remedy == "skip_step"]
    assert finding.evidence["origin"] == {"inputs": "input", "targets": "loss"}[where]
    assert {"inputs": "of input '0' holds NaN or infinite", "targets": "in the loss function"}[where] in finding.message
    assert {"inputs": "samples", "targets": "target that is NaN"}[where] in finding.advice
    unseen = train(regression(optimizer), without(30, [BAD]), is_guarded=False)
    assert bits(run.model, run.optimizer) == bits(unseen.model, unseen.optimizer)


def test_without_the_loss_it_is_caught_all_the_same():
    def spoil(step, inputs, targets):
        return inputs.index_fill(0, torch.tensor([0]), math.nan) if step == BAD else inputs, targets

    run = train(classification(spoil=spoil), 30, is_observed=False)
    assert run.acted == [(BAD, "bad_inputs", "notify"), (BAD, "nonfinite", "skip_step")]
    assert run.is_finite


def standardised_by_hand(optimizer):
    """Activations divided by their unbiased deviation over the batch; each epoch ends in a batch of one sample."""

    def make() -> Setup:
        model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))

        def loss_at(step):
            inputs = noise(step, 1 if step % 5 == 4 else 8, 3)
            hidden = model[1](model[0](inputs))
            centred = hidden - hidden.mean(0)
            variance = centred.square().sum(0) / (len(inputs) - 1)
            return (model[2](centred / (variance + 1e-5).sqrt()) - inputs[:, :1]).square().mean()

        return model, OPTIMIZERS[optimizer](model.parameters()), loss_at

    return make


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_a_bad_last_batch_in_every_epoch_is_skipped_every_time_and_is_no_lost_run(optimizer):
    """Nothing but the skip is ever done about it: no rollback, no smaller learning rate, no stop."""
    run = train(standardised_by_hand(optimizer), 150)
    bad = list(range(4, 150, 5))
    assert [act for act in run.acted if act[2] != "notify"] == [(step, "nonfinite", "skip_step") for step in bad]
    assert run.applied == without(150, bad)
    assert run.stopped is None
    assert min(run.losses[-10:]) < run.losses[0]


def cross_entropy_by_hand(optimizer):
    """Logarithms of a sigmoid that saturates: 0 x -inf, on every batch once the weights are too large."""

    def make() -> Setup:
        model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))

        def loss_at(step):
            inputs = 3 * noise(step, 64, 4)
            target = (inputs[:, :1] > 0).float()
            chance = torch.sigmoid(4 * model(inputs))
            return -(target * chance.log() + (1 - target) * (1 - chance).log()).mean()

        return model, optimizer(model.parameters()), loss_at

    return make


@pytest.mark.parametrize(
    "optimizer",
    [lambda p: torch.optim.SGD(p, lr=5.0), lambda p: torch.optim.Adam(p, lr=0.5)],
    ids=["SGD lr=5", "Adam lr=0.5"],
)
def test_a_log_of_zero_that_skips_cannot_cure_ends_in_a_run_that_learns(optimizer):
    """The state is bad, not the batch: a guard that only skips would skip for ever."""
    run = train(cross_entropy_by_hand(optimizer), 200)
    bad = {step for step, loss in enumerate(run.losses) if not math.isfinite(loss)}
    assert bad.isdisjoint(run.applied)
    assert "scale_lr" in {remedy for _, _, remedy in run.acted} or not bad
    assert run.stopped is None
    assert run.is_finite
    assert len([step for step in run.applied if step >= 100]) >= 70
    assert statistics.median(loss for loss in run.losses[-50:] if math.isfinite(loss)) < 0.2


def test_clipping_alone_does_not_repair_a_log_of_zero():
    policy = {"rules": [{"when": "always", "do": {"clip_norm": {"max_norm": 1.0}}}]}
    run = train(
        cross_entropy_by_hand(lambda p: torch.optim.SGD(p, lr=5.0)), 20, policy=gradguard.Policy.model_validate(policy)
    )
    assert not run.is_finite


def two_heads():
    """Two heads, one of which takes the root of zero at a step."""
    model = nn.ModuleDict({"steady": nn.Linear(4, 4), "rooted": nn.Linear(4, 4)})

    def loss_at(step):
        inputs = noise(step, 8, 4)
        distance = (model["rooted"](inputs) * (step != BAD)).square().sum().sqrt()
        return model["steady"](inputs).square().mean() + distance

    return model, torch.optim.SGD(model.parameters(), lr=0.1), loss_at


@pytest.mark.parametrize("remedy", ["skip_step", "zero_nonfinite"])
def test_a_clip_at_every_step_never_spreads_one_head_s_nan_to_the_other(remedy):
    policy = {
        "rules": [
            {"when": {"nonfinite": {"where": "batch"}}, "do": remedy},
            {"when": "always", "do": {"clip_norm": {"max_norm": 1.0}}},
        ]
    }
    run = train(two_heads, 12, policy=gradguard.Policy.model_validate(policy))
    assert run.acted == [(BAD, "nonfinite", remedy)]
    assert set(run.interventions[0].finding.parameters) == {"rooted.weight", "rooted.bias"}
    assert run.is_finite


def test_by_default_the_bad_head_alone_is_named_and_the_good_one_is_kept(bits):
    run = train(two_heads, 12)
    assert run.acted == [(BAD, "nonfinite", "skip_step")]
    assert set(run.interventions[0].finding.parameters) == {"rooted.weight", "rooted.bias"}
    unseen = train(two_heads, without(12, [BAD]), is_guarded=False)
    assert bits(run.model, run.optimizer) == bits(unseen.model, unseen.optimizer)
