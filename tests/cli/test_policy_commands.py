"""The commands about policies: check, schema, explain, init."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import NamedTuple

import pytest

from gradguard.cli import main
from gradguard.cli.check import rule_lines
from gradguard.contracts import DIAGNOSES, REMEDIES, SINKS
from gradguard.policy.json_schema import policy_json_schema
from gradguard.policy.load import load_policy, preset_names


class Told(NamedTuple):
    exit_code: int
    stdout: str
    stderr: str


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run(*arguments: str) -> Told:
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(StringIO()) as out, redirect_stderr(StringIO()) as err:
        patch.setenv("COLUMNS", "80")
        patch.setenv("NO_COLOR", "1")
        return Told(main(arguments), out.getvalue(), err.getvalue())


def flat(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize("name", preset_names())
def test_check_accepts_every_preset_and_names_its_rules(name: str) -> None:
    result = run("check", name)
    assert result.exit_code == 0
    for rule in load_policy(name).rules:
        assert rule.name in result.stdout
        assert rule.when.name in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_check_shows_what_narrows_a_rule_and_its_ladder() -> None:
    Path("p.yaml").write_text(
        "rules:\n- {when: {exploding_gradient: {ratio: 20}}, do: {rescale: {factor: 0.1}}, parameters: ['wte.*'],\n"
        "   min_severity: critical, cooldown: 7, budget: 9,\n"
        "   budget_per_parameter: 3, escalate: [{after: 2, within: 16, do: [skip_step, notify]},\n"
        "     {if_outcome: no_effect, do: skip_step}, {if_outcome: [worse, no_effect], within: 90, do: skip_step},\n"
        "     {after: 4, within: 60, if_outcome: worse, do: stop}]}\n"
        "budget: 30\nbudget_within: 400\non_budget: record\n"
    )
    text = flat(run("check", "p.yaml").stdout)
    for part in (
        "when exploding_gradient {ratio: 20}",
        "parameters wte.*",
        "severity critical and above",
        "do rescale {factor: 0.1}",
        "2 in 16 steps skip_step + notify",
        "if no effect skip_step",
        "if worse or no effect in 90 steps skip_step",
        "4 in 60 steps if worse stop",
        "budget 3 actions a run on each parameter",
        "budget 30 actions in vain in 400 steps, then record",
        "cooldown 7 steps",
        "budget 9 actions a run",
    ):
        assert part in text


def test_check_prints_each_mistake_on_a_line_of_stderr_and_exits_with_2() -> None:
    Path("p.yaml").write_text("mode: enforc\nrules:\n- {when: nonfinite, do: {clip_nrom: {max_norm: 1}}}\n")
    result = run("check", "p.yaml")
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.splitlines() == [
        "p.yaml:1:7: 'mode' should be 'enforce' or 'observe' (did you mean 'enforce'?), got \"enforc\"",
        "p.yaml:3:26: unknown remedy 'clip_nrom'; did you mean 'clip_norm'?",
    ]


def test_check_as_json_gives_the_resolved_policy_or_the_problems() -> None:
    result = run("check", "observe", "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["policy"] == load_policy("observe").model_dump(mode="json")
    result = run("check", "observ", "--json")
    assert result.exit_code == 2
    answer = json.loads(result.stdout)
    assert not answer["valid"]
    assert "did you mean 'observe'" in answer["problems"][0]


def test_text_of_a_policy_is_shown_as_it_is_and_cannot_steer_the_terminal() -> None:
    Path("p.yaml").write_text(
        'rules:\n- {name: "[red]x[/red]\\e[31m", when: nonfinite, do: stop, parameters: ["[bold]*"]}\n'
    )
    result = run("check", "p.yaml")
    assert result.exit_code == 0
    assert "[red]x[/red]\\x1b[31m" in result.stdout
    assert "[bold]*" in result.stdout
    assert "\x1b" not in result.stdout + result.stderr


def test_schema_prints_the_schema() -> None:
    result = run("schema")
    assert result.exit_code == 0
    assert json.loads(result.stdout) == policy_json_schema()


@pytest.mark.parametrize("cls", [*DIAGNOSES, *REMEDIES, *SINKS], ids=lambda cls: cls.name)
def test_explain_says_everything_that_a_component_knows_of_itself(cls: type) -> None:
    result = run("explain", cls.name)  # type: ignore[attr-defined]
    assert result.exit_code == 0
    text = flat(result.stdout)
    for words in (cls.what, cls.computed, cls.cure, cls.source):  # type: ignore[attr-defined]
        assert flat(words) in text
    for option in cls.model_fields:  # type: ignore[attr-defined]
        assert f" {option} " in text
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_explain_without_a_name_lists_everything() -> None:
    listed = run("explain").stdout
    for registry in (DIAGNOSES, REMEDIES, SINKS):
        for cls in registry:
            assert f"\n{cls.name} " in listed


def test_explain_of_an_unknown_name_suggests_a_near_one() -> None:
    result = run("explain", "clip_nrom")
    assert result.exit_code == 2
    assert result.stderr == "nothing is called 'clip_nrom'; did you mean 'clip_norm'?\n"


def test_what_init_writes_passes_check() -> None:
    assert run("init").exit_code == 0
    assert run("check", "gradguard.yaml").exit_code == 0
    assert run("init", "other.yml").exit_code == 0
    assert sorted(path.name for path in Path().iterdir()) == ["gradguard.yaml", "other.yml"]


def test_what_init_writes_does_what_the_preset_does() -> None:
    run("init")
    assert load_policy("gradguard.yaml") == load_policy("default")


def test_every_line_that_the_starter_offers_as_a_comment_is_right() -> None:
    run("init")
    lines = Path("gradguard.yaml").read_text().splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("# remove:"))
    last = next(number for number, line in enumerate(lines) if line.startswith("#     do: {clip_norm"))
    lines[first : last + 1] = [line[2:] for line in lines[first : last + 1]]
    Path("gradguard.yaml").write_text("\n".join(lines))
    policy = load_policy("gradguard.yaml")
    assert [rule.name for rule in policy.rules[-2:]] == ["calm-the-head", "always-clip"]
    assert "report-stale-gradients" not in [rule.name for rule in policy.rules]


@pytest.mark.parametrize("name", preset_names())
def test_check_cuts_no_word_and_keeps_each_line_within_80_columns(name: str) -> None:
    out = run("check", name).stdout
    assert max(map(len, out.splitlines())) <= 80
    told = flat(out)
    for rule in load_policy(name).rules:
        assert rule.name in out
        assert all(flat(f"{label} {value}") in told for label, value in rule_lines(rule))


def test_check_says_that_patterns_are_matched_when_there_is_a_model() -> None:
    Path("p.yaml").write_text("rules: [{when: nonfinite, do: skip_step, parameters: [wte.*, '!*.bias', '*']}]")
    assert "Whether 'wte.*' matches anything is known once there is a model" in flat(run("check", "p.yaml").stdout)
    assert "once there is a model" not in flat(run("check", "default").stdout)


def test_the_starter_names_every_preset() -> None:
    run("init")
    comments = flat(Path("gradguard.yaml").read_text().replace("#", " "))
    named = comments.partition("Other presets: ")[2].partition(".")[0].split(", ")
    assert {*named, "default"} == set(preset_names())


def test_init_overwrites_only_when_told_to() -> None:
    Path("gradguard.yaml").write_text("mine")
    result = run("init")
    assert result.exit_code == 2
    assert "--force" in result.stderr
    assert Path("gradguard.yaml").read_text() == "mine"
    assert run("init", "--force").exit_code == 0
    assert load_policy("gradguard.yaml").rules


@pytest.mark.parametrize("path", ["policy.toml", "policy", "missing/folder.yaml"])
def test_init_refuses_what_it_cannot_write_and_leaves_nothing_behind(path: str) -> None:
    result = run("init", path)
    assert result.exit_code == 2
    assert result.stderr.startswith(path)
    assert not list(Path().iterdir())


def test_the_policy_commands_do_not_import_torch() -> None:
    program = (
        "import sys\n"
        "from gradguard.cli.check import check\n"
        "from gradguard.cli.explain import explain\n"
        "from gradguard.cli.init import init\n"
        "from gradguard.cli.schema import schema\n"
        "from pathlib import Path\n"
        "init(Path('g.yaml')); check('g.yaml'); schema(); explain('clip_norm'); explain()\n"
        "sys.exit('torch' in sys.modules)\n"
    )
    # The child runs in another folder: it must find the package where this process found it.
    environment = {"PYTHONPATH": ":".join(filter(None, sys.path)), "COLUMNS": "80", "PATH": ""}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("dead_units", "revive_units, replace_activation in the preset repair"),
        ("divergence", "rollback, scale_lr, stop in the presets default, finetune, pretrain, repair, rnn"),
        ("plateau", "No preset: they tell of it, and the cure is yours."),
    ],
)
def test_explain_says_which_remedies_can_act_on_a_diagnosis_and_in_which_presets(name, words):
    told = run("explain", name).stdout
    assert words in " ".join(told.split())
    assert "What can act on it" not in run("explain", "clip_norm").stdout


def test_explain_as_json_says_the_same():
    told = json.loads(run("explain", "dead_units", "--json").stdout)
    assert (told["family"], told["name"]) == ("diagnosis", "dead_units")
    assert told["answers"]["revive_units"] == ["repair"]
    assert {option["name"] for option in told["options"]} == {"share", "blocked", "about"}
    assert set(json.loads(run("explain", "--json").stdout)) == {"diagnosis", "remedy", "sink"}


def test_check_shows_every_option_of_snapshots(tmp_path):
    file = tmp_path / "p.yaml"
    file.write_text("version: 1\nextends: default\nsnapshots: {every: 70, keep: 3, where: disk, rng: true}\n")
    told = " ".join(run("check", str(file)).stdout.split())
    words = "every 70 steps; the last 3 good ones are kept in the run directory, with the random generators"
    assert f"snapshots {words}" in told
    assert "every 200 steps; the last good one is kept in memory" in " ".join(run("check", "default").stdout.split())
