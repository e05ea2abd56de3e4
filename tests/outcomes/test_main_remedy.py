"""Of several remedies the one that weighs most is told of first, in whatever order they were applied."""

from itertools import permutations

import pytest

from gradguard.contracts import REMEDIES
from gradguard.outcomes.main_remedy import main_first


@pytest.mark.parametrize("main", ["rollback", "restart", "stop"])
def test_a_verdict_on_the_step_goes_before_all_that_came_with_it(main):
    for names in permutations(["scale_lr", "keep_clipping", main, "notify"]):
        ordered = main_first(names)
        assert (ordered[0], ordered[-1], len(ordered)) == (main, "notify", 4)


def test_stop_weighs_most_and_an_unknown_remedy_is_told_of_too():
    assert main_first(["mine", "rollback", "stop", "mine"]) == ["stop", "rollback", "mine"]
    assert sorted(main_first(REMEDIES.names())) == sorted(REMEDIES.names())
