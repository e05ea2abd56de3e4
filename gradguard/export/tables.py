"""The tables that a run has, by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gradguard.audit.read import Run
from gradguard.errors import UsageError, did_you_mean
from gradguard.export.from_records import Events, Interventions
from gradguard.export.per_probe import Activations, Gradients, Updates
from gradguard.export.per_step import Statistics
from gradguard.export.table import Table


MAKERS: dict[str, Callable[[Run], Table]] = {
    "statistics": Statistics,
    "gradients": Gradients,
    "activations": Activations,
    "updates": Updates,
    "interventions": Interventions,
    "events": Events,
}


def table_of(run: Run, name: str, every: int = 1) -> Table:
    """Return one table of a run.

    Args:
        run: as read.
        name: one of `MAKERS`.
        every: of the statistics keep every so many steps, and all at which something happened.

    Raises:
        UsageError: there is no table of that name.
    """
    check_names([name])
    return Statistics(run, every) if name == Statistics.name else MAKERS[name](run)


def check_names(names: Sequence[str]) -> None:
    """Refuse names that no table has.

    Raises:
        UsageError: there is no table of one of the names.
    """
    for name in names:
        if name not in MAKERS:
            raise UsageError(f"unknown table {name!r}{did_you_mean(name, MAKERS)}")
