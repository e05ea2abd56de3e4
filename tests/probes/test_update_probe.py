"""What the optimizer's step did, against the parameters themselves."""

import math

import numpy as np
import pytest
import torch
from probing import draw, mlp, policy, seen_by, train
from torch import nn

import gradguard
from gradguard.evidence.probe_stats import Updates
from gradguard.probes.parameter_entries import NUM_ENTRIES, ParameterEntries


def updates(guard):
    return [seen for _, seen in seen_by(guard) if isinstance(seen, Updates)]


def start(model, optimizer, **monitor):
    return gradguard.attach(model, optimizer, policy(every=10, **monitor))


def flat(model):
    return torch.cat([param.detach().reshape(-1) for param in model.parameters()]).clone()


def test_the_norms_are_those_of_what_changed():
    model = mlp(nn.ReLU())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    params = [[p.detach().clone() for p in model.parameters()]]
    with start(model, optimizer, updates="every_step") as guard:
        for _ in range(6):
            train(model, optimizer, draw(16, 8), 1, guard)
            params.append([p.detach().clone() for p in model.parameters()])
        found = updates(guard)
    assert [seen.step for seen in found] == [0, 1, 2, 3, 4]
    for seen in found:
        before, after = params[seen.step], params[seen.step + 1]
        expected = [(new - old).norm().item() for new, old in zip(after, before, strict=True)]
        np.testing.assert_allclose(seen.update_norms, expected, rtol=1e-4)
        assert (seen.lr, seen.lr_max) == (0.01, 0.01)
    one, two = (torch.cat([(b - a).reshape(-1) for a, b in zip(params[i], params[i + 1], strict=True)]) for i in (2, 3))
    assert math.isnan(found[0].cosine)
    assert found[3].cosine == pytest.approx(torch.cosine_similarity(one, two, dim=0).item(), rel=1e-3)


def test_large_tensors_are_estimated_from_entries_of_all_columns():
    torch.manual_seed(0)
    before, change = torch.randn(600, 256), torch.randn(600, 256) * 1e-3
    entries = ParameterEntries([before, torch.zeros(3)])
    assert entries.sizes[0] < 2 * NUM_ENTRIES
    assert entries.sizes[1] == 3
    columns = torch.arange(256.0).expand(600, 256).contiguous()
    (copy,) = entries.copy([columns, torch.zeros(3)])
    assert copy[: entries.sizes[0]].unique().numel() == 256
    (old,), (new,) = entries.copy([before, torch.zeros(3)]), entries.copy([before + change, torch.zeros(3)])
    estimate = (new - old).norm().item() * math.sqrt(entries.factors[0])
    assert estimate == pytest.approx(change.norm().item(), rel=0.05)


@pytest.mark.parametrize("make", [lambda t: t, lambda t: t.t(), lambda t: t.to(torch.bfloat16)])
def test_entries_of_every_layout_are_the_tensors_own(make):
    tensor = make(torch.arange(64.0).reshape(8, 8))
    (copy,) = ParameterEntries([tensor]).copy([tensor])
    assert torch.equal(copy, tensor.reshape(-1))


def test_a_parameter_that_does_not_move_is_named():
    """Weights so large that the update is lost in rounding, and one so large that only a few entries are sampled."""
    model = nn.Sequential(nn.Linear(300, 300, bias=False), nn.Linear(300, 1, bias=False))
    with torch.no_grad():
        model[0].weight.fill_(1e4)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-12)
    with start(model, optimizer) as guard:
        train(model, optimizer, lambda step: torch.full((4, 300), 1e-6), 3, guard)
        (seen,) = updates(guard)
    assert 0 in seen.unmoved


def test_a_row_of_an_embedding_that_moves_is_found_though_no_sampled_entry_did():
    class Lookup(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(5000, 16)

        def forward(self, rows):
            return self.table(rows)

    model = Lookup()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sampled = ParameterEntries([model.table.weight])
    marks = torch.arange(5000.0)[:, None].expand(5000, 16).contiguous()
    (rows,) = sampled.copy([marks])
    unsampled = sorted(set(range(5000)) - set(rows.long().tolist()))[:3]
    assert unsampled
    with start(model, optimizer) as guard:
        train(model, optimizer, lambda step: torch.tensor(unsampled), 3, guard)
        (seen,) = updates(guard)
    assert seen.update_norms.tolist() == [0.0]
    assert seen.unmoved == ()


def test_a_rate_of_zero_moves_nothing_on_purpose():
    model = mlp(nn.ReLU())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with start(model, optimizer) as guard:
        train(model, optimizer, draw(16, 8), 3, guard)
        (seen,) = updates(guard)
    assert seen.unmoved == ()
    assert math.isnan(seen.cosine)


def test_parameters_that_nobody_trains_are_named():
    model = mlp(nn.ReLU(), nn.ReLU())
    model[4].bias.requires_grad_(False)
    optimizer = torch.optim.SGD([*model[0].parameters()], lr=0.1)
    with start(model, optimizer) as guard:
        train(model, optimizer, draw(16, 8), 45, guard)
        found = updates(guard)
    assert found[0].untrained == ()  # too early to say
    assert found[-1].untrained == ("2.weight", "2.bias", "4.weight")


@pytest.mark.parametrize("is_other_guarded", [False, True])
@pytest.mark.parametrize("silently", [False, True])
def test_parameters_that_another_optimizer_trains_are_not(is_other_guarded, silently):
    model = nn.ModuleDict({"g": mlp(nn.ReLU()), "d": mlp(nn.ReLU(), width=3)})
    optimizers = {name: torch.optim.SGD(part.parameters(), lr=0.1) for name, part in model.items()}
    guards = [start(model, optimizers["g"])] + ([start(model, optimizers["d"])] if is_other_guarded else [])
    for step in range(45):
        for optimizer in optimizers.values():
            optimizer.zero_grad()
        model["d"](model["g"](draw(16, 8)(step))).square().mean().backward()
        if silently and not is_other_guarded:
            for param in model["d"].parameters():
                param.data.sub_(0.1 * param.grad)
        else:
            optimizers["d"].step()
        optimizers["g"].step()
    for guard in guards:
        assert [seen.untrained for seen in updates(guard)] == [()] * len(updates(guard))
        assert len(updates(guard)) > 2
        guard.close()


def test_parameters_that_never_had_a_gradient_are_told():
    model = mlp(nn.ReLU())
    model.unused = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with start(model, optimizer) as guard:
        names = guard._pipeline.monitor.table.names
        for step in range(15):
            optimizer.zero_grad()
            loss = model[2](model[1](model[0](draw(4, 8)(step)))).square().mean()
            (loss + (model.unused.bias.sum() if step == 5 else 0.0)).backward()
            optimizer.step()
        found = updates(guard)
    assert [[names[row] for row in seen.without_gradient] for seen in found] == [
        ["unused.weight", "unused.bias"],
        ["unused.weight"],
    ]


def test_a_skipped_step_gives_no_updates():
    model = mlp(nn.ReLU())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rules = [*policy().rules, {"when": "nonfinite", "do": "skip_step"}]
    with gradguard.attach(model, optimizer, gradguard.Policy(rules=rules, sinks=[])) as guard:
        for step in range(4):
            train(model, optimizer, lambda _, s=step: draw(4, 8)(s) * (math.nan if s == 1 else 1.0), 1, guard)
        found = updates(guard)
    assert [seen.step for seen in found] == [2]
    assert math.isfinite(found[0].cosine)
