"""The diagnoses of a policy, run together: in order, saved and resumed at any step, and without the one that breaks."""

import copy
import math
import pickle

from feed import Feed, diagnose
from histories import histories, loss_histories
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import Field

from gradguard.contracts import Diagnosis
from gradguard.records import Finding
from gradguard.snapshots.plain import from_plain, to_plain


LAW = settings(max_examples=25, deadline=None, derandomize=True)
OPTIONS = {"zscore": 4.0, "ratio": 10.0, "extreme_ratio": 100.0, "window": 12, "warmup": 8}
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


@LAW
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


@LAW
@given(histories(), loss_histories(), st.integers(0, 60))
def test_a_state_once_taken_is_not_changed_by_the_steps_that_follow(history, losses, cut):
    feed = Feed(*EVERYTHING, num_parameters=len(history[0]))
    run(feed, history[:cut], losses[:cut])
    saved = feed.judgement.state_dict()
    before = pickle.dumps(saved)
    run(feed, history[cut:], losses[cut:])
    assert pickle.dumps(saved) == before


@LAW
@given(histories(), loss_histories())
def test_the_same_numbers_give_the_same_findings(history, losses):
    first, second = (run(Feed(*EVERYTHING, num_parameters=len(history[0])), history, losses) for _ in range(2))
    assert words(first) == words(second)


@LAW
@given(histories(), loss_histories())
def test_what_was_forgotten_is_as_new(history, losses):
    used, new = (Feed(*EVERYTHING, num_parameters=len(history[0])) for _ in range(2))
    run(used, history, losses)
    used.judgement.forget()
    used.judgement.story.told.clear()  # what happened is remembered, but steps begin anew here
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


def test_losses_are_counted_through_rollbacks_and_new_levels():
    """An intervention is judged by those since, which a window that was put back does not tell."""
    feed = Feed({"name": "a", "when": "loss_spike", "do": "notify"})
    feed.repeat(4, 1.0, 2.0)
    saved = feed.judgement.state_dict()
    feed.repeat(3, 1.0, 2.0)
    feed.judgement.roll_back(saved)
    feed.repeat(2, 1.0, math.nan)
    assert (feed.judgement.num_losses, len(feed.judgement.losses[50])) == (7, 4)
    feed.judgement.forget()
    feed.repeat(1, 1.0, 2.0)
    assert (feed.judgement.num_losses, feed.stats.num_losses, len(feed.judgement.losses[50])) == (8, 7, 1)


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
