"""Scores, tables and pictures from results alone."""

import doctest
from dataclasses import replace

import pytest
import typer
from typer.testing import CliRunner

from benchmarks.zoo import grid, report, tabulate
from benchmarks.zoo.catalogue import ZOO, choose
from benchmarks.zoo.grid import Grid, to_markdown, to_table
from benchmarks.zoo.jury import RivalAlarm
from benchmarks.zoo.onset import SUDDEN
from benchmarks.zoo.report import HERE, fill
from benchmarks.zoo.result import Alarm, dump, load, run
from benchmarks.zoo.scores import OURS, score
from benchmarks.zoo.strips import _spread
from benchmarks.zoo.tabulate import grids


OTHER = "SageMaker Debugger"


@pytest.fixture(scope="module")
def trained():
    return [run(replace(ZOO[id], steps=25), 0) for id in ("H01", "F13", "T-bit-flip@H01", "XH04", "XF03")]


def made(template, id, alarms=(), rivals=(), **changes):
    """Return a result with alarms (name, step) of ours and of another rule set."""
    onset = changes.get("onset", template.onset)

    def since(step):
        return step if step >= onset else None

    return replace(
        template,
        id=id,
        alarms=tuple(Alarm(name, step, since(step), "warn", 2, ()) for name, step in alarms),
        rivals={OTHER: tuple(RivalAlarm(name, kinds, step, since(step), 3) for name, kinds, step in rivals)},
        **changes,
    )


@pytest.fixture(scope="module")
def by_hand(trained):
    """Four failing runs, of which we detect three and name two, and two healthy ones, of 100 steps each."""
    healthy, failing = replace(trained[0], steps=100), replace(trained[1], steps=100)
    dead = ("DeadRelu", ("dead_units",), 30)
    return [
        made(failing, "F13", [("nonfinite", 0)], is_sudden=True),
        made(failing, "F17", [("dead_units", 20), ("plateau", 50)], [dead], expected=("dead_units",), is_sudden=False),
        made(failing, "F30", [("loss_spike", 40)], expected=("plateau",), is_sudden=False),
        made(failing, "F40", [("divergence", 10)], [dead], expected=("divergence",), onset=50),
        made(healthy, "H01", [], [dead]),
        made(healthy, "H02", [("plateau", 5)], [], is_identical=False, guarded=0.5, unguarded=0.6),
    ]


def test_our_score(by_hand):
    own = score(by_hand, OURS)
    assert own.detected == (3, 4)  # what was said about F40 came before its trouble
    assert own.named == (2, 3)
    assert own.sudden == 0
    assert own.slow == pytest.approx(0.3)  # 20 and 40 of 100
    assert own.false == (1, 2)
    assert own.rate == pytest.approx(10.0)  # two alarms in 200 steps


def test_the_score_of_another(by_hand):
    other = score(by_hand, OTHER)
    assert (other.detected, other.named) == ((1, 4), (1, 1))
    assert (other.sudden, other.slow) == (None, pytest.approx(0.3))
    assert (other.false, other.rate) == ((1, 2), pytest.approx(15.0))


def test_the_tables_say_so(by_hand):
    tables = {table.name: table for table in grids(by_hand)}
    assert tables["headline"].rows[0][:4] == ("gradguard", "3/4 (75 %)", "30 to 95", "2/3 (67 %)")
    assert tables["headline"].rows[1][:2] == (OTHER, "1/4 (25 %)")
    assert tables["harm"].rows[0][1] == "1/2 (50 %)"
    assert tables["harm"].rows[1][1] == "-0.1000"
    missed = {row[0]: row[3:] for row in tables["missed"].rows}
    assert missed == {"F30": ("loss_spike", "0/1", "1/1", ""), "F40": ("divergence", "1/1", "0/1", "")}
    rows = {row[0]: row for row in tables["matrix"].rows}
    columns = tables["matrix"].columns
    assert rows["F17"][columns.index("dead units")] == "*"
    assert rows["F17"][columns.index("plateau")] == "x"
    assert tables["rivals"].rows == ((OTHER, "DeadRelu", "2", "1", "1"),)
    assert [row[0] for row in tables["healthy"].rows] == ["H01", "H02"]
    assert not [name for name in tables if name.startswith("heldout")]


def test_numbers_come_back_as_they_were(trained):
    back = load(dump(trained))
    assert dump(back) == dump(trained)  # NaN is no NaN's equal
    assert [result.latency for result in back] == [result.latency for result in trained]


def test_the_report_is_rebuilt_from_numbers(trained, tmp_path):
    numbers, text = tmp_path / "zoo.json", tmp_path / "REPORT.md"
    numbers.write_bytes(dump(trained))
    text.write_text((HERE / "REPORT.md").read_text(encoding="utf-8"), encoding="utf-8")
    app = typer.Typer()
    app.command()(report.main)
    outcome = CliRunner().invoke(app, [str(numbers), "--report", str(text)])
    assert outcome.exit_code == 0, outcome.output
    pictures = [tmp_path / f"{prefix}{name}.png" for prefix in ("", "heldout-") for name in ("standing", "strips")]
    assert outcome.output.split() == [str(path) for path in pictures]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in pictures)
    filled = text.read_text(encoding="utf-8")
    assert "| gradguard | 1/1 (100 %) |" in filled
    assert "| XF03 | diabetes in its own units, SGD 0.05 |" in filled
    assert fill(filled, grids(trained)) == filled  # twice is once


def test_what_the_results_lack_is_left_as_it_was(trained):
    text = "<!-- begin missed -->\nold\n<!-- end missed -->\n<!-- begin harm -->\nold\n<!-- end harm -->\n"
    with pytest.raises(ValueError, match="no place for headline, healthy, matrix, rivals: add <!-- begin NAME -->"):
        fill(text, grids([trained[0], trained[1]]))
    whole = (HERE / "REPORT.md").read_text(encoding="utf-8")
    assert fill(whole, []) == whole


def test_pipes_do_not_end_a_cell():
    assert "a\\|b" in to_markdown(Grid("x", "", ("id",), (("a|b",),)))
    assert to_table(Grid("x", "t", ("[id]",), (("[red]",),))).row_count == 1  # brackets are text, not markup


def test_points_of_one_height_are_spread_about_the_middle():
    assert _spread([0.5, 0.5, 0.5, 0.9]) == pytest.approx([0.0, 0.055, -0.055, 0.0], abs=1e-9)


def test_the_held_out_set_ups_are_only_run_when_asked_for():
    held = choose(["heldout"])
    counts = {group: sum(setup.group == group for setup in held) for group in ("healthy", "failing")}
    assert counts == {"healthy": 19, "failing": 18}
    assert not any(setup.held_out for setup in choose([])) | any(setup.held_out for setup in choose(["failing", "H*"]))
    assert choose(["X*"]) == held


def test_every_set_up_that_breaks_at_once_is_a_failing_one():
    assert {ZOO[id].group for id in SUDDEN} == {"failing"}


@pytest.mark.parametrize("module", [grid, tabulate])
def test_the_examples_in_the_docstrings_hold(module):
    assert doctest.testmod(module).failed == 0
