"""What is told before a step is what is found at it; and every reason for which the host has to answer first."""

import copy
import math

import pytest
import torch
from feed import Feed, diagnose
from histories import histories, loss_histories
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import gradguard
from gradguard.contracts import REMEDIES, Remedy
from gradguard.evidence.stats import StepStats
from gradguard.flow.foresight import Foresight
from gradguard.policy.history import RuleHistory, learn
from gradguard.records import Change


LAW = settings(max_examples=200, deadline=None, derandomize=True)
LENGTHS = st.one_of(st.integers(0, 7), st.integers(0, 50))
NEAR = 2e-6  # a global norm is rounded to float32
EXPLODING = [
    {},
    {"window": 10, "warmup": 6, "zscore": 3.0, "ratio": 3.0, "extreme_ratio": 20.0},
    {"about": "level", "window": 8, "warmup": 30, "ratio": 2.0, "extreme_ratio": 1.5, "zscore": 1.0},
    {"warmup": 40, "max_update": 0.5},
    {"about": "overflow"},
]
SPIKES = [
    {},
    {"window": 10, "warmup": 6, "zscore": 3.0, "ratio": 1.5},
    {"window": 30, "warmup": 10, "zscore": 6.0},
    {"window": 2, "warmup": 2, "ratio": 1.1, "zscore": 0.5},
    {"window": 5, "warmup": 2, "ratio": 1.1, "zscore": 0.1},
]


def fires(feed, **step):
    """Return whether the next step would be one to act on as a whole."""
    found = copy.deepcopy(feed).step(**step)
    return any(f.severity != "info" and f.evidence.get("scope", "global") == "global" for f in found)


def told(feed, **fields):
    """Return the triggers of the only rule for the step to come."""
    ahead = copy.deepcopy(feed)
    ahead.stats.step += 1
    for name, value in fields.items():
        setattr(ahead.stats, name, value)
    (triggers,) = ahead.judgement.triggers(ahead.stats).values()
    return triggers


def candidates(triggers, quantity):
    """Return values around every threshold, and a few that are far from all."""
    edges = [t.above for t in triggers if t.quantity == quantity and math.isfinite(t.above)]
    near = [edge + side * (abs(edge) * NEAR + 1e-30) for edge in edges for side in (-1, 1)]
    return [*near, *(edge + sign * abs(edge) * 0.5 for edge in edges for sign in (-1, 1))], edges


@LAW
@given(
    history=histories(num_steps=50),
    options=st.sampled_from(EXPLODING),
    length=LENGTHS,
    lr=st.sampled_from([0.0, 1e-3, 0.1, 10.0]),
    reach=st.sampled_from([math.inf, 1.0, 1e3]),
    shape=st.sampled_from([(2, 2), (3,)]),
)
def test_an_explosion_is_found_exactly_above_what_was_told(history, options, length, lr, reach, shape):
    """Warm-up, the second hot step of three, habits, the level at the start, and SGD updates that are too large."""
    feed = diagnose({"exploding_gradient": options}, num_parameters=len(history[0]), shape=shape)
    for norms in history[:length]:
        feed.step(norms, lr=lr, sgd_reach=reach)
    triggers = told(feed, lr=lr, sgd_reach=reach)
    values, edges = candidates(triggers, "global_norm")
    for value in [*values, 1e-3, 1.0, 1e4, 1e9]:
        if not 0 < value < 1e37 or any(abs(value - edge) < NEAR * abs(edge) / 2 for edge in edges):
            continue
        norms = [value / math.sqrt(len(feed.table))] * len(feed.table)
        is_told = any(value > trigger.above for trigger in triggers)
        assert fires(feed, norms=norms, lr=lr, sgd_reach=reach) == is_told, (value, triggers)


@LAW
@given(
    history=loss_histories(num_steps=50),
    options=st.sampled_from(SPIKES),
    length=LENGTHS,
    lr=st.sampled_from([0.1, 0.2, 5.0]),
)
def test_a_loss_spike_is_found_exactly_above_what_was_told(history, options, length, lr):
    """The first losses, losses of any sign, runs that had learned, and learning rates that were raised."""
    feed = diagnose({"loss_spike": options}, num_parameters=1)
    for loss, rate in history[:length]:
        feed.step(loss=loss, lr=rate)
    triggers = told(feed, lr=lr)
    values, edges = candidates(triggers, "loss")
    for value in [*values, -100.0, -1.0, 0.0, 0.01, 1.0, 3.0, 100.0, 1e6]:
        if any(abs(value - edge) < NEAR * abs(edge) / 2 for edge in edges):
            continue
        is_told = any(value > trigger.above for trigger in triggers)
        assert fires(feed, loss=value, lr=lr) == is_told, (value, triggers)


