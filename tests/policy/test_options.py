"""The options of components, in words."""

from __future__ import annotations

import pytest

from gradguard.contracts import DIAGNOSES, REMEDIES, SINKS
from gradguard.policy.options import Option, argument_meanings, options
from gradguard.policy.schema import MonitorOptions, Policy, Rule, Rung, SnapshotOptions


def test_an_option_has_its_type_its_default_and_its_meaning() -> None:
    found = {option.name: option for option in options(SnapshotOptions)}
    assert found["max_memory_share"] == Option(
        name="max_memory_share",
        type="number > 0, <= 1",
        default="0.5",
        meaning="no snapshot is kept that would take more than this share of the free memory, in (0, 1].",
    )


def test_options_that_have_to_be_given_come_first() -> None:
    found = options(REMEDIES.get("clip_norm"))
    assert (found[0].name, found[0].default) == ("max_norm", None)
    assert found[0].type.startswith("number > 0 | {median_times: number > 0")


@pytest.mark.parametrize(
    "cls",
    [*DIAGNOSES, *REMEDIES, *SINKS, Policy, Rule, Rung, MonitorOptions, SnapshotOptions],
    ids=lambda cls: cls.__name__,
)
def test_every_option_says_what_it_means(cls: type) -> None:
    missing = [name for name in cls.model_fields if not argument_meanings(cls).get(name)]  # type: ignore[attr-defined]
    assert not missing
