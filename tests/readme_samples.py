"""The samples in the README: each is the output of the command above it, over the runs in tests/recorded.

    python tests/readme_samples.py            rewrite the samples in README.md
    python tests/readme_samples.py --record   first record tests/recorded/demo anew (half a minute)

A sample is a block that begins with `$ gradguard ...`, which may go on with a pipe of the shell, or one below the
comment `<!-- what the console says: RUN -->`.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import NamedTuple
from unittest import mock

from loguru import logger

from gradguard import read_run
from gradguard.cli import main
from gradguard.sinks.console import Console


ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
RECORDED = ROOT / "tests" / "recorded"
POLICY = "gradguard.yaml"  # in a sample it is the README's own
CONSOLE = "console "
BLOCK = re.compile(
    r"(?P<head>```\n\$ gradguard (?P<command>[^\n]*)\n|<!-- what the console says: (?P<run>\S+) -->\n```\n)"
    r"(?P<output>.*?)```",
    re.DOTALL,
)
VARIES = re.compile(r"\b\d+(\.\d+)? MB$", re.MULTILINE)  # the size of a report is that of the plotting library


class Sample(NamedTuple):
    """One sample.

    Args:
        command: behind `gradguard `, or `console RUN`.
        output: what is shown.
    """

    command: str
    output: str


def samples(readme: str) -> list[Sample]:
    """Return the samples of a README, in order."""
    return [Sample(_command(found), found["output"]) for found in BLOCK.finditer(readme)]


def policy_of(readme: str) -> str:
    """Return the policy file that a README shows."""
    (text,) = re.findall(r"```yaml\n(.*?)```", readme, re.DOTALL)
    return text


def output_of(command: str, policy: str) -> str:
    """Return what a command prints, run where the recorded runs are in `runs/`.

    Args:
        command: as in `Sample`.
        policy: text of `gradguard.yaml`.
    """
    with tempfile.TemporaryDirectory() as folder, _working_in(folder):
        shutil.copytree(RECORDED, "runs")
        if command.startswith(CONSOLE):
            return _told_by_the_console(Path(command.removeprefix(CONSOLE)))
        if POLICY in command:
            Path(POLICY).write_text(policy)
        words, _, pipe = command.partition(" | ")
        out = StringIO()
        with (
            mock.patch.dict(os.environ, {"COLUMNS": "80", "NO_COLOR": "1"}),
            redirect_stdout(out),
            redirect_stderr(out),
        ):
            main(words.split())
        text = out.getvalue()
        if pipe:
            text = subprocess.run(["bash", "-c", pipe], input=text, capture_output=True, text=True, check=True).stdout
    return "".join(f"{line.rstrip()}\n" for line in text.splitlines())


def rewritten(readme: str) -> str:
    """Return a README with every sample as it is printed now; one that differs in nothing that counts is left alone."""
    policy = policy_of(readme)

    def renew(found: re.Match[str]) -> str:
        output = output_of(_command(found), policy)
        return found[0] if same(output) == same(found["output"]) else f"{found['head']}{output}```"

    return BLOCK.sub(renew, readme)


def same(output: str) -> str:
    """Return an output without what depends on the versions of libraries."""
    return VARIES.sub("SIZE MB", output)


def record() -> None:
    """Record the guarded run of `gradguard demo`, as on any machine."""
    from gradguard.demo.runs import plan_faults, train

    target = RECORDED / "demo"
    shutil.rmtree(target, ignore_errors=True)
    host = mock.patch.object(socket, "gethostname", return_value="trainer")
    with host, mock.patch.object(platform, "platform", return_value="Linux"):
        train(450, 0, plan_faults(450), target)


@contextmanager
def _working_in(folder: str) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def _command(found: re.Match[str]) -> str:
    return found["command"] or CONSOLE + found["run"]


def _told_by_the_console(path: Path) -> str:
    """Return the lines that the sink told while a run went on: it is told of the same records again."""
    lines = StringIO()
    handler = logger.add(lines, format="{message}", level="INFO")
    try:
        sink = Console()
        for told in read_run(path).records:
            sink.emit(told)
        sink.close()
    finally:
        logger.remove(handler)
    return lines.getvalue()


if __name__ == "__main__":
    logger.remove()
    if "--record" in sys.argv:
        record()
    README.write_text(rewritten(README.read_text(encoding="utf-8")), encoding="utf-8")
