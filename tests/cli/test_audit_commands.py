import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import written_run

import gradguard.cli
from gradguard.cli import COMMANDS, main
from gradguard.evidence.stats import ParameterTable
from gradguard.record.directory import RunDirectory
from gradguard.record.statistics import Flag
from gradguard.records import Change, Event, Finding, Intervention, Outcome, Withheld


HOSTILE = "h.0\x1b[2J\n[red]x[/red]{0}<script>"
PACKAGE = Path(gradguard.cli.__file__).parent


@pytest.fixture
def recorded(tmp_path):
    """Make a run of twelve steps, with a spike at step 8 unless it shall be healthy."""

    def make(healthy=False, steps=12, name=None):
        run = RunDirectory.create(tmp_path / "exp", name=name, info={"policy": {"mode": "enforce"}})
        run.write_layout(ParameterTable([HOSTILE, "wte"], [(2,)] * 2, ["float32"] * 2, [0, 0]))
        for step in range(steps):
            is_bad = step == 8 and not healthy
            norms = np.array([np.inf if is_bad else 1.0, 2.0], dtype=np.float32)
            flags = Flag.INTERVENTION if is_bad else 0
            run.statistics.append(step, 4.0 - step / 10, 0.1, 1.5, 1.0, 1.0, 1.0, flags, norms)
        if not healthy:
            finding = Finding(
                diagnosis="exploding_gradient", step=8, parameters=(HOSTILE,), num_parameters=1, message=HOSTILE
            )
            common = {"step": 8, "diagnosis": "exploding_gradient", "finding": finding}
            change = Change(summary=HOSTILE, before={HOSTILE: 300.0}, after={HOSTILE: float("nan")})
            run.journal.append(Intervention(rule=HOSTILE, remedy="clip_norm", change=change, **common))
            run.journal.append(Withheld(rule="s", remedy="stop", reason="cooldown", detail=HOSTILE, **common))
            run.journal.append(Event(event=HOSTILE, step=8, message=HOSTILE))
            common = {"step": 9, "diagnosis": "loss_scale_collapse", "finding": finding}
            run.journal.append(Intervention(rule="t", remedy="damp_optimizer_state", change=change, **common))
            run.journal.append(Outcome(of=3, step=11, verdict="worse", loss_before=1.0, loss_after=13.0, horizon=2))
            run.journal.append(Withheld(rule="t", remedy="m", reason="budget", detail=HOSTILE, **common, rung=1))
        run.finish()
        return str(tmp_path / "exp")

    return make


def call(capsys, *args):
    code = main([str(arg) for arg in args])
    out, err = capsys.readouterr()
    return code, out, err


def test_the_audit_begins_with_the_verdict_and_names_what_was_done(recorded, capsys):
    code, out, _ = call(capsys, "audit", recorded())
    assert code == 0
    assert out.startswith("Not cured: what was done against loss scale collapse made it worse. The guard")
    assert "acted twice in 12 steps (exploding gradient once, loss scale collapse once)" in out.replace("\n", "")
    assert "clip_norm" in out
    assert "the rule had acted shortly before" in out


def test_parameters_that_are_counted_but_not_named_are_no_further_steps(tmp_path, capsys):
    run = RunDirectory.create(tmp_path / "exp", info={"policy": {"mode": "enforce"}})
    run.write_layout(ParameterTable(["wte"], [(2,)], ["float32"], [0]))
    for step in range(9):
        run.statistics.append(step, 4.0, 0.1, 1.5, 1.0, 1.0, 1.0, 0, np.ones(1, np.float32))
    finding = Finding(diagnosis="nonfinite", step=5, severity="warn", num_parameters=5)
    change = Change(summary="step skipped")
    run.journal.append(
        Intervention(step=5, rule="r", diagnosis="nonfinite", remedy="skip_step", finding=finding, change=change)
    )
    run.finish()
    assert "nonfinite (warn), step 5\n" in call(capsys, "audit", run.path)[1]


@pytest.mark.parametrize("steps", [0, 1, 12])
def test_healthy_and_empty_runs_can_be_audited(recorded, capsys, steps):
    code, out, _ = call(capsys, "audit", recorded(healthy=True, steps=steps))
    assert code == 0
    assert out.startswith("Healthy: " if steps else "Nothing to judge")


@pytest.mark.parametrize("args", [["audit"], ["show", "--step", "8"], ["show", "--step", "5"], ["verify"]])
def test_piped_text_is_plain_within_80_columns_and_free_of_what_a_name_smuggles_in(recorded, capsys, args):
    code, out, _ = call(capsys, args[0], recorded(), *args[1:])
    assert code == 0
    assert all(line.isprintable() for line in out.splitlines())
    assert max(len(line) for line in out.splitlines() if "/" not in line) <= 80


def test_a_name_in_square_brackets_is_text_and_no_markup(recorded, capsys):
    _, out, _ = call(capsys, "show", recorded(), "--step", 8)
    assert "[red]x[/red]{0}<script>" in out


