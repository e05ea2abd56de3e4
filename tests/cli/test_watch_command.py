"""`gradguard watch` over a training that goes on in another process, in a real pseudo-terminal and in a pipe."""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest
from made_runs import HOSTILE, act, add_rows, close_runs, start_run

from gradguard.cli import main
from gradguard.records import Event


__all__ = ["close_runs"]
ROOT = Path(__file__).parent.parent.parent
PATIENCE_SEC = 60.0
SIZES = ("COLUMNS", "LINES")  # would go before what the terminal says
ENVIRONMENT = {name: value for name, value in os.environ.items() if name not in SIZES}
ENVIRONMENT |= {"PYTHONPATH": str(ROOT), "TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8"}
LEAVE_SCREEN = "\x1b[?1049l"  # back from the screen that `watch` draws on


class Training:
    """The other process."""

    def __init__(self, run_dir):
        command = [sys.executable, str(ROOT / "tests" / "watch" / "training.py"), str(run_dir)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT, cwd=ROOT
        )
        assert self.process.stdout.readline() == "ready\n"

    def do(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "done\n"

    def end(self):
        self.process.kill()
        self.process.communicate()


class Watching:
    """`gradguard watch` in a pseudo-terminal, or in a pipe when it has no size."""

    def __init__(self, run_dir, size=None, options=()):
        command = [sys.executable, "-m", "gradguard", "watch", str(run_dir), "--every", "0.1", *options]
        if size is None:
            self.out, write = os.pipe()
        else:
            self.out, write = pty.openpty()
            fcntl.ioctl(write, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))
        streams = {"stdin": write if size else subprocess.DEVNULL, "stdout": write, "stderr": write}
        self.process = subprocess.Popen(command, **streams, env=ENVIRONMENT, cwd=ROOT, start_new_session=True)
        os.close(write)
        self.text = ""

    def until(self, *words):
        """Read on until all words were seen since the last call."""
        start, end = len(self.text), time.monotonic() + PATIENCE_SEC
        while not all(word in unwrapped(self.text[start:]) for word in words):
            assert time.monotonic() < end, f"{words} not seen in {unwrapped(self.text[start:])[-2000:]}"
            assert self._read(end - time.monotonic()), f"ended without {words}: {unwrapped(self.text[start:])[-2000:]}"

    def rest(self):
        """Return its exit code, when all is read."""
        while self._read(PATIENCE_SEC):
            pass
        return self.process.wait(PATIENCE_SEC)

    def _read(self, patience):
        if not select.select([self.out], [], [], max(0.0, patience))[0]:
            return False
        try:
            data = os.read(self.out, 65536)
        except OSError:  # the other end of a pseudo-terminal is gone
            return False
        self.text += data.decode("utf-8", "replace")
        return bool(data)

    def end(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.out)


def has_cursor(text):
    return text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")


def unwrapped(text):
    return " ".join(plain(text).split())


