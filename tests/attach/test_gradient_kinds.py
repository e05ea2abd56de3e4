"""Sparse, complex, low-precision and huge gradients: measured, clipped and skipped like any other."""

import math

import pytest
import torch
from torch import nn

import gradguard


def sparse_grad():
    """Row 1 comes twice: only the sum of its entries is a gradient."""
    index = torch.tensor([[1, 4, 1]])
    entries = torch.tensor([[3.0, 0.0], [1.0, 2.0], [-1.0, 5.0]])
    return torch.sparse_coo_tensor(index, entries, (6, 2), check_invariants=True)


KINDS = {
    "float32": (torch.ones(4), torch.tensor([3.0, -4.0, 0.5, 2.0])),
    "float64": (torch.ones(4).double(), torch.linspace(-3, 4, 4, dtype=torch.float64)),
    "float16": (torch.ones(4).half(), torch.tensor([200.0, -300.0, 400.0, 1.0], dtype=torch.float16)),
    "bfloat16": (torch.ones(4).bfloat16(), torch.tensor([3.0, -4.0, 0.5, 2.0], dtype=torch.bfloat16)),
    "complex64": (torch.ones(3, dtype=torch.complex64), torch.tensor([3 + 4j, 1 - 2j, 0.5j])),
    "complex128": (torch.ones(2, dtype=torch.complex128), torch.tensor([3 + 4j, 7j], dtype=torch.complex128)),
    "sparse": (torch.ones(6, 2), sparse_grad()),
    "scalar": (torch.tensor(1.0), torch.tensor(-7.0)),
    "transposed": (torch.ones(3, 2).t(), torch.arange(6.0).reshape(3, 2).t()),
    "empty": (torch.ones(0, 3), torch.ones(0, 3)),
}
MIXED = ("float64", "bfloat16", "complex64", "sparse", "scalar", "empty")
CASES = [*((kind,) for kind in KINDS), MIXED]
SPOILABLE = [case for case in CASES if case != ("empty",)]


class Holder(nn.Module):
    """Parameters with a gradient each, and nothing to compute."""

    def __init__(self, kinds):
        super().__init__()
        self.kinds = kinds
        for kind in kinds:
            self.register_parameter(f"of_{kind}", nn.Parameter(KINDS[kind][0].clone()))

    def backward(self, factor=1.0):
        for kind in self.kinds:
            getattr(self, f"of_{kind}").grad = KINDS[kind][1].clone().mul_(factor)

    def dense_grads(self):
        return [param.grad.to_dense() for param in self.parameters()]


def attach(kinds, *rules):
    model = Holder(kinds)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    return model, optimizer, gradguard.attach(model, optimizer, gradguard.Policy(rules=rules) if rules else None)


def exact_norm(grads):
    return math.sqrt(math.fsum(float(grad.to(torch.complex128).abs().square().sum()) for grad in grads))


def spoil(grad, value):
    entries = grad._values() if grad.layout == torch.sparse_coo else grad
    entries[(-1,) * entries.ndim] = value


@pytest.mark.parametrize("kinds", CASES, ids="+".join)
def test_the_norm_is_exact_and_measuring_writes_nothing(kinds):
    model, optimizer, guard = attach(kinds)
    for _ in range(3):
        model.backward()
        optimizer.step()
        assert guard.last.global_norm == pytest.approx(exact_norm(model.dense_grads()), rel=1e-6)
        assert {finding.diagnosis for finding in guard.last.findings} <= {"bad_initialization"}  # weights of ones
        for kind, grad in zip(kinds, model.dense_grads(), strict=True):
            assert torch.equal(grad, KINDS[kind][1].to_dense())


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("kinds", SPOILABLE, ids="+".join)
def test_one_bad_entry_is_found_named_and_skipped(kinds, value):
    model, optimizer, guard = attach(kinds)
    model.backward()
    optimizer.step()
    before = [param.detach().clone() for param in model.parameters()]
    model.backward()
    victim = next(kind for kind in reversed(kinds) if kind != "empty")
    spoil(getattr(model, f"of_{victim}").grad, value)
    optimizer.step()
    assert guard.last.skipped_by == "guard"
    (finding,) = guard.last.findings
    assert finding.parameters == (f"of_{victim}",)
    assert finding.value == 1
    assert finding.evidence["kind"] == ("NaN" if math.isnan(value) else "Inf")
    for param, old in zip(model.parameters(), before, strict=True):
        assert torch.equal(param, old)


@pytest.mark.parametrize("max_norm", [1.0, 1e6])
@pytest.mark.parametrize("kinds", CASES, ids="+".join)
def test_clipping_agrees_with_torch(kinds, max_norm):
    """Torch cannot clip sparse gradients: it gets the dense ones. It rounds the norm of a bfloat16 one to bfloat16."""
    tolerance = {"rtol": 1e-2, "atol": 1e-4} if kinds == MIXED else {}
    model, optimizer, guard = attach(kinds, {"when": "always", "do": {"clip_norm": {"max_norm": max_norm}}})
    model.backward()
    twins = [nn.Parameter(grad.clone()) for grad in model.dense_grads()]
    for twin in twins:
        twin.grad = twin.detach().clone()
    optimizer.step()
    torch.nn.utils.clip_grad_norm_(twins, max_norm)
    torch.testing.assert_close(model.dense_grads(), [twin.grad for twin in twins], **tolerance)
    assert (guard.last.clip_coef < 1.0) == (exact_norm(KINDS[kind][1] for kind in kinds) > max_norm)


