import json
import math

from hypothesis import given, settings
from hypothesis import strategies as st

from gradguard.record.encode import to_json


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(VALUES)
@settings(max_examples=60, deadline=None)
def test_any_value_becomes_one_ascii_line_of_strict_json_that_encodes_to_itself(value):
    line = to_json(value)

    def refuse(constant):
        raise AssertionError(constant)

    assert line.isascii()
    assert line.isprintable()
    assert to_json(json.loads(line, parse_constant=refuse)) == line


def test_nonfinite_numbers_are_words_and_odd_values_their_repr():
    value = {"a": math.nan, "b": [math.inf, -math.inf], "c": {1}, "d": slice(1)}
    assert json.loads(to_json(value)) == {
        "a": "NaN",
        "b": ["Infinity", "-Infinity"],
        "c": [1],
        "d": "slice(None, 1, None)",
    }


def test_a_lone_surrogate_in_a_name_can_be_written():
    assert to_json("a\ud800") == '"a\\ud800"'
