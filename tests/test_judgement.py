"""The vectorised path finds exactly what the row-by-row reference finds, over any history."""

import copy
import math
import pickle

import numpy as np
import reference
from feed import Feed, diagnose
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import Field

from gradguard.contracts import Diagnosis
from gradguard.plain import from_plain, to_plain
from gradguard.records import Finding


LAW = settings(max_examples=80, deadline=None, derandomize=True)
FACTORS = st.sampled_from([0.0, 1e-6, 8.0, 15.0, 30.0, 60.0, 150.0, 1e4, 1e30, math.nan, math.inf, None])
SHIFTS = st.sampled_from([1e-4, 0.2, 5.0, 40.0, 300.0])


@st.composite
def histories(draw, max_parameters=4, num_steps=60):
    """Norms by step and parameter: noise around a level, with spikes, shifts, NaN, zeros, parameters that come and go."""
    num_parameters = draw(st.integers(1, max_parameters))
    random = np.random.default_rng(draw(st.integers(0, 2**16)))
    levels = 10.0 ** random.uniform(-3, 3, num_parameters)
    noise = draw(st.sampled_from([0.0, 0.05, 0.5]))
    norms = levels * np.exp(noise * random.standard_normal((num_steps, num_parameters)))
    parameters = st.sampled_from([*range(num_parameters), slice(None)])
    for step, where, factor in draw(st.lists(st.tuples(st.integers(0, num_steps - 1), parameters, SHIFTS), max_size=2)):
        norms[step:, where] *= factor
    rows = [[float(norm) for norm in step] for step in norms]
    for where in range(num_parameters):
        if draw(st.integers(0, 4)) == 0:
            first, last = sorted(draw(st.tuples(st.integers(0, num_steps), st.integers(0, num_steps))))
            for step in range(first, last):
                rows[step][where] = None
    events = st.tuples(st.integers(0, num_steps - 1), parameters, FACTORS, st.integers(1, 3))
    for step, where, factor, length in draw(st.lists(events, max_size=6)):
        for later in range(step, min(step + length, num_steps)):
            for index in range(num_parameters)[where] if isinstance(where, slice) else [where]:
                norm = rows[later][index]
                rows[later][index] = None if factor is None or norm is None else norm * factor
    return rows


def told(findings):
    """Return (scope, rows) of one finding of exploding_gradient, None of none."""
    if not findings:
        return None
    (finding,) = findings
    return finding.evidence["scope"], sorted(finding.indices)


def expected_of(alarm):
    if alarm is None:
        return None
    if 0 in alarm.rows:
        return "global", []
    return "parameters", sorted(row - 1 for row in alarm.rows)


OPTIONS = {"zscore": 4.0, "ratio": 10.0, "extreme_ratio": 100.0, "window": 12, "warmup": 8}


@LAW
@given(histories(), st.sampled_from([OPTIONS, {**OPTIONS, "window": 30}, {**OPTIONS, "zscore": 20.0, "warmup": 2}]))
def test_exploding_gradients_are_those_of_the_reference(history, options):
    feed = diagnose({"exploding_gradient": options}, num_parameters=len(history[0]))
    oracle = reference.ExplodingGradient(len(history[0]), **options)
    for step, norms in enumerate(history):
        found = told(feed.step(norms))
        levels = [float(level) for level in feed.stats.levels]
        assert found == expected_of(oracle.step(step, levels)), (step, norms)


@LAW
@given(histories(max_parameters=4), st.data())
def test_a_rule_on_some_parameters_finds_what_the_reference_finds_on_these(history, data):
    num_parameters = len(history[0])
    rows = data.draw(st.sets(st.integers(0, num_parameters - 1), max_size=max(0, num_parameters - 1)))
    names = [f"p{row}" for row in rows] or ["nothing"]
    feed = Feed(
        {"when": {"exploding_gradient": OPTIONS}, "do": "notify", "parameters": names}, num_parameters=num_parameters
    )
    oracle = reference.ExplodingGradient(num_parameters, sorted(rows), **OPTIONS)
    for step, norms in enumerate(history):
        found = told(feed.step(norms))
        levels = [float(level) for level in feed.stats.levels]
        assert found == expected_of(oracle.step(step, levels)), (step, norms)


