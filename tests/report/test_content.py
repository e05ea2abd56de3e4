"""What the page says about a run is strict JSON, whatever the record holds."""

import json

import numpy as np
import pytest
from reported_runs import HOSTILE, HOSTILE_IMAGE, NAMES, NAN, SPIKE, STEPS, Recording, sick

from gradguard.audit.read import read_run
from gradguard.record.encode import to_json
from gradguard.records import Change, Finding, Intervention
from gradguard.report.actions import actions
from gradguard.report.content import describe
from gradguard.report.histograms import histograms
from gradguard.report.policy_words import policy_words


def refuse(constant):
    raise AssertionError(constant)


def describe_path(path):
    return json.loads(to_json(describe(read_run(path), "run")), parse_constant=refuse)


def test_a_run_is_told_in_full(sick_run):
    told = describe_path(sick_run)
    assert told["curves"]["step"] == list(range(STEPS))
    assert told["curves"]["loss"][SPIKE] == 30.0
    assert told["curves"]["loss"][NAN] is None
    assert told["curves"]["odd"] == [NAN, NAN + 1, NAN + 2]
    assert told["curves"]["effective"][SPIKE + 5] == 0.0005
    assert told["layers"][:3] == NAMES[:3]
    assert "\x1b" not in to_json(told)
    assert told["norms"]["shape"] == [1, STEPS, 4]
    assert set(told["probed"]) == {"mean", "std", "max", "zero_ratio"}
    assert told["updates"]["shape"] == [1, 6, 4]
    assert told["activations"]["places"] == ["h.0.act", HOSTILE]
    assert told["histograms"]["step"] == [0, 40, 80, 120, 160, 200]
    assert told["alarm"] == {"window": 50, "ratios": [20.0, 100.0], "clip": 5.0}
    assert told["shapes"][HOSTILE] == "4 x 4, float32"
    assert [row["remedy"] for row in told["efficacy"]] == ["clip_norm", "skip_step", ""]
    assert ["torch", HOSTILE] in told["environment"]
    assert "exploding_gradient" in told["glossary"]


def test_the_rows_of_the_table_have_their_evidence(sick_run):
    table = describe_path(sick_run)["actions"]
    texts = table["texts"]
    first = table["rows"][0]
    assert [first[0], *(texts[place] for place in first[1:6])] == [
        SPIKE,
        "exploding_gradient",
        "clip_norm",
        HOSTILE,
        "helped",
        f"norm of {HOSTILE} 100 -> 6",
    ]
    detail = table["details"]["0"]
    assert [texts[detail["rule"]], texts[detail["reason"]]] == ["tame", "fired"]
    assert detail["finding"]["numbers"] == [100.0, 2.0, 40.0, 50]
    assert [texts[detail["change"][0][0]], *detail["change"][0][1:]] == ["norm", 100.0, 6.0]
    assert detail["outcome"]["losses"] == [2.0, 1.9, 0.2]
    assert [texts[row[4]] for row in table["rows"]] == ["helped", "waiting", "no_effect", "not_done", "told"]


def test_an_empty_run_and_a_missing_journal_are_told_too(empty_run, healthy_run):
    assert describe_path(empty_run)["curves"]["step"] == []
    (healthy_run / "interventions.jsonl").unlink()
    assert "missing" in describe_path(healthy_run)["notes"][0]


def test_what_has_no_room_is_counted_and_what_is_rare_is_kept(tmp_path):
    run = Recording(tmp_path / "run", ["a"])
    for step in range(300):
        remedy = "rollback" if step == 250 else "skip_step"
        finding = Finding(diagnosis="nonfinite", step=step, message="x" * 300)
        run.write(
            Intervention(
                step=step, rule="r", diagnosis="nonfinite", remedy=remedy, finding=finding, change=Change(summary="")
            )
        )
    read = read_run(run.finish())
    few = actions(read, share=0.01)
    assert few["left_out"] == 100
    some = actions(read, share=0.015)
    assert len(some["rows"]) == 300
    assert "250" in some["details"]
    assert 50 < len(some["details"]) < 300


def test_a_resumed_run_is_told_as_it_ended(tmp_path):
    run = Recording(tmp_path / "run", ["a"])
    for step in [*range(10), *range(5, 15)]:
        run.step(step, loss=float(step))
    told = describe_path(run.finish())
    assert told["curves"]["step"] == list(range(15))


