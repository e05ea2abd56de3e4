"""The pre-flight of a few runs of the zoo: what fails later is named before, and healthy runs are ready."""

import io

import pytest
from rich.console import Console

from benchmarks.preflight import headline, look, table
from benchmarks.zoo.catalogue import ZOO


NAMED = {
    "F04": "signal",
    "F07": "nonfinite",
    "F08": "signal",
    "F09": "inputs",
    "F10": "targets",
    "F13": "nonfinite",
    "F15": "inputs",
    "F17": "dead_units",
    "F19": "output_layer",
    "F20": "inputs",
    "F24": "learning_rate",
    "F25": "symmetry",
    "F26": "symmetry",
    "F27": "output_layer",
    "F29": "inputs",
    "F31": "regularisation",
    "F32": "output_layer",
    "F35": "gradient_direction",
    "F36": "optimizer_coverage",
    "F37": "saturation",
    "F39": "broadcasting",
    "F41": "saturation",
}


@pytest.mark.parametrize("id", NAMED)
def test_a_mistake_of_the_zoo_is_named(id):
    row = look(ZOO[id], seeds=1)
    assert row.alarms == 1
    assert any(told.startswith(NAMED[id]) for told in row.counts), row.counts
    assert not row.unseen


@pytest.mark.parametrize(
    "id", ["H03", "H05", "H07", "H08", "H17", "H18", "H21", "H29", "H32", "H40", "H42", "H44", "H46"]
)
def test_a_healthy_run_of_the_zoo_is_ready(id):
    row = look(ZOO[id], seeds=1)
    assert row.alarms == 0, row.counts
    assert not row.unseen


def test_every_run_says_what_its_first_step_works_on():
    assert [
        setup.id
        for setup in ZOO.values()
        if setup.group in ("healthy", "failing") and not setup.id.startswith("X") and setup.make(0).opening is None
    ] == []


def test_the_table_counts():
    rows = [look(ZOO["H01"], 2), look(ZOO["F27"], 2)]
    text = io.StringIO()
    Console(file=text, width=160).print(table(rows))
    assert "2/2" in text.getvalue()
    assert "output_layer (critical)" in text.getvalue()
    assert headline(rows).startswith("false alarms: 0 of 2 healthy runs; failing set-ups caught in every seed: 1 of 1")
