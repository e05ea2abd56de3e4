"""What the README says exists."""

import re
import shutil
from pathlib import Path

import pytest
import written_run

from gradguard.cli import COMMANDS, main
from gradguard.contracts import DIAGNOSES, REMEDIES
from gradguard.policy.load import load_policy, preset_names


README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")


def test_every_command_that_it_shows_exists_and_every_command_is_shown():
    text = re.sub(r"(```\n\$ gradguard .*?\n).*?```", r"\1```", README, flags=re.DOTALL)  # without what they print
    shown = set(re.findall(r"\bgradguard ([a-z]+)\b", " ".join(re.findall(r"`[^`]+`|```.*?```", text, re.DOTALL))))
    assert shown - set(COMMANDS) == set()
    assert set(COMMANDS) - shown == set()


def test_its_tables_name_every_diagnosis_and_every_remedy():
    rows = set(re.findall(r"^\| `([a-z_]+)` \|", README, re.MULTILINE))
    assert rows == {*DIAGNOSES.names(), *REMEDIES.names()}


def test_its_policy_is_one(tmp_path):
    (text,) = re.findall(r"```yaml\n(.*?)```", README, re.DOTALL)
    path = tmp_path / "gradguard.yaml"
    path.write_text(text)
    assert len(load_policy(path).rules) > 3


def test_it_names_every_preset():
    line = next(line for line in README.splitlines() if line.startswith("extends:"))
    assert set(re.findall(r"[a-z]+", line.partition("#")[2])) == set(preset_names())


def test_the_files_that_it_links_exist():
    for name in re.findall(r"examples/[0-9a-z_]+\.py", README):
        assert (Path(__file__).parent.parent / name).is_file()


TOLD_APART = {"verify", "report"}  # whose outputs hold a hash, or depend on the version of a library


def shown_outputs():
    """Commands that are shown with a `$`, and what is shown below them."""
    blocks = re.findall(r"```\n\$ gradguard (.*?)\n(.*?)```", README, re.DOTALL)
    told = [(command.split(), output) for command, output in blocks]
    return [pytest.param(command, output, id=command[0]) for command, output in told if command[0] not in TOLD_APART]


@pytest.mark.parametrize(("command", "expected"), shown_outputs())
def test_what_it_shows_of_a_command_is_its_output(command, expected, tmp_path, monkeypatch, capsys):
    """Over the runs in tests/recorded, which real trainings left."""
    shutil.copytree(Path(__file__).parent / "recorded", tmp_path / "runs")
    monkeypatch.chdir(tmp_path)
    main(command)
    assert [line.rstrip() for line in capsys.readouterr().out.splitlines()] == expected.splitlines()


def test_it_shows_some_outputs():
    assert len(shown_outputs()) >= 3


def test_what_it_shows_of_verify_is_what_verify_says(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    written_run.write_run("runs/exp1").finish()
    assert main(["verify", "runs/exp1"]) == 0
    said = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    (shown,) = re.findall(r"```\n\$ gradguard verify runs/exp1\n(.*?)\n```", README, re.DOTALL)

    def without_head(lines):
        return [re.sub(r"\b[0-9a-f]{64}\b", "HASH", line) for line in lines]

    assert without_head(shown.splitlines()) == without_head(said)