@pytest.mark.parametrize(("num_matrices", "is_told"), [(1, False), (2, True)])
def test_an_update_far_beyond_the_weights_is_told_without_growth_only_in_a_model_of_several_layers(
    num_matrices, is_told
):
    feed = diagnose("exploding_gradient", num_parameters=num_matrices)
    step = {"norms": 1e5, "lr": 0.1, "sgd_reach": 1.0}
    feed.step(**step)
    (trigger,) = told(feed, lr=0.1, sgd_reach=1.0)
    assert (1e5 > trigger.above) == fires(feed, **step) == is_told


@pytest.mark.parametrize(
    ("losses", "options", "threshold"),
    [
        ([1.0] * 5 + [0.5] * 40, {}, 1.0),  # it had learned, and this undoes it
        ([1.0] * 5 + [0.7] * 40, {}, 2.1),  # three times the median
        ([8.0] * 5 + [math.exp(0.202 * (-1) ** i) for i in range(60)], {}, 16.0),  # twice the initial loss
        ([1.0] * 5 + [1e-3] * 60, {}, 0.3),  # below, it is noise around a fitted model
        ([10.0, 1.0, 1.0], {"window": 2, "warmup": 2, "ratio": 1.1}, math.exp(0.3)),  # the initial loss is known early
        ([1.0] * 10, {}, 100.0),
        ([1.0] * 2, {}, math.inf),
        ([-1.0] * 2 + [-3.0] * 40, {}, -0.9),
    ],
)
def test_the_threshold_of_a_loss_is_the_one_of_its_case(losses, options, threshold):
    feed = diagnose({"loss_spike": options}, num_parameters=1)
    for loss in losses:
        feed.step(loss=loss)
    assert min([trigger.above for trigger in told(feed)], default=math.inf) == pytest.approx(threshold, rel=1e-3)
    if threshold < math.inf:
        assert not fires(feed, loss=threshold - abs(threshold) * 1e-2)
        assert fires(feed, loss=threshold + abs(threshold) * 1e-2)


@pytest.mark.parametrize(("where", "is_told"), [("any", True), ("batch", True), ("state", False)])
def test_what_is_not_finite_is_told_unless_only_the_state_is_looked_at(where, is_told):
    feed = diagnose({"nonfinite": {"where": where}})
    assert [trigger.quantity for trigger in told(feed)] == ["nonfinite"] * is_told
    for step in ({"norms": math.nan}, {"norms": math.inf}, {"loss": math.nan}, {"loss": -math.inf}):
        assert fires(feed, **step) == is_told
    assert not fires(feed, norms=1.0, loss=1.0)


def test_nothing_is_told_of_a_rule_on_some_parameters_nor_of_a_diagnosis_that_failed():
    rule = {"name": "rule", "when": "exploding_gradient", "do": "notify"}
    feed = Feed({**rule, "parameters": ["p0"]})
    feed.repeat(30, 1.0)
    assert told(feed) == ()
    feed = Feed(rule)
    feed.repeat(30, 1.0)
    assert told(feed) != ()
    feed.judgement.entries[0].update = None
    with pytest.raises(AssertionError, match="NoneType"):
        feed.step(1.0)
    assert feed.judgement.triggers(feed.stats) == {}


def planned(rules, history=None, steps=30, **options):
    """Return the plan for the step after some healthy ones."""
    feed = Feed(*rules)
    feed.repeat(steps, 1.0, 1.0)
    feed.stats.step += 1
    return Foresight(feed.policy.model_copy(update=options)).plan(
        feed.judgement, {"rule": history} if history else {}, feed.stats
    )


LADDER = {
    "name": "rule",
    "when": "nonfinite",
    "do": "skip_step",
    "cooldown": 3,
    "budget": 5,
    "escalate": [{"after": 2, "within": 10, "do": "notify"}],
}


def test_a_rule_that_rests_or_has_climbed_past_its_verdict_plans_nothing():
    """The plan follows cooldown, budget and ladder as the decision will."""
    assert len(planned([LADDER]).skips) == 1
    assert planned([LADDER], RuleHistory(actions=1, last_step=27)).skips == []
    assert len(planned([LADDER], RuleHistory(actions=1, last_step=26)).skips) == 1
    assert planned([LADDER], RuleHistory(actions=5, last_step=1)).skips == []
    assert planned([LADDER], RuleHistory(actions=2, last_step=22, fired=((21, 22), ()))).skips == []


