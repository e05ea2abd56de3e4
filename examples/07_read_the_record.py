"""After training: findings, interventions and statistics as plain objects and numpy arrays."""

import tempfile

import numpy as np
import torch
from torch import nn

import gradguard
from gradguard import faults


def train(run_dir: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    broken = [faults.Fault("nan", "gradient", at=60), faults.Fault("scale", "gradient", at=90, factor=1e4)]
    with faults.inject(model, optimizer, broken), gradguard.attach(model, optimizer, run_dir=run_dir) as guard:
        for _ in range(150):
            inputs = torch.randn(64, 8)
            optimizer.zero_grad()
            loss = (model(inputs) - inputs.prod(1, keepdim=True)).square().mean()
            loss.backward()
            guard.observe(loss)
            optimizer.step()


def main() -> None:
    run_dir = tempfile.mkdtemp() + "/run"
    train(run_dir)
    run = gradguard.read_run(run_dir)
    for record in run.interventions:
        print(f"step {record.step}: {record.diagnosis} -> {record.remedy}: {record.change.summary}")
        print(f"    {record.finding.message}")
        if record.outcome is not None:  # a remedy that only tells has none
            print(f"    afterwards: {record.outcome.verdict}, {record.outcome.reason}")
    statistics = run.statistics
    norms = statistics["norms"]  # (steps, parameters), as measured before any remedy
    print(f"{norms.shape[0]} steps x {norms.shape[1]} parameters: {run.parameters}")
    worst = int(np.nanargmax(statistics["global_norm"]))
    print(f"largest finite gradient norm: {statistics['global_norm'][worst]:.3g} at step {statistics['step'][worst]}")
    assert [record.step for record in run.interventions if record.remedy != "notify"] == [60, 90]
    assert worst == 90


if __name__ == "__main__":
    main()
