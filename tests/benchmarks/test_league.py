"""The league runs: every part of it, cut short."""

import doctest
import io
import math
from dataclasses import replace

import pytest
import torch
import typer
from rich.console import Console
from typer.testing import CliRunner

from benchmarks.league import __main__ as command
from benchmarks.league import conditions, plan, standing, tables, tasks
from benchmarks.league.conditions import CONDITIONS, add_noise, wrong_labels
from benchmarks.league.entrants import ENTRANTS, Guarded
from benchmarks.league.plot import draw
from benchmarks.league.pool import run_all
from benchmarks.league.report import HERE, fill
from benchmarks.league.run import Run, dump, load, run
from benchmarks.league.tables import to_markdown, to_table
from benchmarks.league.tasks import TASKS
from benchmarks.league.verdict import beaten, clean_pairs, summary, unharmed
from gradguard.faults import Fault, inject


def made(entrant="none", final=1.0, seed=0, task="cnn", condition="clean", **changes):
    given = {"steps": 10, "steps_lost": 0, "interventions": 0, "digest": "a", "seconds": 0.0} | changes
    return Run(task=task, condition=condition, entrant=entrant, seed=seed, final=final, **given)


@pytest.mark.parametrize("module", [conditions, plan, standing, tables, tasks])
def test_the_examples_hold(module):
    assert doctest.testmod(module).failed == 0


@pytest.fixture
def league():
    app = typer.Typer()
    app.command()(command.main)
    return lambda *arguments: CliRunner().invoke(app, [*map(str, arguments)], env={"COLUMNS": "80"})


def test_the_league_in_seconds(league, tmp_path):
    numbers, picture = tmp_path / "runs.json", tmp_path / "league.png"
    wanted = "cnn/clean/none,cnn/clean/default,cnn/bad-batch/default,lstm/bf16/none"
    result = league("--quick", "--only", wanted, "--json", numbers, "--plot", picture)
    assert result.exit_code == 0, result.output
    assert "bit for bit those without a guard: 1 of 1" in result.output
    runs = load(numbers.read_bytes())
    assert [(own.task, own.condition, own.entrant) for own in runs] == [
        ("lstm", "bf16", "none"),
        ("cnn", "clean", "none"),
        ("cnn", "clean", "default"),
        ("cnn", "bad-batch", "default"),
    ]
    assert load(dump(runs)) == runs
    assert picture.stat().st_size > 0
    assert list(tmp_path.glob("*.tmp")) == []


def test_a_league_that_was_broken_off_goes_on_where_it_was(league, tmp_path):
    numbers = tmp_path / "runs.json"
    kept = made("none", task="lstm", digest="kept")
    other, longer = made("none", seed=7), made("none", task="lstm", condition="bf16", steps=400)
    numbers.write_bytes(dump([kept, longer, other]))
    assert league("--quick", "--only", "lstm/*/none", "--json", numbers, "--resume").exit_code == 0
    runs = load(numbers.read_bytes())
    assert runs[:2] == [other, kept]
    assert [own.condition for own in runs[1:]] == list(CONDITIONS)
    assert {own.steps for own in runs} == {10}


def test_a_clean_run_that_the_guard_changed_fails_the_league(league, tmp_path):
    numbers = tmp_path / "runs.json"
    numbers.write_bytes(dump([made("none", task="lstm"), made("default", task="lstm", digest="b")]))
    result = league("--quick", "--only", "lstm/clean/none,lstm/clean/default", "--json", numbers, "--resume")
    assert result.exit_code == 1
    assert "0 of 1" in result.output


@pytest.mark.parametrize(
    ("arguments", "message"), [(("--only", "cnn/clear"), "names no run"), (("--policy", "none.yaml"), "none.yaml")]
)
def test_a_mistake_is_told_before_anything_is_trained(league, arguments, message):
    result = league(*arguments)
    assert result.exit_code == 2
    assert message in result.output


@pytest.mark.parametrize("task", TASKS)
def test_runs_are_paired_by_their_seed(task):
    digests = [run(task, "heavy-tails", "none", seed, 2).digest for seed in (0, 0, 1)]
    assert digests[0] == digests[1] != digests[2]


def test_a_clean_run_is_left_alone_and_a_changed_one_is_noticed():
    runs = [run("cnn", "clean", name, 0, 5) for name in ("none", "default")]
    assert clean_pairs(runs) == (1, 1)
    assert clean_pairs([runs[0], replace(runs[1], digest="other")]) == (0, 1)


def test_several_processes_come_to_the_same_as_one():
    cells = [("lstm", "clean", "none", 0)]
    (here,), (elsewhere,) = (list(run_all(cells, 2, jobs)) for jobs in (1, 2))
    assert here.digest == elsewhere.digest


def test_every_condition_changes_the_run():
    digests = {name: run("cnn", name, "none", 0, 12).digest for name in CONDITIONS}
    assert len(set(digests.values())) == len(CONDITIONS)


def test_wrong_labels_depend_on_seed_and_step_alone():
    targets = torch.zeros(4, 8, dtype=torch.long)
    drawn = [wrong_labels(targets, 256, seed, step) for seed, step in ((0, 5), (0, 5), (1, 5), (0, 6))]
    assert torch.equal(drawn[0], drawn[1])
    assert drawn[0].shape == targets.shape
    assert not any(torch.equal(drawn[0], other) for other in drawn[2:])


