"""The nouns of the flow: immutable, closed to unknown fields, and the same after a trip through JSON."""

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from gradguard.records import (
    SEVERITIES,
    AnyRecord,
    Change,
    Event,
    Finding,
    Intervention,
    Outcome,
    Withheld,
)


LAW = settings(max_examples=60, deadline=None, derandomize=True)
ADAPTER = TypeAdapter(AnyRecord)
FINDING = Finding(diagnosis="nonfinite", step=3, parameters=("a",), num_parameters=1, indices=(0,))
CHANGE = Change(summary="norm 4 -> 1", before={"norm": 4.0}, after={"norm": 1.0})
RECORDS = [
    Intervention(
        rule="r", diagnosis="nonfinite", remedy="skip_step", finding=FINDING, change=CHANGE, sample_ids=(1, "b")
    ),
    Withheld(rule="r", diagnosis="nonfinite", remedy="rollback", reason="unavailable", detail="none", finding=FINDING),
    Outcome(of=0, verdict="helped", recurrences=2, loss_before=1.5, horizon=50),
    Event(event="attached", message="hello", data={"notes": ["a"], "count": 3}),
]
NUMBERS = st.one_of(st.none(), st.integers(-(10**12), 10**12), st.floats(allow_nan=False))


def through_json(record):
    return ADAPTER.validate_python(json.loads(record.model_dump_json()))


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.kind)
def test_a_record_survives_json(record):
    found = through_json(record)
    assert type(found) is type(record)
    expected = record
    if getattr(record, "finding", None) is not None:
        expected = record.model_copy(update={"finding": record.finding.model_copy(update={"indices": ()})})
    assert found == expected


@pytest.mark.parametrize("record", [*RECORDS, FINDING, CHANGE], ids=lambda record: type(record).__name__)
def test_a_record_cannot_be_changed_or_hold_what_it_does_not_know(record):
    name = next(iter(type(record).model_fields))
    with pytest.raises(ValidationError, match="frozen"):
        setattr(record, name, 1)
    with pytest.raises(ValidationError, match="extra"):
        type(record).model_validate({**record.model_dump(), "surprise": 1})


@LAW
@given(NUMBERS, NUMBERS)
def test_numbers_survive_json(value, baseline):
    finding = Finding(diagnosis="d", step=0, value=value, baseline=baseline, evidence={"x": value, "word": "NaN"})
    found = Finding.model_validate_json(finding.model_dump_json())
    assert found.value == value
    assert found.baseline == baseline
    assert found.evidence["word"] == "NaN"
    assert value is None or math.isinf(value) or found.evidence["x"] == value


@pytest.mark.parametrize(("value", "text"), [(math.nan, "NaN"), (math.inf, "Infinity"), (-math.inf, "-Infinity")])
def test_what_json_has_no_number_for_is_written_as_a_word(value, text):
    finding = Finding(diagnosis="d", step=0, value=value, evidence={"x": value})
    written = json.loads(finding.model_dump_json())
    assert (written["value"], written["evidence"]["x"]) == (text, text)
    assert Finding.model_validate(written).value == pytest.approx(value, nan_ok=True)


def test_rows_are_for_remedies_and_are_not_written_down():
    assert "indices" not in json.loads(FINDING.model_dump_json())
    assert "indices" not in repr(FINDING)


def test_a_record_of_an_unknown_kind_is_refused():
    with pytest.raises(ValidationError, match="kind"):
        ADAPTER.validate_python({"v": 1, "kind": "surprise"})


def test_severities_are_in_rising_order():
    assert SEVERITIES == ("info", "warn", "critical")
