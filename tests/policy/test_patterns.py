"""Selecting parameters by name."""

from __future__ import annotations

from fnmatch import fnmatchcase

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradguard.policy.patterns import select, unmatched


NAMES = ["wte.weight", "h.0.attn.weight", "h.0.attn.bias", "h.1.mlp.weight", "h.1.mlp.bias", "Head.weight"]

names = st.lists(st.text("ab.", min_size=1, max_size=5), max_size=6, unique=True)
patterns = st.lists(st.text("ab.*?!", max_size=5), min_size=1, max_size=5)


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        (["*"], [0, 1, 2, 3, 4, 5]),
        ([], []),
        (["h.*"], [1, 2, 3, 4]),
        (["*.bias"], [2, 4]),
        (["h.?.attn.*"], [1, 2]),
        (["h.[1-9].*"], [3, 4]),
        (["wte.weight"], [0]),
        (["head.*"], []),
        (["*", "!*.bias"], [0, 1, 3, 5]),
        (["*", "!*.bias", "h.1.*"], [0, 1, 3, 4, 5]),
        (["h.1.*", "!*.bias"], [3]),
        (["!*.bias"], [0, 1, 3, 5]),
        (["!h.*", "h.0.attn.bias"], [0, 2, 5]),
        (["attn"], []),
    ],
)
def test_the_last_pattern_that_matches_decides(chosen: list[str], expected: list[int]) -> None:
    assert select(chosen, NAMES) == expected


@given(patterns, names)
@settings(max_examples=200, deadline=None)
def test_selection_is_the_fold_of_its_patterns(chosen: list[str], among: list[str]) -> None:
    def is_selected(name: str) -> bool:
        included = chosen[0].startswith("!")
        for pattern in chosen:
            if fnmatchcase(name, pattern.removeprefix("!")):
                included = not pattern.startswith("!")
        return included

    assert select(chosen, among) == [index for index, name in enumerate(among) if is_selected(name)]


@given(patterns, names)
@settings(max_examples=100, deadline=None)
def test_everything_added_last_selects_everything_and_excluded_last_nothing(
    chosen: list[str], among: list[str]
) -> None:
    assert select([*chosen, "*"], among) == list(range(len(among)))
    assert select([*chosen, "!*"], among) == []


@given(patterns, names)
@settings(max_examples=100, deadline=None)
def test_a_pattern_is_reported_exactly_when_it_matches_nothing(chosen: list[str], among: list[str]) -> None:
    reported = unmatched(chosen, among)
    for pattern in chosen:
        is_reported = any(message.startswith(f"pattern {pattern!r} matches") for message in reported)
        assert is_reported == (not any(fnmatchcase(name, pattern.removeprefix("!")) for name in among))


def test_a_pattern_that_matches_nothing_is_told_the_nearest_names() -> None:
    assert unmatched(["*", "h.*.atn.*", "!*.bais", "embed.*"], NAMES) == [
        "pattern 'h.*.atn.*' matches no parameter; near: h.0.attn.weight, h.0.attn.bias, h.1.mlp.weight",
        "pattern '!*.bais' matches no parameter; near: h.0.attn.bias, h.1.mlp.bias",
        "pattern 'embed.*' matches no parameter; the parameters are wte.weight, h.0.attn.weight, h.0.attn.bias, ... "
        "(6 in all)",
    ]
    assert unmatched(["x"], []) == ["pattern 'x' matches no parameter; there are no parameters"]
