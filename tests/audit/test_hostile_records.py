"""A record may come from anybody: it is read without a traceback, a write, a wait or a coloured terminal."""

import io
import json
import os
import shutil
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout

import numpy as np
import pytest
import written_run
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import gradguard
from gradguard.cli import main
from gradguard.errors import GradguardError
from gradguard.record.chain import first_link, seal


COMMANDS = (
    ["audit"],
    ["audit", "--json"],
    ["show", "--step", "100"],
    ["show", "--step", "100", "--json"],
    ["verify"],
    ["verify", "--json"],
)
LINE_FILES = ("interventions.jsonl", "probes.jsonl", "seals.jsonl")
CHUNKS = ("statistics/000000.npy", "statistics/000001.npy", "gradients/000000.npy")
LARGEST_OUTPUT = 200_000  # characters that one command may print about a small run


def nest(value, depth):
    for _ in range(depth):
        value = {"a": [value]}
    return value


HOSTILE = [
    10**400, -(10**400), 2**63, -1, 0, 1e308, -1e308, "NaN", "Infinity", True, None, [], {}, "", 0.5,
    nest(1, 10), nest(1, 400), [[]] * 1000, ["x"] * 1000, {str(n): n for n in range(1000)},
    "\x1b[31m\x1b]0;title\x07\x1b[2J", "[red]bold[/red]", "\u202egnp.exe", "a\u200bb\ufeff", "\u2028\u2029", "\0",
    "\ud800", "../../../../etc/passwd", "/etc/passwd", "C:\\x", "~", "x" * 100_000, "a b " * 20_000, "\n" * 50,
    "\u0301" * 500,
    "%s{0}{record}<script>alert(1)</script>", "interventions.jsonl", "9" * 30, "2026-11-30T00:00:00", "0001-01-01",
    {"array": "<f8", "shape": [2**40], "data": ""},
]  # fmt: skip
hostile = st.sampled_from(HOSTILE)
law = settings(
    max_examples=15, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture(scope="module")
def closed(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "closed"
    written_run.write_run(path).finish()
    return path


@pytest.fixture
def look(closed, tmp_path):
    """Write one file of a copy anew and look at the run in every way; nothing may go wrong."""

    def apply(file, data, commands=COMMANDS):
        path = tmp_path / "copy"
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(closed, path, copy_function=os.link)
        (path / file).unlink()
        (path / file).write_bytes(data)
        look_at(path, tmp_path, commands)

    return apply


def look_at(path, root, commands=COMMANDS):
    before = sorted((str(file), file.lstat().st_size) for file in root.rglob("*"))
    for command, *options in commands:
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            code = main([command, str(path), *options])
        assert code in (0, 1, 2)
        text = out.getvalue()
        assert len(text) + len(err.getvalue()) <= LARGEST_OUTPUT or "--json" in options
        assert all(line.isprintable() for line in (text + err.getvalue()).split("\n"))
        if "--json" in options and code != 2:
            assert text.isascii()
            json.loads(text, parse_constant=pytest.fail)
    read_everything(path)
    assert sorted((str(file), file.lstat().st_size) for file in root.rglob("*")) == before


def read_everything(path):
    try:
        run = gradguard.read_run(path)
        repr(run), run.status, run.problems, run.findings, run.events, run.efficacy, run.activations, run.updates
        for columns in (run.statistics, run.gradients):
            assert all(len(columns[name]) == columns.num_steps for name in columns)
    except GradguardError:
        pass


def places(value, place=()):
    """Yield the way to every part of a JSON value, as far as it is not buried."""
    yield place
    if len(place) < 8:
        parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        for key, inner in parts:
            yield from places(inner, (*place, key))


def put(value, place, new):
    """Return a JSON value with one part of it replaced."""
    new = json.loads(json.dumps(new))
    if not place:
        return new
    *way, last = place
    inner = value
    for key in way:
        inner = inner[key]
    inner[last] = new
    return value


def text_of(value):
    """Write JSON that `json` refuses to write: long numbers are fine, so is a lone surrogate."""
    return json.dumps(value).encode()


def sealed_again(lines, start):
    """Chain lines anew, so that verification does not end at the first wrong hash."""
    out, prev = [], start
    for fields in lines:
        if isinstance(fields, dict):
            fields = {key: value for key, value in fields.items() if key not in ("prev", "hash")}
            try:
                line, prev = seal(fields, prev)
                out.append(line.encode())
                continue
            except (ValueError, RecursionError):
                pass
        out.append(text_of(fields))
    return b"\n".join(out) + b"\n"


@pytest.mark.parametrize("file", LINE_FILES)
@law
@given(data=st.data())
def test_any_field_of_any_line_may_hold_anything(look, closed, file, data):
    lines = [json.loads(line) for line in (closed / file).read_text().splitlines()]
    run_id = json.loads((closed / "run.json").read_text())["run_id"]
    stem = file.removesuffix(".jsonl")
    start = first_link(run_id if stem == "interventions" else f"{run_id} {stem}")
    for _ in range(data.draw(st.integers(1, 3))):
        index = data.draw(st.integers(0, len(lines) - 1))
        if isinstance(lines[index], dict):
            place = data.draw(st.sampled_from(list(places(lines[index]))))
            lines[index] = put(lines[index], place, data.draw(hostile))
    look(file, sealed_again(lines, start))


@law
@given(data=st.data())
def test_any_field_of_run_json_may_hold_anything(look, closed, data):
    info = json.loads((closed / "run.json").read_text())
    for _ in range(data.draw(st.integers(1, 3))):
        if isinstance(info, dict):
            info = put(info, data.draw(st.sampled_from(list(places(info)))), data.draw(hostile))
    look("run.json", text_of(info))


@pytest.mark.parametrize("file", [*LINE_FILES, *CHUNKS, "run.json"])
@law
@given(noise=st.binary(max_size=300), place=st.integers(0, 10**6), keep=st.booleans())
@example(b"\0" * 300, 0, False)
@example(b"\xff\xfe\n" * 50, 0, True)
@example(b"[" * 100_000, 0, True)
@example(b'{"a":' * 50_000, 0, False)
@example(b"[],\n" * 50_000, 0, False)
@example(b"1" * 100_000 + b"\n", 0, True)
def test_any_file_may_hold_any_bytes(look, closed, file, noise, place, keep):
    before = (closed / file).read_bytes()
    place %= len(before)
    look(file, before[:place] + noise + before[place + len(noise) * (not keep) :])


def header(descr, shape):
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": descr, "fortran_order": False, "shape": shape})
    return file.getvalue()


ROW = [
    ("step", "<i8"), ("loss", "<f8"), ("lr", "<f8"), ("global_norm", "<f8"), ("lr_factor", "<f4"),
    ("clip_coef", "<f4"), ("loss_scale", "<f4"), ("flags", "<u4"), ("norms", "<f4", (2,)),
]  # fmt: skip


@pytest.mark.parametrize(
    "data",
    [
        header(ROW, (2**60,)),
        header(ROW, (2**60,)) + bytes(56 * 10),
        header(ROW, (-1,)) + bytes(56),
        header(ROW, (10**400,)) + bytes(56),
        header(ROW, (2, 2, 2)) + bytes(56),
        header([("step", "<f8", (10**6, 10**6))], (1,)),
        header([("step", "|O")], (1,)) + b"cos\nsystem\n",
        header(ROW, (3,)) + b"\xff" * 56 * 3,
        b"\x93NUMPY\x01\x00\xff\xff" + b"(" * 65_535,
        b"\x93NUMPY\x01\x00\x40\x00" + b"__import__('os').system('touch x')".ljust(64),
        b"\x93NUMPY\x03\x00\xff\xff\xff\xff",
    ],
)
def test_a_chunk_may_claim_anything(look, data):
    look("statistics/000000.npy", data)


def test_a_chunk_that_is_larger_than_any_is_not_read(look, closed, tmp_path):
    path = shutil.copytree(closed, tmp_path / "copy")
    os.truncate(path / "statistics" / "000001.npy", 2**40)  # takes no room on the disk
    look_at(path, tmp_path)
    assert [problem.message for problem in gradguard.read_run(path).problems] == [
        f"cannot be read: {2**40:,} bytes, more than any chunk has"
    ]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes")
@pytest.mark.parametrize("file", [*LINE_FILES, *CHUNKS, "run.json"])
@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "loop", "nowhere"])
def test_what_is_no_file_is_never_waited_for(closed, tmp_path, file, kind):
    path = shutil.copytree(closed, tmp_path / "copy")
    (path / file).unlink()
    if kind == "pipe":
        os.mkfifo(path / file)
    elif kind == "folder":
        (path / file).mkdir()
    else:
        target = {"device": "/dev/zero", "loop": path / file, "nowhere": "/nowhere"}[kind]
        os.symlink(target, path / file)
    look_at(path, tmp_path)


