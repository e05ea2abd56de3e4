import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_runs import ACTED, NAMES, act, add_rows, judge, start_run

import gradguard
from gradguard.compare.comparison import compare_runs
from gradguard.compare.divergence import differs, relative_difference
from gradguard.record.statistics import StatisticsWriter


def made(path, steps=range(100), norms=None, names=NAMES, policy=None, versions=None, **changes):
    run = start_run(path, names, policy, versions=versions)
    add_rows(run, steps, norms, **changes)
    return run


def compared(first, second, rtol=0.0):
    first.finish(), second.finish()
    return compare_runs(gradguard.read_run(first.path), gradguard.read_run(second.path), rtol)


def test_runs_with_the_same_numbers_are_the_same(tmp_path):
    found = compared(made(tmp_path / "a"), made(tmp_path / "b"))
    assert found.answer == "same"
    assert found.headline == "The runs are the same, all 100 steps of them."
    assert (found.num_common, found.num_parameters, found.differences, found.settings) == (100, 3, (), ())


def test_the_first_difference_is_found_with_step_quantity_layer_and_size(tmp_path):
    def norms(step):
        return [1.0, 4.0 if step == 41 else 2.0, 3.5 if step == 41 else 3.0]

    spoilt = made(tmp_path / "b", norms=norms, loss=lambda step: 4 - step / 100 + (step >= 42))
    found = compared(made(tmp_path / "a"), spoilt)
    assert found.answer == "apart"
    first, second = found.differences
    assert (first.quantity, first.step, first.a, first.b, first.relative) == ("norms", 41, 2.0, 4.0, 0.5)
    assert (first.parameters, first.num_parameters) == (("h.0.weight", "h.0.bias"), 2)
    assert (second.quantity, second.step) == ("loss", 42)
    assert found.headline == (
        "The runs are the same before step 41. At step 41 the gradient norm of h.0.weight (and of 1 more) differs "
        "first: 2 in A, 4 in B."
    )


def test_of_what_differs_at_the_same_step_the_cause_is_named_first(tmp_path):
    changes = {
        "lr": lambda step: 0.2 if step >= 7 else 0.1,
        "loss": lambda step: np.nan if step >= 7 else 4 - step / 100,
    }
    found = compared(
        made(tmp_path / "a"), made(tmp_path / "b", **changes, global_norm=lambda s: 9.0 if s >= 7 else 1.5)
    )
    assert [(one.quantity, one.step) for one in found.differences] == [("lr", 7), ("loss", 7), ("global_norm", 7)]
    assert found.differences[1].relative is None


@pytest.mark.parametrize(("rtol", "answer"), [(0.0, "apart"), (1e-7, "apart"), (1e-5, "same")])
def test_within_the_tolerance_numbers_are_the_same(tmp_path, rtol, answer):
    near = made(tmp_path / "b", loss=lambda step: (4 - step / 100) * (1 + 1e-6))
    assert compared(made(tmp_path / "a"), near, rtol).answer == answer


def test_a_run_that_goes_on_is_longer(tmp_path):
    found = compared(made(tmp_path / "a", range(100)), made(tmp_path / "b", range(60)))
    assert found.answer == "longer"
    assert found.headline == "The runs are the same at the 60 steps that both have; A has 40 steps that B has not."
    found = compared(made(tmp_path / "c", range(40)), made(tmp_path / "d", range(20, 70)))
    assert found.headline.endswith("A has 20 steps that B has not (and B 30 steps that A has not).")


def test_a_run_that_was_resumed_is_compared_by_what_it_did_last(tmp_path):
    """A crash at step 80, back to 50: what was done then counts."""
    resumed = made(tmp_path / "b", [*range(80), *range(50, 100)], loss=4.0)
    assert compared(made(tmp_path / "a", loss=4.0), resumed).answer == "same"
    other = made(tmp_path / "d", range(80), loss=4.0)
    add_rows(other, range(50, 100), loss=lambda step: 5.0 if step == 60 else 4.0)
    found = compared(made(tmp_path / "c", loss=4.0), other)
    assert [(one.quantity, one.step) for one in found.differences] == [("loss", 60)]


def test_parameters_go_by_their_names(tmp_path):
    turned = made(tmp_path / "b", norms=[3, 2, 1], names=NAMES[::-1])
    assert compared(made(tmp_path / "a"), turned).answer == "same"
    other = made(tmp_path / "d", norms=[1, 2, 7], names=(*NAMES[:2], "head"))
    found = compared(made(tmp_path / "c"), other)
    assert (found.answer, found.num_parameters) == ("apart", 2)
    assert (found.only_a, found.only_b) == (("h.0.bias",), ("head",))
    assert "different parameters" in found.headline


