"""Whatever is done to a record is found, and what a crash does is told from tampering."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import written_run
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from written_run import NUM_STEPS, ROW_BYTES

from gradguard.audit.verify import check_run
from gradguard.errors import RecordError
from gradguard.record.chain import first_link
from gradguard.record.chain import seal as chained
from gradguard.records import Event


LINE_FILES = ("interventions.jsonl", "probes.jsonl", "seals.jsonl")
CHUNKS = ("statistics/000000.npy", "statistics/000001.npy", "gradients/000000.npy", "gradients/000001.npy")
HARMLESS = {"torn", "cut_off"}
ENDINGS = ("closed", "killed") if os.name == "posix" else ("closed",)

law = settings(
    max_examples=30, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    written_run.write_run(folder / "closed").finish()
    if "killed" in ENDINGS:
        command = [sys.executable, written_run.__file__, str(folder / "killed")]
        assert subprocess.run(command).returncode == -signal.SIGKILL
    return folder


@pytest.fixture
def edit(runs, tmp_path):
    """Return what verification says of a copy of a run, in which the bytes of one file were replaced."""

    def apply(ending, file, change):
        copy = tmp_path / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(runs / ending, copy, copy_function=os.link)
        before = (copy / file).read_bytes()
        after = change(before)
        if after == before:
            return None
        (copy / file).unlink()
        (copy / file).write_bytes(after)
        return check_run(copy)

    return apply


def test_a_closed_run_is_whole_and_all_of_it_is_proven(runs):
    found = check_run(runs / "closed")
    assert (found.verdict, found.problems, found.status) == ("whole", (), "closed")
    assert {proof.file for proof in found.proofs} == {
        "run.json", "interventions.jsonl", "probes.jsonl", "statistics", "gradients",
    }  # fmt: skip
    assert all(proof.count == proof.proven > 0 for proof in found.proofs)
    assert len(found.head) == 64
    assert found.unproven == ()


def test_what_no_hash_covers_is_named(runs, tmp_path):
    copy = shutil.copytree(runs / "closed", tmp_path / "copy")
    (copy / "last_good.pt").touch()
    (copy / "captures").mkdir()
    found = check_run(copy)
    assert (found.verdict, found.unproven) == ("whole", ("captures", "last_good.pt"))


@pytest.mark.skipif("killed" not in ENDINGS, reason="needs SIGKILL")
def test_a_killed_run_is_torn_and_only_its_last_rows_are_unproven(runs):
    found = check_run(runs / "killed")
    assert (found.verdict, found.status) == ("torn", "interrupted")
    assert [problem.kind for problem in found.problems] == ["torn"]
    (rows,) = [proof for proof in found.proofs if proof.file == "statistics"]
    assert rows.count == 2 * NUM_STEPS
    assert 0 < rows.count - rows.proven <= 1024 + 64


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("file", LINE_FILES)
@law
@given(data=st.data())
def test_an_edited_line_is_found_and_named(edit, ending, file, data):
    def change(before):
        lines = before.splitlines(keepends=True)
        index = data.draw(st.integers(0, len(lines) - 1), label="line")
        other = data.draw(st.integers(0, len(lines) - 1), label="other")
        nonlocal first
        first = index + 1
        match data.draw(st.sampled_from(["flip", "delete", "swap", "double", "insert", "cut"]), label="edit"):
            case "flip":
                place = data.draw(st.integers(0, len(lines[index]) - 2))
                bit = 1 << data.draw(st.integers(0, 7))
                line = bytearray(lines[index])
                line[place] ^= bit
                lines[index] = bytes(line)
            case "delete":
                del lines[index]
            case "swap":
                lines[index], lines[other] = lines[other], lines[index]
                first = min(index, other) + 1
            case "double":
                lines.insert(index, lines[index])
                first = index + 2
            case "insert":
                lines.insert(index, lines[other])
            case "cut":  # in the middle of a line that others follow
                keep = data.draw(st.integers(0, len(lines[index]) - 2))
                lines[index] = lines[index][:keep] + b"\n"
        return b"".join(lines)

    first = 0
    found = edit(ending, file, change)
    if found is None:
        return
    places = [problem.line for problem in found.problems if problem.file == file]
    assert found.problems
    if found.verdict == "changed":
        assert first in places or first + 1 in places  # a line that is gone is missed by the next one
    else:  # the last lines were taken away
        assert {problem.kind for problem in found.problems} <= HARMLESS
        assert file in {problem.file for problem in found.problems} | {"seals.jsonl"}


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("file", CHUNKS)
@law
@given(data=st.data())
def test_an_edited_row_is_found_and_named_if_it_is_sealed(edit, ending, file, data):
    def change(before):
        place = data.draw(st.integers(0, len(before) - 1), label="place")
        after = bytearray(before)
        match data.draw(st.sampled_from(["flip", "delete", "insert", "zero"]), label="edit"):
            case "flip":
                after[place] ^= 1 << data.draw(st.integers(0, 7))
            case "delete":
                del after[place : place + data.draw(st.sampled_from([1, ROW_BYTES]))]
            case "insert":
                after[place:place] = after[place : place + data.draw(st.sampled_from([1, ROW_BYTES]))]
            case "zero":
                after[place : place + 8] = bytes(8)
        nonlocal is_unsealed
        is_unsealed = ending == "killed" and file.endswith("1.npy") and place >= 128
        return bytes(after)

    is_unsealed = False
    found = edit(ending, file, change)
    if found is not None and not is_unsealed:
        assert file in {problem.file for problem in found.problems}


@law
@given(place=st.integers(0, 10**9), bit=st.integers(0, 7), ending=st.sampled_from(ENDINGS))
def test_a_flipped_bit_in_run_json_is_found(edit, place, bit, ending):
    def change(before):
        after = bytearray(before)
        after[place % len(before)] ^= 1 << bit
        return before if b'"v": 2' not in after else bytes(after)

    found = edit(ending, "run.json", change)
    if found is None:
        return
    assert found.verdict == "changed" or (found.verdict, ending) == (
        "cut_off",
        "killed",
    )  # fewer seals than it tells of
    assert "run.json" in {problem.file for problem in found.problems}


def test_a_run_json_of_a_newer_version_is_an_error_that_names_it(edit):
    with pytest.raises(RecordError, match=r"run\.json: written by a newer gradguard"):
        edit("closed", "run.json", lambda before: before.replace(b'"v": 2', b'"v": 9'))


@pytest.mark.parametrize("file", [*LINE_FILES, *CHUNKS])
@law
@given(length=st.integers(0, 10**9), ending=st.sampled_from(ENDINGS))
def test_what_is_cut_off_the_end_is_never_called_tampering(edit, file, length, ending):
    found = edit(ending, file, lambda before: before[: length % len(before)])
    is_last = file.endswith(".jsonl") or file.endswith("1.npy")
    if is_last:
        assert {problem.kind for problem in found.problems} <= HARMLESS
    assert found.verdict in ({"torn", "cut_off"} if is_last else {"changed", "torn", "cut_off"})


@pytest.mark.parametrize("file", [*LINE_FILES, *CHUNKS])
def test_a_file_that_is_gone_is_missed(runs, tmp_path, file):
    shutil.copytree(runs / "closed", tmp_path / "copy")
    (tmp_path / "copy" / file).unlink()
    found = check_run(tmp_path / "copy")
    assert found.verdict == "changed"
    assert file in {problem.file for problem in found.problems if problem.kind == "missing"}


def test_rows_added_to_a_closed_run_are_found(runs, tmp_path):
    copy = shutil.copytree(runs / "closed", tmp_path / "copy")
    shutil.copy(copy / "statistics" / "000001.npy", copy / "statistics" / "000002.npy")
    assert check_run(copy).verdict == "changed"


def test_a_published_head_finds_out_a_record_that_was_made_anew_as_a_whole(runs, tmp_path):
    kept = check_run(runs / "closed").head
    assert check_run(runs / "closed", head=kept).published == "last"
    assert check_run(runs / "closed", head=kept[:16].upper()).published == "last"
    again = written_run.write_run(tmp_path / "again")
    again.finish()
    found = check_run(tmp_path / "again", head=kept)
    assert (found.published, found.verdict) == ("unknown", "changed")
    assert [problem.kind for problem in found.problems] == ["head"]


def test_a_head_that_was_published_before_the_run_went_on_is_still_found(tmp_path):
    run = written_run.write_run(tmp_path / "run")
    early = check_run(run.path).head
    run.finish()
    found = check_run(run.path, head=early)
    assert (found.published, found.verdict) == ("earlier", "whole")


@law
@given(data=st.data())
def test_what_counts_as_proven_cannot_be_anything_else(tmp_path_factory, data):
    """By someone who writes lines that follow the hashes, after the last seal or after the published one."""
    run = written_run.write_run(tmp_path_factory.mktemp("runs") / "run", num_steps=450)
    for number in range(3):
        run.journal.append(Event(event=f"after the last seal {number}"), durable=False)
    seals = [json.loads(line) for line in (run.path / "seals.jsonl").read_text().splitlines()]
    seal = data.draw(st.sampled_from([None, *seals[1:]]), label="published")
    head = None if seal is None else seal["hash"]
    journal = run.path / "interventions.jsonl"
    lines = journal.read_text().splitlines(keepends=True)

    def proven():
        found = check_run(run.path, head=head)
        return next(proof.proven for proof in found.proofs if proof.file == journal.name)

    sealed = (seal or seals[-1])["lines"][journal.name]["lines"]
    assert proven() == sealed
    kept = data.draw(st.integers(0, len(lines)), label="kept")
    forged = lines[:kept]
    prev = json.loads(forged[-1])["hash"] if kept else first_link(run.info["run_id"])
    for _ in range(data.draw(st.integers(0, 4), label="added")):
        fields = {"v": 1, "seq": len(forged), "time": "", "step": 0, "kind": "event", "event": "forged"}
        line, prev = chained(fields, prev)
        forged.append(line + "\n")
    journal.write_text("".join(forged))
    assert proven() <= sealed
    assert forged[: proven()] == lines[: proven()]
    run.finish()


def test_lines_added_to_a_closed_run_are_found(runs, tmp_path):
    for file in ("interventions.jsonl", "probes.jsonl"):
        copy = shutil.copytree(runs / "closed", tmp_path / file)
        last = json.loads((copy / file).read_text().splitlines()[-1])
        fields = {"v": 1, "seq": last.get("seq", 0) + 1, "time": "", "step": 0, "kind": "event", "event": "forged"}
        with (copy / file).open("a") as end:
            end.write(chained(fields, last["hash"])[0] + "\n")
        found = check_run(copy)
        assert found.verdict == "changed"
        assert "from here on it was not there when the run closed: 1 more" in found.problems[0].message


def test_a_seal_that_was_edited_breaks_what_the_head_vouches_for(runs, tmp_path):
    head = check_run(runs / "closed").head
    copy = shutil.copytree(runs / "closed", tmp_path / "copy")
    lines = (copy / "seals.jsonl").read_text().splitlines(keepends=True)
    del lines[len(lines) // 2]
    (copy / "seals.jsonl").write_text("".join(lines))
    found = {proof.file: proof for proof in check_run(copy, head=head).proofs}
    assert 0 < found["statistics"].proven < found["statistics"].count


@pytest.mark.parametrize("head", ["", "abc", "x" * 64])
def test_what_is_no_head_is_an_error(runs, head):
    with pytest.raises(RecordError, match="a head has 64 hex digits"):
        check_run(runs / "closed", head=head)


def test_a_record_from_before_there_were_seals_is_still_checked(runs, tmp_path):
    copy = shutil.copytree(runs / "closed", tmp_path / "copy")
    (copy / "seals.jsonl").unlink()
    info = json.loads((copy / "run.json").read_text())
    del info["is_sealed"], info["num_seals"]
    (copy / "run.json").write_text(json.dumps(info))
    found = check_run(copy)
    assert (found.verdict, found.head) == ("whole", None)
    assert {proof.file: proof.proven for proof in found.proofs}["statistics"] == 0
    journal = Path(copy) / "interventions.jsonl"
    journal.write_bytes(journal.read_bytes().replace(b"skipped", b"sKipped", 1))
    assert check_run(copy).verdict == "changed"
