"""Records as earlier formats had them are still read, by everything that reads records.

Each was written by a real training of 130 steps: a NaN batch at step 40, targets 10,000 times too large at 75, infinite
ones at 105, and a resume from step 61 after step 110.
"""

import json
import shutil
from pathlib import Path

import jsonschema
import numpy as np
import pytest

import gradguard
from gradguard.audit.summary import summarise
from gradguard.audit.verify import verify_run
from gradguard.cli import main
from gradguard.compare.comparison import compare_runs
from gradguard.export.destination import destination, write_tables
from gradguard.export.tables import MAKERS, table_of
from gradguard.records import Outcome
from gradguard.schemas.catalog import schema_of


FOLDER = Path(__file__).parent / "old_records"
NAMES = sorted(path.name for path in FOLDER.iterdir())
PARAMETERS = ["0.weight", "0.bias", "2.weight", "2.bias"]
every_record = pytest.mark.parametrize("name", NAMES)


def with_file(name):
    return {record for record in NAMES if (FOLDER / record / name).exists()}


def with_text(file, text):
    return {record for record in with_file(file) if text in (FOLDER / record / file).read_text()}


def test_each_is_of_another_format():
    """What one has that the one before had not: row counts, gradients, probes, their step by its name, noise, seals."""
    order = [
        "first",
        "with_row_counts",
        "with_gradients",
        "with_probes_by_step",
        "with_probes",
        "with_noise_of_the_loss",
        "with_seals_and_notes",
    ]
    assert sorted(order) == NAMES
    assert with_text("run.json", '"num_rows"') == set(order[1:])
    assert with_file("gradients") == set(order[2:])
    assert with_file("probes.jsonl") == set(order[3:])
    assert with_text("interventions.jsonl", '"follows"') == set(order[3:])
    assert with_text("probes.jsonl", '"at"') == set(order[4:])
    assert with_text("interventions.jsonl", '"loss_noise"') == set(order[5:])
    assert with_file("seals.jsonl") == with_file("replay.jsonl") == set(order[6:])
    assert with_text("probes.jsonl", '"f4"') == with_text("run.json", '"v": 2') == set()


@every_record
def test_it_is_read_without_a_problem_and_verified(name):
    run = gradguard.read_run(FOLDER / name)
    assert run.problems == []
    assert verify_run(FOLDER / name) == []
    assert run.status == "closed"
    assert run.parameters == PARAMETERS


@every_record
def test_it_says_what_happened(name):
    run = gradguard.read_run(FOLDER / name)
    done = [(record.step, record.diagnosis, record.remedy) for record in run.interventions]
    assert done == [(40, "nonfinite", "skip_step"), (75, "loss_spike", "skip_step"), (105, "nonfinite", "skip_step")]
    outcomes = [record for record in run.records if isinstance(record, Outcome)]
    assert (outcomes[0].step, outcomes[0].of, outcomes[0].verdict) == (90, 1, "helped")
    assert run.interventions[0].finding.parameters[0] in PARAMETERS
    assert [event.event for event in run.events] == ["attached", "resumed", "closed"]
    steps = run.statistics["step"]
    assert len(steps) == 130
    assert steps[0] == 0
    assert run.statistics["norms"].shape == (130, 4)
    assert np.isnan(run.statistics["loss"][40])
    assert 0.1 < np.nanmedian(run.statistics["loss"]) < 2


@pytest.mark.parametrize(
    "name", ["with_probes_by_step", "with_probes", "with_noise_of_the_loss", "with_seals_and_notes"]
)
def test_probes_are_found_at_the_step_that_was_told_of_them(name):
    run = gradguard.read_run(FOLDER / name)
    assert list(run.activations) == [3, 53, 103]
    assert [seen.step for seen in run.updates.values()] == [1, 52, 102]
    assert list(run.updates) == [step + 1 for step in (1, 52, 102)]
    assert run.gradients["std"].shape == (3, 4)


@every_record
def test_it_is_valid_by_the_present_schemas(name):
    for schema in ("record", "run", "probes", "replay", "seals"):
        file = {"record": "interventions.jsonl", "run": "run.json"}.get(schema, f"{schema}.jsonl")
        check = jsonschema.Draft202012Validator(schema_of(schema))
        text = (FOLDER / name / file).read_text() if (FOLDER / name / file).exists() else ""
        for line in [text] if file == "run.json" else text.splitlines():
            check.validate(json.loads(line))


@every_record
def test_every_command_takes_it(name, tmp_path, capsys):
    path = tmp_path / "exp"
    shutil.copytree(FOLDER / name, path)
    for command in (["audit"], ["show", "--step", "40"], ["verify"], ["watch"], ["audit", "--json"]):
        assert main([command[0], str(path), *command[1:]]) == 0
        assert capsys.readouterr().out
    run = gradguard.read_run(path)
    assert summarise(run).num_steps == 130
    tables = [table_of(run, table) for table in MAKERS]
    write_tables(destination("jsonl"), tmp_path / "out", tables, run)
    assert compare_runs(run, gradguard.read_run(FOLDER / NAMES[-1])).num_common > 100