def test_a_rung_that_acts_on_an_outcome_is_planned_for_once_the_outcome_is_known():
    ladder = {**LADDER, "cooldown": 0, "escalate": [{"if_outcome": "no_effect", "do": "notify"}]}
    history = RuleHistory(actions=1, last_step=2, fired=((2,), ()))
    assert len(planned([ladder], history).skips) == 1
    assert planned([ladder], learn(history, 0, 2, "no_effect")).skips == []


@pytest.mark.parametrize("on_budget", ["stop", "record"])
def test_once_the_budget_of_the_run_is_spent_the_step_is_dropped_for_the_stop_or_taken(on_budget):
    clip = {"name": "rule", "when": "exploding_gradient", "do": {"clip_norm": {"max_norm": 7.0}}}
    for rule, is_skip in ((LADDER, True), (clip, False)):
        for spent, left in (((), True), ((3,), False)):
            plan = planned([rule], RuleHistory(charged=spent), budget=1, on_budget=on_budget)
            assert bool(plan.clips) == (left and not is_skip)
            assert bool(plan.skips) == (is_skip if left else on_budget == "stop")


def test_what_a_finding_follows_is_a_reason_to_wait():
    rule = {"name": "rule", "when": "exploding_gradient", "do": "skip_step", "unless_follows": "bad_inputs"}
    (reason,) = Foresight(gradguard.Policy.model_validate({"rules": [rule]})).reasons_to_wait(StepStats(1))
    assert reason == "rule 'rule' asks what a finding follows, and uses 'skip_step'"


def test_a_budget_for_each_parameter_is_a_reason_to_wait():
    policy = gradguard.Policy.model_validate({"rules": [{**LADDER, "budget_per_parameter": 3}]})
    (reason,) = Foresight(policy).reasons_to_wait(StepStats(1))
    assert reason == "rule 'rule' has a budget for each parameter, and uses 'skip_step'"


def test_every_verdict_on_the_step_skips_it_whichever_it_is():
    for remedy in ("skip_step", "rollback", "stop"):
        assert len(planned([{**LADDER, "do": remedy}]).skips) == 1


def test_clips_are_planned_in_the_order_of_their_rules_and_those_for_every_step_come_last():
    always = {"name": "always", "when": "always", "do": {"clip_norm": {"max_norm": 5.0}}}
    tame = {"name": "rule", "when": "exploding_gradient", "do": {"clip_norm": {"max_norm": 7.0}}}
    clips = planned([always, tame]).clips
    assert [[limit for _, limit in alternatives] for alternatives in clips] == [[7.0], [5.0]]
    assert clips[0][0][0].quantity == "global_norm"
    assert clips[1][0][0] is None


def test_a_policy_that_only_observes_plans_nothing():
    policy = gradguard.Policy.model_validate({"mode": "observe", "rules": [LADDER]})
    assert not Foresight(policy).needs_device()
    assert Foresight(policy).reasons_to_wait(StepStats(1)) == []


class Theirs(Remedy):
    """A remedy that says nothing about its timing."""

    name = "theirs"

    def apply(self, target, finding, rows):
        return Change(summary="")


CLIP = {"clip_norm": {"max_norm": 1.0}}
WAITING = {
    "uses 'clip_value', which must see the gradients": {"do": {"clip_value": {"max_value": 1.0}}},
    "uses 'rescale', which must see the gradients": {"do": {"rescale": {"factor": 0.5}}},
    "uses 'zero_nonfinite', which must see the gradients": {"do": ["notify", "zero_nonfinite"]},
    "uses 'theirs', which must see the gradients": {"do": Theirs()},
    "uses 'clip_norm', which must see the gradients": {"do": {"clip_norm": {"max_norm": 1, "scope": "per_parameter"}}},
    "uses 'clip_norm', which must see the gradients ": {"do": {"clip_norm": {"max_norm": 1, "scope": "group"}}},
    "uses 'clip_adaptive', which must see the gradients": {"do": "clip_adaptive"},
    "acts on some parameters only with 'clip_norm'": {"do": CLIP, "parameters": ["p0"]},
    "acts on some parameters only with 'skip_step'": {"do": "skip_step", "parameters": ["p0"], "when": "nonfinite"},
    "uses 'skip_step' on 'divergence', which cannot be told before the step": {"do": "skip_step", "when": "divergence"},
    "uses 'clip_norm' on 'stale_gradients', which cannot be told before the step": {
        "do": CLIP,
        "when": "stale_gradients",
    },
    "uses 'skip_step' from severity 'critical' on, which cannot be told before the step": {
        "do": "skip_step",
        "min_severity": "critical",
    },
    "uses 'clip_value', which must see the gradients ": {
        "do": "notify",
        "escalate": [{"after": 1, "within": 9, "do": {"clip_value": {"max_value": 1.0}}}],
    },
    "uses 'rescale', which must see the gradients ": {"when": "always", "do": [CLIP, {"rescale": {"factor": 0.5}}]},
    "acts on some parameters only with 'clip_norm' ": {"when": "always", "do": CLIP, "parameters": ["p0"]},
}