def test_nothing_in_common_and_nothing_at_all(tmp_path):
    found = compared(made(tmp_path / "a", range(10)), made(tmp_path / "b", range(10, 20)))
    assert (found.answer, found.headline) == ("nothing_in_common", "The runs have no step in common.")
    assert compared(made(tmp_path / "c", []), made(tmp_path / "d", [])).answer == "same"


def test_what_is_set_up_differently_is_listed_by_rule_and_key(tmp_path):
    rules = [{"name": "r", "do": [{"stop": {}}], "cooldown": 0}, {"name": "s", "cooldown": 0}]
    changed = [{"name": "s", "cooldown": 5}, {"name": "r", "do": [{"stop": {"a": 1}}], "cooldown": 0}, {"name": "t"}]
    a = made(tmp_path / "a", policy={"horizon": 50, "rules": rules})
    b = made(tmp_path / "b", policy={"horizon": 20, "rules": changed}, versions={"torch": "2.6.0"})
    found = compared(a, b)
    assert [(one.name, one.a, one.b) for one in found.settings] == [
        ("versions.torch", "2.13.0", "2.6.0"),
        ("policy.horizon", "50", "20"),
        ("policy.rules.r.do.stop.a", "", "1"),
        ("policy.rules.s.cooldown", "0", "5"),
        ("policy.rules.t", "", "{}"),
    ]
    assert found.answer == "same"


def test_interventions_are_aligned_by_step_and_counted_with_their_outcomes(tmp_path):
    a, b = made(tmp_path / "a"), made(tmp_path / "b", range(80))
    judge(a, act(a, 10), 60)
    judge(b, act(b, 10), 60, "worse")
    act(a, 20)
    act(b, 30, "nonfinite", "skip_step")
    act(a, 90)
    found = compared(a, b)
    assert [(one.step, one.in_a, one.in_b, one.is_common) for one in found.actions] == [
        (10, True, True, True),
        (20, True, False, True),
        (30, False, True, True),
        (90, True, False, False),
    ]
    assert (found.actions[0].verdict_a, found.actions[0].verdict_b) == ("helped", "worse")
    clip = found.counts[0]
    assert (clip.remedy, clip.count_a, clip.count_b, clip.count_both) == ("clip_norm", 3, 1, 1)
    assert (clip.helped_a, clip.judged_a, clip.helped_b, clip.judged_b) == (1, 1, 0, 1)
    assert found.answer == "apart"
    assert "the guard acted differently" in found.headline


def test_flags_that_differ_are_told_in_words(tmp_path):
    found = compared(made(tmp_path / "a"), made(tmp_path / "b", flags=lambda step: ACTED if step == 5 else 0))
    assert found.headline.endswith("At step 5 what was found or done differs first.")


values = st.lists(st.floats(width=32), min_size=3, max_size=3)


@settings(max_examples=40, deadline=None)
@given(st.lists(values, min_size=1, max_size=30), st.integers(0, 29), st.integers(0, 2), st.integers(1, 9))
def test_one_number_that_is_changed_is_found_wherever_it_is(tmp_path_factory, rows, step, column, chunk_rows):
    folder, step = tmp_path_factory.mktemp("runs"), step % len(rows)
    rows = [[abs(value) for value in row] for row in rows]
    other = [list(row) for row in rows]
    other[step][column] = 1.25 if rows[step][column] != 1.25 else 1.5
    a, b = start_run(folder / "a"), start_run(folder / "b")
    b.statistics = StatisticsWriter(b.path / "statistics", 3, chunk_rows=chunk_rows)
    add_rows(a, range(len(rows)), lambda at: rows[at])
    add_rows(b, range(len(rows)), lambda at: other[at])
    (difference,) = compared(a, b).differences
    assert (difference.step, difference.parameters) == (step, (NAMES[column],))


@given(values, values, st.floats(0, 0.1))
def test_the_same_is_the_same_for_both_and_everything_is_the_same_as_itself(a, b, rtol):
    left, right = np.array(a, dtype=np.float32), np.array(b, dtype=np.float32)
    assert not differs(left, left, rtol).any()
    assert differs(left, right, rtol).tolist() == differs(right, left, rtol).tolist()
    assert all(size is None or 0 <= size <= 2 for size in map(relative_difference, a, b))
