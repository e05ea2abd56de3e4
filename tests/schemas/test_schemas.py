"""Every line that real runs write is valid by the schema that is printed, and what is not is refused."""

import copy
import functools
import json
from pathlib import Path
from typing import get_args

import jsonschema
import numpy as np
import pytest
import torch
from guarded import regression, train
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made_runs import HOSTILE, act, judge, start_run, withhold
from torch import nn

import gradguard
from gradguard.cli import main
from gradguard.errors import UsageError
from gradguard.evidence.stats import StepStats
from gradguard.export.destination import destination, write_tables
from gradguard.export.tables import MAKERS, table_of
from gradguard.record import facts
from gradguard.record.encode import to_json
from gradguard.record.replay import Kind, ReplayWriter
from gradguard.records import Change, Event, Finding, Intervention
from gradguard.schemas.catalog import SCHEMAS, schema_of


GOLDEN = Path(__file__).parent / "golden"
FILES = {
    "record": "interventions.jsonl",
    "probes": "probes.jsonl",
    "run": "run.json",
    "replay": "replay.jsonl",
    "seals": "seals.jsonl",
}
VERSIONS = {"run": 2, "probes": 2}  # of the others: 1
WRITTEN = sorted(set(SCHEMAS) - {"policy"})


@functools.cache
def validator(name):
    return jsonschema.Draft202012Validator(schema_of(name))


def check_files(path):
    """Validate every line of a run's files; return how many lines of each were seen."""
    counts = {}
    for name, file in FILES.items():
        lines = (path / file).read_text() if (path / file).exists() else ""
        lines = [lines] if file.endswith(".json") else lines.splitlines()
        check = validator(name)
        for line in lines:
            check.validate(json.loads(line))
        counts[name] = len(lines)
    return counts


def spoilt(step, inputs, targets):
    """NaN, Inf and far too large batches, now and then three in a row."""
    if step in (40, 41, 42, 43, 44, 90):
        targets = targets * float("nan")
    if step in (60, 61):
        targets = targets * 1e5
    if step == 75:
        inputs = inputs * float("inf")
    return inputs, targets


@pytest.fixture(scope="module")
def sick(tmp_path_factory):
    """A real training with most kinds of trouble, of which a part is only watched."""
    path = tmp_path_factory.mktemp("runs") / "sick"
    run = train(regression(spoil=spoilt), 140, run_dir=path)
    run.guard.load_state_dict(run.guard.state_dict())
    run.guard.close()
    return path


def test_every_line_of_a_real_run_is_valid(sick):
    counts = check_files(sick)
    assert counts["record"] > 12
    assert counts["probes"] > 3
    assert counts["replay"] > 5
    assert counts["seals"] > 12
    noted = {json.loads(line)["kind"] for line in (sick / FILES["replay"]).read_text().splitlines()}
    assert noted >= {"layout", "weights", "spreads", "facts", "resumed"}
    kinds = {json.loads(line)["kind"] for line in (sick / FILES["record"]).read_text().splitlines()}
    assert kinds == {"intervention", "withheld", "outcome", "event"}


@pytest.mark.parametrize("policy", ["observe", "pretrain", "finetune", "rnn", "repair"])
def test_every_line_is_valid_under_every_preset(tmp_path, policy):
    run = train(regression(spoil=spoilt), 100, run_dir=tmp_path / "exp", policy=policy)
    run.guard.close("stopped" if run.stopped else "closed")
    assert check_files(tmp_path / "exp")["record"] > 5


def test_every_line_is_valid_of_a_run_that_goes_on_and_of_one_that_changes_its_parameters(tmp_path):
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard = gradguard.attach(model, optimizer, run_dir=tmp_path / "exp", name="D")
    extra = nn.Parameter(torch.ones(1))
    for step in range(10):
        if step == 5:
            optimizer.add_param_group({"params": [extra]})
        optimizer.zero_grad()
        loss = (model(torch.randn(8, 4)) * extra).square().mean()
        loss.backward()
        guard.observe(loss)
        optimizer.step()
    assert check_files(tmp_path / "exp" / "D")["record"] >= 2
    guard.close()
    check_files(tmp_path / "exp" / "D")


@pytest.mark.parametrize("table", MAKERS)
def test_every_row_of_an_exported_table_is_valid(sick, tmp_path, table):
    run = gradguard.read_run(sick)
    ((path, _),) = write_tables(destination("jsonl"), tmp_path / "out", [table_of(run, table)], run)
    lines = path.read_text().splitlines()
    assert lines
    check = validator(table)
    for line in lines:
        check.validate(json.loads(line))


@pytest.mark.parametrize("name", WRITTEN)
def test_a_schema_is_one_and_says_what_every_field_means(name):
    schema = schema_of(name)
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["$id"] == f"urn:gradguard:{name}:{VERSIONS.get(name, 1)}"
    objects = [schema, *schema.get("oneOf", []), *schema.get("$defs", {}).values()]
    for one in objects:
        for key, field in one.get("properties", {}).items():
            assert field.get("description"), (name, key)


@pytest.mark.parametrize("name", WRITTEN)
def test_a_schema_is_the_one_that_was_published(name):
    """Others rely on it. A field that may be missing can be added; whatever else changes is a new version."""
    published = json.loads((GOLDEN / f"{name}.json").read_text(encoding="utf-8"))
    assert published == json.loads(json.dumps(schema_of(name)))


def test_no_schema_is_forgotten():
    assert sorted(path.stem for path in GOLDEN.glob("*.json")) == WRITTEN


