import csv
import subprocess
import sys
from pathlib import Path

import pytest
from made_runs import ACTED, act, add_rows, close_runs, start_run

from gradguard.cli import main
from gradguard.export.destination import DESTINATIONS


__all__ = ["close_runs"]
ROOT = Path(__file__).parent.parent.parent


def call(capsys, *args):
    code = main([str(arg) for arg in args])
    out, err = capsys.readouterr()
    return code, out, err


@pytest.fixture
def path(tmp_path, monkeypatch):
    run = start_run(tmp_path / "exp")
    add_rows(run, range(100), flags=lambda step: ACTED if step == 33 else 0)
    act(run, 33)
    run.finish()
    monkeypatch.chdir(tmp_path)
    return run.path


def steps_in(file):
    with open(file, newline="", encoding="utf-8") as lines:
        return [int(row["step"]) for row in csv.DictReader(lines)]


@pytest.mark.parametrize("to", DESTINATIONS.names())
def test_all_tables_that_have_rows_are_written_and_listed(path, capsys, to, tmp_path):
    code, out, _ = call(capsys, "export", path, "--to", to)
    assert code == 0
    written = {entry.stem for entry in (tmp_path / f"exp-{to}").iterdir()}
    assert written == ({"events.out.tfevents"} if to == "tensorboard" else {"statistics", "interventions"})
    assert "statistics" in out
    assert "100" in out
    assert "gradients" not in out


def test_a_table_that_is_asked_for_is_written_even_without_rows(path, capsys, tmp_path):
    assert call(capsys, "export", path, "--to", "csv", "--table", "events", "-o", tmp_path / "x")[0] == 0
    assert [entry.name for entry in (tmp_path / "x").iterdir()] == ["events.csv"]


def test_every_so_many_steps_are_kept_and_those_at_which_something_happened(path, capsys, tmp_path):
    _, out, _ = call(capsys, "export", path, "--to", "csv", "--every", 10)
    assert steps_in(tmp_path / "exp-csv" / "statistics.csv") == sorted([*range(0, 100, 10), 33])
    assert "every 10th step is kept" in out


def test_a_second_export_is_refused_unless_forced(path, capsys):
    assert call(capsys, "export", path, "--to", "csv")[0] == 0
    code, out, err = call(capsys, "export", path, "--to", "csv")
    assert (code, out) == (2, "")
    assert "exp-csv holds statistics.csv, interventions.csv already" in err
    assert "pass --force" in err
    assert call(capsys, "export", path, "--to", "csv", "--force")[0] == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--to", "cvs"], "did you mean 'csv'"),
        (["--to", "csv", "--table", "statistic"], "did you mean 'statistics'"),
        (["--to", "csv", "--every", "0"], "--every"),
        ([], "--to"),
    ],
)
def test_a_wrong_call_is_refused_before_anything_is_written(path, capsys, tmp_path, options, message):
    code, _, err = call(capsys, "export", path, *options)
    assert code == 2
    assert message in err
    assert [entry.name for entry in tmp_path.iterdir()] == ["exp"]


def test_an_export_costs_no_import_of_torch(path, tmp_path):
    script = f"""
import sys
from gradguard.cli import main
code = main(["export", {str(path)!r}, "--to", "tensorboard", "-o", {str(tmp_path / "out")!r}])
sys.exit(9 if "torch" in sys.modules or "tensorflow" in sys.modules else code)
"""
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, cwd=ROOT).returncode == 0
