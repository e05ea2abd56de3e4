"""A record with all of its files, written by hand: `written_run.py RUN_DIR` writes one and kills its own process."""

import os
import signal
import sys

import numpy as np

from gradguard.evidence.probe_stats import Updates
from gradguard.evidence.stats import ParameterTable
from gradguard.record.directory import RunDirectory
from gradguard.record.gradients import NUMBERS
from gradguard.records import Change, Event, Finding, Intervention


NUM_STEPS = 1300  # under each of two layouts, so that a seal comes in the middle of a chunk
ROW_BYTES = 48 + 2 * 4


def write_run(path, num_steps=NUM_STEPS):
    """Write so many steps under each of two layouts and return the open run."""
    run = RunDirectory.create(path, info={"policy": {"mode": "enforce"}})
    for first, names in ((0, ("a", "b")), (num_steps, ("b", "c"))):
        run.write_layout(ParameterTable(list(names), [(2,)] * 2, ["float32"] * 2, [0] * 2))
        run.journal.append(Event(event="attached", data={"policy_sha256": run.info["policy_sha256"]}), durable=False)
        for step in range(first, first + num_steps):
            numbers = np.full(2, step, dtype=np.float32)
            if step % 400 == 100:
                finding = Finding(diagnosis="loss_spike", step=step, value=float(step), parameters=names)
                common = {"step": step, "diagnosis": "loss_spike", "finding": finding}
                change = Change(summary="the step was skipped")
                run.journal.append(Intervention(rule="r", remedy="skip_step", change=change, **common), durable=False)
                run.seal()
            if step % 300 == 50:
                shares = {"histogram": np.full((2, 25), 0.04)}
                run.gradients.append(step, dict.fromkeys(NUMBERS, numbers) | shares, np.zeros(2, dtype=bool))
                run.probes.append(step, updates(step, numbers))
            run.statistics.append(step, 1.0, 0.1, 1.0, 1.0, 1.0, 1.0, 0, numbers)
    run.statistics.flush()
    return run


def updates(step, numbers):
    return Updates(
        update_norms=numbers, weight_norms=numbers, step=step, lr=0.1, lr_max=0.1, cosine=0.5,
        unmoved=(), untrained=(), without_gradient=(),
    )  # fmt: skip


if __name__ == "__main__":
    write_run(sys.argv[1])
    os.kill(os.getpid(), signal.SIGKILL)
