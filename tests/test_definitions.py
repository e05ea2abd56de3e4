"""The vectorised diagnoses find exactly what their definitions, written out row by row, find over any history."""

import reference
from feed import Feed, diagnose
from histories import histories, loss_histories
from hypothesis import given, settings
from hypothesis import strategies as st


LAW = settings(max_examples=80, deadline=None, derandomize=True)


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
    is_deep = feed.judgement.table.is_matrix.sum() > 1
    oracle = reference.ExplodingGradient(len(history[0]), is_deep=is_deep, **OPTIONS)
    for step, norms in enumerate(history):
        findings = feed.step(norms, lr=lr, sgd_reach=20.0)
        alarm = oracle.step(step, [float(level) for level in feed.stats.levels], lr, 20.0)
        assert told(findings) == expected_of(alarm)
        assert (alarm is not None and alarm.kind == "reach") == any(f.statistic.startswith("update") for f in findings)


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
