import json

import numpy as np
import pytest

import gradguard
from gradguard.audit.read import read_run
from gradguard.audit.verify import verify_run
from gradguard.errors import RecordError
from gradguard.evidence.stats import ParameterTable
from gradguard.record.directory import RunDirectory
from gradguard.records import Event


@pytest.fixture
def tamper(recorded):
    """Apply a function to the list of the journal's lines, write them back, and return what verification says."""

    def apply(change):
        file = recorded / "interventions.jsonl"
        lines = file.read_text().splitlines()
        change(lines)
        file.write_text("".join(f"{line}\n" for line in lines))
        return [(problem.kind, problem.line) for problem in verify_run(recorded)]

    return apply


def test_an_untouched_run_has_no_problem(recorded):
    assert verify_run(recorded) == []


def test_an_untouched_running_run_has_no_problem(tmp_path):
    run = RunDirectory.create(tmp_path / "exp")
    run.journal.append(Event(event="attached"))
    assert verify_run(run.path) == []
    run.finish()


@pytest.mark.parametrize("number", [1, 3, 5])
def test_a_changed_value_is_found_in_its_line(tamper, number):
    def change(lines):
        lines[number - 1] = lines[number - 1].replace('"rule"', '"RULE"').replace("attached", "nothing")
        lines[number - 1] = lines[number - 1].replace('"horizon":6', '"horizon":7')

    assert tamper(change) == [("changed", number)]


def test_a_change_that_keeps_the_parsed_content_is_found_too(tamper):
    def change(lines):
        lines[1] = lines[1].replace('"step":5', '"step":8,"step":5', 1)

    assert tamper(change) == [("changed", 2)]


def test_a_line_that_was_changed_and_sealed_again_breaks_the_chain_at_the_next(tamper):
    from gradguard.record.chain import seal

    def change(lines):
        fields = json.loads(lines[1])
        prev, _ = fields.pop("prev"), fields.pop("hash")
        fields["remedy"] = "nothing"
        lines[1] = seal(fields, prev)[0]

    assert tamper(change) == [("chain", 3)]


@pytest.mark.parametrize("number", [1, 2, 4])
def test_a_removed_line_is_found_where_the_chain_breaks(tamper, number):
    assert tamper(lambda lines: lines.pop(number - 1)) == [("chain", number)]


def test_lines_removed_from_the_end_of_a_closed_run_are_missed(tamper):
    assert tamper(lambda lines: lines.pop()) == [("cut_off", None)]


def test_an_emptied_journal_is_found(tamper):
    assert tamper(lambda lines: lines.clear()) == [("cut_off", None)]


def test_swapped_lines_break_the_chain(tamper):
    def change(lines):
        lines[2], lines[3] = lines[3], lines[2]

    assert tamper(change) == [("chain", 3), ("chain", 4), ("chain", 5)]


def test_a_line_inserted_twice_breaks_the_chain(tamper):
    assert tamper(lambda lines: lines.insert(2, lines[1])) == [("chain", 3)]


def test_a_foreign_line_is_found(tamper):
    assert tamper(lambda lines: lines.insert(2, "hello")) == [("foreign", 3)]


def test_a_sealed_line_that_is_no_record_is_foreign(tmp_path):
    from gradguard.record.chain import first_link, seal

    run = RunDirectory.create(tmp_path / "exp")
    line, _ = seal({"v": 1, "seq": 0, "kind": "unheard"}, first_link(run.info["run_id"]))
    (run.path / "interventions.jsonl").write_text(line + "\n")
    assert [(problem.kind, problem.line) for problem in verify_run(run.path)] == [("foreign", 1)]
    run.finish()


def test_a_wrong_number_in_an_intact_chain_is_a_gap(tmp_path):
    from gradguard.record.chain import first_link, seal

    run = RunDirectory.create(tmp_path / "exp")
    line, _ = seal({"v": 1, "seq": 4, "kind": "event", "event": "e"}, first_link(run.info["run_id"]))
    (run.path / "interventions.jsonl").write_text(line + "\n")
    assert [(problem.kind, problem.line) for problem in verify_run(run.path)] == [("gap", 1)]
    run.finish()


def test_the_journal_of_another_run_does_not_pass(recorded, tmp_path):
    other = RunDirectory.create(tmp_path / "other")
    other.finish()
    (other.path / "interventions.jsonl").write_bytes((recorded / "interventions.jsonl").read_bytes())
    assert verify_run(other.path)[0].kind == "chain"


