"""Whatever is in the files of a run, looking at it ends in an answer or in one message, never in a traceback."""

import contextlib
import io
import json
import random
import shutil
from pathlib import Path

import pytest

from gradguard.cli import main


RECORDED = Path(__file__).parent.parent / "recorded" / "exp2"
FILES = ("run.json", "interventions.jsonl", "probes.jsonl", "statistics/000000.npy", "gradients/000000.npy")
NUMBERS = [True, -1, 10**30, 10**4000, 1e308, "NaN", "Infinity"]
VALUES = [*NUMBERS, None, "\x1b[2J", "", "\ud800", [], {}, [[[]]], {"name": 7}]
COMMANDS = (["watch", "--once"], ["compare"], ["export", "--to", "jsonl"], ["export", "--to", "tensorboard"])


def damage(path, chance):
    """Change some bytes, or some value in a JSON file, at random."""
    data = path.read_bytes()
    if path.suffix == ".npy" or chance.random() < 0.3:
        changed = bytearray(data)
        for _ in range(chance.choice((1, 3, 30))):
            changed[chance.randrange(len(changed))] = chance.randrange(256)
        path.write_bytes(changed[: chance.choice((len(changed), chance.randrange(len(changed))))])
        return
    lines = data.decode(errors="replace").split("\n") if path.suffix == ".jsonl" else [data.decode(errors="replace")]
    place = chance.randrange(len(lines))
    with contextlib.suppress(ValueError):  # a second change, to what is no JSON since the first
        lines[place] = json.dumps(replaced(json.loads(lines[place]), chance))
    path.write_text("\n".join(lines))


def replaced(value, chance):
    if isinstance(value, (dict, list)) and value and chance.random() < 0.8:
        key = chance.choice(list(value)) if isinstance(value, dict) else chance.randrange(len(value))
        value[key] = replaced(value[key], chance)
        return value
    return chance.choice(VALUES)


@pytest.mark.parametrize("seed", [*range(40), 50, 135, 518])
def test_a_damaged_run_is_answered(tmp_path, seed):
    chance = random.Random(seed)
    run = tmp_path / "exp"
    shutil.copytree(RECORDED, run)
    for _ in range(chance.choice((1, 2, 5))):
        damage(run / chance.choice(FILES), chance)
    for command, *options in COMMANDS:
        paths = [str(RECORDED), str(run)] if command == "compare" else [str(run)]
        if command == "export":
            options += ["-o", str(tmp_path / "out" / options[1])]
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            assert main([command, *paths, *options]) in (0, 1, 2)
        assert all(line.isprintable() for line in out.getvalue().splitlines())
        assert "Traceback" not in out.getvalue()
