"""The record of a training, all of its files, takes at most 5 bytes a parameter tensor and step (DESIGN, section 8)."""

import torch
from torch import nn

import gradguard
from gradguard.audit.verify import check_run


NUM_LAYERS, NUM_STEPS = 40, 1300  # so many that rows of gradients are packed, too
MOST = 5.0


def test_a_healthy_run_under_the_default_policy_costs_at_most_five_bytes_a_tensor_and_step(tmp_path):
    torch.manual_seed(0)
    layers = [part for _ in range(NUM_LAYERS - 1) for part in (nn.Linear(8, 8), nn.ReLU())]
    model = nn.Sequential(*layers, nn.Linear(8, 1))
    for layer in layers[::2]:
        nn.init.orthogonal_(layer.weight, 2**0.5)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    guard = gradguard.attach(model, optimizer, run_dir=tmp_path / "run")
    for _ in range(NUM_STEPS):
        inputs = torch.randn(64, 8)
        loss = (model(inputs) - inputs[:, :1]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        guard.observe(loss)
        optimizer.step()
    guard.close()
    sizes = {
        str(path.relative_to(tmp_path / "run")): path.stat().st_size
        for path in (tmp_path / "run").rglob("*")
        if path.is_file()
    }
    num_norms = 2 * NUM_LAYERS * NUM_STEPS
    told = {name: round(size / num_norms, 3) for name, size in sorted(sizes.items())}
    assert sum(sizes.values()) / num_norms <= MOST, told
    assert {"probes.jsonl", "replay.jsonl", "seals.jsonl"} < set(sizes)
    assert check_run(tmp_path / "run").verdict == "whole"
