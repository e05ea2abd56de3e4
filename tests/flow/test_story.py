"""One story: what a finding follows from, in precedence, across steps, rollbacks and resumes."""

import math

import pytest
from feed import Feed
from probed import activations

from gradguard.contracts import DIAGNOSES, PASSES, STAYS
from gradguard.flow.story import Story
from gradguard.records import Finding


def tell(story, *found):
    """Return the causes of (diagnosis, step) pairs of one step."""
    pairs = [
        (DIAGNOSES.get(name), Finding(diagnosis=name, step=step, severity=severity[0] if severity else "warn"))
        for name, step, *severity in found
    ]
    return [(f.follows.diagnosis, f.follows.step) if f.follows else None for f in story.tell(pairs)]


def test_an_explosion_that_kills_units_that_stop_the_learning_is_one_story():
    story = Story()
    assert tell(story, ("exploding_gradient", 150)) == [None]
    assert tell(story, ("dead_units", 200)) == [("exploding_gradient", 150)]
    assert tell(story, ("plateau", 900)) == [("dead_units", 200)]


def test_what_has_precedence_in_a_step_causes_the_rest_whatever_the_order():
    found = [("plateau", 7), ("dead_units", 7), ("exploding_gradient", 7)]
    assert tell(Story(), *found) == [("dead_units", 7), ("exploding_gradient", 7), None]
    assert tell(Story(), *reversed(found)) == [None, ("exploding_gradient", 7), ("dead_units", 7)]


def test_what_is_only_worth_knowing_causes_nothing():
    story = Story()
    tell(story, ("dead_units", 10, "info"))
    assert tell(story, ("plateau", 20)) == [None]


def test_a_cause_must_be_near_and_fit():
    story = Story()
    tell(story, ("exploding_gradient", 0), ("stale_gradients", 0))
    assert tell(story, ("dead_units", STAYS + 1)) == [None]
    assert tell(story, ("stale_gradients", 5)) == [None]


@pytest.mark.parametrize("cause", ["loss_spike", "exploding_gradient", "update_spike", "divergence"])
def test_what_was_over_long_ago_is_no_cause_and_what_stays_is(cause):
    near, far, again = Story(), Story(), Story()
    tell(near, (cause, 116))
    assert tell(near, ("nonfinite", 116 + PASSES)) == [(cause, 116)]
    tell(far, (cause, 116))
    assert tell(far, ("nonfinite", 116 + PASSES + 1)) == [None]
    tell(again, (cause, 116))
    tell(again, (cause, 200))
    assert tell(again, ("nonfinite", 225)) == [(cause, 200)]
    tell(far, ("bad_inputs", 200), (cause, 210))
    assert tell(far, ("nonfinite", 600)) == [("bad_inputs", 200)], "the latest one is over, the one before goes on"


@pytest.mark.parametrize("cls", list(DIAGNOSES), ids=lambda cls: cls.name)
def test_every_cause_is_a_diagnosis_and_none_its_own(cls):
    assert set(cls.follows) <= set(DIAGNOSES.names()) - {cls.name}


def exploded():
    feed = Feed(
        {"when": "exploding_gradient", "do": "notify"}, {"when": "dead_units", "do": "notify"}, num_parameters=3
    )
    feed.repeat(40, 1.0, 1.0)
    feed.step(1e6, 1.0)
    return feed


def test_a_judgement_tells_the_story():
    feed = exploded()
    (finding,) = feed.step(1.0, 1.0, activations=activations(dead=1.0))
    assert (finding.follows.diagnosis, finding.follows.step) == ("exploding_gradient", 40)


def test_a_resumed_run_and_one_that_was_rolled_back_go_on_with_it():
    feed = exploded()
    early = Feed(*[{"when": "exploding_gradient", "do": "notify"}, {"when": "dead_units", "do": "notify"}]).judgement
    resumed = exploded()
    resumed.judgement = resumed.fresh_judgement()
    resumed.judgement.load_state_dict(feed.judgement.state_dict())
    feed.judgement.roll_back(early.state_dict())
    for one in (feed, resumed):
        (finding,) = one.step(1.0, 1.0, activations=activations(dead=1.0))
        assert finding.follows.diagnosis == "exploding_gradient"


def test_the_losses_that_a_run_started_with_are_its_own_again_after_a_resume():
    feed = exploded()
    fresh = feed.fresh_judgement()
    fresh.load_state_dict(feed.judgement.state_dict())
    fresh.judge(feed.stats)
    assert feed.stats.initial_loss == 1.0
    fresh.forget()
    fresh.judge(feed.stats)
    assert math.isnan(feed.stats.initial_loss)