@LAW
@given(histories(), st.sampled_from([0.1, 1.0, 30.0]))
def test_sgd_updates_beyond_the_weights_are_those_of_the_reference(history, lr):
    feed = diagnose({"exploding_gradient": OPTIONS}, num_parameters=len(history[0]))
    oracle = reference.ExplodingGradient(len(history[0]), **OPTIONS)
    for step, norms in enumerate(history):
        findings = feed.step(norms, lr=lr, sgd_reach=20.0)
        alarm = oracle.step(step, [float(level) for level in feed.stats.levels], lr, 20.0)
        assert told(findings) == expected_of(alarm)
        assert (alarm is not None and alarm.kind == "reach") == any(f.statistic.startswith("update") for f in findings)


@st.composite
def loss_histories(draw, num_steps=60):
    """Losses of any sign: a decay with noise, spikes, shifts, and values that are none; and learning rates."""
    random = np.random.default_rng(draw(st.integers(0, 2**16)))
    offset = draw(st.sampled_from([0.0, 0.0, -3.0]))
    noise = draw(st.sampled_from([0.0, 0.02, 0.4]))
    decay = draw(st.sampled_from([0.0, 0.01, 0.1]))
    losses = np.exp(-decay * np.arange(num_steps) + noise * random.standard_normal(num_steps))
    factors = st.sampled_from([1.5, 3.0, 10.0, 300.0, math.nan, math.inf])
    for step, factor in draw(st.lists(st.tuples(st.integers(0, num_steps - 1), factors), max_size=6)):
        losses[step] *= factor
    for step, factor in draw(st.lists(st.tuples(st.integers(0, num_steps - 1), SHIFTS), max_size=2)):
        losses[step:] *= factor
    rates = np.full(num_steps, 0.1)
    rates[draw(st.integers(0, num_steps)) :] *= draw(st.sampled_from([1.0, 10.0]))
    return [(float(loss), float(rate)) for loss, rate in zip(losses + offset, rates, strict=True)]


@LAW
@given(loss_histories(), st.sampled_from([(6.0, 20, 10), (3.0, 8, 5), (6.0, 50, 20)]))
def test_loss_spikes_are_those_of_the_reference(history, options):
    zscore, window, warmup = options
    feed = diagnose({"loss_spike": {"zscore": zscore, "window": window, "warmup": warmup}})
    oracle = reference.LossSpike(zscore=zscore, window=window, warmup=warmup)
    for step, (loss, lr) in enumerate(history):
        assert bool(feed.step(loss=loss, lr=lr)) == oracle.step(loss, lr), (step, loss)


@LAW
@given(loss_histories(), st.sampled_from([1.1, 1.5, 3.0]), st.data())
def test_divergence_is_that_of_the_reference(history, ratio, data):
    growth = data.draw(st.sampled_from([1.0, 1.2, 12.0, 100.0]))
    start = data.draw(st.integers(0, 40))
    rise = data.draw(st.sampled_from([1.0, 1.1, 1.5]))
    feed = diagnose({"divergence": {"ratio": ratio}}, num_parameters=1)
    oracle = reference.Divergence(ratio=ratio)
    for step, (loss, _) in enumerate(history):
        norm = growth ** min(20, max(0, step - start))
        loss *= rise ** max(0, step - start)
        found = [finding.severity for finding in feed.step([norm], loss)]
        expected = oracle.step(step, loss, feed.stats.global_norm)
        assert found == ([] if expected is None else [expected]), (step, loss)


