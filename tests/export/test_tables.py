import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_runs import ACTED, NAMES, act, add_rows, judge, start_run, table, withhold

import gradguard
from gradguard.errors import UsageError
from gradguard.export.tables import MAKERS, table_of
from gradguard.record.statistics import Flag
from gradguard.records import Event


def read(run):
    run.finish()
    return gradguard.read_run(run.path)


def rows_of(made, num_bytes=None):
    """Every row as a dict, joined from blocks."""
    rows = []
    for block in made.blocks(num_bytes) if num_bytes else made.blocks():
        columns = [values if isinstance(values, list) else np.ma.asarray(values).tolist() for values in block]
        rows += [dict(zip((c.name for c in made.columns), row, strict=True)) for row in zip(*columns, strict=True)]
    return rows


@pytest.fixture
def run(tmp_path):
    made = start_run(tmp_path / "exp")
    add_rows(
        made,
        range(40),
        lambda step: [1.0, np.nan if step == 5 else 2.0, -1.0],
        loss=lambda step: np.inf if step == 7 else 1.5,
        flags=lambda step: ACTED | Flag.SKIPPED_BY_GUARD if step == 5 else 0,
    )
    return made


def test_statistics_have_a_row_a_step_and_a_column_a_parameter(run):
    rows = rows_of(table_of(read(run), "statistics"))
    assert [row["step"] for row in rows] == list(range(40))
    assert (rows[4]["norm:h.0.weight"], rows[4]["norm:h.0.bias"]) == (2.0, None)
    assert np.isnan(rows[5]["norm:h.0.weight"])
    assert rows[7]["loss"] == np.inf
    flags = ("skipped_by_guard", "skipped_by_scaler", "finding", "intervention", "stale")
    assert [name for name in flags if rows[5][name]] == ["skipped_by_guard", "finding", "intervention"]
    assert not any(rows[6][name] for name in flags)


@pytest.mark.parametrize("num_bytes", [1, 300, 10**9])
@pytest.mark.parametrize("every", [1, 3, 17])
def test_rows_do_not_depend_on_the_size_of_blocks(run, num_bytes, every):
    made = table_of(read(run), "statistics", every)
    steps = [row["step"] for row in rows_of(made, num_bytes)]
    assert steps == [step for step in range(40) if step % every == 0 or step == 5]
    assert made.num_rows == len(steps)
    assert str(rows_of(made, num_bytes)) == str(rows_of(made))


def test_parameters_that_come_later_are_missing_before(tmp_path):
    run = start_run(tmp_path / "exp")
    add_rows(run, range(2))
    run.write_layout(table((*NAMES, "head")))
    add_rows(run, range(2, 4))
    assert [row["norm:head"] for row in rows_of(table_of(read(run), "statistics"))] == [None, None, 4.0, 4.0]


def test_interventions_carry_evidence_and_outcome_and_what_was_not_done(run):
    judge(run, act(run, 5, sample_ids=(7, "x")), 30, "worse")
    withhold(run, 6, "unavailable", detail="no snapshot")
    run.journal.append(Event(step=9, event="resumed", message="m", data={"a": float("nan")}))
    done, not_done = rows_of(table_of(read(run), "interventions"))
    assert (done["done"], done["verdict"], done["judged_at"], done["value"]) == (True, "worse", 30, 300.0)
    assert (done["parameter"], done["sample_ids"], done["before"]) == ("h.0.weight", '[7,"x"]', '{"n":300.0}')
    assert (not_done["done"], not_done["reason"], not_done["detail"]) == (False, "unavailable", "no snapshot")
    assert not_done["verdict"] is None
    (event,) = rows_of(table_of(gradguard.read_run(run.path), "events"))
    assert (event["step"], event["event"], event["data"]) == (9, "resumed", '{"a":"NaN"}')


def test_probes_of_gradients_have_a_row_a_parameter(run):
    columns = {name: np.array([0.5, 1.0, 2.0]) for name in ("mean", "std", "max", "min", "zero_ratio", "norm")}
    columns["histogram"] = np.full((3, 25), 0.04)
    run.gradients.append(20, columns, np.array([False, False, True]))
    rows = rows_of(table_of(read(run), "gradients"))
    assert [(row["step"], row["parameter"], row["std"]) for row in rows] == [
        (20, "wte.weight", 0.5),
        (20, "h.0.weight", 1.0),
        (20, "h.0.bias", None),
    ]


@pytest.mark.parametrize("name", MAKERS)
def test_a_run_without_anything_has_empty_tables(tmp_path, name):
    made = table_of(read(start_run(tmp_path / "exp")), name)
    assert made.num_rows == 0
    assert list(made.blocks()) == []


def test_an_unknown_table_is_answered_with_the_nearest(run):
    with pytest.raises(UsageError, match="did you mean 'statistics'"):
        table_of(read(run), "statistic")


def replace_records(read_back, *records):
    """Let a run that was read hold other records."""
    read_back.__dict__["_journal"] = SimpleNamespace(records=records, problems=[], findings=[], is_torn=False)


@settings(max_examples=30, deadline=None)
@given(st.floats() | st.integers(), st.floats() | st.integers() | st.none())
def test_any_number_in_a_record_has_a_cell(tmp_path_factory, value, baseline):
    run = start_run(tmp_path_factory.mktemp("any") / "exp")
    record = act(run, 1)
    run.finish()
    read_back = gradguard.read_run(run.path)
    finding = record.finding.model_copy(update={"value": value, "baseline": baseline, "num_parameters": 10**30})
    replace_records(read_back, record.model_copy(update={"finding": finding}))
    (row,) = rows_of(table_of(read_back, "interventions"))
    assert (row["baseline"] is None) == (baseline is None)
    assert row["num_parameters"] == 2**63 - 1


def test_columns_say_what_they_hold(run):
    for name in MAKERS:
        for column in table_of(read(run), name).columns:
            assert column.what.endswith("."), column
            assert dataclasses.astuple(column)[1] in ("int64", "float64", "float32", "bool", "text")
