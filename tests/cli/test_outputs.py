"""Where commands are asked to write: a place that will not do is refused before the work, and nothing is written."""

import os

import pytest
import written_run

import gradguard
from gradguard.cli import main
from gradguard.errors import PolicyError, RecordError, UsageError
from gradguard.policy.load import load_policy
from gradguard.report.write import write_report


FILES = {"tune": ("tune", "run"), "report": ("report", "run"), "init": ("init",)}
RIGHT = {"tune": ".yaml", "report": ".html", "init": ".yaml"}


@pytest.fixture
def call(tmp_path, monkeypatch, capsys):
    """Run the command line beside a run; return (exit code, output, errors) and what is new in the folder."""
    written_run.write_run(tmp_path / "run", num_steps=30).finish()
    monkeypatch.chdir(tmp_path)

    def run(*args):
        before = set(os.listdir())
        code = main(args)
        return code, *capsys.readouterr(), set(os.listdir()) - before

    return run


def to(command, path):
    return [*FILES[command], path] if command == "init" else [*FILES[command], "-o", path]


@pytest.mark.parametrize("suffix", [".txt", ".pdf", ".json", ""])
@pytest.mark.parametrize("command", FILES)
def test_a_suffix_that_the_file_would_not_keep_is_refused(call, command, suffix):
    code, out, err, new = call(*to(command, f"x{suffix}"))
    assert (code, out, new) == (2, "", set())
    assert err.startswith(f"x{suffix}: a ")
    assert f"for example x{RIGHT[command]}" in err


@pytest.mark.parametrize("command", FILES)
def test_a_folder_and_a_folder_that_there_is_not_are_refused(call, command):
    assert "is a directory; give the name of a file" in call(*to(command, "run"))[2]
    code, _, err, new = call(*to(command, f"nowhere/x{RIGHT[command]}"))
    assert (code, new) == (2, set())
    assert "the directory nowhere does not exist" in err


@pytest.mark.parametrize("command", FILES)
def test_what_is_there_is_kept(call, command, tmp_path):
    kept = tmp_path / f"x{RIGHT[command]}"
    kept.write_text("mine")
    code, out, _, new = call(*to(command, kept.name))
    assert (code, out, new, kept.read_text()) == (2, "", set(), "mine")


@pytest.mark.parametrize("name", ["out.csv", "out.parquet", "out.jsonl"])
def test_tables_go_into_a_folder(call, name):
    code, _, err, new = call("export", "run", "--to", "csv", "-o", name)
    assert (code, new) == (2, set())
    assert "the tables go into a folder, for example out" in err


@pytest.mark.parametrize("args", [["demo", "--run-dir"], ["export", "run", "--to", "csv", "-o"]])
@pytest.mark.parametrize("path", ["mine", "mine/below"])
def test_a_file_where_a_folder_is_wanted_is_refused_before_the_work(call, tmp_path, args, path):
    (tmp_path / "mine").touch()
    code, out, err, new = call(*args, path)
    assert (code, out, new) == (2, "", set())
    assert "mine is a file; the " in err


@pytest.mark.parametrize(
    "args",
    [
        ["audit", ""], ["check", ""], ["backtest", "", "run"], ["report", "run", "-o", ""], ["compare", "run", ""],
        ["tune", "run", "-o", ""], ["export", "run", "--to", "csv", "-o", ""], ["demo", "--run-dir", ""],
    ],
)  # fmt: skip
def test_an_empty_argument_never_stands_for_the_working_directory(call, args):
    code, out, err, new = call(*args)
    assert (code, out, new) == (2, "", set())
    assert "is empty; was a variable of the shell not set?" in err


def test_nor_does_an_empty_path_in_python(tmp_path):
    with pytest.raises(PolicyError, match="an empty name is no policy"):
        load_policy("")
    with pytest.raises(RecordError, match="an empty path"):
        gradguard.read_run("")
    with pytest.raises(UsageError, match="the path of a report is empty"):
        write_report([tmp_path], "")


def test_a_folder_is_not_offered_where_a_file_is_wanted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "policy.yaml").mkdir()
    (tmp_path / "polices.yaml").write_text("version: 1")
    with pytest.raises(PolicyError) as caught:
        load_policy("polcy.yaml")
    assert str(caught.value) == "polcy.yaml: no such file; did you mean 'polices.yaml'?"
