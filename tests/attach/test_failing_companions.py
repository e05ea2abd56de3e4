"""What was handed over with `attach(also=...)` and fails takes nothing else with it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import gradguard
from gradguard.policy.schema import Policy


class Failing:
    """Fails to be saved from the fifth time on, or to be put back."""

    def __init__(self, fails_at: str) -> None:
        self.fails_at = fails_at
        self.num_saved = 0

    def state_dict(self) -> dict[str, Any]:
        self.num_saved += 1
        if self.fails_at == "save" and self.num_saved > 4:
            raise RuntimeError("cannot be saved now")
        return {"a": torch.ones(2)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self.fails_at == "load":
            raise RuntimeError("cannot be put back")


@pytest.mark.parametrize("fails_at", ["save", "load"])
@pytest.mark.parametrize("remedy", ["rollback", "restart"])
def test_a_rollback_holds_although_something_handed_over_fails(fails_at: str, remedy: str) -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    rules = [{"when": "nonfinite", "do": remedy}]
    policy = Policy.model_validate({"sinks": [], "snapshots": {"every": 10}, "rules": rules})
    with gradguard.attach(model, optimizer, policy, also={"mine": Failing(fails_at)}) as guard:
        for step in range(30):
            optimizer.zero_grad()
            loss = (model(torch.full((2, 4), float("nan") if step == 22 else 1.0)) ** 2).mean()
            loss.backward()
            guard.observe(loss)
            optimizer.step()
    (action,) = [record for record in guard.records if record.kind == "intervention"]
    assert action.remedy == remedy
    assert ("also['mine'] could not be put back" in action.change.summary) == (fails_at == "load")
    assert all(bool(param.isfinite().all()) for param in model.parameters())
    events = [record.event for record in guard.records if record.kind == "event"]
    assert "internal_error" not in events
    assert events.count("snapshot_refused") == (fails_at == "save")