EVERYTHING = [
    {"name": "a", "when": "nonfinite", "do": "notify"},
    {"name": "b", "when": {"exploding_gradient": OPTIONS}, "do": "notify"},
    {"name": "c", "when": {"exploding_gradient": OPTIONS}, "do": "notify", "parameters": ["p0"]},
    {"name": "d", "when": {"loss_spike": {"window": 12, "warmup": 6}}, "do": "notify"},
    {"name": "e", "when": "divergence", "do": "notify"},
    {"name": "f", "when": {"vanishing_gradient": {"max_spread": 2.0, "min_first_to_last": 0.5}}, "do": "notify"},
    {"name": "g", "when": {"stale_gradients": {"steps": 2}}, "do": "notify"},
    {"name": "h", "when": "loss_scale_collapse", "do": "notify"},
]


def run(feed, history, losses, first=0):
    feed.stats.weight_norms[:] = 1.0
    return [
        feed.step(norms, loss, is_stale=step % 7 < 3)
        for step, (norms, (loss, _)) in enumerate(zip(history, losses, strict=True))
        if step >= first
    ]


def words(found):
    """Findings in words, so that NaN equals NaN."""
    return [[repr(finding) for finding in step] for step in found]


@settings(LAW, max_examples=25)
@given(histories(), loss_histories(), st.integers(0, 60), st.sampled_from(["copy", "plain", "pickle"]))
def test_a_judgement_saved_at_any_step_goes_on_as_an_uninterrupted_one(history, losses, cut, how):
    send = {
        "copy": copy.deepcopy,
        "plain": lambda s: from_plain(to_plain(s)),
        "pickle": lambda s: pickle.loads(pickle.dumps(s)),
    }
    whole = Feed(*EVERYTHING, num_parameters=len(history[0]))
    expected = run(whole, history, losses)

    first = Feed(*EVERYTHING, num_parameters=len(history[0]))
    run(first, history[:cut], losses[:cut])
    second = Feed(*EVERYTHING, num_parameters=len(history[0]))
    second.judgement.load_state_dict(send[how](first.judgement.state_dict()))
    second.stats.step = cut - 1
    assert words(run(second, history, losses, first=cut)) == words(expected[cut:])


@settings(LAW, max_examples=25)
@given(histories(), loss_histories(), st.integers(0, 60))
def test_a_state_once_taken_is_not_changed_by_the_steps_that_follow(history, losses, cut):
    feed = Feed(*EVERYTHING, num_parameters=len(history[0]))
    run(feed, history[:cut], losses[:cut])
    saved = feed.judgement.state_dict()
    before = pickle.dumps(saved)
    run(feed, history[cut:], losses[cut:])
    assert pickle.dumps(saved) == before


@settings(LAW, max_examples=25)
@given(histories(), loss_histories())
def test_the_same_numbers_give_the_same_findings(history, losses):
    first, second = (run(Feed(*EVERYTHING, num_parameters=len(history[0])), history, losses) for _ in range(2))
    assert words(first) == words(second)


@settings(LAW, max_examples=25)
@given(histories(), loss_histories())
def test_what_was_forgotten_is_as_new(history, losses):
    used, new = (Feed(*EVERYTHING, num_parameters=len(history[0])) for _ in range(2))
    run(used, history, losses)
    used.judgement.forget()
    used.stats.step = -1
    assert words(run(used, history, losses)) == words(run(new, history, losses))


def test_findings_come_in_the_order_of_the_policy():
    feed = Feed(
        {"name": "last", "when": {"nonfinite": {"where": "batch"}}, "do": "notify", "parameters": ["p1"]},
        {"name": "first", "when": {"nonfinite": {"where": "batch"}}, "do": "notify"},
        {"name": "again", "when": {"nonfinite": {"where": "batch"}}, "do": "skip_step", "parameters": ["p1"]},
    )
    feed.step([1.0, math.nan, 1.0])
    found = feed.judgement.judge(feed.stats)
    assert [rule.name for rule, _ in found] == ["last", "first", "again"]


