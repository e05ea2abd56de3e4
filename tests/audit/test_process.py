"""Whether a process is there: with real processes."""

import os
import socket
import subprocess
import sys
from datetime import datetime, timedelta, timezone

import pytest

from gradguard.audit.process import liveness


NOW = datetime.now(timezone.utc)
HERE = {"host": socket.gethostname(), "created": NOW.isoformat()}
linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc tells it on Linux only")


@pytest.fixture
def child():
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.stdin.close()
    process.wait()


def test_this_process_lives():
    assert liveness({**HERE, "pid": os.getpid()}) == "alive"


def test_a_process_that_ended_is_gone(child):
    assert liveness({**HERE, "pid": child.pid}) == "alive"
    child.stdin.write(b"\n")
    child.stdin.flush()
    child.wait()
    assert liveness({**HERE, "pid": child.pid}) == "gone"


@linux
def test_a_process_that_ended_and_was_not_waited_for_is_gone(child):
    child.stdin.write(b"\n")
    child.stdin.flush()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and its parent has not taken note
    assert liveness({**HERE, "pid": child.pid}) == "gone"


@linux
def test_a_younger_process_with_the_same_number_is_another():
    info = {**HERE, "pid": os.getpid(), "created": (NOW - timedelta(days=400)).isoformat()}
    assert liveness(info) == "gone"


@pytest.mark.parametrize(
    "info", [{}, {"host": "elsewhere", "pid": 1}, {**HERE, "pid": "x"}, {**HERE, "pid": -1}, {**HERE, "pid": 10**30}]
)
def test_what_cannot_be_told_is_unknown(info):
    assert liveness(info) == "unknown"
