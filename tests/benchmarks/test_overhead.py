"""The overhead is measured: arithmetic on hand-made times, and tiny runs from end to end."""

import doctest
import importlib
import json
import pkgutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import typer
from torch import nn
from typer.testing import CliRunner

import benchmarks.overhead
from benchmarks.overhead import contenders, plan, rivals, samples, tabulate
from benchmarks.overhead.__main__ import main
from benchmarks.overhead.cell import Cell
from benchmarks.overhead.endurance import endure
from benchmarks.overhead.markdown import write_markdown
from benchmarks.overhead.measure import measure
from benchmarks.overhead.memory import peak_bytes, run
from benchmarks.overhead.reads import Read
from benchmarks.overhead.result import Result, dump
from benchmarks.overhead.samples import NOTED, PLAIN, PROBE, SNAPSHOT, Periodic, Samples, compare
from benchmarks.overhead.targets import TARGETS, judge
from benchmarks.overhead.workloads import WORKLOADS, Workload, gpt2_small


AGAINST = {"bare": "clip", "clip": "clip", "guard": "clip"}


def command(*arguments):
    app = typer.Typer(add_completion=False)
    app.command()(main)
    return CliRunner(env={"COLUMNS": "200"}).invoke(app, list(arguments))


def times(step, backward=1000.0, kinds=None):
    """Samples from microseconds."""
    kinds = kinds or [PLAIN] * len(step)
    return Samples([1e-6 * backward] * len(step), [1e-6 * value for value in step], kinds)


def toy(name="toy", is_preset=False):
    make = (lambda: gpt2_small(vocabulary=11, context=5, width=4, num_layers=1)) if is_preset else None
    small = replace(WORKLOADS["mlp-4"], name=name, settle=60)
    return Workload(name, "preset gradients", make, None, settle=0) if is_preset else small


@pytest.fixture
def one_thread():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_overheads_are_differences_of_medians_and_ratios_are_theirs():
    rounds = {"bare": times([100, 90, 110]), "clip": times([300, 310, 305]), "guard": times([180, 9000, 200])}
    found = compare(rounds, AGAINST)
    assert found["clip"].overhead == pytest.approx(205)
    assert found["guard"].overhead == pytest.approx(100)
    assert found["guard"].ratio == pytest.approx(100 / 205)
    assert found["guard"].step_ratio == pytest.approx(200 / 305)
    assert found["guard"].mean_overhead == pytest.approx((180 + 9000 + 200) / 3 - 100)
    assert found["clip"].ratio == found["clip"].median_ratio == 1.0
    assert found["bare"].backward == pytest.approx(1000)


def test_probes_and_snapshots_are_no_part_of_the_median_and_are_spread_over_the_steps_between_them():
    kinds = [PLAIN, PROBE, PLAIN, SNAPSHOT, "", PLAIN]
    guard = times([150, 650, 150, 2150, 9999, 150], kinds=kinds)
    rounds = {"bare": times([100] * 6), "clip": times([300] * 6), "guard": guard}
    found = compare(rounds, AGAINST, periodic={"guard": Periodic(50, 200)})["guard"]
    assert found.overhead == pytest.approx(50)
    assert (found.probe, found.snapshot) == (pytest.approx(500), pytest.approx(2000))
    assert found.amortised == pytest.approx(50 + 500 / 50 + 2000 / 200)
    unseen = compare(rounds | {"guard": times([150] * 6)}, AGAINST, periodic={"guard": Periodic(50, None)})["guard"]
    assert unseen.amortised is None


def test_a_median_does_not_show_the_steps_that_take_in_what_others_put_off():
    guard = times([150, 150, 900, 150, 150], kinds=[NOTED, NOTED, PLAIN, NOTED, NOTED])
    found = compare({"bare": times([100] * 5), "clip": times([300] * 5), "guard": guard}, AGAINST)["guard"]
    assert found.median_ratio == pytest.approx(0.25)
    assert found.ratio == pytest.approx((0.8 * 150 + 0.2 * 900 - 100) / 200)


def test_what_works_in_the_backward_is_measured_with_the_backward():
    rounds = {"bare": times([100] * 3), "clip": times([300] * 3), "guard": times([100] * 3, backward=1700)}
    assert compare(rounds, AGAINST)["guard"].overhead == pytest.approx(0)
    found = compare(rounds, AGAINST, in_backward=["guard"])["guard"]
    assert (found.overhead, found.ratio) == (pytest.approx(700), pytest.approx(3.5))


def test_an_anchor_that_is_lost_in_the_noise_gives_no_ratio():
    rounds = {"bare": times([100] * 3), "clip": times([99] * 3), "guard": times([150] * 3)}
    found = compare(rounds, AGAINST)["guard"]
    assert (found.ratio, found.ratio_interval) == (None, None)


