"""What the README says exists."""

import re
from pathlib import Path
from unittest.mock import patch

import pytest
from readme_samples import BLOCK, POLICY, output_of, policy_of, rewritten, same, samples

import gradguard
from gradguard.cli import COMMANDS
from gradguard.contracts import DIAGNOSES, REMEDIES
from gradguard.policy.load import load_policy, preset_names


README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")


def test_every_command_that_it_shows_exists_and_every_command_is_shown():
    text = BLOCK.sub(lambda found: f"{found['head']}```", README)  # without what they print
    shown = set(re.findall(r"\bgradguard ([a-z]+)\b", " ".join(re.findall(r"`[^`]+`|```.*?```", text, re.DOTALL))))
    assert shown - set(COMMANDS) == set()
    assert set(COMMANDS) - shown == set()


def test_its_tables_name_every_diagnosis_and_every_remedy():
    rows = set(re.findall(r"^\| `([a-z_]+)` \|", README, re.MULTILINE))
    assert rows == {*DIAGNOSES.names(), *REMEDIES.names()}


def test_its_policy_is_one(tmp_path):
    path = tmp_path / POLICY
    path.write_text(policy_of(README))
    assert len(load_policy(path).rules) > 3


def test_it_names_every_preset():
    line = next(line for line in README.splitlines() if line.startswith("extends:"))
    assert set(re.findall(r"[a-z]+", line.partition("#")[2])) == set(preset_names())


def test_the_files_that_it_links_exist():
    for name in re.findall(r"examples/[0-9a-z_]+\.py", README):
        assert (Path(__file__).parent.parent / name).is_file()


SAMPLES = samples(README)


@pytest.mark.parametrize("sample", SAMPLES, ids=[sample.command.split(" | ")[0] for sample in SAMPLES])
def test_what_it_shows_of_a_command_is_its_output(sample):
    """Over the runs in tests/recorded, which real trainings left; `python tests/readme_samples.py` writes them anew."""
    if sample.command.startswith("report"):
        pytest.importorskip("plotly")
    assert same(output_of(sample.command, policy_of(README))) == same(sample.output)


def test_every_block_that_looks_like_printed_output_is_a_sample():
    """What nothing runs again becomes stale; others are code, commands, the flow of data and the drill's sample."""
    held = {sample.output for sample in SAMPLES}
    others = [
        text
        for language, text in re.findall(r"^```(\w*)\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
        if not language and not text.startswith("$ ") and text not in held
    ]
    commands = ("gradguard ", "pip ", "gradients --Monitor-->", "Healthy run left alone")
    assert [text for text in others if not text.startswith(commands)] == []


def test_it_shows_what_the_commands_about_a_run_print():
    shown = {sample.command.split()[0] for sample in SAMPLES}
    wanted = {"audit", "backtest", "check", "compare", "console", "explain", "export", "init", "report", "schema"}
    wanted |= {"show", "tune", "verify", "watch"}
    assert wanted - shown == set()


def test_samples_can_be_written_anew():
    stale = README.replace("$ gradguard verify runs/demo\n", "$ gradguard verify runs/demo\nstale\n", 1)
    assert stale != README
    with patch("readme_samples.output_of", lambda command, _: dict(SAMPLES)[command]):
        assert rewritten(stale) == README


def test_its_policy_guards_its_loop(tmp_path, monkeypatch):
    """Patterns of a policy are matched when there is a model."""
    torch = pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    Path(POLICY).write_text(policy_of(README))
    (loop,) = re.findall(r"```python\n(import gradguard\n.*?)```", README, re.DOTALL)
    (call,) = re.findall(r"`(gradguard\.attach\([^`]*policy=[^`]*\))`", README)
    loop = re.sub(r"gradguard\.attach\(.*?\)", call, loop, count=1)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    optimizer = torch.optim.AdamW(model.parameters())
    scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer)
    loader = [(torch.randn(8, 4), torch.randint(2, (8,))) for _ in range(5)]
    exec(
        loop,
        {
            "model": model,
            "optimizer": optimizer,
            "scheduler": scheduler,
            "loader": loader,
            "loss_fn": torch.nn.functional.cross_entropy,
        },
    )
    assert gradguard.read_run("runs/exp1").statistics.num_steps == 5