@pytest.mark.parametrize("args", [["audit"], ["show", "--step", "8"], ["verify"]])
def test_json_is_strict_and_ascii(recorded, capsys, args):
    def refuse(constant):
        raise AssertionError(constant)

    _, out, _ = call(capsys, args[0], recorded(), *args[1:], "--json")
    assert out.isascii()
    json.loads(out, parse_constant=refuse)


def test_show_tells_the_measurements_the_finding_the_decision_and_the_change(recorded, capsys):
    code, out, _ = call(capsys, "show", recorded(), "--step", 8)
    assert code == 0
    for word in ("loss", "[8]", "Inf", "exploding_gradient", "clip_norm", "not done", "acted shortly", "not judged"):
        assert word in out


def test_show_begins_with_the_first_intervention_and_names_the_others(recorded, capsys):
    path = recorded()
    first = call(capsys, "show", path, "--step", 8)[1]
    code, out, _ = call(capsys, "show", path)
    assert code == 0
    assert out.startswith(first)
    assert out.rstrip().endswith("any step: --step N")
    assert json.loads(call(capsys, "show", path, "--json")[1])["step"] == 8


def test_show_of_a_run_in_which_nothing_happened_is_about_its_last_step(recorded, capsys):
    out = call(capsys, "show", recorded(healthy=True))[1]
    assert out.startswith("Step 11 of ")
    assert "Nothing was found in this run; this is its last step" in " ".join(out.split())


def test_show_without_any_step_is_refused(tmp_path, capsys):
    RunDirectory.create(tmp_path / "run").finish()
    code, _, err = call(capsys, "show", tmp_path / "run")
    assert (code, "no step was recorded" in err) == (2, True)


def test_the_efficacy_of_each_remedy_stands_under_its_diagnosis_in_whole_words(recorded, capsys):
    _, out, _ = call(capsys, "audit", recorded())
    lines = [line.split() for line in out.partition("Did it help")[2].splitlines()]
    assert ["clip_norm", "1", "-", "-", "-", "1", "-", "-"] in lines
    assert ["damp_optimizer_state", "1", "-", "-", "1", "-", "13x", "-"] in lines
    assert ["exploding_gradient"] in lines
    assert "helped: the loss is where it was or lower" in out
    assert "left alone" not in out


def test_a_run_that_was_only_watched_shows_what_passed_by_itself(tmp_path, capsys):
    run = RunDirectory.create(tmp_path / "exp", info={"policy": {"mode": "observe", "horizon": 5}})
    run.write_layout(ParameterTable(["a"], [(2,)], ["float32"], [0]))
    for step in range(20):
        run.statistics.append(step, 1.0, 0.1, 1.5, 1.0, 1.0, 1.0, 0, np.ones(1, dtype=np.float32))
    finding = Finding(diagnosis="loss_spike", step=8)
    run.journal.append(
        Withheld(step=8, rule="r", diagnosis="loss_spike", remedy="skip_step", reason="dry_run", finding=finding)
    )
    run.finish()
    _, out, _ = call(capsys, "audit", run.path)
    assert ["(left", "alone)", "1", "1", "-", "-", "-", "0", "%", "1"] in [line.split() for line in out.splitlines()]
    assert "what passed by itself counts as helped" in " ".join(out.split())


def test_show_tells_the_outcome_in_words_and_none_for_what_has_none(recorded, capsys):
    _, out, _ = call(capsys, "show", recorded(), "--step", "9")
    assert "outcome" in out
    assert "worse: " in out


def test_show_of_a_quiet_step_says_that_nothing_was_found(recorded, capsys):
    assert "Nothing was found at this step." in call(capsys, "show", recorded(), "--step", 3)[1]


def test_show_of_a_step_that_is_not_there_names_the_range(recorded, capsys):
    code, out, err = call(capsys, "show", recorded(), "--step", 99)
    assert (code, out) == (2, "")
    assert "step 99 is not in the record, which holds steps 0 to 11" in err


def test_verify_answers_by_its_exit_code(recorded, capsys, tmp_path):
    path = recorded()
    assert call(capsys, "verify", path)[0] == 0
    journal = Path(path) / "interventions.jsonl"
    journal.write_text(journal.read_text().replace("clip_norm", "skip_step"))
    code, out, _ = call(capsys, "verify", path)
    assert code == 1
    assert "changed  interventions.jsonl:1: not as it was written" in out
    assert "NOT as it was written (1 problem)" in " ".join(out.split())
    assert "was changed, removed, moved or added to" in " ".join(out.split())
    assert call(capsys, "verify", tmp_path)[0] == 2