def test_a_torn_tail_is_told_from_tampering(tmp_path):
    run = RunDirectory.create(tmp_path / "exp")
    for _ in range(3):
        run.journal.append(Event(event="e"))
    file = run.path / "interventions.jsonl"
    file.write_bytes(file.read_bytes()[:-10])
    assert [(problem.kind, problem.line) for problem in verify_run(run.path)] == [("torn", 3)]
    run.finish()


@pytest.mark.parametrize("line", ["[" * 5000, '{"a":' * 300 + "1" + "}" * 300, '{"prev":"\u00e9","hash":"x"}', "{}"])
def test_a_hostile_line_is_a_problem_and_no_crash(tamper, line):
    kinds = dict.fromkeys(kind for kind, _ in tamper(lambda lines: lines.append(line)))
    assert set(kinds) & {"foreign", "changed"}


def test_a_missing_journal_is_a_problem(recorded):
    (recorded / "interventions.jsonl").unlink()
    assert [problem.kind for problem in verify_run(recorded)] == ["missing"]
    assert read_run(recorded).problems[0].kind == "missing"


def rows_of(path):
    return np.load(path / "statistics" / "000000.npy")


def without_seals(path):
    """Make it a record as they were before there were seals."""
    info = json.loads((path / "run.json").read_text())
    del info["is_sealed"], info["num_seals"]
    (path / "run.json").write_text(json.dumps(info))
    (path / "seals.jsonl").unlink()


def test_steps_that_do_not_increase_are_found(recorded):
    rows = rows_of(recorded)
    rows["step"][7] = 3
    np.save(recorded / "statistics" / "000000.npy", rows)
    (problem,) = verify_run(recorded)
    assert str(problem).startswith("statistics/000000.npy: not as it was written: rows 0 to 11 (steps 0 to 11)")
    without_seals(recorded)
    (problem,) = verify_run(recorded)
    assert str(problem) == "statistics/000000.npy: row 7: step 3 comes after step 6"


def test_steps_may_go_back_as_often_as_a_state_was_loaded(tmp_path):
    run = RunDirectory.create(tmp_path / "exp")
    run.write_layout(ParameterTable(["a"], [(1,)], ["float32"], [0]))
    for step in (0, 1, 2, 1, 2):
        run.statistics.append(step, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0, np.ones(1, np.float32))
    run.statistics.flush()
    assert [problem.kind for problem in verify_run(run.path)] == ["statistics"]
    run.journal.append(Event(event="resumed", step=1))
    assert verify_run(run.path) == []
    run.finish()


def test_rows_that_do_not_fit_the_layout_are_found(recorded):
    info = json.loads((recorded / "run.json").read_text())
    info["layouts"][0]["parameters"].append("extra")
    (recorded / "run.json").write_text(json.dumps(info))
    changed, problem = verify_run(recorded)
    assert (changed.kind, changed.file) == ("changed", "run.json")
    assert (problem.kind, problem.file) == ("statistics", "statistics/000000.npy")
    assert "4 parameters need 64 bytes" in problem.message


def test_a_missing_chunk_and_half_a_row_are_found(recorded):
    chunk = recorded / "statistics" / "000000.npy"
    data = chunk.read_bytes()
    chunk.write_bytes(data[:-7])
    assert [problem.kind for problem in verify_run(recorded)] == ["cut_off"]
    chunk.rename(chunk.with_name("000001.npy"))
    assert [problem.kind for problem in verify_run(recorded)] == ["missing", "torn"]


def test_what_is_no_run_is_an_error(tmp_path):
    with pytest.raises(RecordError, match="not a run directory"):
        verify_run(tmp_path)


def real_run(path):
    torch = pytest.importorskip("torch")
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gradguard.attach(model, optimizer, run_dir=path) as guard:
        for _ in range(5):
            optimizer.zero_grad()
            loss = model(torch.ones(2, 2)).square().mean()
            loss.backward()
            guard.observe(loss)
            optimizer.step()
    return path


def test_statistics_that_were_taken_away_are_missed(tmp_path):
    path = real_run(tmp_path / "run")
    assert verify_run(path) == []
    for chunk in (path / "statistics").iterdir():
        chunk.unlink()
    assert [problem.kind for problem in verify_run(path)] == ["missing"]


def test_a_policy_that_was_edited_afterwards_is_found(tmp_path):
    path = real_run(tmp_path / "run")
    info = path / "run.json"
    info.write_text(info.read_text().replace('"mode":"enforce"', '"mode":"observe"'))
    (problem,) = verify_run(path)
    assert (problem.kind, problem.file) == ("changed", "run.json")
