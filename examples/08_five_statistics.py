"""Mean, std, max, min and zero ratio of every layer's gradient, without a hook or a Python loop of your own."""

import torch
from torch import nn

import gradguard


def main() -> None:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for _ in range(8):
        layers += [nn.Linear(32, 32), nn.Sigmoid()]  # deep and saturating: the gradient vanishes
    model = nn.Sequential(*layers, nn.Linear(32, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    told: list[str] = []
    with gradguard.attach(model, optimizer, notify=lambda finding: told.append(finding.message)) as guard:
        for step in range(100):
            inputs = torch.randn(64, 32)
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs), (inputs[:, 0] > 0).long())
            loss.backward()
            guard.observe(loss)
            if step == 50:
                found = gradguard.gradient_statistics(model)
                print(f"{'parameter':12}{'mean':>11}{'std':>11}{'max':>11}{'min':>11}{'zeros':>8}")
                for i, name in enumerate(found.names):
                    if name.endswith("weight"):
                        row = (found.mean[i], found.std[i], found.max[i], found.min[i])
                        print(f"{name:12}" + "".join(f"{v:11.2e}" for v in row) + f"{found.zero_ratio[i]:8.0%}")
            optimizer.step()
    print("\n".join(told))
    assert any("first layers hardly learn" in message for message in told)


if __name__ == "__main__":
    main()
