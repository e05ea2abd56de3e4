"""What the README says is so: names, commands, files, and the policy that it shows."""

import re
from pathlib import Path

import gradguard
from gradguard import cli
from gradguard.contracts import DIAGNOSES, REMEDIES


ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "gradguard"
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_readme_s_tables_are_the_registries():
    rows = re.findall(r"^\| `(\w+)` \|", README, flags=re.MULTILINE)
    assert sorted(rows) == sorted([*DIAGNOSES.names(), *REMEDIES.names()])


def code_blocks(text: str) -> str:
    return "\n".join(re.findall(r"```\w*\n(.*?)```", text, flags=re.DOTALL))


def test_the_readme_s_commands_exist():
    used = set(re.findall(r"\bgradguard ([a-z]\w*)", code_blocks(README)))
    assert used
    assert used <= set(cli.COMMANDS)
    assert {"demo", "audit", "show", "check"} <= used


def test_the_readme_s_files_and_presets_exist():
    for name in re.findall(r"`((?:examples/|\.ci/)[\w./]+)`", README):
        assert (ROOT / name).exists(), name
    assert (ROOT / "constraints.txt").is_file()
    presets = re.search(r"extends: default +# ([\w |]+)", README).group(1).split(" | ")
    assert sorted(presets) == sorted(path.stem for path in (PACKAGE / "policy" / "presets").glob("*.yaml"))


def test_the_readme_s_policy_is_one(tmp_path):
    (policy,) = re.findall(r"```yaml\n(.*?)```", README, flags=re.DOTALL)
    (tmp_path / "gradguard.yaml").write_text(policy, encoding="utf-8")
    assert gradguard.load_policy(tmp_path / "gradguard.yaml").rules


def test_the_readme_s_python_names_exist():
    for name in re.findall(r"gradguard\.([A-Za-z_]\w*)", README):
        assert name in gradguard.__all__ or name in ("yaml",), name
