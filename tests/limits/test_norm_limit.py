"""Limits on a norm as a policy file writes them: what each may be, and what is said when it is none."""

import pytest

import gradguard
from gradguard.evidence.stats import StepStats
from gradguard.limits.norm_limit import KINDS, limit_windows, resolve_limit


FORMS = {
    "{percentile: 90}": {"percentile": 90.0, "window": 200, "fallback": 1.0},
    "{quantile: 0.9, rate: 0.1}": {"quantile": 0.9, "rate": 0.1, "fallback": 1.0},
    "{mode: mean, zscore: 3}": {
        "zscore": 3.0,
        "mode": "mean",
        "decay": 0.97,
        "warmup": 25,
        "min_deviation": 0.1,
        "release": 50,
        "fallback": 1.0,
    },
    "{adagc: 1.05}": {"adagc": 1.05, "beta": 0.98, "warmup": 100, "release": 1.5, "window": 50, "fallback": 1.0},
    "{median_times: 3, fallback: 2}": {"median_times": 3.0, "window": 50, "fallback": 2.0},
    "1e-3": 1e-3,
    "2": 2.0,
}
SAID = {
    "clip_norm: {max_norm: {percentil: 90}}": ["'percentile' is missing", "did you mean 'percentile'?"],
    "clip_norm: {max_norm: {zscore: 2, mode: fast}}": ["'mode' should be 'reciprocal', 'mean' or 'max', got \"fast\""],
    "clip_norm: {max_norm: {quantile: 1.5}}": ["'quantile' should be less than 1, got 1.5"],
    "clip_norm: {max_norm: {quantile: 0.5, window: 9}}": ["unknown key 'window'"],
    "clip_norm: {max_norm: {size: 1}}": [
        "a number or a mapping {median_times: ...}, {percentile: ...}, {quantile: ...}"
    ],
    "clip_norm: {max_norm: [1]}": ["should be a number or a mapping"],
    "clip_norm: {max_norm: {adagc: 1.05}, scope: group}": ["'adagc' is a limit for each parameter"],
    "keep_clipping: {max_norm: {quantile: 0.9}}": [
        "a number or a mapping {median_times: ...} or {percentile: ...}, got"
    ],
    "rescale: {to_norm: {zscore: 2}}": ["a number or a mapping {median_times: ...} or {percentile: ...}, got"],
    "rescale: {}": ["either 'factor' or 'to_norm'"],
}


def load(tmp_path, do):
    path = tmp_path / "p.yaml"
    path.write_text(f"version: 1\nrules:\n  - {{name: a, when: exploding_gradient, do: {{{do}}}}}\n", encoding="utf-8")
    return gradguard.load_policy(path)


@pytest.mark.parametrize("form", FORMS)
def test_a_limit_is_read_written_and_read_again(form, tmp_path):
    (rule,) = load(tmp_path, f"clip_norm: {{max_norm: {form}}}").rules
    assert rule.do[0].model_dump()["max_norm"] == FORMS[form]
    again = gradguard.Policy.model_validate(gradguard.Policy(rules=[rule]).model_dump(mode="json"))
    assert again.rules[0].do[0] == rule.do[0]


@pytest.mark.parametrize("do", SAID)
def test_a_mistake_is_told_once_and_by_the_kind_of_limit_that_was_meant(do, tmp_path):
    with pytest.raises(gradguard.PolicyError) as caught:
        load(tmp_path, do)
    assert len(caught.value.problems) == len(SAID[do])
    for problem, said in zip(caught.value.problems, SAID[do], strict=True):
        assert said in str(problem)


def test_every_kind_is_known_by_its_first_key():
    assert [next(iter(kind.model_fields)) for kind in KINDS.values()] == list(KINDS)


def test_a_number_is_its_own_limit_and_reads_no_window():
    assert resolve_limit(2.0, StepStats(1), 0) == 2.0
    assert limit_windows(2.0) == ()
    assert limit_windows(KINDS["percentile"](percentile=50, window=9)) == (9,)
    assert limit_windows(KINDS["quantile"](quantile=0.5)) == ()
