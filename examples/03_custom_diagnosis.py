"""Your own diagnosis: one class. It sees numpy arrays of this step's measurements, never the model."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

import gradguard
from gradguard.contracts import Diagnosis
from gradguard.evidence.stats import ParameterTable, StepStats
from gradguard.records import Finding


@dataclass
class SilentState:
    """`steps` in a row without any gradient; one step with a gradient resets it."""

    steps: int = 0


@gradguard.register_diagnosis
class SilentGradient(Diagnosis[SilentState]):
    """The gradient of the whole model is exactly zero.

    Args:
        patience: steps in a row before it is reported, >= 1.
    """

    name = "silent_gradient"
    patience: int = 3

    def init(self, table: ParameterTable, rows: Sequence[int]) -> SilentState:
        return SilentState()

    def update(self, state: SilentState, stats: StepStats) -> tuple[SilentState, Finding | None]:
        state.steps = state.steps + 1 if stats.global_norm == 0 else 0
        if state.steps != self.patience:
            return state, None
        message = f"All gradients were exactly zero for {state.steps} steps."
        return state, Finding(diagnosis=self.name, step=stats.step, message=message)


def main() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1), nn.ReLU())
    nn.init.constant_(model[2].bias, -100.0)  # the output unit is dead from the start
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rule = {"when": {"silent_gradient": {"patience": 3}}, "do": "notify"}
    told: list[Finding] = []
    with gradguard.attach(model, optimizer, gradguard.Policy(rules=[rule]), notify=told.append):
        for _ in range(10):
            optimizer.zero_grad()
            model(torch.randn(16, 4)).square().mean().backward()
            optimizer.step()
    print(told[0].message)
    assert [finding.step for finding in told] == [2]


if __name__ == "__main__":
    main()