def test_the_noise_is_heavy_tailed_and_as_large_as_said():
    param = torch.zeros(100_000)
    param.grad = torch.full_like(param, 2.0)
    add_noise([param, torch.zeros(3)], 0.1, seed=0, step=0)
    noise = (param.grad - 2.0) / 0.2
    # Quartiles of Student's t with 1.5 degrees of freedom lie at 0.87; its largest of 100,000 far beyond a normal's.
    assert noise.abs().median() == pytest.approx(0.87, rel=0.03)
    assert noise.abs().max() > 100


# Ours


def test_a_rollback_loses_the_steps_since_the_snapshot_and_what_was_done_is_told():
    training = TASKS["cnn"](0)
    gate = Guarded(training.model, training.optimizer, "default")
    flip = Fault("nan", "weight", at=45, parameters="head.weight")
    with inject(training.model, training.optimizer, (flip,)):
        for step in range(50):
            training.optimizer.zero_grad()
            loss = training.loss(next(training.batches))
            loss.backward()
            gate.step(step, loss)
    gate.close()
    assert gate.remedies["rollback"] == 1
    (told,) = (line for line in gate.story if "rollback" in line)
    kept = int(told.rpartition("before step ")[2])
    assert gate.taken == set(range(kept)) | set(range(46, 50))
    assert gate.interventions == 1


def test_a_rollback_that_is_taken_back_loses_only_the_steps_in_between(tmp_path):
    policy = tmp_path / "shift.yaml"
    policy.write_text(
        "version: 1\nrules:\n  - {when: loss_spike, do: rollback, escalate: [{after: 1, within: 50, do: rebaseline}]}\n"
    )
    done = run("lstm", "level-shift", str(policy), 0, 80)
    assert done.remedies == {"rollback": 1, "rebaseline": 1}
    assert done.steps_lost == 2


def test_a_run_that_the_guard_stops_loses_the_rest(tmp_path):
    policy = tmp_path / "strict.yaml"
    policy.write_text("version: 1\nrules:\n  - {when: exploding_gradient, do: stop}\n")
    done = run("cnn", "bad-batch", str(policy), 0, 60)
    assert done.stopped
    assert done.steps_lost == 30
    assert math.isfinite(done.final)


def test_a_package_that_is_missing_keeps_its_entrant_away():
    missing = replace(ENTRANTS["zclip"], package="no_such_package")
    assert not missing.is_here
    assert ENTRANTS["none"].is_here


# Standing and tables


def test_best_and_within_noise_of_best():
    runs = [made("none", 1.0), made("clip", 1.009), made("default", 1.02), made("adagc", math.nan)]
    places = standing.standing(runs)
    marks = {key[2]: (place.is_best, place.is_near) for key, place in places.items()}
    assert marks == {
        "none": (True, True),
        "clip": (False, True),
        "default": (False, False),
        "adagc": (False, False),
    }
    assert beaten(runs) == ["cnn/clean: 1.02, none 1"]
    assert "default: best or within noise of best in 0, as good as clean in 0 of 1 cells" in summary(runs)
    assert "clip: best or within noise of best in 1, as good as clean in 1 of 1 cells" in summary(runs)


def test_as_good_as_clean_is_measured_at_the_clean_run_without_a_guard():
    runs = [made("none", 1.0), made("clip", 0.5, condition="bf16"), made("default", 1.009, condition="bf16")]
    assert unharmed(runs) == (1, 1)
    assert beaten(runs) == ["cnn/bf16: 1.009, clip 0.5"]
    assert unharmed([*runs[:2], made("default", math.nan, condition="bf16")]) == (0, 1)
    assert unharmed(runs[1:]) == (0, 0)


def test_seeds_that_differ_widen_what_counts_as_noise():
    runs = [made("none", 1.0, 0), made("none", 1.2, 1), made("default", 1.1, 0), made("default", 1.3, 1)]
    assert standing.standing(runs)["cnn", "clean", "default"].is_near


def test_a_cell_that_everyone_lost_has_no_best():
    (place,) = standing.standing([made("none", math.nan)]).values()
    assert not place.is_best
    assert not place.is_near


def test_a_table_fits_into_80_columns_with_whole_words():
    runs = [
        made(name, 123456.0 if name == "none" else 2.0715, condition=condition, steps_lost=399, interventions=400)
        for name in (*ENTRANTS, "folder/of/a-policy-with-a-long-name.yaml")
        for condition in CONDITIONS
    ]
    stream = io.StringIO()
    console = Console(file=stream, width=80)
    console.print(to_table(runs, "cnn"))
    text = stream.getvalue()
    assert "…" not in text
    for word in (
        *(word for own in CONDITIONS.values() for word in own.title.split()),
        "gradguard pretrain",
        "a-policy-with-a-lo",
        "2.071*",
    ):
        assert word in text
    assert "steps lost" in text
    assert "interventions" in text


def test_the_report_has_a_place_for_every_table():
    report = (HERE / "REPORT.md").read_text(encoding="utf-8")
    runs = [made(task=task) for task in TASKS]
    filled = fill(report, runs)
    assert to_markdown(runs, "gpt") in filled
    with pytest.raises(ValueError, match="no place for verdict"):
        fill("", [])


def test_the_picture_shows_broken_runs_too(tmp_path):
    draw([made("none", math.nan), made("default", 0.5), made("none", math.nan, condition="bf16")], tmp_path / "a.svg")
    assert (tmp_path / "a.svg").stat().st_size > 0
