"""The kinds of fault of a drill."""

import pytest

from gradguard.drill.kinds import KINDS, find_kinds
from gradguard.errors import UsageError


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_kind_is_a_fault_that_begins_at_the_step(kind):
    fault = kind.fault(40)
    struck = [step for step in range(200) if fault.strikes_at(step)]
    assert struck == list(range(40, 40 + kind.num_steps))


def test_every_place_and_every_sort_of_fault_is_drilled():
    assert {kind.where for kind in KINDS} == {"batch", "gradient", "lr", "weight"}
    assert {kind.what for kind in KINDS} == {"nan", "inf", "scale", "zero", "bitflip"}


def test_no_name_means_all_of_them():
    assert find_kinds([]) == KINDS
    assert len({kind.name for kind in KINDS}) == len(KINDS)


def test_an_unknown_kind_is_refused_with_the_nearest():
    with pytest.raises(UsageError, match="unknown kind of fault 'nan-bach'; did you mean 'nan-batch'"):
        find_kinds(["nan-bach"])
