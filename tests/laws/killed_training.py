"""A training that kills its own process: `killed_training.py RUN_DIR [SYNC [STEP]]`, by default at its second fault."""

import math
import os
import signal
import sys

import torch
from loguru import logger
from torch import nn

import gradguard


def main(run_dir, sync="immediate", killed_at="11"):
    logger.remove()
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=sync == "deferred")
    policy = gradguard.load_policy("default")
    policy = policy.model_copy(update={"monitor": policy.monitor.model_copy(update={"sync": sync})})
    guard = gradguard.attach(model, optimizer, policy, run_dir=run_dir)
    for step in range(100):
        optimizer.zero_grad()
        loss = model(torch.ones(2, 3) * (math.nan if step in (5, 11) else 1.0)).square().mean()
        loss.backward()
        guard.observe(loss)
        optimizer.step()
        if step == int(killed_at):
            os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(*sys.argv[1:])
