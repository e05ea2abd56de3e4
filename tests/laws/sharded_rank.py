"""One of two processes that train a sharded model: `sharded_rank.py RANK FOLDER` prints what it saw as JSON.

The model is cut over both ranks (FSDP2), once with each way to wait for the device. At step 12 the batch of rank 1 is
NaN; from step 30 on the loss is so high that rules climb their ladders to a rollback.
"""

import json
import math
import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from loguru import logger
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

import gradguard


def train(rank, folder, sync):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3), nn.Tanh(), nn.Linear(3, 1))
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)
    policy = gradguard.Policy(**{**gradguard.load_policy(None).model_dump(mode="json"), "monitor": {"sync": sync}})
    guard = gradguard.attach(model, optimizer, policy, run_dir=f"{folder}/{sync}" if rank == 0 else None)
    gathered = []
    full_tensor = DTensor.full_tensor
    DTensor.full_tensor = lambda self, **options: (gathered.append(self.numel()), full_tensor(self, **options))[1]
    worst = 0.0
    for step in range(40):
        inputs = torch.randn(8, 5, generator=torch.Generator().manual_seed(2 * step + rank))
        if (rank, step) == (1, 12):
            inputs[0] = math.nan
        optimizer.zero_grad()
        loss = (model(inputs) - 1.0).square().mean() * (1e6 if step >= 30 else 1.0)
        loss.backward()
        guard.observe(loss)
        grads = [full_tensor(param.grad) for param in model.parameters()]
        optimizer.step()
        if step == 11:
            gathered_while_healthy = sum(gathered)
        if step % 3 == 0 and not guard.last.skipped and guard.last.clip_coef == 1.0:
            expected = torch.stack([grad.norm() for grad in grads]).norm()
            worst = max(worst, abs(float(expected) / guard.last.global_norm - 1.0))
    guard.close()
    done = [(record.remedy, record.step) for record in guard.records if record.kind == "intervention"]
    skipped = [step for remedy, step in done if remedy == "skip_step"]
    rolled_back = [step for remedy, step in done if remedy == "rollback"]
    weights = [round(float(full_tensor(param.detach()).double().sum()), 9) for param in model.parameters()]
    told = {
        "gathered": gathered_while_healthy,
        "worst": worst,
        "skipped": skipped,
        "rolled_back": rolled_back,
        "weights": weights,
        "run": guard.run_dir,
    }
    DTensor.full_tensor = full_tensor
    return {**told, "waits": guard.reasons_to_wait}


def main(rank, folder):
    logger.remove()
    torch.set_num_threads(1)
    meeting = f"file://{folder}/meeting"
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=2, timeout=timedelta(seconds=30))
    for sync in ("immediate", "deferred"):
        print(json.dumps(train(rank, folder, sync)), flush=True)
    dist.barrier()
    os._exit(0)  # gloo's own threads may outlive the interpreter and then abort the process


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
