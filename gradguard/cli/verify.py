"""`gradguard verify RUN`: is the record complete and as it was written."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gradguard.audit.headline import plural
from gradguard.audit.verify import Proof, Verification, check_run
from gradguard.cli.render import console, facts, text
from gradguard.record.encode import to_json


MAX_PROBLEMS = 20
VERDICTS = {
    "whole": "complete, and as it was written",
    "running": "as it was written, up to its last seal; the run is still going on",
    "torn": "as it was written, up to its last seal; then the process died",
    "incomplete": "as it was written, but the disk did not take all of it",
    "cut_off": "its end is missing; what is proven of the rest is as it was written",
    "changed": "NOT as it was written",
}
FINE = ("whole", "running")
PUBLISHED = {
    "last": "this is the record that the given head was published for",
    "earlier": "this is the record that the given head was published for; it went on since",
}
WITHOUT_HEAD = (
    "This proves that nothing counted above as proven was changed, removed, moved or added, unless by someone who may "
    "write to the directory and computed every hash anew. To rule that out, keep the head where nobody can change it, "
    "such as a commit or a message, and check with: gradguard verify RUN --head HEAD"
)
WITH_HEAD = (
    "This proves that nothing counted above as proven was changed, removed, moved or added since the head was "
    "published: not even a directory that was written anew as a whole would pass."
)
AFTER_SEAL = (
    " What came after the last seal is there, and nothing is proven of it: whoever may write to the directory could "
    "have changed, added or removed any of it unseen. Seals are written at every intervention, when one is judged, and "
    "every 1,024 steps."
)
AFTER_HEAD = (
    " What came after the head was published is there, and the head says nothing of it; without --head it is checked "
    "against the later seals."
)


def verify(
    run: Annotated[Path, typer.Argument(help="The run directory.")],
    head: Annotated[str | None, typer.Option(help="A head that was kept: is this the record that had it?")] = None,
    name: Annotated[str | None, typer.Option(help="Which guard's record, when several recorded there.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was found as JSON.")] = False,
) -> None:
    """Check that a record is complete and was not edited, and say what that proves.

    Exit code 0: it is, or is so far; 1: it is torn, cut off or changed; 2: not a run directory.
    """
    found = check_run(run, name, head)
    if as_json:
        typer.echo(to_json(found, indent=2))
    else:
        render_verification(found)
    if found.verdict not in FINE:
        raise typer.Exit(1)


def render_verification(found: Verification) -> None:
    """Print the verdict, what is wrong, how much is proven, and what that means."""
    out = console()
    number = f" ({plural(len(found.problems), 'problem')})" if found.verdict == "changed" else ""
    out.print(text(f"{found.path}: {VERDICTS[found.verdict]}{number}", style="bold"))
    if found.problems:
        out.print(facts([(f"  {problem.kind}", str(problem)) for problem in found.problems[:MAX_PROBLEMS]]))
    if len(found.problems) > MAX_PROBLEMS:
        out.print(text(f"  {len(found.problems) - MAX_PROBLEMS:,} more; all of them: --json"))
    out.print()
    rows = [(proof.file, _proven(proof)) for proof in found.proofs]
    if found.unproven:
        rows.append(("not proven", ", ".join(found.unproven) + ": no hash of them is kept"))
    out.print(facts(rows))
    if found.head is not None:
        out.print(text(f"head  {found.head}"))
    if found.published in PUBLISHED:
        out.print(text(f"      {PUBLISHED[found.published]}"))
    out.print()
    if found.head is None:
        what = "There are no seals: only the lines of the journal are proven, by their own chain, and not their end."
    elif found.verdict == "changed":
        what = "What is counted as proven is as it was written; the rest was changed, removed, moved or added to."
    else:
        what = _meaning(found)
    out.print(text(what, style="dim"))


def _meaning(found: Verification) -> str:
    """Return what it means that a record was not found to be changed."""
    what = WITH_HEAD if found.published in PUBLISHED else WITHOUT_HEAD
    if all(proof.proven == proof.count for proof in found.proofs):
        return what
    return what + (AFTER_HEAD if found.published == "earlier" else AFTER_SEAL)


def _proven(proof: Proof) -> str:
    """Return how much of a file is proven.

    Example:
        >>> _proven(Proof(file="statistics", unit="rows", count=1100, proven=1024))
        '1,024 of 1,100 rows proven, 76 there, not proven'
        >>> _proven(Proof(file="run.json", unit="file", count=1, proven=1))
        'proven'
    """
    if proof.unit == "file":
        return "proven" if proof.proven else "not proven"
    if proof.proven == proof.count:
        return f"{'all ' if proof.count > 1 else ''}{proof.count:,} {proof.unit} proven"
    rest = proof.count - proof.proven
    return f"{proof.proven:,} of {proof.count:,} {proof.unit} proven, {rest:,} there, not proven"