@pytest.mark.parametrize("reason", WAITING)
def test_a_rule_that_only_the_host_can_carry_out_says_so(reason):
    """The same rule in a policy that only observes waits for nothing."""
    rule = {"name": "rule", "when": "exploding_gradient", **WAITING[reason]}
    policy = gradguard.Policy(rules=[rule])
    feed = Feed()
    feed.stats.windows = feed.judgement.windows
    assert Foresight(policy).reasons_to_wait(feed.stats) == [f"rule 'rule' {reason.strip()}"]
    assert Foresight(policy.model_copy(update={"mode": "observe"})).reasons_to_wait(feed.stats) == []


@pytest.mark.parametrize("name", [cls.name for cls in REMEDIES if cls.timing == "late"])
def test_a_remedy_that_is_as_good_one_step_later_makes_nobody_wait(name):
    options = {"scale_lr": {"factor": 0.5}, "scale_weight_decay": {"factor": 0.5}, "keep_clipping": {"max_norm": 1.0}}
    rule = {"name": "rule", "when": "divergence", "do": {name: options.get(name)}, "min_severity": "critical"}
    assert Foresight(gradguard.Policy(rules=[rule])).reasons_to_wait(StepStats(1)) == []


def deferred(preset):
    policy = gradguard.load_policy(preset)
    return policy.model_copy(update={"monitor": policy.monitor.model_copy(update={"sync": "deferred"})})


def reasons(policy, make=lambda params: torch.optim.AdamW(params, fused=True), dtype=torch.float32, **options):
    model = nn.Linear(2, 1, dtype=dtype)
    with gradguard.attach(model, make(model.parameters()), policy, **options) as guard:
        return guard.reasons_to_wait


@pytest.mark.parametrize("preset", ["default", "pretrain", "finetune", "rnn", "repair", "observe"])
def test_no_preset_waits_with_a_fused_optimizer(preset):
    assert reasons(deferred(preset)) == ()
    assert reasons(gradguard.load_policy(preset)) == ()


UNFUSED = "the optimizer cannot skip or clip on the device: use SGD, Adam, AdamW or Adagrad with fused=True"


@pytest.mark.parametrize("make", [torch.optim.AdamW, torch.optim.RMSprop, lambda p: torch.optim.SGD(p, lr=0.1)])
def test_an_optimizer_without_fused_kernels_waits_unless_nothing_is_changed(make):
    assert reasons(deferred("default"), make) == (UNFUSED,)
    assert reasons(deferred("observe"), make) == ()


def test_wide_parameters_and_parameters_that_are_not_watched_wait():
    assert reasons(deferred("default"), dtype=torch.float64) == (UNFUSED,)
    policy = deferred("default")
    some = policy.model_copy(update={"monitor": policy.monitor.model_copy(update={"parameters": ("weight",)})})
    assert reasons(some) == (UNFUSED,)


def test_a_loss_scaler_and_a_learning_rate_that_is_a_tensor_wait():
    scaler = torch.amp.GradScaler("cpu")
    assert reasons(deferred("default"), scaler=scaler) == ("GradScaler reads its scale on the host",)
    assert reasons(deferred("default"), scaler=torch.amp.GradScaler("cpu", enabled=False)) == ()
    found = reasons(deferred("default"), lambda p: torch.optim.AdamW(p, lr=torch.tensor(1e-3), fused=True))
    assert found == ("the learning rate is a tensor",)


def test_the_reasons_are_told_when_the_guard_is_attached(lines):
    reasons(deferred("default"), torch.optim.AdamW)
    assert any(f"every step waits for the device: {UNFUSED}" in line for line in lines)
    lines.clear()
    reasons(deferred("default"))
    assert any("healthy steps do not wait for the device" in line for line in lines)
