"""A real training in a process of its own, which does what it is told line by line: `good 100`, `nan 1`, `close`."""

from __future__ import annotations

import sys

import torch
from loguru import logger
from torch import nn

import gradguard


def main() -> None:
    logger.remove()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    guard = gradguard.attach(model, optimizer, run_dir=sys.argv[1])
    print("ready", flush=True)
    for line in sys.stdin:
        word, _, count = line.partition(" ")
        if word.strip() == "close":
            guard.close()
        for _ in range(int(count or 0)):
            inputs = torch.randn(16, 4)
            optimizer.zero_grad()
            targets = inputs[:, :1] * (float("nan") if word == "nan" else 1.0)
            loss = nn.functional.mse_loss(model(inputs), targets)
            loss.backward()
            guard.observe(loss)
            optimizer.step()
        print("done", flush=True)


if __name__ == "__main__":
    main()
