"""The rank test, beside one that counts every arrangement."""

from itertools import combinations

import numpy as np
import pytest

from gradguard.evidence.rank_test import rank_p_value


def exact(lower, higher):
    """Return the share of all ways to split the values in which `lower` wins as many pairs."""
    values = [*lower, *higher]

    def wins(chosen):
        rest = [value for index, value in enumerate(values) if index not in chosen]
        return sum(values[i] < other for i in chosen for other in rest)

    found = wins(range(len(lower)))
    ways = list(combinations(range(len(values)), len(lower)))
    return sum(wins(set(way)) >= found for way in ways) / len(ways)


@pytest.mark.parametrize("seed", range(6))
def test_it_is_near_the_exact_value(seed):
    random = np.random.default_rng(seed)
    lower, higher = random.standard_normal(6).tolist(), (random.standard_normal(7) + 0.5).tolist()
    assert rank_p_value(lower, higher) == pytest.approx(exact(lower, higher), abs=0.02)


def test_order_and_ties():
    low, high = [1.0, 2.0, 3.0, 4.0, 5.0], [6.0, 7.0, 8.0, 9.0, 10.0]
    assert rank_p_value(low, high) < 0.01 < 0.99 < rank_p_value(high, low)
    assert rank_p_value([1.0] * 8, [1.0] * 8) == 1.0
    assert rank_p_value([1.0] * 8, [1.0] * 7 + [2.0]) > 0.05
    assert rank_p_value([1.0], [2.0]) > 0.05