def test_rules_on_the_same_thing_share_one_diagnosis():
    rules = [{"name": name, "when": {"stale_gradients": {"steps": 1}}, "do": "notify"} for name in "ab"]
    feed = Feed(*rules)
    assert len(feed.judgement.entries) == 1
    first, second = feed.step(is_stale=True)
    assert first is second


def test_steps_that_the_scaler_skips_are_shown_only_to_who_asked():
    feed = Feed(*EVERYTHING)
    found = feed.step(math.nan, loss_scale=0.5, scaler_skips=9, found_inf=True)
    assert [finding.diagnosis for finding in found] == ["loss_scale_collapse"]


class Brittle(Diagnosis[dict]):
    """Counts steps and breaks at one.

    Args:
        at: step.
    """

    name = "brittle"
    at: int = Field(default=3)

    def init(self, table, rows):
        return {"count": 0}

    def update(self, state, stats):
        if stats.step == self.at:
            raise ZeroDivisionError("brittle")
        return {"count": state["count"] + 1}, None


RULES_WITH_A_BRITTLE_ONE = [
    {"name": "brittle", "when": Brittle(), "do": "notify"},
    {"name": "stale", "when": {"stale_gradients": {"steps": 1}}, "do": "notify"},
]


def judge_six_steps(feed):
    """Return what failed at each step."""
    failed = []
    for step in range(6):
        feed.faults.clear()
        feed.stats.step, feed.stats.is_stale = step, True
        feed.judgement.judge(feed.stats)
        failed.append(list(feed.faults))
    return failed


def test_a_diagnosis_that_breaks_is_switched_off_and_the_others_go_on():
    feed = Feed(*RULES_WITH_A_BRITTLE_ONE)
    assert judge_six_steps(feed) == [[], [], [], ["ZeroDivisionError('brittle')"], [], []]
    assert feed.judgement.entries[-1].state.count == 6


def test_a_state_from_before_a_diagnosis_broke_can_be_put_back_after_it():
    """A rollback does so."""
    feed = Feed(*RULES_WITH_A_BRITTLE_ONE)
    saved = feed.judgement.state_dict()
    judge_six_steps(feed)
    feed.judgement.load_state_dict(saved)
    assert feed.judgement.entries[-1].state.count == 0


def test_a_state_from_after_a_diagnosis_broke_can_be_resumed():
    feed, resumed = (Feed(*RULES_WITH_A_BRITTLE_ONE) for _ in range(2))
    judge_six_steps(feed)
    resumed.judgement.load_state_dict(feed.judgement.state_dict())
    assert resumed.judgement.entries[-1].state.count == 6


def test_every_window_that_a_rule_reads_is_kept():
    feed = Feed(
        {
            "name": "a",
            "when": {"exploding_gradient": {"window": 30}},
            "do": {"clip_norm": {"max_norm": {"median_times": 2, "window": 7}}},
        },
        {
            "name": "b",
            "when": {"loss_spike": {"window": 9}},
            "do": "notify",
            "escalate": [
                {"after": 1, "within": 1, "do": {"keep_clipping": {"max_norm": {"median_times": 2, "window": 11}}}}
            ],
        },
        {"name": "c", "when": "always", "do": {"clip_norm": {"max_norm": {"median_times": 2, "window": 13}}}},
        horizon=21,
    )
    assert sorted(feed.judgement.windows) == [7, 11, 13, 30]
    assert sorted(feed.judgement.losses) == [9, 21]


def test_a_rule_whose_patterns_leave_nothing_finds_nothing():
    feed = Feed({"when": "nonfinite", "do": "notify", "parameters": ["p0", "!p0"]})
    assert feed.step(math.nan, math.nan) == []


def test_a_finding_can_be_read_as_a_record():
    (finding,) = diagnose("nonfinite").step(math.nan)
    assert Finding.model_validate_json(finding.model_dump_json()).message == finding.message