@pytest.fixture
def lines(tmp_path):
    """A line of each kind, as read."""
    run = start_run(tmp_path / "exp")
    judge(run, act(run, 5, parameter=HOSTILE), 55)
    withhold(run, 6)
    run.journal.append(Event(event="resumed", message=HOSTILE, data={HOSTILE: [1, {"a": float("nan")}]}))
    run.finish()
    return [json.loads(line) for line in (run.path / FILES["record"]).read_text().splitlines()]


def test_what_misses_a_field_has_one_too_many_or_a_wrong_one_is_refused(lines):
    check = validator("record")
    for line in lines:
        check.validate(line)
        for name in ("v", "seq", "time", "step", "kind", "prev", "hash"):
            assert not check.is_valid({key: value for key, value in line.items() if key != name})
        for change in ({"surprise": 1}, {"v": 2}, {"step": "1"}, {"kind": "other"}, {"hash": "x"}, {"seq": None}):
            assert not check.is_valid({**line, **change})


def test_every_kind_of_note_is_valid(tmp_path):
    writer = ReplayWriter(tmp_path / FILES["replay"])
    stats = StepStats(3)
    stats.loss, stats.nonfinite, stats.exact_norms = float("nan"), {1: (2, 0)}, {0: 1e40}
    stats.overflowed, stats.bad_state, stats.variance_growth, stats.grown_variance = (0,), ("bn",), 9.0, "bn"
    writer.append("aside", 3, facts.whole(stats))
    writer.append("facts", 3, facts.facts(stats))
    writer.append("lateness", 3, {"is_late": True})
    writer.append("forget", 3, {"why": "rebaselined"}, is_within=True)
    writer.append("roll_back", 3, {"snapshot": 2})
    writer.append("weights", 3, {"norms": stats.norms, "sgd_reach": float("inf"), "shrinkage": 0.0})
    writer.append("spreads", 3, {"spreads": np.arange(3, dtype=np.float32)})
    writer.append("layout", 3, {"index": 1})
    writer.append("resumed", 3, {"step": 3, "judgement": {50: stats.norms}, "intervening": {}, "snapshots": {}})
    writer.close()
    lines = [json.loads(line) for line in (tmp_path / FILES["replay"]).read_text().splitlines()]
    assert {line["kind"] for line in lines} == set(get_args(Kind))
    for line in lines:
        validator("replay").validate(line)


def test_a_seal_or_note_that_misses_a_field_has_one_too_many_or_a_wrong_one_is_refused(sick):
    for name in ("seals", "replay"):
        check = validator(name)
        for text in (sick / FILES[name]).read_text().splitlines():
            line = json.loads(text)
            for key in line:
                is_optional = name == "replay" and (key == "within" or line["kind"] in ("facts", "aside"))
                assert is_optional or not check.is_valid({other: line[other] for other in line if other != key})
            for change in ({"surprise": 1}, {"hash": "x"}, {"v": 2, "row": -1}, {"kind": "other", "is_last": 1}):
                assert not check.is_valid({**line, **change})


def test_a_line_of_probes_may_be_as_in_version_1_and_say_its_step_as_the_first_records(sick):
    check = validator("probes")
    lines = [json.loads(line) for line in (sick / FILES["probes"]).read_text().splitlines()]
    run = gradguard.read_run(sick)
    for kind, seen in (("activations", run.activations), ("updates", run.updates)):
        written = next(line for line in lines if line["kind"] == kind)
        assert "like" not in written
        arrays = {key: value for key, value in vars(seen[written["at"]]).items() if isinstance(value, np.ndarray)}
        first = {**written, **{key: json.loads(to_json(value.tolist())) for key, value in arrays.items()}}
        check.validate(first)
        del first["at"]
        first.setdefault("step", written["at"])
        check.validate(first)
        assert not check.is_valid({key: value for key, value in first.items() if key != "step"})
        assert not check.is_valid({key: value for key, value in written.items() if key not in ("names", "lr")})
        assert not check.is_valid({**first, "like": 1})
    later = next(line for line in lines if "like" in line)
    assert not check.is_valid({key: value for key, value in later.items() if key != "like"})


def test_numbers_that_json_has_no_word_for_are_three_words_and_no_others(lines):
    check = validator("record")
    for word, is_one in (("NaN", True), ("Infinity", True), ("-Infinity", True), ("nan", False), ("1.0", False)):
        line = copy.deepcopy(lines[0])
        line["finding"]["value"] = word
        assert check.is_valid(line) is is_one


texts = st.text(max_size=20)
numbers = st.floats() | st.integers() | st.none()
evidence = st.dictionaries(texts, numbers | texts, max_size=3)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(texts, numbers, evidence, evidence, st.lists(st.integers() | texts, max_size=3))
def test_whatever_a_plugin_puts_into_a_record_is_valid(name, value, before, after, samples):
    finding = Finding(diagnosis=name, step=3, value=value, evidence=before, parameters=(name,), message=name)
    change = Change(summary=name, before=before, after=after)
    record = Intervention(
        step=3, rule=name, diagnosis=name, remedy=name, finding=finding, change=change, sample_ids=tuple(samples)
    )
    line = json.loads(to_json(record.model_dump(exclude={"outcome"})))
    validator("record").validate({**line, "prev": "0" * 64, "hash": "f" * 64})


@pytest.mark.parametrize("name", SCHEMAS)
def test_the_command_prints_it(name, capsys):
    assert main(["schema", name]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(schema_of(name)))


def test_without_a_name_the_command_prints_that_of_policies(capsys):
    assert main(["schema"]) == 0
    assert json.loads(capsys.readouterr().out)["title"] == "gradguard policy"


def test_an_unknown_schema_is_answered_with_the_nearest(capsys):
    assert main(["schema", "recrod"]) == 2
    assert "did you mean 'record'?" in capsys.readouterr().err
    with pytest.raises(UsageError):
        schema_of("recrod")