def test_verify_prints_the_head_and_tells_whether_a_kept_one_is_that_of_the_record(recorded, capsys):
    path = recorded()
    code, out, _ = call(capsys, "verify", path)
    assert code == 0
    assert "complete, and as it was written" in " ".join(out.split())
    assert "keep the head where nobody can change it" in " ".join(out.split())
    (head,) = re.findall(r"^head  ([0-9a-f]{64})$", out, re.MULTILINE)
    code, out, _ = call(capsys, "verify", path, "--head", head)
    assert (code, "this is the record that the given head was published for" in out) == (0, True)
    code, out, _ = call(capsys, "verify", path, "--head", "0" * 64)
    assert (code, "the head that was given is not in this record" in " ".join(out.split())) == (1, True)
    assert call(capsys, "verify", path, "--head", "abc")[0] == 2
    told = json.loads(call(capsys, "verify", path, "--json")[1])
    assert list(told) == ["path", "verdict", "status", "head", "published", "proofs", "unproven", "problems"]
    assert (told["verdict"], told["head"], told["problems"]) == ("whole", head, [])


def test_verify_says_of_a_killed_run_what_is_there_and_not_proven(tmp_path, capsys):
    run = written_run.write_run(tmp_path / "run")
    sealed = run.journal.num_records
    run.journal.append(Event(event="one more"), durable=False)
    told = " ".join(call(capsys, "verify", run.path)[1].split())
    assert f"{sealed} of {sealed + 1} lines proven, 1 there, not proven" in told
    assert "What came after the last seal is there, and nothing is proven of it" in told
    head = (run.path / "seals.jsonl").read_text().splitlines()[-3][-66:-2]
    told = " ".join(call(capsys, "verify", run.path, "--head", head)[1].split())
    assert "it went on since" in told
    assert "the head says nothing of it" in told
    run.finish()


@pytest.mark.parametrize("args", [["audit"], ["show", "--step", "1"], ["verify"]])
def test_a_path_that_is_no_run_is_one_message_and_exit_code_2(capsys, tmp_path, args):
    code, out, err = call(capsys, args[0], tmp_path / "a\x1b[2Jb", *args[1:])
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert r"a\x1b[2Jb does not exist" in err


def test_a_damaged_record_is_audited_with_the_damage_named(recorded, capsys):
    path = recorded()
    journal = Path(path) / "interventions.jsonl"
    journal.write_text("hello\n" + journal.read_text()[:-9])
    code, out, _ = call(capsys, "audit", path)
    assert code == 0
    assert "interventions.jsonl:1: not a JSON object" in out
    assert "cut off" in out


def test_a_named_guard_is_audited_by_name(recorded, capsys):
    recorded(name="G")
    path = recorded(name="D")
    code, _, err = call(capsys, "audit", path)
    assert code == 2
    assert "say which by name: D, G" in err
    assert call(capsys, "audit", path, "--name", "G")[0] == 0


def test_an_unknown_command_is_answered_with_the_nearest(capsys):
    code, _, err = call(capsys, "aduit")
    assert code == 2
    assert "'audit'" in err


def test_help_lists_every_command_with_its_line(capsys):
    code, out, _ = call(capsys, "--help")
    assert code == 0
    words = " ".join(out.replace("│", " ").split())
    for name, line in COMMANDS.items():
        assert f"{name} {line}" in words


def test_every_listed_command_is_a_function_in_a_file_of_its_name_and_every_file_is_listed():
    files = {path.stem: path for path in PACKAGE.glob("*.py") if path.stem not in ("__init__", "render", "progress")}
    assert sorted(COMMANDS) == sorted(files)
    for name, path in files.items():
        functions = {node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)}
        assert name in functions


def test_version_names_what_a_bug_report_needs(capsys):
    code, out, _ = call(capsys, "--version")
    assert code == 0
    assert out.startswith("gradguard ")
    assert f"Python {sys.version_info.major}." in out
    assert "torch " in out


@pytest.mark.parametrize(
    "args", [["--help"], ["--version"], ["audit", "RUN"], ["show", "RUN", "--step", "8"], ["verify", "RUN"]]
)
def test_looking_at_a_record_never_imports_torch(recorded, args):
    path = recorded()
    args = [path if arg == "RUN" else arg for arg in args]
    script = f"""
import sys
from gradguard.cli import main
code = main({args!r})
sys.exit(9 if "torch" in sys.modules else code)
"""
    assert subprocess.run([sys.executable, "-c", script], capture_output=True).returncode == 0


def test_a_name_that_the_terminal_cannot_encode_is_escaped(tmp_path):
    script = f"from gradguard.cli import main; raise SystemExit(main(['audit', {str(tmp_path / 'é')!r}]))"
    environment = {"PYTHONIOENCODING": "ascii", "PATH": ""}
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=environment, cwd=PACKAGE.parent.parent
    )
    assert result.returncode == 2
    assert r"\xe9 does not exist" in result.stderr


def test_the_module_can_be_run():
    result = subprocess.run([sys.executable, "-m", "gradguard", "nope"], capture_output=True, text=True)
    assert result.returncode == 2
    assert "No such command" in result.stderr
