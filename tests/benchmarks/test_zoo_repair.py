"""Who repairs what: the arms, what is counted, the tables; and that what a person fixed does train."""

import doctest
import io
from collections import Counter
from dataclasses import replace

import pytest
import torch
import typer
from rich.console import Console
from torch.optim import SGD
from typer.testing import CliRunner

from benchmarks.zoo.catalogue import ZOO
from benchmarks.zoo.grid import to_table
from benchmarks.zoo.repair import rates, report
from benchmarks.zoo.repair.arms import arms
from benchmarks.zoo.repair.attempt import Attempt, attempt, dump, load
from benchmarks.zoo.repair.hands import FACTOR, Clip, ClipSkipPlateau
from benchmarks.zoo.repair.lottery import LOTS, lottery
from benchmarks.zoo.repair.rates import class_rate, is_harmed
from benchmarks.zoo.repair.tabulate import grids
from benchmarks.zoo.report import HERE
from benchmarks.zoo.result import reference_score
from benchmarks.zoo.train import Act, train
from gradguard.contracts import REMEDIES
from gradguard.policy.forms import resolve


# What a run that is right reaches at least, by the score that it is judged by: well below the healthy runs of the same
# data, and far above those that fail. The exceptions are harder tasks.
RIGHT = 0.75
HARDER = {"F06": 0.5, "F10": 0.2, "F12": 0.15, "F21": 0.6, "F39": 0.2}
WITHOUT_CURE = {"F30", "F42"}


def short(id, steps):
    return replace(ZOO[id], steps=steps)


def made(arm, score, *, id="F16", group="failing", repair="loop", **changes):
    values = {
        "seed": 0,
        "steps": 100,
        "unguarded": 0.1,
        "reference": 1.0,
        "is_identical": False,
        "interventions": Counter(),
        "wasted": 0,
        "stopped": "",
    }
    return Attempt(id=id, group=group, repair=repair, arm=arm, score=score, **{**values, **changes})


@pytest.mark.parametrize("id", [id for id, setup in ZOO.items() if setup.group == "failing" and not setup.held_out])
def test_what_a_person_fixed_trains_well(id):
    if id in WITHOUT_CURE:
        assert ZOO[id].reference is None
        assert ZOO[id].repair == "advice"
    else:
        assert reference_score(ZOO[id], seed=0) >= HARDER.get(id, RIGHT)


def test_all_arms_tend_the_same_run():
    struck = replace(ZOO["T-nan-batch@H01"], steps=8, faults=(replace(ZOO["T-nan-batch@H01"].faults[0], at=4),))
    tried = {own.arm: own for own in attempt(struck, seed=0)}
    assert tuple(tried) == arms("default")
    assert {"nothing", "clip", "plateau", "random", "default"} <= tried.keys()
    assert len({(own.reference, own.unguarded) for own in tried.values()}) == 1
    assert tried["nothing"].is_identical
    assert tried["nothing"].score == tried["clip"].score == 0.0  # a NaN in every weight
    assert tried["default"].interventions == {"skip_step": 1, "notify": 1}
    assert tried["default"].wasted == tried["plateau"].wasted == 1
    assert tried["plateau"].score > 0.0
    assert tried["random"].interventions.total() == 1


def test_another_policy_may_be_tried_and_a_missing_preset_is_no_arm():
    assert arms("observe")[-1] == "observe" or arms("observe")[-2:] == ("observe", "repair")
    assert arms("repair").count("repair") == 1
    tried = attempt(short("F13", 3), seed=0, policy="observe")
    own = next(own for own in tried if own.arm == "observe")
    assert own.is_identical
    assert own.abstained


@pytest.fixture
def line():
    weight = torch.nn.Parameter(torch.zeros(4))
    return weight, SGD([weight], 1.0)


def test_the_clip_is_that_of_torch(line):
    weight, optimizer = line
    hand = Clip(optimizer)
    weight.grad = torch.full((4,), 10.0)
    optimizer.step()
    torch.testing.assert_close(weight.detach(), torch.full((4,), -0.5))
    hand.close()
    weight.grad = torch.full((4,), 10.0)
    optimizer.step()
    torch.testing.assert_close(weight.detach(), torch.full((4,), -10.5))


def test_a_gradient_that_is_not_finite_is_skipped_and_a_plateau_lowers_the_rate(line):
    weight, optimizer = line
    hand = ClipSkipPlateau(optimizer)
    weight.grad = torch.tensor([1.0, 1.0, 1.0, float("nan")])
    hand.observe(torch.tensor(float("nan")))
    optimizer.step()
    assert not weight.detach().any()
    assert hand.wasted == 1
    for _ in range(22 * 5):
        weight.grad = torch.zeros(4)
        hand.observe(torch.tensor(2.0))
        optimizer.step()
    assert optimizer.param_groups[0]["lr"] == pytest.approx(FACTOR)
    hand.close()


