"""`gradguard backtest` and `gradguard tune`."""

import json
import math
import os
import re
import socket
import sys

import pytest
from deferring import train

from gradguard.cli import main
from gradguard.policy.load import load_policy


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    path = tmp_path_factory.mktemp("run") / "exp"
    train("default", "immediate", losses={20: math.nan, 30: 1e6}, run_dir=path)
    return str(path)


@pytest.fixture
def call(capsys):
    """Run the command line; return (exit code, output, errors)."""

    def run(*args):
        code = main([str(arg) for arg in args])
        return code, *capsys.readouterr()

    return run


def test_a_run_by_its_own_policy_is_the_same(call, run_dir):
    code, out, err = call("backtest", "recorded", run_dir)
    assert (code, err) == (0, "")
    assert out.startswith("The same: ")
    assert "to the last letter" in out
    assert "50 of 50 steps" in out


def test_another_policy_differs_and_says_where_it_guesses(call, run_dir):
    code, out, _ = call("backtest", "observe", run_dir)
    assert code == 1
    assert out.startswith("Not the same: ")
    assert "the first at step 20" in out
    assert "at step 20 the policy changes the run's course" in out
    assert "skip_step (dry run)" in out
    assert "? hypothetical" in out


def test_a_policy_that_clips_at_every_step_differs_from_one_that_does_not(call, run_dir, tmp_path):
    path = tmp_path / "clips.yaml"
    path.write_text("extends: default\nrules: [{name: clip, when: always, do: {clip_norm: {max_norm: 1.0e-6}}}]\n")
    code, out, _ = call("backtest", path, run_dir)
    assert code == 1
    assert out.startswith("Not the same: it would have clipped 48 of 48 steps, the run clipped none.")
    told = json.loads(call("backtest", path, run_dir, "--json")[1])
    assert (told["is_same"], told["first_difference"], told["routine"]["num_replayed"]) == (False, 0, 48)


def test_the_comparison_can_be_read_by_machines(call, run_dir):
    code, out, _ = call("backtest", "observe", run_dir, "--json")
    told = json.loads(out)
    assert code == 1
    assert (told["is_same"], told["first_difference"], told["hypothetical_from"]) == (False, 20, 21)
    first = told["differences"][0]
    assert (first["diagnosis"], first["steps"], first["is_hypothetical"]) == ("nonfinite", [20], False)
    assert first["recorded"][0]["remedy"] == first["replayed"][0]["remedy"] == "skip_step"
    assert (first["recorded"][0]["reason"], first["replayed"][0]["reason"]) == ("", "dry_run")
    assert told["diagnoses"]["nonfinite"] == {
        "findings_recorded": 1,
        "findings_replayed": 1,
        "actions_recorded": 1,
        "actions_replayed": 0,
    }


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("backtest", "defualt", "RUN"), "did you mean 'default'"),
        (("backtest", "default", "nowhere"), "does not exist"),
        (("tune", "nowhere"), "does not exist"),
        (("backtest", "nope", "RUN"), "known: default, finetune, gan, observe, pretrain, recorded"),
        (("backtest", "recordd", "RUN"), "did you mean 'recorded'"),
        (("tune", "RUN", "--policy", "defualt"), "did you mean 'default'"),
        (("tune", "RUN", "--margin", "0.5"), "greater than or equal to 1"),
    ],
)
def test_unusable_input_is_refused(call, run_dir, args, says):
    code, out, err = call(*[run_dir if arg == "RUN" else arg for arg in args])
    assert (code, out) == (2, "")
    assert says in err


def test_false_alarms_are_counted_and_a_policy_is_suggested(call, run_dir, tmp_path):
    path = tmp_path / "policy.yaml"
    code, out, _ = call("tune", run_dir, "--policy", "default", "-o", path, "--anyway")
    assert code == 1
    assert "false alarms in 50 steps" in out
    assert "no threshold of 'drop-nonfinite' silences it" in out
    text = path.read_text()
    assert text.startswith("# Suggested by `gradguard tune` from 1 run, 50 steps.")
    assert "extends: default" in text
    assert load_policy(path).rules
    code, out, err = call("tune", run_dir, "--policy", "default", "-o", path, "--anyway")
    assert (code, out) == (2, "")
    assert "--force overwrites it" in err
    assert path.read_text() == text


def test_a_run_that_did_not_go_well_is_refused_before_anything_is_measured(call, run_dir, tmp_path):
    code, out, err = call("tune", run_dir, "-o", tmp_path / "policy.yaml")
    assert (code, out) == (2, "")
    assert err.splitlines() == [
        f"{run_dir} did not go well: NaN or Inf (nonfinite) at step 20",
        "what a rule acts on in such a run is no false alarm; give runs that went well, or add --anyway",
    ]
    assert list(tmp_path.iterdir()) == []
    told = " ".join(call("tune", run_dir, "--anyway")[1].split())
    assert told.startswith(f"Warning: {run_dir} did not go well".split("/")[0])
    assert "its alarms may be true ones" in told


def test_a_run_that_goes_on_is_measured_with_a_warning_and_tightening_says_what_it_left(call, tmp_path):
    train("default", "immediate", run_dir=tmp_path / "run", steps=30)
    info = tmp_path / "run" / "run.json"
    told = json.loads(info.read_text())
    info.write_text(json.dumps(told | {"status": "running", "pid": os.getpid(), "host": socket.gethostname()}))
    told = " ".join(call("tune", tmp_path / "run", "--tighten")[1].split())
    assert "is still running: what comes may yet go wrong" in told
    assert re.search(r"not tightened, \d+ rules: even 10 times nearer they raise no alarm", told)


def test_measurements_can_be_read_by_machines(call, run_dir):
    code, out, _ = call("tune", run_dir, run_dir, "--policy", "rnn", "--json", "--anyway")
    told = json.loads(out)
    assert (code, told["num_steps"], told["runs"]) == (1, 100, [run_dir, run_dir])
    assert told["rules"]["drop-nonfinite"]["false_alarms"] == 2
    assert told["rules"]["drop-nonfinite"]["per_100000"] == 2000.0
    assert {"rule", "thresholds", "reached", "ratio"} == set(told["margins"][0])


def test_neither_needs_torch(run_dir):
    import subprocess

    script = f"import sys; from gradguard.cli import main; main(['backtest', 'recorded', {run_dir!r}]); "
    script += "print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"
