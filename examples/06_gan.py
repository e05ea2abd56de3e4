"""Two optimizers, two guards, one run directory: each judges only its own optimizer's parameters."""

import tempfile

import torch
from torch import nn

import gradguard


def skipped(run_dir: str, name: str) -> list[int]:
    """Return the steps that one of the guards passed over."""
    return [record.step for record in gradguard.read_run(run_dir, name).interventions if record.remedy == "skip_step"]


def main() -> None:
    torch.manual_seed(0)
    generator = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))
    critic = nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
    optim_g = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.9))
    optim_c = torch.optim.Adam(critic.parameters(), lr=1e-3, betas=(0.5, 0.9))
    bce = nn.functional.binary_cross_entropy_with_logits
    ones, zeros = torch.ones(64, 1), torch.zeros(64, 1)

    run_dir = tempfile.mkdtemp() + "/gan"
    with (
        gradguard.attach(generator, optim_g, "gan", run_dir=run_dir, name="generator") as guard_g,
        gradguard.attach(critic, optim_c, "gan", run_dir=run_dir, name="critic") as guard_c,
    ):
        for step in range(150):
            real = torch.randn(64, 2) * 0.3 + torch.tensor([1.0, -1.0])
            if step == 100:
                real[0] = float("inf")  # breaks the critic's batch only
            fake = generator(torch.randn(64, 4))
            optim_c.zero_grad()
            loss_c = bce(critic(real), ones) + bce(critic(fake.detach()), zeros)
            loss_c.backward()
            guard_c.observe(loss_c)
            optim_c.step()

            optim_g.zero_grad()
            loss_g = bce(critic(fake), ones)
            loss_g.backward()
            guard_g.observe(loss_g)
            optim_g.step()

    for name in ("generator", "critic"):
        run = gradguard.read_run(run_dir, name)
        print(f"{name:9} {len(run.parameters)} parameters, skipped {skipped(run_dir, name)}")
    assert skipped(run_dir, "critic") == [100]
    assert skipped(run_dir, "generator") == []


if __name__ == "__main__":
    main()
