"""`gradguard drill`: the screen, the JSON, the exit code, and wrong calls."""

import json
import math
import re
from pathlib import Path

import pytest

from gradguard.cli import main
from gradguard.cli.drill import summary
from gradguard.drill.outcome import Drill, Healthy, Run, Seen, Struck


README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
SHORT = ["--steps", "150"]


def forbid(name):
    raise AssertionError(f"{name} is not JSON")


def test_the_readme_shows_what_it_prints(capsys):
    """But for the digits, which another processor may round in another way."""
    assert main(["drill", *re.search(r"`gradguard drill (--only \S+)`", README)[1].split()]) == 0
    (shown,) = re.findall(r"```\n(Healthy run left alone.*?)\n```", README, re.DOTALL)
    said = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert max(map(len, said)) <= 80
    assert [re.sub(r" *[-+]\d+\.\d %", " %", line) for line in said] == [
        re.sub(r" *[-+]\d+\.\d %", " %", line) for line in shown.splitlines()
    ]


def test_json_is_strict_and_says_all(capsys):
    assert main(["drill", "observe", "--only", "nan-batch", "--json", *SHORT]) == 1
    told = json.loads(capsys.readouterr().out, parse_constant=forbid)
    assert (told["mode"], told["is_passed"], told["num_steps"], told["seed"]) == ("observe", False, 150, 0)
    assert told["healthy"]["is_untouched"] is True
    (fault,) = told["faults"]
    assert fault["without"]["loss"] == "NaN"
    assert fault["guarded"]["recorded_in"] is None
    keys = ("kind", "verdict", "found", "steps_late", "done", "instead", "step")
    assert {key: fault[key] for key in keys} == {
        "kind": "nan-batch",
        "verdict": "not recovered",
        "found": "nonfinite",
        "steps_late": 0,
        "done": [],
        "instead": "would skip_step",
        "step": 50,
    }


def test_observe_says_that_nothing_was_done(capsys):
    assert main(["drill", "observe", "--only", "nan-weight", *SHORT]) == 1
    told = " ".join(capsys.readouterr().out.split())
    assert "nothing (would" in told
    assert told.endswith("Failed: nan-weight. The policy only observes (mode: observe): nothing was done.")


def test_a_policy_file_for_another_model_is_drilled_and_its_words_are_harmless(tmp_path, capsys):
    policy = tmp_path / "gradguard.yaml"
    policy.write_text(
        'rules:\n  - {name: "calm\\u001b[2J", when: exploding_gradient, parameters: ["wte.[bold]*"], '
        "do: {clip_norm: {max_norm: 1.0}}}\n  - {when: nonfinite, do: stop}\n"
    )
    kept = tmp_path / "kept"
    arguments = ["--only", "exploding-gradient, nan-batch", "--run-dir", str(kept), *SHORT]
    assert main(["drill", str(policy), *arguments]) == 0
    told = capsys.readouterr().out
    assert "\x1b" not in told
    assert "wte.[bold]*" in told
    assert "* nan-batch at step 50: The loss is NaN" in told
    assert main(["audit", str(kept / "nan-batch")]) in (0, 1)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere.yaml"], "no such file"),
        (["defualt"], "did you mean 'default'?"),
        (["/"], "is a directory"),
        (["a" * 5000], "cannot be read as a path"),
        (["bad\x1b[2J.yaml"], r"bad\x1b[2J.yaml"),
        (["default", "--only", "fire"], "unknown kind of fault 'fire'"),
        (["default", "--only", ""], "'--only' is empty"),
        (["default", "--steps", "149"], "150"),
    ],
)
def test_a_wrong_call_is_refused_before_anything_is_trained(arguments, words, capsys):
    assert main(["drill", *arguments]) == 2
    told = capsys.readouterr()
    assert words in told.err
    assert "\x1b" not in told.err
    assert told.out == ""


def test_mistakes_in_a_policy_are_listed_with_their_place(tmp_path, capsys):
    policy = tmp_path / "gradguard.yaml"
    policy.write_text("rules:\n  - {when: nonfinite, do: skip_stp}\n  - {when: nonfnite, do: stop}\n")
    assert main(["drill", str(policy)]) == 2
    assert [":2:" in line or ":3:" in line for line in capsys.readouterr().err.splitlines()] == [True, True]


def test_the_last_sentence_counts_what_did_harm():
    clean, nan = Run(1.0, "a"), Run(math.nan)
    struck = [
        Struck("one", "One", 50, nan, clean, Seen("nonfinite", 50), "recovered"),
        Struck("two", "Two", 50, clean, nan, Seen("nonfinite", 50), "made worse"),
        Struck("three", "Three", 50, clean, clean, Seen(), "harmless"),
    ]
    told = summary("p.yaml", Drill(Healthy(clean, Run(1.0, "b")), tuple(struck), 150, 0))
    assert told == (
        "p.yaml: 1 of 3 kinds of fault did harm; 1 recovered, 1 made worse. Failed: two. "
        "The healthy run was not left alone."
    )
