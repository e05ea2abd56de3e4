"""Three lines guard a training loop. Here batch 40 is corrupt, and the loop does not know."""

import tempfile

import torch
from sklearn.datasets import load_digits
from torch import nn

import gradguard


def main() -> None:
    torch.manual_seed(0)
    images, labels = load_digits(return_X_y=True)
    images, labels = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)
    model = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    run_dir = tempfile.mkdtemp() + "/digits"
    guard = gradguard.attach(model, optimizer, run_dir=run_dir)  # 1: attach
    for step in range(120):
        batch = torch.randint(0, len(images), (64,))
        inputs = images[batch].clone()
        if step == 40:
            inputs[7] = float("nan")
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), labels[batch])
        loss.backward()
        guard.observe(loss)  # 2: hand in the loss
        optimizer.step()
    guard.close()  # 3: finish the record

    model.eval()
    accuracy = (model(images).argmax(1) == labels).float().mean().item()
    skipped = [done.step for done in gradguard.read_run(run_dir).interventions if done.remedy == "skip_step"]
    print(f"accuracy {accuracy:.3f}; steps that were skipped: {skipped}")
    print(f"now try: gradguard audit {run_dir}")
    assert skipped == [40]
    assert accuracy > 0.9


if __name__ == "__main__":
    main()
