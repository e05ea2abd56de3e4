"""dead_units: layers whose units are silent for good, graded by what was learnt; outputs that no class can use."""

import math

import pytest
from feed import diagnose
from probed import activations, output


CHANCE = math.log(10)


def run(probes, loss=1.0, start=None, every=50, **options):
    """Return the findings over one probe after the other, with `every` - 1 quiet steps between them."""
    feed = diagnose({"dead_units": options} if options else "dead_units")
    found = []
    for number, seen in enumerate(probes):
        for step in range(every):
            value = start if start is not None and number == 0 and step < 6 else loss
            found += feed.step(1.0, value, activations=seen if step == every - 1 else None)
    return found


def test_most_of_a_layer_dead_at_three_probes_in_a_row_is_a_warning_with_the_layer():
    (finding,) = run([activations(dead=[0.1, 0.7, 0.1])] * 3)
    assert (finding.severity, finding.parameters, finding.num_parameters) == ("warn", ("b",), 1)
    assert finding.value == pytest.approx(0.7)
    assert finding.threshold == 0.6
    assert "LeakyReLU" in finding.advice


def test_twice_is_not_enough_and_a_healthy_probe_starts_the_count_afresh():
    sick, well = activations(dead=0.7), activations(dead=0.3)
    assert run([sick, sick]) == []
    assert run([sick, sick, well, sick, sick]) == []
    assert len(run([sick, sick, well, sick, sick, sick])) == 1


def test_a_blocked_layer_is_critical_at_once():
    (finding,) = run([activations(dead=[0.0, 0.99, 0.99])])
    assert (finding.severity, finding.parameters) == ("critical", ("b", "c"))
    assert finding.threshold == 0.95


def test_a_run_that_learns_all_the_same_is_only_worth_knowing():
    (finding,) = run([activations(dead=0.97)] * 4, loss=0.3, start=1.0)
    assert finding.severity == "info"
    assert finding.evidence["loss_left"] == pytest.approx(0.3)


def test_it_is_told_again_when_it_gets_worse():
    severities = [finding.severity for finding in run([activations(dead=0.7)] * 3 + [activations(dead=0.99)] * 2)]
    assert severities == ["warn", "critical"]


@pytest.mark.parametrize("kind", ["tanh", "sigmoid", "softmax"])
def test_squashing_activations_have_no_dead_units(kind):
    assert run([activations(kinds=[kind], dead=1.0)] * 4) == []


def test_what_goes_into_a_layer_counts_only_when_it_died_on_the_way():
    sparse = activations(kinds=["input"], dead=0.8)
    assert run([sparse] * 5) == []
    assert len(run([activations(kinds=["input"], dead=0.1)] + [sparse] * 3)) == 1


def test_a_narrow_layer_counts_when_all_of_it_is_dead():
    assert run([activations(kinds=["relu"], units=4, dead=0.75)] * 4) == []
    assert len(run([activations(kinds=["relu"], units=4, dead=1.0)])) == 1


def test_few_samples_need_more_probes():
    few = activations(kinds=["relu"], samples=32, dead=0.97)
    assert run([few] * 5) == []
    assert len(run([few] * 6)) == 1


def test_it_is_not_repeated_for_a_while():
    assert len(run([activations(dead=0.7)] * 9)) == 1


def test_an_output_that_is_always_zero_is_a_class_that_cannot_be_predicted():
    (finding,) = run([activations(out=output(dead=0.3))] * 2, loss=CHANCE)
    assert finding.severity == "warn"
    assert "3 of the model's 10 outputs" in finding.message
    assert "Remove the ReLU" in finding.advice


@pytest.mark.parametrize(
    ("share", "loss"),
    [(1.0, CHANCE), (0.0, CHANCE), (0.3, 0.1), (0.3, None)],
    ids=["head", "none", "pixels", "no loss"],
)
def test_other_outputs_may_be_zero(share, loss):
    """A head that starts at zero, and images with black borders, whose loss is not that of guessing a class."""
    assert run([activations(out=output(dead=share))] * 4, loss=loss) == []


def test_dead_outputs_must_last():
    sick, well = activations(out=output(dead=0.3)), activations(out=output())
    assert run([sick, well, sick, well], loss=CHANCE) == []


def test_nan_is_no_share():
    assert run([activations(dead=math.nan, out=output(dead=math.nan))] * 4) == []


@pytest.mark.parametrize("scale", [1e-12, 1e6])
def test_the_scale_of_the_loss_does_not_matter(scale):
    assert [f.severity for f in run([activations(dead=0.7)] * 3, loss=scale)] == ["warn"]
    assert [f.severity for f in run([activations(dead=0.7)] * 3, loss=0.3 * scale, start=scale)] == ["info"]


def test_the_limits_are_those_of_the_policy():
    assert run([activations(dead=0.7)] * 4, share=0.8) == []
    (finding,) = run([activations(dead=0.7)], share=0.2, blocked=0.6)
    assert finding.severity == "critical"


def test_a_rule_may_be_about_layers_or_about_outputs_only():
    """A layer and outputs that are dead at once: two troubles with two cures."""
    probes = [activations(dead=[0.1, 0.99, 0.1], out=output(dead=0.3))] * 3
    told = {about: [f.statistic for f in run(probes, CHANCE, about=about)] for about in ("layers", "outputs", "all")}
    assert told["layers"] == ["share of dead units"]
    assert told["outputs"] == ["share of dead outputs"]
    assert told["all"][0] == "share of dead units"


DIED = {"about": "died"}


@pytest.mark.parametrize(("dead", "is_told"), [(1.0, True), (61 / 64, True), (60 / 64, False)])
def test_a_layer_that_hardly_a_unit_is_left_of_died_if_it_was_alive_at_first(dead, is_told):
    found = run([activations(dead=[0.1, 0.3, 0.1]), activations(dead=[0.1, dead, 0.1])], **DIED)
    assert [(finding.severity, finding.parameters) for finding in found] == [("critical", ("b",))] * is_told


def test_a_layer_that_was_never_alive_did_not_die():
    assert run([activations(dead=1.0)] * 4, **DIED) == []


@pytest.mark.parametrize(("loss", "is_told"), [(0.9, True), (0.51, True), (0.49, False), (None, False)])
def test_a_run_on_its_way_or_without_a_loss_is_left_alone(loss, is_told):
    probes = [activations(dead=0.1), activations(dead=1.0)]
    assert bool(run(probes, loss=loss, start=loss and 1.0, **DIED)) == is_told


def test_a_wide_sparse_code_did_not_die():
    """One unit in a hundred at work, of thousands: that is what a sparse autoencoder is made for."""
    wide = [activations(dead=share, units=4096) for share in (0.2, 0.99, 0.99, 0.99)]
    assert run(wide, **DIED) == []


def test_outputs_do_not_die():
    assert run([activations(dead=0.1, out=output(dead=0.3))] * 4, start=CHANCE, loss=CHANCE, **DIED) == []
