"""`gradguard init [PATH]`: write a commented policy to start from."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from gradguard.errors import UsageError
from gradguard.output_path import output_file
from gradguard.printable import printable
from gradguard.record.atomic_write import write_atomically


def init(
    path: Annotated[Path, typer.Argument(help="Where to write it; must end in .yaml or .yml.")] = Path(
        "gradguard.yaml"
    ),
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file if it exists.")] = False,
) -> None:
    """Write a commented starter policy; an existing file is left alone unless --force is given."""
    if output_file(path, "a policy", (".yaml", ".yml")).exists() and not force:
        raise UsageError(f"{path}: exists already; choose another name, or pass --force to overwrite")
    text = files("gradguard.policy").joinpath("starter.yaml").read_text(encoding="utf-8")
    try:
        write_atomically(path, text)
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror}") from None
    typer.echo(printable(f"wrote {path}"))
    typer.echo("`gradguard check` shows what it does; use it with")
    typer.echo(printable(f"  guard = gradguard.attach(model, optimizer, policy={str(path)!r}, run_dir='runs/first')"))
