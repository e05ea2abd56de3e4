"""`gradguard preflight MODULE:FUNCTION`: is this training ready to begin?"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from gradguard.errors import GradguardError, UsageError, did_you_mean


RETURNS = "(model, optimizer, batch, loss_fn)"


def preflight(
    target: Annotated[
        str, typer.Argument(help=f"MODULE:FUNCTION of your own; the function takes nothing and returns {RETURNS}.")
    ],
    overfit: Annotated[bool, typer.Option("--overfit", help="Also see whether one batch can be learnt.")] = False,
    skip: Annotated[str, typer.Option(help="Names of checks to leave out, with commas.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Check a training before its first step; exit with 1 if something is found, with 2 if it cannot be called."""
    make = find(target)
    from gradguard.checklist.run import preflight as run

    model, optimizer, batch, loss_fn = arguments(target, make)
    names = [name.strip() for name in skip.split(",") if name.strip()]
    report = run(model, optimizer, batch, loss_fn, overfit=overfit, skip=names)
    if as_json:
        typer.echo(report.to_json())
    else:
        from gradguard.cli.render import console

        report.show(console())
    raise typer.Exit(report.exit_code)


def find(target: str) -> Callable[[], Any]:
    """Return the function that `module:function` names; modules in the working directory are found too.

    Raises:
        UsageError: there is no such module or function, or importing it raised.
    """
    module_name, colon, name = target.partition(":")
    if not (module_name and colon and name):
        raise UsageError(f"expected MODULE:FUNCTION, such as train:setup, got {target!r}")
    if module_name.endswith(".py"):
        module_name = module_name.removesuffix(".py").replace("/", ".")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # it is the user's module: it may raise anything
        raise UsageError(f"cannot import {module_name!r}: {type(error).__name__}: {error}") from error
    function = getattr(module, name, None)
    if not callable(function):
        known = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise UsageError(f"{module_name!r} has no function {name!r}{did_you_mean(name, known)}")
    return function  # type: ignore[no-any-return]


def arguments(target: str, make: Callable[[], Any]) -> tuple[Any, Any, Any, Any]:
    """Return what the user's function returns.

    Raises:
        UsageError: it raised, or returned something else.
    """
    try:
        made = make()
    except GradguardError:
        raise
    except Exception as error:  # it is the user's code
        raise UsageError(f"{target} raised {type(error).__name__}: {error}") from error
    if not isinstance(made, tuple) or len(made) != 4:
        got = f"{type(made).__name__} of {len(made)}" if isinstance(made, (tuple, list)) else type(made).__name__
        raise UsageError(f"{target} must return {RETURNS}, got {got}")
    return made
