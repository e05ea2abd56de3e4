"""Trainings that are recorded, and what there is to say about their replay."""

from gradguard.record.encode import to_json
from gradguard.records import Intervention, Outcome, Withheld
from gradguard.replay.backtest import Backtest
from gradguard.replay.recorded import Recorded


def decisions(records):
    """Everything that was found and decided, in order, but for what belongs to the file and to the model."""
    left_out = {"v", "seq", "time", "sample_ids", "change", "outcome", "finding"}
    return [
        to_json({**record.model_dump(exclude=left_out), "finding": record.finding})
        for record in records
        if isinstance(record, (Intervention, Withheld))
    ]


def verdicts(records):
    """What came of the actions that were judged before the run ended."""
    return [
        (record.step, record.verdict, record.recurrences, record.last_seen, record.reason)
        for record in records
        if isinstance(record, Outcome) and not record.reason.startswith("the run")
    ]


def replay(path, policy=None, name=None):
    """Return the record and its replay, by its own policy unless another is given."""
    recorded = Recorded(path, name)
    return recorded, Backtest(recorded, policy or recorded.policy).run()


def assert_replayed(path, policy=None, name=None, at_least=0):
    """Assert that a replay gives the recorded findings, decisions and verdicts; return the replay."""
    recorded, replayed = replay(path, policy, name)
    assert replayed.faults == recorded.problems == []
    assert len(expected := decisions(recorded.run.records)) >= at_least
    assert decisions(replayed.records) == expected
    assert verdicts(replayed.records) == verdicts(recorded.run.records)
    assert replayed.num_steps == recorded.num_rows
    return replayed
