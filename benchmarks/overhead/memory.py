"""Peak resident memory, each contender in a process of its own.

python -m benchmarks.overhead.memory mlp-40 adamw-fused default 12
"""

from __future__ import annotations

import resource
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory


STEPS = 12  # with a probe, and with as many snapshots as are ever held at a time


@dataclass(frozen=True)
class Peak:
    """The most memory that a process held, imports and all.

    Args:
        workload: its name.
        optimizer: its name.
        contender: its name.
        num_bytes: peak resident memory of the process.
    """

    workload: str
    optimizer: str
    contender: str
    num_bytes: int


def measure_peak(workload: str, optimizer: str, contender: str, steps: int = STEPS) -> Peak:
    """Run a contender in a process of its own and return the peak of its resident memory."""
    command = [sys.executable, "-m", "benchmarks.overhead.memory", workload, optimizer, contender, str(steps)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return Peak(workload, optimizer, contender, int(done.stdout.splitlines()[-1]))


def run(workload: str, optimizer: str, contender: str, steps: int) -> int:
    """Train in this process and return the peak of its resident memory, bytes."""
    from loguru import logger

    from benchmarks.overhead.arena import Arena
    from benchmarks.overhead.contenders import CONTENDERS, warm_up
    from benchmarks.overhead.workloads import WORKLOADS

    logger.remove()
    warm_up()
    with TemporaryDirectory(prefix="overhead-") as folder:
        arena = Arena(WORKLOADS[workload], optimizer, Path(folder))
        entrant = arena.admit(CONTENDERS[contender], is_alone=True)
        for step in range(steps):
            entrant.take_turn(arena.batch(step))
        entrant.running.close()
    return peak_bytes()


def peak_bytes() -> int:
    """Return the most memory that this process has held so far.

    On Linux from VmHWM: ru_maxrss there counts what the parent held when it started this process.
    """
    try:
        for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


if __name__ == "__main__":
    print(run(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])))
