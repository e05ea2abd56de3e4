"""The architecture: what may import what, what stays light, what is public, what is never used."""

from __future__ import annotations

import ast
import fnmatch
import importlib
import subprocess
import sys
from pathlib import Path

import pytest
import typer

import gradguard
from gradguard import cli
from gradguard.contracts import DIAGNOSES, REMEDIES
from gradguard.report.page import SCRIPTS


if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "gradguard"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))

# From the ground up. A module imports from lower floors only, when it is loaded; modules of one package may import each
# other on their floor, but for leaves. A package stands for its modules that are not named on a floor of their own.
FLOORS = (
    {
        "environment",
        "errors",
        "printable",
        "records",
        "checklist.facts",
        "evidence.backward_origin",
        "evidence.input_scale",
        "evidence.origin",
        "evidence.origin_words",
        "evidence.probe_stats",
        "evidence.rank_test",
        "evidence.signal_trend",
        "evidence.stats",
        "evidence.weight_scale",
        "gradients.magnitude_bins",
        "gradients.sharded",
        "optimizer.weight_decay",
        "policy.patterns",
        "snapshots.plain",
    },
    {
        "output_path",
        "registry",
        "evidence.norm_notes",
    },
    {
        "evidence.running",
        "evidence.trigger",
    },
    {
        "outcomes.verdict",
    },
    {
        "contracts",
        "functional",
        "checklist.finding",
        "flow.mean_loss",
        "flow.step_report",
        "gradients.extents",
        "gradients.flat_moments",
        "gradients.flat_norms",
        "gradients.transfer",
        "gradients.wide_moments",
        "limits.adaptive_clip",
        "model.inert_hook",
        "model.model_boundary",
        "model.module_walk",
        "model.nonfinite_entries",
        "optimizer.aimed_factor",
        "optimizer.group_factor",
        "optimizer.optimizer_state",
        "outcomes.tally",
        "probes.entry_sample",
        "probes.parameter_entries",
        "probes.time_gradient",
        "probes.unit_sample",
        "probes.unit_statistics",
        "snapshots.free_memory",
        "snapshots.random_state",
        "snapshots.state_copy",
        "surgery.initialization",
        "surgery.lsuv",
    },
    {
        "limits",
        "evidence.progress",
        "flow.story",
        "gradients.columns",
        "outcomes.follow_up",
        "outcomes.main_remedy",
        "probes.boundary_statistics",
        "probes.row_spread",
    },
    {
        "register",
        "flow.exchange",
        "flow.observed",
        "gradients.full_statistics",
        "gradients.reset_watch",
        "limits.norm_limit",
        "model.finite_check",
        "model.first_nonfinite",
        "model.forward_inputs",
        "model.last_call",
        "model.parameter_names",
        "model.rerun_obstacle",
        "model.variance_watch",
        "optimizer.attachment",
        "optimizer.grad_scale",
        "optimizer.loss_scale",
        "snapshots.buffer_shadow",
        "snapshots.companions",
    },
    {
        "checks",
        "diagnoses",
        "policy",
        "record",
        "remedies",
        "sinks",
    },
    {
        "audit",
        "checklist",
        "faults",
        "flow.judgement",
        "gradients.monitor",
        "model.rerun",
        "probes.activation_places",
        "snapshots.snapshot",
        "snapshots.tensor_file",
    },
    {
        "compare",
        "export",
        "cli.render",
    },
    {
        "schemas",
        "watch",
        "model.module_chain",
        "model.outside_parameters",
        "probes.activation_samples",
        "snapshots.last_good",
        "snapshots.snapshot_file",
    },
    {
        "destinations",
        "optimizer.microbatches",
        "snapshots.captures",
        "snapshots.ring",
    },
    {
        "flow.target",
        "gradients.statistics",
        "probes.activation_probe",
        "probes.update_probe",
        "surgery.activation_swap",
        "surgery.unit_revival",
    },
    {
        "flow.foresight",
        "flow.intervention",
        "flow.locating",
        "flow.pace",
        "flow.routine",
        "probes.gradient_probe",
        "probes.schedule",
    },
    {
        "flow.periodic",
        "flow.provisions",
        "gradients.device_verdict",
    },
    {
        "replay",
        "flow.layout",
    },
    {
        "flow.aside",
    },
    {
        "flow.quiet_steps",
    },
    {
        "flow.pipeline",
    },
    {
        "flow.deferred",
        "flow.giving_up",
        "flow.letting_go",
        "flow.resume",
        "optimizer.inner_evaluations",
    },
    {
        "guard",
    },
    {
        "attach",
    },
    {
        "demo",
        "report",
    },
    {
        "drill",
    },
    {
        "cli",
    },
    {
        "__main__",
    },
)
LEAVES = ("diagnoses", "remedies", "sinks", "checks", "destinations")
HUBS = (
    "flow.pipeline",
    "guard",
    "flow.intervention",
    "flow.judgement",
    "attach",
    "flow.periodic",
    "flow.resume",
    "flow.target",
    "policy.decide",
)


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__") or "__init__"


