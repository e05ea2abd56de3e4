"""Mixed precision with GradScaler: the guard judges unscaled gradients, and knows the scaler's skips from its own."""

import torch
from torch import nn

import gradguard


def main() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24, backoff_factor=0.02)  # too high: the first steps overflow
    skipped_by: dict[str, list[int]] = {"scaler": [], "guard": []}
    with gradguard.attach(model, optimizer, scaler=scaler) as guard:
        for step in range(60):
            inputs = torch.randn(64, 16)
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                loss = (model(inputs) - inputs[:, :1]).square().mean()
            if step == 40:
                loss = loss * 10.0  # one absurd batch, not large enough to overflow
            scaler.scale(loss).backward()
            guard.observe(loss)  # the loss itself, not the scaled one
            scaler.step(optimizer)
            scale = scaler.get_scale()
            scaler.update()
            if guard.last.skipped_by is not None:
                skipped_by[guard.last.skipped_by].append(step)
            if step == 40:
                assert scaler.get_scale() == scale  # the guard's skip does not back the loss scale off
    print(f"skipped by the scaler: {skipped_by['scaler']}, by the guard: {skipped_by['guard']}")
    assert skipped_by["scaler"]
    assert skipped_by["guard"] == [40]


if __name__ == "__main__":
    main()
