"""The demo: its runs, its picture, its words, and the whole command once on a small scale."""

import math
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
import torch

from gradguard.cli import main
from gradguard.demo.plot import Curve, Marker, Scale, column_of, draw
from gradguard.demo.runs import Run, learning_rate_factor, plan_faults, train
from gradguard.demo.text import batches, load_tokens
from gradguard.demo.verdict import headline, judge, lost_at


NAN = math.nan


def picture(*curves: Curve, width: int = 60, height: int = 8, is_colored: bool = True) -> list[str]:
    return draw(curves, [Marker(50, "here")], width, height, is_colored).plain.split("\n")


# --- the picture


@pytest.mark.parametrize("is_colored", [True, False])
@pytest.mark.parametrize("width", [30, 80, 120])
def test_a_picture_is_never_wider_than_asked(width: int, is_colored: bool) -> None:
    lines = picture(Curve("a", [float(n % 7) for n in range(100)], "red"), width=width, is_colored=is_colored)
    assert max(len(line) for line in lines) <= width


def test_a_falling_curve_goes_from_the_top_left_to_the_bottom_right() -> None:
    lines = picture(Curve("a", np.linspace(10, 0, 100).tolist(), "red"), is_colored=False)
    plot = [line[7:] for line in lines if line[6:7] in "│┤"]
    lefts = [line.index("a") for line in plot]
    assert len(plot) == 8
    assert lefts == sorted(lefts)
    assert lefts[0] == 0
    assert plot[-1].rstrip().endswith("a")


def test_a_curve_without_finite_end_has_a_band_from_its_last_finite_step() -> None:
    values = [1.0] * 25 + [NAN] + [1.0] * 24 + [NAN] * 50
    lines = picture(Curve("broken", values, "red"), Curve("fine", [2.0] * 100, "green"))
    assert "broken: NaN" in lines[0]
    assert len(lines[0]) - len(lines[0].lstrip()) == 7 + column_of(50, 100, 60 - 7)
    assert "fine" not in "".join(lines)


def test_the_marker_stands_below_its_step() -> None:
    lines = picture(Curve("a", [1.0, 2.0] * 50, "red"))
    axis = next(number for number, line in enumerate(lines) if "▲" in line)
    assert lines[axis].index("▲") == 7 + column_of(50, 100, 60 - 7)
    assert lines[axis + 1].index("here") == lines[axis].index("▲")


def test_two_curves_can_be_told_apart_without_colour() -> None:
    lines = picture(Curve("low", [1.0] * 100, "red"), Curve("up", [2.0] * 100, "green"), is_colored=False)
    assert lines[0].count("u") > 40
    assert lines[7].count("l") > 40


@pytest.mark.parametrize(("low", "high", "is_log"), [(2.0, 30.0, True), (2.0, 5.0, False), (0.0, 5.0, False)])
def test_the_scale_is_logarithmic_where_the_values_span_a_wide_range(low: float, high: float, is_log: bool) -> None:
    scale = Scale(low, high)
    assert scale.is_log is is_log
    assert (scale.height(low), scale.height(high)) == (pytest.approx(0), pytest.approx(1))
    ticks = scale.ticks(4)
    assert 2 <= len(ticks) <= 4
    assert all(low <= tick <= high for tick in ticks)


def test_a_curve_of_one_value_can_be_drawn() -> None:
    assert len(picture(Curve("a", [2.0] * 100, "red"))) == 8 + 3


# --- the words


def make_run(held_out: float, *losses: float) -> Run:
    return Run(losses=losses or (3.0, held_out), held_out=held_out)


CLEAN = make_run(2.0)


@pytest.mark.parametrize(
    ("losses", "expected"),
    [([1.0, NAN, 1.0], None), ([1.0, NAN, NAN], 1), ([NAN], 0), ([], None), ([1.0, math.inf], 1)],
)
def test_a_run_is_lost_from_where_its_loss_is_never_finite_again(losses: list[float], expected: int | None) -> None:
    assert lost_at(losses) == expected


@pytest.mark.parametrize(
    ("held_out", "is_lost"), [(2.1, False), (1.9, False), (2.5, True), (NAN, True), (math.inf, True)]
)
def test_a_run_far_above_the_clean_one_is_lost(held_out: float, is_lost: bool) -> None:
    assert judge(make_run(held_out), CLEAN).is_lost is is_lost


@pytest.mark.parametrize(
    ("unguarded", "guarded", "words"),
    [
        (make_run(NAN, 3.0, NAN), make_run(2.02), ["lost at step 1", "1.0% above"]),
        (make_run(3.0), make_run(1.9), ["ended 50% above", "5.0% below"]),
        (make_run(2.0), make_run(2.02), ["survived these faults"]),
        (make_run(NAN, NAN), make_run(NAN, NAN), ["lost as well"]),
        (make_run(NAN, NAN), Run((3.0,), 3.0, stopped="too bad."), ["stopped its run at step 1: too bad."]),
    ],
)
def test_the_headline_says_what_happened_and_no_more(unguarded: Run, guarded: Run, words: list[str]) -> None:
    sentence = headline(CLEAN, unguarded, guarded)
    assert all(word in sentence for word in words)


# --- the runs


def test_the_order_of_the_data_depends_on_the_seed_alone() -> None:
    tokens, held_out = load_tokens()
    torch.manual_seed(1)
    first, targets = next(batches(tokens, 4, 8, seed=3))
    torch.manual_seed(2)
    again, _ = next(batches(tokens, 4, 8, seed=3))
    other, _ = next(batches(tokens, 4, 8, seed=4))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(first[:, 1:], targets[:, :-1])
    assert len(held_out) > 10_000


def test_the_learning_rate_warms_up_and_falls() -> None:
    factors = [learning_rate_factor(step, 100) for step in range(100)]
    peak = factors.index(max(factors))
    assert factors[:peak] == sorted(factors[:peak])
    assert factors[peak:] == sorted(factors[peak:], reverse=True)
    assert 0 < min(factors)
    assert max(factors) <= 1


def test_equal_seeds_give_equal_runs_until_the_first_fault() -> None:
    faults = plan_faults(10)
    clean, broken = train(10, 0), train(10, 0, faults)
    first = faults[0].steps[0]
    assert clean.losses[: first + 1] == broken.losses[: first + 1]
    assert clean.losses[first + 1] != broken.losses[first + 1]
    assert [entry.step for entry in broken.injected] == [fault.steps[0] for fault in faults]


# --- the command


@pytest.fixture(scope="module")
def screen(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, str, Path]:
    """Exit code, standard output and run directory of one demo of the smallest size."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("demo")
        patch.chdir(folder)
        capture = StringIO()
        patch.setattr("sys.stdout", capture)
        code = main(["demo", "--steps", "240", "--run-dir", "run"])
    return code, capture.getvalue(), folder / "run"


def test_the_demo_shows_all_three_outcomes(screen: tuple[int, str, Path]) -> None:
    code, output, _ = screen
    assert code == 0
    assert "Without a guard the run was lost at step 120: its loss is NaN." in output
    assert "With the guard the same faults left it" in " ".join(output.split())
    assert "unguarded: NaN" in output


def test_the_demo_records_the_guarded_run_and_names_the_next_command(screen: tuple[int, str, Path]) -> None:
    _, output, run_dir = screen
    assert (run_dir / "interventions.jsonl").exists()
    assert "gradguard show run --step 180" in output
    assert main(["verify", str(run_dir)]) == 0


def test_a_demo_too_short_to_show_anything_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--steps", "5"]) == 2
    assert "240" in capsys.readouterr().err
