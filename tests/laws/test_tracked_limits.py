"""Limits with a memory keep the laws: no trace when idle, the same noted and whole, deferred and immediate."""

import math

import pytest
import torch
from clipping import Clipper, gradients, grads_of, make_model, put
from deferring import train
from pydantic import ValidationError

import gradguard


FOLLOWING = {
    "quantile": {"quantile": 0.9},
    "zscore": {"zscore": 2.5},
    "zscore max": {"zscore": 2.5, "mode": "max"},
    "adagc": {"adagc": 1.05, "warmup": 20},
    "percentile": {"percentile": 90, "window": 40},
}
LOOSE = {
    "quantile": {"quantile": 0.999, "rate": 1.0, "fallback": 1e9},
    "zscore": {"zscore": 1e6, "fallback": 1e9},
    "adagc": {"adagc": 1e6, "warmup": 5, "fallback": 1e9},
    "percentile": {"percentile": 100, "fallback": 1e9},
}


def always(limit, **options):
    return [{"name": "clip", "when": "always", "do": {"clip_norm": {"max_norm": limit, **options}}}]


@pytest.mark.parametrize("kind", LOOSE)
@pytest.mark.parametrize("scope", ["auto", "per_parameter"])
def test_a_limit_that_is_not_reached_leaves_the_run_bit_by_bit(kind, scope, bits):
    results = []
    for is_guarded in (False, True):
        model = make_model()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        if is_guarded:
            policy = gradguard.Policy(rules=always(LOOSE[kind], scope=scope), sinks=[])
            guard = gradguard.attach(model, optimizer, policy)
        for step, grads in enumerate(gradients(60, noise=0.0, spike_every=1000)):
            put(model, [grad / grad.norm() * 0.99**step for grad in grads])
            optimizer.step()
        results.append(bits(model, optimizer))
    assert guard.last.clip_coef == 1.0
    guard.close()
    assert results[0] == results[1]


@pytest.mark.parametrize("kind", FOLLOWING)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_bad_batch_leaves_no_trace_in_what_follows(kind, bad):
    """A run whose bad steps are skipped goes on with the gradients of one that never had them."""
    skip = {"name": "skip", "when": "nonfinite", "do": "skip_step"}
    kept = []
    for has_bad in (False, True):
        model = make_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        policy = gradguard.Policy(rules=[skip, *always(FOLLOWING[kind])], sinks=[])
        found = []
        with gradguard.attach(model, optimizer, policy):
            for step, grads in enumerate(gradients(90)):
                if has_bad and step in (3, 30, 31, 60):
                    put(model, [grad * bad for grad in grads])
                    optimizer.step()
                put(model, grads)
                optimizer.step()
                found += [grad.numpy().tobytes() for grad in grads_of(model)]
        kept.append(found)
    assert kept[0] == kept[1]


@pytest.mark.parametrize("kind", ["quantile", "zscore max", "percentile"])
@pytest.mark.parametrize("when", ["always", "exploding_gradient"])
def test_a_deferred_run_is_the_immediate_one(kind, when, bits):
    """What does not depend on the norm that it limits is known before the step."""
    rules = [{**always(FOLLOWING[kind])[0], "when": when}]
    losses = {20: 30.0, 30: 1e5, 31: 30.0, 40: math.nan}
    immediate, deferred = (train(rules, sync, losses=losses, steps=70, asks=True) for sync in ("immediate", "deferred"))
    assert deferred.guard.reasons_to_wait == ()
    assert deferred.told == immediate.told
    assert [r.clip_coef for r in deferred.reports] == pytest.approx([r.clip_coef for r in immediate.reports], rel=1e-5)
    assert min(report.clip_coef for report in immediate.reports) < 0.5


@pytest.mark.parametrize(
    "options",
    [
        {"max_norm": FOLLOWING["zscore"]},
        {"max_norm": FOLLOWING["adagc"]},
        {"max_norm": FOLLOWING["quantile"], "scope": "group"},
    ],
)
def test_what_cannot_be_foreseen_makes_the_host_wait(options):
    run = train([{"name": "clip", "when": "always", "do": {"clip_norm": options}}], "deferred", steps=3)
    assert run.guard.reasons_to_wait == ("rule 'clip' uses 'clip_norm', which must see the gradients",)


def test_a_rebaseline_and_a_new_parameter_start_a_limit_afresh():
    clipper = Clipper({"clip_norm": {"max_norm": FOLLOWING["quantile"]}}, make_model())
    for grads in gradients(20):
        clipper.clip(grads)
    first = clipper.tracker
    assert first.limit[0] > 0
    clipper.guard._pipeline.judgement.forget()
    assert math.isnan(first.limit[0])
    extra = torch.nn.Parameter(torch.ones(2))
    clipper.model.append(extra)
    clipper.optimizer.add_param_group({"params": [extra]})
    for grads in gradients(8):
        clipper.clip([*grads, torch.ones(2)])
    assert clipper.tracker is not first
    assert clipper.tracker.limit[0] > 0
    clipper.guard.close()


def test_rules_with_the_same_limit_share_a_memory_and_each_is_limited_by_its_own_norms():
    limit = {"quantile": 0.5, "fallback": 1e9}
    rules = [
        {"name": name, "when": "always", "parameters": [name], "do": {"clip_norm": {"max_norm": limit}}}
        for name in ("0", "1")
    ]
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with gradguard.attach(model, optimizer, gradguard.Policy(rules=rules, sinks=[])) as guard:
        for size in (1.0,) * 20 + (10.0,):
            put(
                model, [torch.ones_like(param) * size / param.numel() ** 0.5 * (1 + i) for i, param in enumerate(model)]
            )
            optimizer.step()
        assert len(guard._pipeline.judgement.trackers) == 1
    assert [float(param.grad.norm()) for param in list(model)[:2]] == pytest.approx([1.0, 2.0], rel=0.1)
    assert float(list(model)[2].grad.norm()) == pytest.approx(30.0)


def test_a_finding_about_some_parameters_is_clipped_by_the_limit_of_the_set_around_them():
    """With scope "global" what stood out is clipped together; only the whole is followed."""
    rule = {"when": "exploding_gradient", "do": {"clip_norm": {"max_norm": FOLLOWING["quantile"], "scope": "global"}}}
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with gradguard.attach(model, optimizer, gradguard.Policy(rules=[rule], sinks=[])) as guard:
        for step in range(80):
            sizes = [1.0, 1.0, 1.0, 1e-3 if step < 79 else 1e3]
            put(model, [torch.ones_like(p) * size / p.numel() ** 0.5 for p, size in zip(model, sizes, strict=True)])
            optimizer.step()
        assert [finding.indices for finding in guard.last.findings]
        assert guard.last.interventions
    assert float(model[3].grad.norm()) < 3.0


@pytest.mark.parametrize("scope", ["global", "group"])
def test_a_limit_for_each_parameter_has_no_other_scope(scope):
    with pytest.raises(ValidationError, match="'adagc' is a limit for each parameter"):
        gradguard.Policy(rules=always({"adagc": 1.05}, scope=scope))