def test_an_interval_holds_the_median_and_shrinks_with_the_noise():
    generator = torch.Generator().manual_seed(0)
    wide, narrow = (
        compare({name: times((level + spread * torch.randn(200, generator=generator)).tolist())
                 for name, level in (("bare", 1000), ("clip", 2000), ("guard", 1500))}, AGAINST)["guard"]
        for spread in (100.0, 10.0)
    )  # fmt: skip
    for found in (wide, narrow):
        assert found.ratio_interval[0] <= found.ratio <= found.ratio_interval[1]
        assert found.overhead_interval[0] <= found.overhead <= found.overhead_interval[1]
    assert narrow.ratio_interval[1] - narrow.ratio_interval[0] < wide.ratio_interval[1] - wide.ratio_interval[0]


def hand_made(guard, workload="mlp-40"):
    rounds = {"bare": times([100] * 3), "clip": times([300] * 3), "default": times([guard] * 3)}
    timings = compare(rounds, {"bare": "clip", "clip": "clip", "default": "clip"})
    return Cell(workload, "adamw-fused", 40, 5_000_000, 3, timings, {}, {}, {}, {"default": 7000}, Read(20.0, 10.0))


@pytest.mark.parametrize(("guard", "is_met"), [(230, True), (250, False)])
def test_a_target_is_met_up_to_its_limit(guard, is_met):
    verdict, other = judge([hand_made(guard)])
    assert (verdict.what, verdict.limit) == ("overhead of default / overhead of clip, ratio of medians", 0.7)
    assert verdict.is_met is other.is_met is is_met


def test_the_targets_are_about_workloads_and_contenders_that_exist():
    assert {target.workload for target in TARGETS} <= set(WORKLOADS)
    assert {name for target in TARGETS for name in (target.contender, target.against)} <= set(contenders.CONTENDERS)


def test_the_workloads_have_as_many_tensors_as_they_say():
    found = {name: sum(1 for _ in WORKLOADS[name].make().parameters()) for name in WORKLOADS if name != "gpt2-124m"}
    assert [found[f"mlp-{count}"] for count in (4, 40, 200, 2000)] == [4, 40, 200, 2000]
    with torch.device("meta"):
        gpt2 = gpt2_small()
    assert len(list(gpt2.parameters())) == 148
    assert sum(param.numel() for param in gpt2.parameters()) == 124_439_808


@pytest.mark.parametrize("is_preset", [False, True])
def test_everybody_takes_a_turn_a_round_and_healthy_guards_find_nothing(is_preset):
    names = [name for name, contender in contenders.CONTENDERS.items() if not contender.package]
    cell = measure(toy(is_preset=is_preset), "adamw-fused", contenders.choose(names), rounds=3)
    assert list(cell.timings) == names
    assert (cell.rounds, cell.findings, cell.refusals) == (3, {}, {})
    assert cell.held["default"] > cell.held["observe"] > cell.held["bare"]
    assert cell.num_bytes == sum(p.numel() for p in toy(is_preset=is_preset).make().parameters()) * 4


@pytest.mark.parametrize("name", ["clip-due", "always-due"])
def test_a_due_clip_is_due_at_every_step_and_preset_gradients_are_put_back(name, tmp_path):
    from benchmarks.overhead.arena import Arena

    arena = Arena(toy(is_preset=True), "sgd-plain", tmp_path)
    entrant = arena.admit(contenders.CONTENDERS[name])
    gradients = [param.grad for param in entrant.setting.params]
    before = [gradient.clone() for gradient in gradients]
    for _ in range(3):
        entrant.take_turn(None)
        assert float(nn.utils.get_total_norm(gradients)) == pytest.approx(arena.limit, rel=1e-4)
        arena.refill()
        assert all(torch.equal(*pair) for pair in zip(gradients, before, strict=True))
    entrant.running.close()


def test_the_command_measures_and_writes_everything(tmp_path, one_thread):
    numbers, text = tmp_path / "overhead.json", tmp_path / "overhead.md"
    done = command(
        *("--workload", "mlp-4", "--optimizer", "sgd-fused", "--guards", "default,hooks", "--rounds", "2"),
        *("--long", "200", "--no-memory", "--json", str(numbers), "--markdown", str(text)),
    )
    assert done.exit_code == 0, done.output
    for told in ("overhead divided by that of clip_grad_norm_", "one read of the gradients", "a long run", "targets"):
        assert told in done.output
        assert f"### {told}" in text.read_text(encoding="utf-8")
    found = json.loads(numbers.read_text(encoding="utf-8"), parse_constant=pytest.fail)
    assert set(found) == {"environment", "cells", "peaks", "endurance", "verdicts"}
    (cell,) = found["cells"]
    assert (cell["workload"], cell["optimizer"], cell["num_tensors"], cell["rounds"]) == ("mlp-4", "sgd-fused", 4, 2)
    assert set(cell["timings"]) == {"bare", "clip", "default", "hooks"}
    assert set(cell["timings"]["default"]) == set(samples.Timing.__dataclass_fields__)
    assert found["endurance"][-1]["last_step"] == 200
    assert {verdict["workload"] for verdict in found["verdicts"]} == {"mlp-4"}


