import math
import subprocess
import sys

import pytest
from made_runs import act, add_rows, start_run

import gradguard
from gradguard.errors import UsageError
from gradguard.export.tables import MAKERS


@pytest.fixture
def run(tmp_path):
    made = start_run(tmp_path / "exp")
    add_rows(
        made, range(4), lambda step: [1.0, math.nan if step == 2 else 2.0, -1.0], loss=lambda s: math.inf if s else 1.0
    )
    act(made, 2)
    made.finish()
    return gradguard.read_run(made.path)


def test_pandas_tells_missing_from_not_a_number(run):
    frame = run.frame(library="pandas")
    assert frame["loss"].tolist() == [1.0, math.inf, math.inf, math.inf]
    assert frame["norm:h.0.bias"].isna().all()
    assert math.isnan(frame["norm:h.0.weight"].to_numpy(dtype="float32", na_value=-7)[2])
    assert frame["norm:h.0.weight"].to_numpy(dtype="float32", na_value=-7)[1] == 2.0
    assert str(frame.dtypes["step"]) == "int64"


def test_polars_tells_missing_from_not_a_number(run):
    frame = run.frame(library="polars")
    assert frame["loss"].to_list() == [1.0, math.inf, math.inf, math.inf]
    assert frame["norm:h.0.bias"].null_count() == 4
    assert frame["norm:h.0.weight"].is_nan().to_list() == [False, False, True, False]
    assert frame["norm:h.0.weight"].null_count() == 0


@pytest.mark.parametrize("library", ["pandas", "polars"])
@pytest.mark.parametrize("table", MAKERS)
def test_every_table_is_a_frame_whether_it_has_rows_or_not(run, tmp_path, library, table):
    empty = start_run(tmp_path / "empty")
    empty.finish()
    for one in (run, gradguard.read_run(empty.path)):
        frame = one.frame(table, library)
        assert frame.columns[0] in ("step", "seq")
        assert len(frame.columns) > 5


def test_without_a_word_pandas_comes_first(run):
    assert type(run.frame()).__module__.startswith("pandas")


@pytest.mark.parametrize(
    ("library", "message"), [("panda", "did you mean 'pandas'"), ("numpy", "known: pandas, polars")]
)
def test_an_unknown_library_is_refused(run, library, message):
    with pytest.raises(UsageError, match=message):
        run.frame(library=library)


def test_without_any_library_it_says_what_to_install(run):
    script = f"""
import sys
sys.modules["pandas"] = sys.modules["polars"] = None
import gradguard
try:
    gradguard.read_run({str(run.path)!r}).frame()
except gradguard.UsageError as error:
    print(error)
"""
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert out == "a frame needs pandas or polars, which is not installed; pip install pandas  # or: polars\n"
