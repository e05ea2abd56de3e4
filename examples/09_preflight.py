"""A pre-flight finds three mistakes before the first step, and none once they are cured."""

import torch
from sklearn.datasets import load_digits
from torch import nn

import gradguard


def setup(is_cured: bool = False) -> tuple:
    torch.manual_seed(0)
    images, labels = load_digits(return_X_y=True)
    images, labels = torch.tensor(images, dtype=torch.float32) * 15, torch.tensor(labels)  # 0 to 240
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    trained = model[2].parameters()
    if is_cured:
        images = (images - images.mean()) / images.std()
        trained = model.parameters()
    else:
        model.append(nn.Softmax(dim=1))
    optimizer = torch.optim.SGD(trained, lr=0.1)
    return model, optimizer, (images[:64], labels[:64]), nn.CrossEntropyLoss()


def main() -> None:
    report = gradguard.preflight(*setup())
    report.show()
    found = {finding.check for finding in report.findings}
    assert {"inputs", "output_layer", "optimizer_coverage"} <= found

    cured = gradguard.preflight(*setup(is_cured=True), overfit=True)
    cured.raise_for_findings()  # this line alone is a test of the set-up
    print(f"\ncured: one batch goes from a loss of {cured.overfit[0]:.2f} to {cured.overfit[-1]:.3f}")


if __name__ == "__main__":
    main()