def test_a_missed_target_is_an_exit_code_only_when_asked(one_thread, monkeypatch):
    monkeypatch.setattr("benchmarks.overhead.__main__.measure", lambda *_, **__: hand_made(290))
    assert command("--workload", "mlp-4", "--no-memory").exit_code == 0
    assert command("--workload", "mlp-4", "--no-memory", "--check").exit_code == 1


@pytest.mark.parametrize(
    ("option", "value", "told"),
    [
        ("--workload", "mlp-44", "did you mean 'mlp-4"),
        ("--optimizer", "adamw-fussed", "did you mean 'adamw-fused'"),
        ("--guards", "defualt", "did you mean 'default'"),
    ],
)
def test_an_unknown_name_is_refused(option, value, told):
    done = command(option, value)
    assert done.exit_code == 2
    assert told in done.output


def test_a_package_that_is_missing_is_left_out_and_named(monkeypatch):
    absent = replace(contenders.CONTENDERS["zclip"], package="surely_not_installed")
    cell = measure(toy(), "sgd-plain", [*contenders.choose(["bare"]), absent], rounds=1)
    assert cell.skipped == {"zclip": "surely_not_installed is not installed"}
    assert "zclip" not in cell.timings
    assert "zclip: left out, surely_not_installed is not installed" in tabulate.of_cell(cell).notes


def test_what_needs_a_backward_does_not_take_part_without_one():
    watch = replace(contenders.CONTENDERS["wandb"], package="")
    cell = measure(toy(is_preset=True), "sgd-plain", [*contenders.choose(["bare"]), watch], rounds=1)
    assert cell.skipped == {"wandb": "this workload has no backward"}


def test_the_hooks_of_the_tutorials_read_five_statistics():
    param = nn.Parameter(torch.zeros(4))
    hooks = rivals.Hooks([param])
    (param * torch.tensor([0.0, 1.0, 2.0, 5.0])).sum().backward()
    assert hooks.statistics[0] == pytest.approx((2.0, 2.160247, 5.0, 0.0, 0.25))
    hooks.statistics.clear()
    hooks.read_all()
    assert hooks.statistics[0][2] == 5.0
    hooks.close()
    param.grad = None
    hooks.statistics.clear()
    param.sum().backward()
    assert hooks.statistics == {}


def test_a_long_run_is_told_in_stretches():
    parts = endure(25, stretch=10)
    assert [part.last_step for part in parts] == [10, 20, 25]
    assert all(part.mean > 0 and part.resident > 0 for part in parts)


def test_a_process_knows_its_peak():
    """In a process of its own: the peak of this one may be that of another test."""
    code = (
        "import torch\n"
        "from benchmarks.overhead.memory import peak_bytes\n"
        "before = peak_bytes()\n"
        "hill = torch.ones(32_000_000)\n"
        "del hill\n"
        "assert peak_bytes() >= before + 64e6, (before, peak_bytes())\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], check=True)
    assert run("mlp-4", "sgd-plain", "default", 2) == peak_bytes()


def test_tables_say_what_the_machine_could_do_at_best_and_what_is_missed():
    result = Result({"torch": "2"}, (hand_made(250),), (), (), tuple(judge([hand_made(250)])))
    text = write_markdown(result)
    assert (
        "| MISSED | mlp-40 | adamw-fused | overhead of default / overhead of clip, ratio of medians | 0.75 | 0.70 |"
        in text
    )
    assert "| mlp-40 | adamw-fused | 5 MB | 10 us | 500.0 | 20 us | 10.00 | 7.50 |  |" in text
    assert json.loads(dump(result))["cells"][0]["timings"]["default"]["ratio"] == pytest.approx(0.75)


def test_plans_cover_every_workload_and_a_quick_one_is_shorter():
    jobs = plan.standard()
    assert {job.workload.name for job in jobs} == set(WORKLOADS)
    assert {job.optimizer for job in jobs} == set(plan.EVERY)
    assert sum(job.seconds for job in plan.standard(is_quick=True)) < sum(job.seconds for job in jobs) / 3


def test_the_picture_is_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    from benchmarks.overhead.plot import draw

    result = Result({}, (hand_made(250), hand_made(200, "mlp-200")), (), (), ())
    draw(result, tmp_path / "overhead.svg")
    assert "gradguard, preset default" in (tmp_path / "overhead.svg").read_text(encoding="utf-8")


def test_a_picture_without_matplotlib_is_refused_before_anything_is_measured(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "benchmarks.overhead.plot", raising=False)
    done = command("--workload", "mlp-4", "--plot", str(tmp_path / "overhead.png"))
    assert done.exit_code == 2
    assert "needs matplotlib" in done.output


@pytest.mark.parametrize(
    "name",
    [info.name for info in pkgutil.iter_modules(benchmarks.overhead.__path__) if info.name not in ("__main__", "plot")],
)
def test_the_examples_in_the_docstrings_hold(name):
    assert doctest.testmod(importlib.import_module(f"benchmarks.overhead.{name}")).failed == 0


def test_matplotlib_and_the_rivals_are_not_imported_unasked():
    unasked = {"zclip", "smartclip", "wandb", "matplotlib"}
    code = f"import sys, benchmarks.overhead.__main__; print(sorted({unasked} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
