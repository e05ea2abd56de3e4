from made_runs import act, judge, start_run, withhold

from gradguard.records import Event
from gradguard.watch.entries import KEPT, Entries, verdicts


def test_the_same_again_is_one_entry_and_outcomes_find_theirs(tmp_path):
    run = start_run(tmp_path / "exp")
    first, second, third = act(run, 10), act(run, 11), act(run, 12, remedy="skip_step")
    entries = Entries()
    entries.add([first, second, third])
    entries.add([judge(run, first, 60), judge(run, second, 61, "worse", "the loss rose"), judge(run, third, 62)])
    assert [(entry.first_step, entry.last_step, entry.count) for entry in entries.kept] == [(10, 11, 2), (12, 12, 1)]
    assert verdicts(entries.kept[0]) == "helped 1, worse 1"
    assert entries.kept[0].judged == "the loss rose"
    assert verdicts(entries.kept[1]) == "helped"
    assert entries.kept[1].head == "exploding_gradient in h.0.weight (+1 more)"
    assert entries.kept[1].done == "skip_step: 300 -> 3"


def test_what_was_not_done_is_told_where_a_person_should_know(tmp_path):
    run = start_run(tmp_path / "exp")
    told = Entries()
    told.add([withhold(run, 1, "cooldown"), withhold(run, 2, "superseded"), withhold(run, 3, "budget")])
    told.add([withhold(run, 4, "unavailable", detail="no snapshot yet")])
    assert [entry.done for entry in told.kept] == [
        "not done, the budget is spent: stop",
        "could not be done: stop (no snapshot yet)",
    ]


def test_an_outcome_of_what_was_not_seen_and_the_end_are_no_entries(tmp_path):
    run = start_run(tmp_path / "exp")
    told = Entries()
    told.add([judge(run, act(run, 1), 51), Event(event="closed", step=60, message="closed after 60 steps")])
    assert told.kept == []


def test_only_the_last_entries_are_kept(tmp_path):
    run = start_run(tmp_path / "exp")
    told = Entries()
    told.add(act(run, step, remedy=f"remedy_{step % 2}") for step in range(2 * KEPT))
    assert len(told.kept) == KEPT
    assert told.kept[-1].last_step == 2 * KEPT - 1
