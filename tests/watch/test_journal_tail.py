import pytest
from made_runs import act, start_run

from gradguard.audit.line import NewerVersionError
from gradguard.watch.journal_tail import BLOCK_BYTES, TAIL_BYTES, JournalTail


@pytest.fixture
def run(tmp_path):
    return start_run(tmp_path / "exp")


def test_each_look_brings_the_records_that_are_new(run):
    tail = JournalTail(run.journal.path)
    assert tail.poll() == []
    written = [act(run, 1), act(run, 2)]
    assert tail.poll() == written
    assert tail.poll() == []
    written = [act(run, 3)]
    assert tail.poll() == written


def test_a_journal_that_is_not_there_yet_holds_nothing(tmp_path):
    assert JournalTail(tmp_path / "interventions.jsonl").poll() == []


def test_a_line_that_is_half_written_waits_for_its_end(run):
    tail = JournalTail(run.journal.path)
    first, second = act(run, 1), act(run, 2)
    whole = run.journal.path.read_bytes()
    for cut in (1, len(whole) // 2 - 1, len(whole) // 2 + 9, len(whole) - 1):
        run.journal.path.write_bytes(whole[:cut])
        seen = JournalTail(run.journal.path)
        before = seen.poll()
        run.journal.path.write_bytes(whole)
        assert before + seen.poll() == [first, second]
        assert seen.num_unreadable == 0
    assert tail.poll() == [first, second]


def test_of_a_long_journal_only_the_end_is_read(run):
    written = [act(run, step) for step in range(700)]
    assert run.journal.path.stat().st_size > TAIL_BYTES
    read = JournalTail(run.journal.path).poll()
    assert 100 < len(read) < len(written)
    assert read == written[-len(read) :]


def test_what_is_no_record_is_counted_and_passed_over(run):
    written = [act(run, 1)]
    with open(run.journal.path, "ab") as file:
        file.write(b'hello\n{"v":1}\n' + b"[" * 100_000 + b"\n\xff\xfe\n")
    written.append(act(run, 2))
    tail = JournalTail(run.journal.path)
    assert tail.poll() == written
    assert tail.num_unreadable == 4


def test_a_line_without_an_end_does_not_hold_up_what_follows(run):
    tail = JournalTail(run.journal.path)
    tail.poll()
    with open(run.journal.path, "ab") as file:
        file.write(b"x" * (2 * BLOCK_BYTES) + b"\n")
    written = act(run, 1)
    looks = [tail.poll() for _ in range(4)]
    assert [record for look in looks for record in look] == [written]


def test_a_journal_that_was_replaced_by_a_shorter_one_is_read_afresh(run, tmp_path):
    tail = JournalTail(run.journal.path)
    act(run, 1), act(run, 2)
    tail.poll()
    other = start_run(tmp_path / "other")
    written = act(other, 7)
    run.journal.path.write_bytes(other.journal.path.read_bytes())
    assert tail.poll() == [written]


def test_a_record_of_a_newer_version_is_refused(run):
    run.journal.path.write_text('{"v":2}\n')
    with pytest.raises(NewerVersionError, match="upgrade"):
        JournalTail(run.journal.path).poll()
