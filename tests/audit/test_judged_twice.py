"""A resume may judge an action twice, or one that another record holds: each is counted once, by what was said last."""

import pytest
import torch
from guarded import regression
from made_runs import act, judge, start_run

import gradguard
from gradguard.audit.summary import summarise
from gradguard.audit.verify import check_run
from gradguard.export.tables import table_of
from gradguard.records import Outcome
from gradguard.watch.entries import Entries


def outcomes_of(run):
    return [record for record in run.records if isinstance(record, Outcome)]


def watched(run):
    entries = Entries()
    entries.add(run.records)
    return [entry.outcomes for entry in entries.kept if entry.outcomes]


@pytest.fixture
def twice(tmp_path):
    run = start_run(tmp_path / "run")
    done = act(run, 5)
    judge(run, done, 55, "helped", "it did not come back")
    judge(run, done, 55, "worse", "the loss rose")
    run.finish()
    return gradguard.read_run(run.path)


def test_of_two_judgements_the_last_one_counts_everywhere(twice):
    assert [outcome.verdict for outcome in outcomes_of(twice)] == ["helped", "worse"]
    (done,) = twice.interventions
    assert done.outcome.verdict == "worse"
    (row,) = twice.efficacy
    assert (row.count, row.helped, row.worse, row.waiting) == (1, 0, 1, 0)
    assert summarise(twice).outcomes == {"worse": 1}
    table = table_of(twice, "interventions")
    place = [column.name for column in table.columns].index("verdict")
    assert list(table.rows(0, table.num_rows)[place]) == ["worse"]
    assert watched(twice) == [{"worse": 1}]
    assert check_run(twice.path).verdict == "whole"


def test_the_verdict_on_an_action_of_another_record_is_none_of_an_action_with_the_same_number(tmp_path):
    run = start_run(tmp_path / "run")
    done = act(run, 60)
    run.journal.append(Outcome(step=90, of=done.seq, verdict="worse", horizon=50, reason="it came back"))
    run.finish()
    read = gradguard.read_run(run.path)
    assert len(outcomes_of(read)) == 1
    assert read.interventions[0].outcome is None
    assert [(row.count, row.worse, row.waiting) for row in read.efficacy] == [(1, 0, 1)]
    assert summarise(read).outcomes == {}
    assert watched(read) == []


def spoilt(step, inputs, targets):
    return inputs, targets * float("nan") if step == 40 else targets


def test_a_run_that_was_set_back_behind_an_action_judges_it_twice_and_counts_it_once(tmp_path):
    torch.manual_seed(0)
    model, optimizer, loss_at = regression(spoil=spoilt)()
    guard = gradguard.attach(model, optimizer, run_dir=tmp_path / "run")
    saved = None
    for step in range(140):
        if step == 60:
            saved = guard.state_dict()
        if step == 100:
            guard.load_state_dict(saved)
        optimizer.zero_grad()
        loss = loss_at(step)
        loss.backward()
        guard.observe(loss)
        optimizer.step()
    guard.close()
    read = gradguard.read_run(tmp_path / "run")
    judged = [outcome.of for outcome in outcomes_of(read)]
    assert judged == [read.interventions[0].seq] * 2
    assert read.interventions[0].outcome is outcomes_of(read)[-1]
    assert sum(row.helped + row.no_effect + row.worse + row.unknown for row in read.efficacy) == 1
    assert sum(sum(counts.values()) for counts in watched(read)) == 1
    assert check_run(read.path).verdict == "whole"
