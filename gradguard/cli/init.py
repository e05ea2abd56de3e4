"""`gradguard init [PATH]`: write a commented policy to start from."""

from __future__ import annotations

import os
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from gradguard.printable import printable


def init(
    path: Annotated[Path, typer.Argument(help="Where to write it; must end in .yaml or .yml.")] = Path(
        "gradguard.yaml"
    ),
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file if it exists.")] = False,
) -> None:
    """Write a commented starter policy; an existing file is left alone unless --force is given."""
    if path.suffix.lower() not in (".yaml", ".yml"):
        _refuse(f"{path}: the starter policy is YAML; give a name that ends in .yaml or .yml")
    if path.is_dir() or (path.exists() and not force):
        _refuse(
            f"{path}: exists already; choose another name" + ("" if path.is_dir() else ", or pass --force to overwrite")
        )
    text = files("gradguard.policy").joinpath("starter.yaml").read_text(encoding="utf-8")
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        # Written beside and moved into place, so that a full disk never leaves half a policy.
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        _refuse(f"{path}: cannot be written: {error.strerror}")
    typer.echo(printable(f"wrote {path}"))
    typer.echo("`gradguard check` shows what it does; use it with")
    typer.echo(printable(f"  guard = gradguard.attach(model, optimizer, policy={str(path)!r}, run_dir='runs/first')"))


def _refuse(problem: str) -> None:
    typer.echo(printable(problem), err=True)
    raise typer.Exit(2)