MODULES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}
TREES = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in MODULES.items()}

every_module = pytest.mark.parametrize("name", MODULES)


def loaded_nodes(node: ast.AST, is_lazy: bool = False):
    """Yield the nodes that run when a module is loaded; with `is_lazy` those inside of functions too."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            continue
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)) and not is_lazy:
            continue
        yield child
        yield from loaded_nodes(child, is_lazy)


def imports_of(name: str, is_lazy: bool = False) -> set[str]:
    """Return the modules of the package that a module imports, without "gradguard."."""
    found = set()
    for node in loaded_nodes(TREES[name], is_lazy):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    inner = {module.removeprefix("gradguard.") for module in found if module.startswith("gradguard.")}
    return {module if module in MODULES else module.rpartition(".")[0] for module in inner} - {name, ""}


def floor_of(name: str) -> int:
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        for number, floor in enumerate(FLOORS):
            if ".".join(parts[:length]) in floor:
                return number
    raise AssertionError(f"gradguard.{name} is on no floor; say in FLOORS where it belongs")


@every_module
def test_a_module_imports_from_lower_floors_only(name):
    if name == "__init__":
        assert imports_of(name) == set()
        return
    package = name.partition(".")[0]
    for imported in imports_of(name):
        is_neighbour = package == imported.partition(".")[0] and package not in LEAVES
        highest = floor_of(name) if is_neighbour else floor_of(name) - 1
        assert floor_of(imported) <= highest, f"gradguard.{name} imports gradguard.{imported}"


def test_every_name_on_a_floor_exists():
    assert [name for floor in FLOORS for name in floor if name not in MODULES] == []


@every_module
def test_no_module_imports_a_leaf(name):
    """Registries find them; not even inside of a function, and leaves import no other leaf."""
    leaves = [module for module in imports_of(name, is_lazy=True) if module.partition(".")[0] in LEAVES]
    assert [module for module in leaves if module not in LEAVES] == []


@pytest.mark.parametrize("name", HUBS)
def test_a_hub_never_names_a_leaf(name):
    names = {*DIAGNOSES.names(), *REMEDIES.names()}
    constants = {node.value for node in ast.walk(TREES[name]) if isinstance(node, ast.Constant)}
    assert constants & names == set()


def imports_torch(code: str) -> bool:
    script = f"import sys\n{code}\nprint('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()[-1] == "True"


@pytest.mark.parametrize(
    "code",
    [
        "import gradguard",
        "import gradguard; gradguard.read_run",
        "import gradguard; gradguard.load_policy('default')",
        "import gradguard; gradguard.register_diagnosis, gradguard.register_remedy, gradguard.TrainingStopped",
        "from gradguard.contracts import DIAGNOSES, REMEDIES; DIAGNOSES.names(), REMEDIES.names()",
        "import gradguard.flow.judgement, gradguard.policy.decide, gradguard.record.recorder",
    ],
)
def test_reading_a_record_and_checking_a_policy_cost_no_import_of_torch(code):
    assert not imports_torch(code)


@pytest.mark.parametrize("command", sorted({"--help", "--version", *cli.COMMANDS} - {"demo"}))
def test_help_costs_no_import_of_torch(command):
    arguments = [command] if command.startswith("-") else [command, "--help"]
    assert not imports_torch(f"from gradguard.cli import main; assert main({arguments!r}) == 0")


def test_what_needs_torch_has_it():
    """The test above can fail."""
    assert imports_torch("import gradguard; gradguard.attach")


@every_module
def test_a_file_holds_one_idea_and_so_at_most_300_lines(name):
    assert len(MODULES[name].read_text(encoding="utf-8").splitlines()) <= 300


@pytest.mark.parametrize("folder", ["gradguard", "tests", "benchmarks", "examples"])
def test_no_file_is_a_drawer_for_odds_and_ends(folder):
    drawers = {"utils", "util", "helpers", "helper", "common", "core", "misc"}
    assert [
        path for path in (ROOT / folder).rglob("*") if path.stem in drawers and "__pycache__" not in path.parts
    ] == []


@every_module
def test_no_module_runs_code_that_comes_as_data(name):
    """Neither pickle nor eval; YAML only through the safe loader."""
    forbidden_modules = {"pickle", "cPickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "code"}
    forbidden_calls = {"eval", "exec", "compile", "__import__", "execfile", "breakpoint"}
    unsafe = ("yaml.load", "yaml.load_all", "yaml.unsafe_load", "yaml.full_load", "yaml.Loader", "yaml.UnsafeLoader")
    safe_loads = {
        id(node.func)
        for node in ast.walk(TREES[name])
        if isinstance(node, ast.Call)
        for keyword in node.keywords
        if keyword.arg == "weights_only" and ast.unparse(keyword.value) == "True"
    }
    for node in ast.walk(TREES[name]):
        if isinstance(node, ast.Import):
            assert not {alias.name.partition(".")[0] for alias in node.names} & forbidden_modules
        elif isinstance(node, ast.ImportFrom):
            assert (node.module or "").partition(".")[0] not in forbidden_modules
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in forbidden_calls
        elif isinstance(node, ast.Attribute):
            assert ast.unparse(node) not in unsafe
            assert ast.unparse(node) != "torch.load" or id(node) in safe_loads
        elif isinstance(node, ast.keyword) and node.arg == "allow_pickle":
            assert ast.unparse(node.value) == "False"
        elif isinstance(node, ast.keyword) and node.arg == "shell":
            assert ast.unparse(node.value) == "False"


def test_the_public_names_are_these():
    assert gradguard.__all__ == sorted(gradguard.__all__)
    assert gradguard.__all__ == [
        "AttachError",
        "GradguardError",
        "Guard",
        "Policy",
        "PolicyError",
        "PreflightFailed",
        "PreflightReport",
        "RecordError",
        "Run",
        "RunDirectoryError",
        "TrainingStopped",
        "UsageError",
        "attach",
        "faults",
        "gradient_statistics",
        "load_policy",
        "preflight",
        "read_run",
        "register_diagnosis",
        "register_remedy",
        "register_sink",
    ]


@pytest.mark.parametrize("name", gradguard.__all__)
def test_a_public_name_can_be_imported_and_says_what_it_is(name):
    value = getattr(gradguard, name)
    assert value.__doc__
    assert name in dir(gradguard)


def test_a_checker_of_types_sees_the_public_names():
    """They are imported lazily, so their types are stated apart."""
    stated = set()
    for node in ast.walk(TREES["__init__"]):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            stated = {alias.asname for line in node.body if isinstance(line, ast.ImportFrom) for alias in line.names}
    assert stated == set(gradguard.__all__)


def test_a_name_that_is_not_public_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'surprise'"):
        _ = gradguard.surprise


COMMANDS = {
    "backtest": ["policy", "run", "--name", "--all", "--json"],
    "audit": ["run", "--name", "--json"],
    "check": ["policy", "--json"],
    "compare": ["a", "b", "--rtol", "--name", "--json"],
    "demo": ["--steps", "--run-dir", "--seed"],
    "drill": ["policy", "--only", "--steps", "--seed", "--run-dir", "--json"],
    "explain": ["name", "--json"],
    "export": ["run", "--to", "--output", "-o", "--table", "--every", "--name", "--force"],
    "init": ["path", "--force"],
    "preflight": ["target", "--overfit", "--skip", "--json"],
    "schema": ["name"],
    "report": ["runs", "--output", "-o", "--name"],
    "show": ["run", "--step", "--name", "--json"],
    "tune": ["runs", "--output", "-o", "--policy", "--margin", "--tighten", "--anyway", "--force", "--name", "--json"],
    "verify": ["run", "--head", "--name", "--json"],
    "watch": ["run", "--name", "--once", "--every", "--steps"],
}


def test_the_commands_are_these():
    assert sorted(cli.COMMANDS) == sorted(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_the_options_of_a_command_are_these(command):
    app = typer.Typer(add_completion=False)
    app.command(command)(getattr(importlib.import_module(f"gradguard.cli.{command}"), command))
    parameters = typer.main.get_command(app).params
    assert [name for parameter in parameters for name in parameter.opts] == COMMANDS[command]


def test_types_presets_and_the_starter_policy_are_shipped():
    wheel = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert wheel == {"packages": ["gradguard"]}
    ignored = [line.strip("/") for line in (ROOT / ".gitignore").read_text(encoding="utf-8").split() if line]
    shipped = [PACKAGE / "py.typed", PACKAGE / "policy" / "starter.yaml"]
    shipped += [PACKAGE / "report" / "page" / name for name in ("page.html", "page.css", *(f"{s}.js" for s in SCRIPTS))]
    shipped += [
        PACKAGE / "policy" / "presets" / f"{name}.yaml"
        for name in ("default", "observe", "pretrain", "finetune", "rnn", "repair")
    ]
    for path in shipped:
        assert path.is_file()
        parts = path.relative_to(ROOT).parts
        assert not [(part, pattern) for part in parts for pattern in ignored if fnmatch.fnmatch(part, pattern)]
