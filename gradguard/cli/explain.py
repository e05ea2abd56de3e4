"""`gradguard explain [NAME]`: what a diagnosis, a remedy or a sink is, computed how, with which options."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from gradguard.contracts import DIAGNOSES, REMEDIES, SINKS, Diagnosis
from gradguard.errors import did_you_mean
from gradguard.record.encode import to_json
from gradguard.registry import Component, Registry


if TYPE_CHECKING:
    from rich.console import Console


REGISTRIES: tuple[Registry[Any], ...] = (DIAGNOSES, REMEDIES, SINKS)


def explain(
    name: Annotated[str | None, typer.Argument(help="A diagnosis, remedy or sink; without it all are listed.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
) -> None:
    """Explain a diagnosis, remedy or sink: what, how computed, options and their defaults, cure, source."""
    from rich.console import Console

    console = Console(highlight=False)
    if name is None:
        if as_json:
            typer.echo(to_json({reg.family: {cls.name: cls.what for cls in reg} for reg in REGISTRIES}, indent=2))
        else:
            _list(console)
        return
    # `get` looks into plugins as well, which listing does not import.
    for registry in REGISTRIES:
        try:
            cls = registry.get(name)
        except KeyError:
            continue
        if as_json:
            typer.echo(to_json(_facts(registry.family, cls), indent=2))
        else:
            _explain(console, registry.family, cls)
        return
    known = [cls.name for registry in REGISTRIES for cls in registry]
    typer.echo(f"nothing is called {name!r}{did_you_mean(name, known)}", err=True)
    raise typer.Exit(2)


def _list(console: Console) -> None:
    from rich.table import Table
    from rich.text import Text

    titles = ("Diagnoses (when:)", "Remedies (do:)", "Sinks (sinks:)")
    width = max(len(cls.name) for registry in REGISTRIES for cls in registry)
    for title, registry in zip(titles, REGISTRIES, strict=True):
        table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
        table.add_column(no_wrap=True, min_width=width)
        table.add_column()
        for cls in registry:
            table.add_row(Text(cls.name, "bold"), Text(cls.what))
        console.print(Text(title, "bold underline"))
        console.print(table)
        console.print()
    console.print(Text("`gradguard explain NAME` says how one is computed and what it can be told.", "dim"))


def _facts(family: str, cls: type[Component]) -> dict[str, Any]:
    from gradguard.policy.answers import answers
    from gradguard.policy.options import options

    return {
        "family": family,
        "name": cls.name,
        "what": cls.what,
        "computed": cls.computed,
        "cure": cls.cure,
        "follows": list(getattr(cls, "follows", ())),
        "answers": answers(cls.name) if issubclass(cls, Diagnosis) else {},
        "source": cls.source,
        "options": [option._asdict() for option in options(cls)],
    }


def _acting(cls: type[Component]) -> str:
    """Return which remedies act on a diagnosis, in which presets; "" for what is none."""
    from gradguard.policy.answers import answers

    if not issubclass(cls, Diagnosis):
        return ""
    together: dict[str, list[str]] = {}
    for remedy, presets in answers(cls.name).items():
        together.setdefault(", ".join(presets), []).append(remedy)
    lines = [f"{', '.join(remedies)} in the presets {presets}" for presets, remedies in together.items()]
    lines = [
        line if "," in line.rpartition(" presets ")[2] else line.replace(" presets ", " preset ") for line in lines
    ]
    return (
        "\n".join(lines) or "No preset: they tell of it, and the cure is yours. A rule of your own may name any remedy."
    )


def _explain(console: Console, family: str, cls: type[Component]) -> None:
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    from gradguard.policy.options import options

    console.print(Text.assemble((cls.name, "bold"), (f"  {family}", "dim")))
    console.print(Padding(Text(cls.what), (0, 0, 1, 2)))
    follows = ", ".join(getattr(cls, "follows", ()))
    sections = (
        ("How it is computed", cls.computed),
        ("Cure", cls.cure),
        ("What can act on it", _acting(cls)),
        ("May follow from", follows),
        ("Source", cls.source),
    )
    for title, text in sections:
        if text:
            console.print(Text(title, "bold"))
            console.print(Padding(Text(text), (0, 0, 1, 2)))
    console.print(Text("Options", "bold"))
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for is_fixed in (True, True, False):
        table.add_column(no_wrap=is_fixed)
    for option in options(cls):
        default = "required" if option.default is None else f"default {option.default}"
        table.add_row(
            Text(option.name, "bold"), Text(default), Text.assemble((option.type, "dim"), f"\n{option.meaning}")
        )
    console.print(Padding(table if table.row_count else Text("none"), (0, 0, 0, 2)))