def test_layers_that_came_later_are_absent_before(tmp_path):
    from gradguard.evidence.stats import ParameterTable

    run = Recording(tmp_path / "run", ["a"])
    run.probe(0)
    run.step(0)
    run.names = ["a", "b"]
    run.directory.write_layout(ParameterTable(run.names, [(2,)] * 2, ["float32"] * 2, [0, 0]))
    run.step(1)
    run.probe(1)
    told = describe_path(run.finish())
    assert told["layers"] == ["a", "b"]
    assert told["norms"]["shape"] == [1, 2, 2]
    assert told["updates"]["shape"] == [1, 1, 2]


@pytest.mark.parametrize(
    "changes",
    [
        {"policy": {"rules": "x", "mode": ["\x1b[2J"]}},
        {
            "policy": {
                "rules": [{"name": HOSTILE, "when": HOSTILE, "do": HOSTILE, "escalate": [1, {"do": None}]}],
                "horizon": "x",
            }
        },
        {"versions": "none"},
        {"layouts": [{"first_chunk": 0, "first_gradients_chunk": 0, "parameters": ["a"], "shapes": "x", "dtypes": []}]},
        {"created": HOSTILE_IMAGE, "status": HOSTILE},
    ],
)
def test_odd_facts_of_a_run_do_no_harm(sick_run, changes):
    info = json.loads((sick_run / "run.json").read_text())
    (sick_run / "run.json").write_text(json.dumps({**info, **changes}))
    assert "\x1b" not in json.dumps(describe_path(sick_run))


def test_numbers_beyond_all_bounds_do_no_harm(tmp_path):
    run = Recording(tmp_path / "run", ["a"])
    for step in range(12):
        run.step(step, loss=1e300 * (-1) ** step, global_norm=np.inf if step == 5 else 1e200, lr=0.0)
    finding = Finding(diagnosis="d", step=10**30, value=10**400, baseline=-(10**400), evidence={"x": 10**400})
    change = Change(summary="", before={"x": 10**400})
    run.write(Intervention(step=10**30, rule="r", diagnosis="d", remedy="m", finding=finding, change=change))
    describe_path(run.finish())


def test_a_rule_that_only_tells_is_told_apart():
    rules = [
        {"name": "a", "when": {"plateau": {}}, "do": [{"notify": {}}]},
        {"name": "b", "do": [{"notify": {}}, {"stop": {}}]},
    ]
    assert [rule[-1] for rule in policy_words({"rules": rules})["rules"]] == [True, False]


def test_histograms_are_those_of_the_record(sick_run):
    import base64

    from gradguard.gradients.magnitude_bins import bin_edges, unpack_shares

    run = read_run(sick_run)
    told = histograms(run)
    num_probes, num_layers = len(told["step"]), len(run.parameters)
    levels = np.frombuffer(base64.b64decode(told["levels"]), dtype=np.uint8).reshape(num_probes, num_layers, 25)
    top = np.frombuffer(base64.b64decode(told["top"]), dtype=np.uint8).reshape(num_probes, num_layers)
    assert (unpack_shares(levels) == run.gradients["histogram"]).all()
    edges = run.gradients.edges()
    assert (edges == bin_edges(run.gradients["max"], run.gradients["min"])).all()
    assert (edges[..., -1] == 2.0 ** (2 * (top.astype(float) + 1) - 127)).all()


def test_several_runs_share_the_room(tmp_path):
    path = sick(tmp_path / "a")
    whole, half = (describe(read_run(path), "a", share) for share in (1.0, 0.001))
    assert half["norms"]["shape"][1] < whole["norms"]["shape"][1]


def test_a_long_run_is_cut_to_what_a_screen_shows_and_no_intervention_is_lost(tmp_path):
    run = Recording(tmp_path / "run", ["a", "b"])
    done = list(range(123, 20_000, 397))
    for step in range(20_000):
        run.step(step, loss=99.0 if step == 7777 else 1.0, global_norm=0.001 if step == 8888 else 1.0)
    for step in done:
        finding = Finding(diagnosis="loss_spike", step=step)
        common = {"step": step, "rule": "r", "diagnosis": "loss_spike", "remedy": "skip_step", "finding": finding}
        run.write(Intervention(change=Change(summary=""), **common))
    told = describe_path(run.finish())
    steps = told["curves"]["step"]
    assert set(done) | {0, 7777, 8888, 19_999} <= set(steps)
    assert len(steps) < 12_000
    assert told["norms"]["shape"] == [5, 500, 2]
    assert len(told["actions"]["rows"]) == len(done)
