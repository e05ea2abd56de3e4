"""The registries: every name can be had, near misses are told, and a name means one thing."""

import importlib
import inspect
import subprocess
import sys

import pytest

from gradguard.contracts import DIAGNOSES, REMEDIES, SINKS, Sink
from gradguard.errors import GradguardError
from gradguard.registry import Registry


REGISTRIES = [DIAGNOSES, REMEDIES, SINKS]


@pytest.mark.parametrize("registry", REGISTRIES, ids=lambda registry: registry.family)
def test_an_unknown_name_is_told_with_the_nearest_known_one(registry):
    known = registry.names()[0]
    with pytest.raises(KeyError, match=f"unknown {registry.family} '{known}x'; did you mean '{known}'"):
        registry.get(known + "x")
    with pytest.raises(KeyError, match=known):
        registry.get("zzzzzz")


@pytest.mark.parametrize("registry", REGISTRIES, ids=lambda registry: registry.family)
def test_names_are_sorted_and_every_one_can_be_had(registry):
    assert registry.names() == sorted(registry.names())
    assert [registry.get(name) for name in registry.names()] == list(registry)


def fresh_registry():
    return Registry("sink", "gradguard.sinks")


def make_sink(name, module="plugin"):
    return type("Mine", (Sink,), {"name": name, "__module__": module, "__qualname__": "Mine"})


def test_a_registered_class_can_be_had_by_its_name():
    registry = fresh_registry()
    cls = make_sink("mine")
    assert registry.register(cls) is cls
    assert registry.get("mine") is cls


def test_a_name_that_is_taken_is_refused_with_both_classes_named():
    registry = fresh_registry()
    first = registry.register(make_sink("mine"))
    with pytest.raises(GradguardError, match=r"'mine' is already registered by plugin\.Mine; give other\.Mine another"):
        registry.register(make_sink("mine", "other"))
    assert registry.get("mine") is first


def test_a_module_that_is_loaded_again_may_register_again():
    registry = fresh_registry()
    registry.register(make_sink("mine"))
    again = registry.register(make_sink("mine"))
    assert registry.get("mine") is again


def test_a_class_without_a_name_is_refused():
    with pytest.raises(GradguardError, match="no name"):
        fresh_registry().register(make_sink(""))


@pytest.mark.parametrize("kind", ["Remedy", "Diagnosis", "Sink"])
def test_the_name_of_a_shipped_component_is_refused_at_once_and_nothing_is_lost(kind):
    """Also before anything else has asked the registry, as at the top of a training script."""
    registry = {"Remedy": "REMEDIES", "Diagnosis": "DIAGNOSES", "Sink": "SINKS"}[kind]
    name = {"Remedy": "stop", "Diagnosis": "nonfinite", "Sink": "console"}[kind]
    script = f"""
from gradguard.contracts import {kind}, {registry}
from gradguard.errors import GradguardError
class Mine({kind}):
    name = "{name}"
try:
    {registry}.register(Mine)
except GradguardError as error:
    assert "gradguard." in str(error) and "give __main__.Mine another name" in str(error), error
else:
    raise AssertionError("it was accepted")
assert {registry}.get("{name}").__module__ == {registry}.package + ".{name}"
"""
    subprocess.run([sys.executable, "-W", "error", "-c", script], check=True, capture_output=True, text=True)


PLUGIN = """
import gradguard
from gradguard.contracts import Diagnosis

@gradguard.register_diagnosis
class Quiet(Diagnosis):
    name = "quiet_plugin"
    def init(self, table, rows):
        return None
    def update(self, state, stats):
        return None, None
"""


@pytest.fixture
def install(tmp_path):
    """Function that puts a distribution with entry points on a path and returns that path."""

    def put(entry, source):
        info = tmp_path / "plugin_for_tests-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: plugin-for-tests\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[gradguard.plugins]\nmine = {entry}\n")
        (tmp_path / "plugin_for_tests.py").write_text(source)
        return str(tmp_path)

    return put


def run_with(path, script):
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", f"import sys; sys.path.insert(0, {path!r})\n{script}"],
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_plugin_is_found_through_its_entry_point(install):
    path = install("plugin_for_tests", PLUGIN)
    done = run_with(path, "import gradguard; gradguard.Policy(rules=[{'when': 'quiet_plugin', 'do': 'notify'}])")
    assert done.returncode == 0, done.stderr


def test_a_plugin_that_cannot_be_imported_is_named_where_it_is_missed(install):
    path = install("plugin_for_tests", "raise RuntimeError('no licence')")
    done = run_with(path, "from gradguard.contracts import DIAGNOSES\nDIAGNOSES.names()\nDIAGNOSES.get('quiet_plugin')")
    assert done.returncode != 0
    assert "plugin mine (plugin_for_tests) failed to import" in done.stderr
    assert "no licence" in done.stderr


def test_the_leaves_are_found_by_walking_their_package():
    for registry in REGISTRIES:
        package = importlib.import_module(registry.package)
        assert inspect.getdoc(package)
        assert len(registry.names()) >= 1


def test_a_leaf_that_cannot_be_imported_is_told_every_time(tmp_path, monkeypatch):
    """Asked once more, the registry must not pass for one that knows fewer names."""
    package = tmp_path / "leaves_for_tests"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "broken.py").write_text("raise OSError('no such device')")
    monkeypatch.syspath_prepend(str(tmp_path))
    registry = Registry("sink", "leaves_for_tests")
    for _ in range(2):
        with pytest.raises(OSError, match="no such device"):
            registry.get("anything")
