"""Your own remedy: one class. Only remedies change anything, and each says what it changed."""

from collections.abc import Sequence

import torch
from torch import nn

import gradguard
from gradguard.contracts import Remedy
from gradguard.flow.target import Target
from gradguard.records import Change, Finding


@gradguard.register_remedy
class SignGradient(Remedy):
    """Replace gradients by their sign times a step size.

    Args:
        size: magnitude of every entry, > 0.
    """

    name = "sign_gradient"
    kind = "gradient"
    rank = 50
    what = "An exploding gradient keeps only the direction of each entry."
    size: float = 1e-3

    def apply(self, target: Target, finding: Finding | None, rows: Sequence[int] | None) -> Change:
        members = target.rows(rows)
        before = target.stats.global_norm
        for grad in target.grads(members):
            grad.sign_().mul_(self.size)
        target.measure_again(members)
        after = target.stats.global_norm
        summary = f"signs only, gradient norm {before:.3g} -> {after:.3g}"
        return Change(summary=summary, before={"global_norm": before}, after={"global_norm": after})


def main() -> None:
    torch.manual_seed(0)
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    policy = gradguard.Policy(rules=[{"when": "exploding_gradient", "do": {"sign_gradient": {"size": 0.01}}}])
    with gradguard.attach(model, optimizer, policy) as guard:
        for step in range(60):
            inputs = torch.randn(32, 8) * (1000.0 if step == 50 else 1.0)  # one batch in the wrong unit
            optimizer.zero_grad()
            loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
            loss.backward()
            guard.observe(loss)
            optimizer.step()
            if step == 50:
                change = guard.last.interventions[0].change
                print(change.summary)
                assert change.after["global_norm"] < 0.1
    assert loss.item() < 1.0


if __name__ == "__main__":
    main()
