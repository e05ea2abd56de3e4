"""Two real processes that train together over gloo."""

import json
import os
import subprocess
import sys
from pathlib import Path


def run_two_ranks(script: Path, folder: Path):
    """Run `script RANK FOLDER` twice at once; return for each rank the JSON lines that it printed."""
    settings = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            [sys.executable, str(script), str(rank), str(folder)],
            env=settings,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        outputs = [process.communicate(timeout=90) for process in processes]
    finally:
        for process in processes:
            process.kill()
    told = [[json.loads(line) for line in out.splitlines()] for out, _ in outputs]
    assert all(told), [errors for _, errors in outputs]
    return told
