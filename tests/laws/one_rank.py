"""One of two processes that train together: `one_rank.py RANK FOLDER` prints what it saw, a line for each run.

In the first run, at step 3 only the loss that rank 1 observes is NaN, its gradient is fine; at step 6 the batch of
rank 1 is NaN, which the reduction spreads to every gradient; at step 9 rank 0 observes an infinite loss, and the ladder
ends in a stop. In the second run the guard of rank 1 meets a loss without a value, a fault that it cannot isolate.
"""

import hashlib
import json
import math
import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from loguru import logger
from torch import nn

import gradguard


def build():
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 1)))
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


def bad_losses(rank, folder):
    """Return what the rank was told, and a digest of its weights."""
    model, optimizer = build()
    ladder = [{"after": 2, "within": 100, "do": "stop"}]
    policy = gradguard.Policy(rules=[{"when": "nonfinite", "do": "skip_step", "escalate": ladder}])
    guard = gradguard.attach(model, optimizer, policy, run_dir=f"{folder}/run")
    told = {"skipped": [], "findings": [], "stopped_at": None, "run_dir": guard.run_dir}
    for step in range(12):
        inputs = torch.randn(8, 4, generator=torch.Generator().manual_seed(2 * step + rank))
        if (rank, step) == (1, 6):
            inputs[0] = math.nan
        optimizer.zero_grad()
        loss = (model(inputs) - 1.0).square().mean()
        loss.backward()
        observed = {(1, 3): math.nan, (0, 9): math.inf}.get((rank, step), loss)
        guard.observe(observed)
        try:
            optimizer.step()
        except gradguard.TrainingStopped as stop:
            told["stopped_at"] = stop.finding.step
            break
        told["skipped"] += [step] if guard.last.skipped else []
        told["findings"] += [(finding.diagnosis, finding.step) for finding in guard.last.findings]
    guard.close()
    weights = b"".join(param.detach().numpy().tobytes() for param in model.parameters())
    return {**told, "weights": hashlib.sha256(weights).hexdigest()}


def broken_guard(rank):
    """Return how many steps the rank took."""
    model, optimizer = build()
    guard = gradguard.attach(model, optimizer)
    for step in range(6):
        optimizer.zero_grad()
        loss = model(torch.ones(8, 4)).square().mean()
        loss.backward()
        guard.observe(torch.tensor(1.0, device="meta") if (rank, step) == (1, 3) else loss)
        optimizer.step()
    return 6


def main(rank, folder):
    logger.remove()
    torch.set_num_threads(1)
    patience = timedelta(seconds=15)
    meeting = f"file://{folder}/meeting"
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=2, timeout=patience)
    print(json.dumps(bad_losses(rank, folder)), flush=True)
    print(json.dumps(broken_guard(rank)), flush=True)
    dist.barrier()
    os._exit(0)  # gloo's own threads may outlive the interpreter and then abort the process


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