def plain(text):
    """Text without escapes; a frame, which begins at home, on lines of its own."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text.replace("\x1b[H", "\n").replace(LEAVE_SCREEN, "\n")).replace(
        "\r", ""
    )


@pytest.fixture
def training(tmp_path):
    made = Training(tmp_path / "exp")
    yield made
    made.end()


@pytest.fixture
def watch():
    started = []

    def start(*args, **options):
        started.append(Watching(*args, **options))
        return started[-1]

    yield start
    for watching in started:
        watching.end()


def test_a_training_is_watched_from_a_good_step_over_a_bad_one_to_its_end(training, watch, tmp_path):
    """By two at a time: on the screen of a narrow terminal, and line by line in a pipe."""
    training.do("good 100")
    on_screen, in_pipe = watch(tmp_path / "exp", size=(60, 40)), watch(tmp_path / "exp")
    on_screen.until("running", "step 63", "loss", "No alarm so far", "grad norm", "attached")
    in_pipe.until("running", "attached")
    training.do("nan 1")
    on_screen.until("step 100 nonfinite", "→ skip_step: step skipped")
    in_pipe.until("step 100: nonfinite", "-> skip_step")
    training.do("good 60")
    on_screen.until("skipped 1", "helped")
    in_pipe.until("what was done at step 100: helped")
    training.do("close")
    on_screen.until("closed after 161 steps")
    assert (on_screen.rest(), in_pipe.rest()) == (0, 0)

    assert max(map(len, plain(on_screen.text).split("\n"))) <= 60
    last = on_screen.text[on_screen.text.rindex(LEAVE_SCREEN) :]
    assert "closed after 161 steps" in plain(last)  # the last look stays on the terminal
    assert has_cursor(on_screen.text)
    assert in_pipe.text.endswith("closed: closed after 161 steps\n")
    assert "\x1b" not in in_pipe.text
    assert len(in_pipe.text.splitlines()) == 5


def test_a_training_that_is_killed_is_told_as_such(training, watch, tmp_path):
    training.do("good 100")
    watching = watch(tmp_path / "exp", size=(80, 24))
    watching.until("running")
    training.end()
    watching.until("interrupted", "died without closing the guard")
    assert watching.rest() == 1


@pytest.mark.parametrize("size", [(80, 24), None])
def test_ctrl_c_leaves_without_a_traceback(tmp_path, watch, size):
    run = start_run(tmp_path / "exp")
    add_rows(run, range(64))
    watching = watch(tmp_path / "exp", size=size)
    watching.until("step 63")
    watching.process.send_signal(signal.SIGINT)
    assert watching.rest() == 0
    assert "Traceback" not in watching.text
    if size:
        assert has_cursor(watching.text)


def test_a_name_from_the_record_does_nothing_to_the_terminal(tmp_path, watch):
    run = start_run(tmp_path / "exp", names=(HOSTILE, "b", "c"))
    run.journal.append(Event(event=HOSTILE, message=HOSTILE))
    act(run, 3, HOSTILE, HOSTILE, HOSTILE)
    add_rows(run, range(64))
    watching = watch(tmp_path / "exp", size=(100, 50))
    watching.until("step 63", "What happened")
    watching.process.send_signal(signal.SIGINT)
    watching.rest()
    assert "\x1b]0;" not in watching.text
    assert "\x07" not in watching.text
    assert "\u202e" not in watching.text
    assert "[red]x[/red]%s{0}<script>" in plain(watching.text)


def call(capsys, *args):
    code = main([str(arg) for arg in args])
    out, err = capsys.readouterr()
    return code, out, err


@pytest.mark.parametrize(("status", "expected"), [("closed", 0), ("stopped", 1), ("failed", 1)])
def test_a_run_that_has_ended_is_drawn_once_and_answered_by_the_exit_code(tmp_path, capsys, status, expected):
    run = start_run(tmp_path / "exp")
    add_rows(run, range(100))
    run.journal.append(Event(event=status, step=99, message=f"{status} after 100 steps"))
    run.finish(status)
    code, out, _ = call(capsys, "watch", run.path)
    assert code == expected
    assert f"{status} after 100 steps" in out
    assert max(map(len, out.splitlines())) <= 80


def test_one_look_at_a_run_that_goes_on(tmp_path, capsys):
    run = start_run(tmp_path / "exp")
    add_rows(run, range(64))
    code, out, _ = call(capsys, "watch", run.path, "--once")
    assert code == 0
    assert "running" in out


@pytest.mark.parametrize("options", [["--every", "0"], ["--steps", "1"], ["--name", "D"]])
def test_a_wrong_call_is_refused(tmp_path, capsys, options):
    run = start_run(tmp_path / "exp")
    assert call(capsys, "watch", run.path, *options)[0] == 2


def test_what_is_no_run_is_one_message(tmp_path, capsys):
    code, out, err = call(capsys, "watch", tmp_path / "no\x1b[2J")
    assert (code, out) == (2, "")
    assert r"no\x1b[2J does not exist" in err
