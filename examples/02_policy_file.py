"""A policy file decides what is done; here the third NaN batch in a row stops the run."""

from pathlib import Path

import torch
from torch import nn

import gradguard


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(8, 32)
        self.head = nn.Linear(32, 1)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.body(inputs)))


def main() -> None:
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    policy = Path(__file__).with_name("gradguard.yaml")
    with gradguard.attach(model, optimizer, policy) as guard:
        try:
            for step in range(200):
                inputs = torch.randn(32, 8)
                if step >= 100:
                    inputs[0, 0] = float("nan")  # from here on the data is broken
                optimizer.zero_grad()
                loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
                loss.backward()
                guard.observe(loss)
                optimizer.step()
        except gradguard.TrainingStopped as stopped:
            print(stopped)
        else:
            raise AssertionError("the policy should have stopped this run")
    assert all(param.isfinite().all() for param in model.parameters())
    print(f"the weights are finite, as step {guard.step - 1} left them")


if __name__ == "__main__":
    main()
