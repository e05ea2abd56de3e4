"""nonfinite: says which tensor, where and what kind, at once; a mask of -inf is none."""

import math

import numpy as np
import pytest
import torch
from feed import Feed, diagnose
from torch import nn

import gradguard


def only(findings):
    (finding,) = findings
    return finding


def test_a_healthy_step_has_no_finding():
    assert diagnose("nonfinite").step([1.0, 0.0, None], 0.5) == []


@pytest.mark.parametrize(("norm", "kind"), [(math.nan, "NaN"), (math.inf, "Inf")])
@pytest.mark.parametrize("loss", [None, 0.5], ids=["no loss", "loss"])
def test_a_bad_gradient_is_named_with_its_kind(norm, kind, loss):
    finding = only(diagnose("nonfinite").step([1.0, norm, 1.0], loss))
    assert (finding.parameters, finding.num_parameters, finding.indices) == (("p1",), 1, (1,))
    assert (finding.evidence["where"], finding.evidence["kind"]) == ("gradient", kind)
    assert kind in finding.message
    assert ("although the loss is finite" in finding.message) == (loss is not None)
    assert (finding.value, finding.threshold, finding.severity) == (1, 0, "warn")


@pytest.mark.parametrize(("loss", "kind"), [(math.nan, "NaN"), (math.inf, "Inf"), (-math.inf, "Inf")])
def test_a_bad_loss_is_told_with_its_kind(loss, kind):
    finding = only(diagnose("nonfinite").step(1.0, loss))
    assert (finding.evidence["where"], finding.evidence["kind"]) == ("loss", kind)
    assert finding.message == f"The loss is {'-' if loss < 0 else ''}{kind}: where it began is not known."
    assert finding.advice.startswith("Look at the inputs and targets of this batch")
    assert finding.indices == ()


def test_a_bad_loss_with_its_bad_gradients_is_one_finding():
    finding = only(diagnose("nonfinite").step(math.nan, math.nan))
    assert finding.evidence["where"] == "loss and gradient"
    assert (finding.parameters, finding.num_parameters, finding.indices) == ((), 3, (0, 1, 2))
    assert "all 3 parameter tensors got NaN gradients" in finding.message


def test_some_of_the_parameters_are_named_in_their_order_and_none_of_all():
    feed = diagnose("nonfinite")
    feed.step()
    feed.stats.nonfinite, feed.stats.finite = {2: (1, 0), 1: (0, 7)}, False
    (_, finding) = feed.judgement.judge(feed.stats)[0]
    assert finding.parameters == ("p1", "p2")
    assert (finding.evidence["nan_entries"], finding.evidence["inf_entries"], finding.value) == (1, 7, 8)
    feed.stats.nonfinite = {0: (1, 0), 1: (0, 7), 2: (1, 0)}
    (_, finding) = feed.judgement.judge(feed.stats)[0]
    assert (finding.parameters, finding.num_parameters) == ((), 3)


def test_only_the_first_names_are_kept_but_all_are_counted():
    finding = only(diagnose("nonfinite", num_parameters=40).step([1.0] + 39 * [math.nan]))
    assert (len(finding.parameters), finding.num_parameters, len(finding.indices)) == (16, 39, 39)


def test_damage_to_the_model_is_graver_than_a_bad_batch():
    finding = only(diagnose("nonfinite").step(1.0, bad_state=("p2", "bn.running_var")))
    assert finding.severity == "critical"
    assert finding.parameters == ("p2", "bn.running_var")
    assert (finding.num_parameters, finding.indices, finding.evidence["where"]) == (2, (2,), "state")


@pytest.mark.parametrize(
    ("where", "found"),
    [("batch", ["gradient"]), ("state", ["state"]), ("any", ["state"])],
    ids=["batch", "state", "any"],
)
def test_a_rule_may_look_at_the_batch_or_the_model_only(where, found):
    findings = diagnose({"nonfinite": {"where": where}}).step(math.nan, bad_state=("p0",))
    assert [finding.evidence["where"] for finding in findings] == found


def test_a_rule_on_the_model_has_nothing_to_say_about_a_bad_batch():
    assert diagnose({"nonfinite": {"where": "state"}}).step(math.nan, math.nan) == []


def test_a_rule_on_some_parameters_sees_only_these():
    feed = Feed({"when": "nonfinite", "do": "notify", "parameters": ["p1"]})
    assert feed.step([math.nan, 1.0, 1.0], math.nan) == []
    finding = only(feed.step([math.nan, math.nan, 1.0]))
    assert finding.parameters == ("p1",)


def test_a_rule_on_some_parameters_is_not_about_damage_to_the_others():
    feed = Feed({"when": "nonfinite", "do": "notify", "parameters": ["p1"]})
    assert feed.step(1.0, bad_state=("p0", "bn.running_var")) == []
    finding = only(feed.step(1.0, bad_state=("p0", "p1")))
    assert finding.parameters == ("p1",)


def test_half_precision_weights_come_with_the_advice_that_fits():
    feed = diagnose("nonfinite")
    feed.table.dtypes[0] = "float16"
    assert "eps=1e-4" in only(feed.step(1.0, bad_state=("p0",))).advice


def test_every_bad_step_is_told():
    assert len(diagnose("nonfinite").repeat(5, math.nan)) == 5


class Attention(nn.Module):
    """Self-attention whose causal mask is a buffer of zeros and minus infinity."""

    def __init__(self):
        super().__init__()
        self.query = nn.Linear(4, 4)
        self.register_buffer("mask", torch.full((5, 5), -math.inf).triu(1))

    def forward(self, inputs):
        return torch.softmax(self.query(inputs) @ inputs.T + self.mask, dim=-1) @ inputs


def train(guard, model, optimizer, steps):
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(torch.randn(5, 4)).square().mean()
        loss.backward()
        guard.observe(loss)
        optimizer.step()


@pytest.mark.parametrize("policy", ["default", "observe"])
def test_a_mask_of_minus_infinity_is_no_damage(policy):
    model = Attention()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with gradguard.attach(model, optimizer, policy) as guard:
        assert guard.snapshots is None or guard.snapshots.good is not None
        train(guard, model, optimizer, 60)
        assert [record for record in guard.records if record.kind != "event"] == []


def test_a_mask_that_turns_to_nan_is_damage():
    model = Attention()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    policy = gradguard.Policy(rules=[{"when": "nonfinite", "do": "notify"}], monitor={"probe_every": 5}, sinks=[])
    with gradguard.attach(model, optimizer, policy) as guard:
        train(guard, model, optimizer, 3)
        model.mask[0, 0] = math.nan
        train(guard, model, optimizer, 10)
        findings = [record.finding for record in guard.records if record.kind == "intervention"]
        assert any("mask" in finding.parameters for finding in findings)


def test_statistics_keep_no_bad_number():
    feed = diagnose({"exploding_gradient": {"window": 5, "warmup": 2}})
    for norm in (1.0, math.nan, math.inf, 2.0):
        feed.step(norm)
    assert np.isfinite(feed.judgement.windows[5].median).all()
