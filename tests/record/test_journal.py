import json
import resource
import signal
import subprocess
import sys
from datetime import datetime, timezone

import pytest

from gradguard.record.chain import first_link, seal
from gradguard.record.journal import Journal
from gradguard.records import Change, Event, Finding, Intervention


HOSTILE = 'x\x1b[31m\n\u2028\ud800é"<script>{0}'


def lines_of(path):
    return [json.loads(line) for line in path.read_text("ascii").splitlines()]


@pytest.fixture
def journal(tmp_path):
    journal = Journal(tmp_path / "j.jsonl", "run1")
    yield journal
    journal.close()


def test_records_are_numbered_from_zero_stamped_in_utc_and_chained(journal):
    before = datetime.now(timezone.utc)
    written = [journal.append(Event(event="e", step=step), durable=step == 0) for step in (7, 8, 9)]
    lines = lines_of(journal.path)
    assert [line["seq"] for line in lines] == [0, 1, 2] == [record.seq for record in written]
    assert [line["time"] for line in lines] == [record.time for record in written]
    assert before <= datetime.fromisoformat(lines[0]["time"]) <= datetime.now(timezone.utc)
    assert [line["prev"] for line in lines] == [first_link("run1"), lines[0]["hash"], lines[1]["hash"]]
    assert journal.last_hash == lines[2]["hash"]


def test_a_line_can_be_sealed_again_from_its_own_fields(journal):
    finding = Finding(diagnosis=HOSTILE, step=1, value=float("nan"), evidence={"x": float("inf"), "y": 0.1})
    change = Change(summary="s", before={"norm": 1e300}, after={"norm": -0.0})
    journal.append(Intervention(rule=HOSTILE, diagnosis="d", remedy="m", finding=finding, change=change))
    text = journal.path.read_text("ascii").rstrip("\n")
    fields = json.loads(text)
    prev, _ = fields.pop("prev"), fields.pop("hash")
    assert "outcome" not in fields
    assert seal(fields, prev)[0] == text


def test_any_name_stays_within_one_printable_line(journal):
    journal.append(Event(event=HOSTILE, data={HOSTILE: HOSTILE, "odd": object()}))
    text = journal.path.read_text("ascii")
    assert text.count("\n") == 1
    assert text.rstrip("\n").isprintable()
    assert json.loads(text)["event"] == HOSTILE


def test_two_runs_do_not_start_with_the_same_link():
    assert first_link("a") != first_link("b")
    assert len(first_link("\ud800")) == 64


def test_an_existing_file_is_never_continued(tmp_path):
    (tmp_path / "j.jsonl").write_text("precious")
    with pytest.raises(FileExistsError):
        Journal(tmp_path / "j.jsonl")
    assert (tmp_path / "j.jsonl").read_text() == "precious"


def test_after_close_an_append_is_refused(journal):
    journal.close()
    journal.close()
    with pytest.raises(ValueError, match="closed"):
        journal.append(Event(event="late"))


def limited(limit, script, *args):
    """Run a script in a process whose files cannot grow beyond `limit` bytes: the disk takes part of a write."""

    def limit_files():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))

    return subprocess.run(
        [sys.executable, "-c", script, *args], preexec_fn=limit_files, capture_output=True, text=True, check=True
    ).stdout


def test_a_full_disk_leaves_whole_lines_and_the_next_append_goes_on_without_a_gap(tmp_path):
    script = """
import resource, sys
from pathlib import Path
from gradguard.record.journal import Journal
from gradguard.records import Event
journal = Journal(Path(sys.argv[1]), "run1")
journal.append(Event(event="first"))
for _ in range(2):
    try:
        journal.append(Event(event="big", message="x" * 5000))
    except OSError as error:
        print(type(error).__name__)
journal.append(Event(event="small"))
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
journal.append(Event(event="big", message="x" * 5000))
"""
    out = limited(2000, script, str(tmp_path / "j.jsonl"))
    assert out.split() == ["OSError", "OSError"]
    lines = lines_of(tmp_path / "j.jsonl")
    assert [(line["seq"], line["event"]) for line in lines] == [(0, "first"), (1, "small"), (2, "big")]
    assert lines[2]["prev"] == lines[1]["hash"]
