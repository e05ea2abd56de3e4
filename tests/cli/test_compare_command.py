import json

import pytest
from made_runs import ACTED, HOSTILE, act, add_rows, close_runs, judge, start_run

from gradguard.cli import main


__all__ = ["close_runs"]


def call(capsys, *args):
    code = main([str(arg) for arg in args])
    out, err = capsys.readouterr()
    return code, out, err


@pytest.fixture
def pair(tmp_path):
    """Two runs that part at step 12: the second explodes in a layer with a hostile name."""
    runs = start_run(tmp_path / "a", (HOSTILE, "b")), start_run(tmp_path / "b", (HOSTILE, "b"))
    add_rows(runs[0], range(20))
    add_rows(runs[1], range(20), lambda step: [300.0 if step == 12 else 1.0, 2.0], flags=lambda s: ACTED * (s == 12))
    judge(runs[1], act(runs[1], 12, parameter=HOSTILE), 19)
    for run in runs:
        run.finish()
    return [run.path for run in runs]


def test_the_screen_says_where_they_part_and_what_the_guard_did(pair, capsys):
    code, out, _ = call(capsys, "compare", *pair)
    assert code == 1
    for word in (
        "same before step 12",
        "apart by",
        "99.7 %",
        "clip_norm",
        "1 of 1",
        "guard acted",
        "In one of them only",
    ):
        assert word in out
    assert out.isprintable() or all(line.isprintable() for line in out.splitlines())
    assert max(len(line) for line in out.splitlines() if "/" not in line) <= 80


def test_what_was_done_at_steps_that_only_one_run_has_is_one_row_a_kind(tmp_path, capsys):
    runs = start_run(tmp_path / "a", ("a", "b")), start_run(tmp_path / "b", ("a", "b"))
    add_rows(runs[0], range(20))
    add_rows(runs[1], range(60))
    for step in (12, *range(30, 50)):
        act(runs[1], step)
    for run in runs:
        run.finish()
    out = call(capsys, "compare", *(run.path for run in runs))[1]
    common, _, beyond = out.partition("At steps that only one of them has")
    assert "12  B" in common.partition("In one of them only")[2]
    (row,) = [line.split() for line in beyond.splitlines() if line.startswith("B")]
    assert row[-2:] == ["20", "30-49"]


def test_the_same_run_is_the_same_by_exit_code(pair, capsys):
    assert call(capsys, "compare", pair[0], pair[0])[0] == 0
    assert call(capsys, "compare", *pair, "--rtol", "1")[0] == 1  # what was done differs, whatever the tolerance


def test_json_has_it_all(pair, capsys):
    code, out, _ = call(capsys, "compare", *pair, "--json")
    assert code == 1
    assert out.isascii()
    found = json.loads(out)
    assert found["answer"] == "apart"
    assert found["differences"][0]["parameters"] == [HOSTILE]
    assert found["headline"].startswith("The runs are the same before step 12.")


def test_what_is_no_run_is_one_message_and_exit_code_2(pair, tmp_path, capsys):
    code, out, err = call(capsys, "compare", pair[0], tmp_path / "nowhere")
    assert (code, out) == (2, "")
    assert "nowhere does not exist" in err