def test_lots_are_as_many_as_the_acts_and_the_same_for_the_same_seed():
    acts = [
        Act(0, 5, "rollback"),
        Act(0, 5, "scale_lr"),
        Act(1, 7, "clip_norm"),
        Act(0, 9, "notify"),
        Act(1, 9, "stop"),
        Act(1, 9, "rebaseline"),
    ]
    policies = lottery(acts, 2, "a")
    due = [[step for rule in policy.rules for step in rule.when.steps] for policy in policies]
    assert (set(due[0]), due[1]) == ({5}, [7])
    assert policies == lottery(acts, 2, "a")
    drawn = {str(lottery(acts, 2, str(seed))[1].rules[0].do) for seed in range(40)}
    assert len(drawn) > len(set(LOTS) & set(REMEDIES.names()))  # of every kind, and of several options


@pytest.mark.parametrize("name", sorted(set(LOTS) & set(REMEDIES.names())))
def test_every_lot_is_a_remedy_that_a_policy_may_name(name):
    for options in LOTS[name]:
        assert resolve(REMEDIES, {name: options}).kind != "notice"


def test_lots_are_carried_out_at_their_steps():
    acts = [Act(0, 3, "skip_step"), Act(0, 6, "rollback")]
    trained = train(short("H01", 8), 0, lottery(acts, 1, "carried out"))
    assert [finding.step for finding in trained.findings] == [3, 6]
    assert len(trained.acts) + trained.withheld.total() == 2


def test_repaired_is_near_the_fixed_run_and_left_alone_is_unchanged_or_stopped():
    assert made("default", 0.95).is_repaired
    assert not made("default", 0.949).is_repaired
    assert not made("default", float("-inf")).is_repaired
    assert not made("default", 1.0, reference=None).is_repaired
    assert not made("default", 0.95).is_recovered
    assert made("default", 0.1, is_identical=True, interventions=Counter(notify=3)).abstained
    assert not made("default", 0.1, is_identical=True, interventions=Counter(clip_norm=1)).abstained
    assert not made("clip", 0.1).abstained
    assert made("default", 0.1, interventions=Counter(rollback=1, stop=1), stopped="why").abstained


def test_harm_is_what_was_lost():
    assert is_harmed(made("clip", 0.9, unguarded=0.95))
    assert not is_harmed(made("clip", 0.94, unguarded=0.95))
    assert made("clip", float("-inf"), unguarded=float("-inf")).harm == 0.0


def test_a_rolled_back_run_has_wasted_what_it_lost():
    trained = train(ZOO["F40"], 0, "default")
    assert trained.interventions["rollback"] == 1
    assert trained.wasted > trained.interventions["skip_step"] + trained.interventions["rollback"]


@pytest.fixture(scope="module")
def by_hand():
    return [
        made("nothing", 0.1, is_identical=True),
        made("default", 0.96, interventions=Counter(rollback=1), wasted=20),
        made("nothing", 0.1, seed=1, is_identical=True),
        made("default", 0.5, seed=1, interventions=Counter(rollback=2)),
        made("nothing", 0.1, id="F13", repair="advice", is_identical=True),
        made("default", 0.1, id="F13", repair="advice", interventions=Counter(clip_norm=4)),
        made("nothing", 0.9, id="H01", group="healthy", repair=None, unguarded=0.9, is_identical=True, reference=None),
        made("default", 0.8, id="H01", group="healthy", repair=None, unguarded=0.9, reference=None),
        made("nothing", 0.1, id="T-bit-flip@H01", group="transient", repair=None),
        made("default", 0.99, id="T-bit-flip@H01", group="transient", repair=None),
    ]


def test_the_tables_say_so(by_hand):
    tables = {table.name: table for table in grids(by_hand)}
    assert tables["repaired"].rows[1] == ("default", "1/2", "9-91", "-", "", "0/1", "0-79", "6.7 %")
    assert tables["harm"].rows[1] == ("default", "0/1", "0-79", "1/1", "21-100", "0.100")
    assert tables["faults"].rows[0] == ("bit-flip", "0/1", "1/1")
    assert tables["setups"].rows[0] == ("F16", ZOO["F16"].title, "loop", "1.000", "0/2", "1/2")
    assert [row[1] for row in tables["remedies"].rows] == ["F16", "F13"]
    assert str(class_rate(by_hand, "loop")) == "1/4"
    assert not grids([])


def test_the_tables_fit_a_terminal(by_hand):
    for grid in grids(by_hand, has_titles=False):
        text = io.StringIO()
        Console(file=text, width=80).print(to_table(grid))
        assert max(map(len, text.getvalue().splitlines())) <= 80
        for row in grid.rows:
            assert all(cell in text.getvalue() for cell in row)


def test_the_report_is_rebuilt_from_numbers(by_hand, tmp_path):
    numbers, text = tmp_path / "repair.json", tmp_path / "REPAIR.md"
    numbers.write_bytes(dump(by_hand))
    assert load(numbers.read_bytes()) == by_hand
    text.write_text((HERE / "REPAIR.md").read_text(encoding="utf-8"), encoding="utf-8")
    app = typer.Typer()
    app.command()(report.main)
    outcome = CliRunner().invoke(app, [str(numbers), "--report", str(text)])
    assert outcome.exit_code == 0, outcome.output
    assert (tmp_path / "repair.png").read_bytes().startswith(b"\x89PNG")
    assert "| default | 1/2 | 9-91 |" in text.read_text(encoding="utf-8")


def test_the_examples_in_the_docstrings_hold():
    assert doctest.testmod(rates).failed == 0
