"""frozen_parameters: each way in which a parameter can be left behind, once."""

import pytest
from feed import diagnose
from probed import updates


def run(probes, loss=1.0, start=None, norms=1.0):
    feed = diagnose("frozen_parameters")
    found = []
    for number, moved in enumerate(probes):
        for step in range(50):
            value = start if start is not None and number == 0 and step < 6 else loss
            found += feed.step(norms, value, updates=moved if step == 49 else None)
    return found


def test_parameters_in_no_optimizer_are_reported_once_at_the_second_probe():
    outside = updates(untrained=("body.weight", "body.bias"))
    assert run([outside]) == []
    (finding,) = run([outside] * 6)
    assert (finding.severity, finding.parameters, finding.indices) == ("warn", ("body.weight", "body.bias"), ())
    assert finding.message == "body.weight and 1 more: gradients come, but no optimizer to use them."


def test_parameters_that_another_optimizer_trains_are_none():
    outside = updates(untrained=("critic.weight",))
    assert run([outside, updates(), outside, updates()]) == []


def test_updates_that_are_lost_are_reported_with_their_rows():
    (finding,) = run([updates(unmoved=(1,))] * 4)
    assert (finding.severity, finding.parameters, finding.indices) == ("warn", ("p1",), (1,))


def test_a_rate_of_zero_moves_nothing_on_purpose():
    assert run([updates(unmoved=(0, 1, 2), lr=0.0)] * 5) == []


def test_a_run_that_learned_may_stand_still():
    (finding,) = run([updates(unmoved=(1,))] * 4, loss=1e-6, start=1.0)
    assert finding.severity == "info"


def test_gradients_of_exactly_zero_everywhere_are_reported():
    (finding,) = run([updates()] * 4, norms=0.0)
    assert (finding.severity, finding.evidence["kind"]) == ("warn", "without_signal")
    assert run([updates()] * 4, norms=[0.0, 0.0, 1e-30]) == []


def test_a_part_that_is_never_used_is_only_worth_knowing():
    (finding,) = run([updates(without_gradient=(2,))] * 6, norms=[1.0, 1.0, None])
    assert (finding.severity, finding.parameters) == ("info", ("p2",))
    assert "no gradient ever came" in finding.message


def test_most_of_a_model_behind_a_detach_is_a_warning():
    (finding,) = run([updates(without_gradient=(0, 1))] * 6, norms=[None, None, 1.0])
    assert (finding.severity, finding.parameters) == ("warn", ("p0", "p1"))


def test_what_comes_to_it_later_is_reported_too():
    found = run([updates(unmoved=(1,))] * 3 + [updates(unmoved=(1, 2))] * 3)
    assert [finding.parameters for finding in found] == [("p1",), ("p2",)]


@pytest.mark.parametrize("scale", [1e-12, 1e12])
def test_the_scale_of_the_loss_does_not_matter(scale):
    assert [finding.severity for finding in run([updates(unmoved=(1,))] * 4, loss=scale)] == ["warn"]