@pytest.mark.parametrize("kinds", [("float32",), ("float16",), ("bfloat16",), ("float64",), ("float32", "bfloat16")])
def test_clipping_values_agrees_with_torch(kinds):
    model, optimizer, _ = attach(kinds, {"when": "always", "do": {"clip_value": {"max_value": 0.7}}})
    model.backward()
    twins = [nn.Parameter(param.detach().clone()) for param in model.parameters()]
    for twin, grad in zip(twins, model.dense_grads(), strict=True):
        twin.grad = grad.clone()
    optimizer.step()
    torch.nn.utils.clip_grad_value_(twins, 0.7)
    assert all(torch.equal(grad, twin.grad) for grad, twin in zip(model.dense_grads(), twins, strict=True))


@pytest.mark.parametrize("kinds", [("sparse",), ("complex64",), MIXED], ids="+".join)
def test_the_other_gradient_remedies_act_on_the_entries_themselves(kinds):
    rules = [
        {"name": "zero", "when": "nonfinite", "do": "zero_nonfinite"},
        {"name": "cap", "when": "always", "do": [{"clip_value": {"max_value": 2.0}}, {"rescale": {"factor": 0.5}}]},
    ]
    model, optimizer, guard = attach(kinds, *rules)
    model.backward()
    expected = []
    for grad in model.dense_grads():
        parts = torch.view_as_real(grad) if grad.is_complex() else grad
        expected.append(parts.clamp(-2, 2) / 2)
    optimizer.step()
    for grad, wanted in zip(model.dense_grads(), expected, strict=True):
        torch.testing.assert_close(torch.view_as_real(grad) if grad.is_complex() else grad, wanted)
    model.backward()
    spoil(getattr(model, f"of_{kinds[0]}").grad, math.nan)
    optimizer.step()
    assert not guard.last.skipped
    assert [record.remedy for record in guard.last.interventions] == ["zero_nonfinite"]
    assert all(param.isfinite().all() for param in model.parameters())


@pytest.mark.parametrize("kinds", [("float32",), ("bfloat16",), ("complex64",), ("float32", "complex64")], ids="+".join)
def test_a_norm_that_overflows_is_told_from_an_infinity_and_still_clipped(kinds):
    """Squares of entries near 1e20 do not fit into float32, although each entry is finite."""
    model, optimizer, guard = attach(
        kinds,
        {"name": "bad", "when": "nonfinite", "do": "skip_step"},
        {"name": "big", "when": "exploding_gradient", "do": {"clip_norm": {"max_norm": 1.0}}},
    )
    model.backward(factor=3e19)
    norm = exact_norm(model.dense_grads())
    optimizer.step()
    assert not guard.last.skipped
    assert [finding.diagnosis for finding in guard.last.findings] == ["exploding_gradient"]
    assert guard.last.global_norm == pytest.approx(norm, rel=1e-6)
    assert exact_norm(model.dense_grads()) == pytest.approx(1.0, rel=1e-2)


def test_a_half_precision_norm_beyond_its_own_range_is_no_overflow():
    """65504 is the largest float16; the norm of its entries may well be more."""
    model, optimizer, guard = attach(("float16",))
    for _ in range(3):
        model.of_float16.grad = torch.full((4,), 60000.0, dtype=torch.float16)
        optimizer.step()
        model.of_float16.data.fill_(1.0)
        assert guard.last.global_norm == pytest.approx(120000.0, rel=1e-3)
        assert not [finding for finding in guard.last.findings if finding.evidence.get("norm_overflowed")]


class Lookup(nn.Module):
    def __init__(self):
        super().__init__()
        self.rows = nn.Embedding(12, 3, sparse=True)
        self.head = nn.Linear(3, 1)

    def forward(self, index):
        return self.head(self.rows(index))


def test_an_embedding_with_sparse_gradients_trains_as_unguarded_and_skips_without_a_trace(bits):
    def run(is_guarded, bad_at=()):
        torch.manual_seed(0)
        model = Lookup()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        guard = gradguard.attach(model, optimizer) if is_guarded else None
        for step in range(10):
            for is_bad in [True, False] if step in bad_at else [False]:
                optimizer.zero_grad()
                loss = model(torch.arange(step, step + 6) % 12).square().mean() * (math.nan if is_bad else 1.0)
                loss.backward()
                optimizer.step()
                assert guard is None or guard.last.skipped == is_bad
        return bits(model, optimizer)

    expected = run(False)
    assert run(True) == expected
    assert run(True, bad_at=(0, 4)) == expected