def test_a_name_never_leads_out_of_the_run_directory(closed, tmp_path):
    (tmp_path / "secret").mkdir()
    shutil.copytree(closed, tmp_path / "runs" / "run")
    shutil.copytree(closed, tmp_path / "secret" / "run")
    for name in ("../../secret/run", "../run", "/etc", ".", "..", "\x1b[2J"):
        err = io.StringIO()
        with redirect_stderr(err):
            assert main(["audit", str(tmp_path / "runs" / "run"), "--name", name]) == 2
        assert err.getvalue().rstrip("\n").isprintable()


def test_many_layouts_do_not_make_an_array_of_a_terabyte(closed, tmp_path):
    path = shutil.copytree(closed, tmp_path / "copy")
    info = json.loads((path / "run.json").read_text())
    info["layouts"].append({"first_chunk": 99, "parameters": [f"p{n}" for n in range(200_000)]})
    (path / "run.json").write_text(json.dumps(info))
    run = gradguard.read_run(path)
    assert len(run.statistics["loss"]) == 2 * written_run.NUM_STEPS
    with pytest.raises(GradguardError, match=r"the layouts in run\.json are damaged"):
        _ = run.statistics["norms"]
    assert run.statistics.norms_between(0, 2).shape == (2, 200_003)


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="asks Linux for the peak of the memory")
def test_a_line_without_an_end_takes_no_memory(closed, tmp_path):
    """A third of a gigabyte in one line, read by a process that may take half of that."""
    path = shutil.copytree(closed, tmp_path / "copy")
    with open(path / "interventions.jsonl", "ab") as file:
        file.truncate(file.tell() + 3 * 2**27)
    script = f"""
import re, sys
from gradguard.cli import main
code = [main([command, {str(path)!r}]) for command in ("audit", "verify")]
print(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1], file=sys.stderr)
raise SystemExit(code != [0, 1])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "longer than 8,388,608 bytes" in done.stdout
    assert int(done.stderr.splitlines()[-1]) * 1024 < 3 * 2**26
