"""rescale multiplies the gradients of the rule's parameters by its factor."""

import pytest
import torch
from aim import aim, grads_of
from hypothesis import given, settings
from hypothesis import strategies as st

from gradguard.contracts import REMEDIES


LAW = settings(max_examples=40, deadline=None, derandomize=True)
Rescale = REMEDIES.get("rescale")
GRADS = [torch.tensor([3.0, 4.0]), torch.tensor(12.0), None, torch.zeros(0)]


@LAW
@given(st.floats(0, 10), st.one_of(st.none(), st.sets(st.integers(0, 3))))
def test_the_selected_gradients_are_multiplied_and_the_norms_noted(factor, rows):
    target = aim(*GRADS)
    rows = None if rows is None else sorted(rows)
    change = Rescale(factor=factor).apply(target, None, rows)
    chosen = range(4) if rows is None else rows
    for row, grad in enumerate(GRADS):
        if grad is not None:
            expected = grad * factor if row in chosen else grad
            torch.testing.assert_close(grads_of(target)[row], expected)
            assert target.stats.norms[row] == pytest.approx(float(expected.norm()))
    total = sum(float(norm) ** 2 for norm in target.stats.norms if norm >= 0) ** 0.5
    assert target.stats.global_norm == pytest.approx(total, rel=1e-6)
    assert target.clip_coef == pytest.approx(factor if rows is None else 1.0)
    is_moot = factor == 1.0 or not set(chosen) - {2}
    assert (change is None) == is_moot


def test_the_change_tells_the_norms_and_how_many():
    change = Rescale(factor=0.5).apply(aim(*GRADS), None, [0, 1])
    assert change.before == {"global_norm": pytest.approx(13.0)}
    assert change.after == {"global_norm": pytest.approx(6.5), "factor": 0.5, "parameters": 2}
