"""The whole drill: the healthy run twice, then each kind of fault without and with the guard."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from gradguard.audit.read import Run as Record
from gradguard.audit.read import read_run
from gradguard.drill.fit import fit, too_late
from gradguard.drill.kinds import Kind
from gradguard.drill.model import Task
from gradguard.drill.outcome import Drill, Healthy, Run, Struck, judge
from gradguard.drill.seen import NOTICE, own_faults, read_seen
from gradguard.drill.train import Watch, parameter_names, train
from gradguard.policy.forms import Always
from gradguard.policy.schema import Policy


def num_runs(kinds: Sequence[Kind]) -> int:
    """Return how many trainings a drill takes."""
    return 2 + 2 * len(kinds)


def drill(
    policy: Policy,
    kinds: Sequence[Kind],
    *,
    num_steps: int,
    seed: int = 0,
    run_dir: Path | None = None,
    on_step: Callable[[], None] = lambda: None,
) -> Drill:
    """Train with every kind of fault, without and under the policy, and judge what it is worth.

    Args:
        policy: what is drilled.
        kinds: the kinds of fault; each strikes for the first time after a third of the steps.
        num_steps: optimizer steps of each run, >= 150: before the fault a past is needed that it stands out from.
        seed: of weights, data and faults; the same seed gives the same drill.
        run_dir: where the records of the guarded runs are kept, a folder for each; None keeps none.
        on_step: called after every step of every run.
    """
    fitted, notes = fit(policy, parameter_names())
    at = num_steps // 3
    task = Task(num_steps, seed)
    with TemporaryDirectory(prefix="gradguard-drill-") as scratch:
        folder = Path(scratch) if run_dir is None else run_dir

        def guarded(name: str, kind: Kind | None = None) -> tuple[Run, Record]:
            faults = () if kind is None else (kind.fault(at),)
            run = train(task, seed, faults, Watch(fitted, folder / name), on_step)
            record = read_run(run.recorded_in or folder / name)
            return (replace(run, recorded_in=None) if run_dir is None else run), record

        clean = train(task, seed, on_step=on_step)
        run, record = guarded("healthy")
        healthy = Healthy(clean, run, _actions(record), _routine(fitted))
        failed = own_faults(record)
        before = {(finding.diagnosis, finding.step) for finding in record.findings}
        struck = []
        for kind in kinds:
            without = train(task, seed, (kind.fault(at),), on_step=on_step)
            run, record = guarded(kind.name, kind)
            seen = read_seen(record, fitted, at, before)
            failed += seen.own_faults
            verdict = judge(clean, without, run, seen)
            struck.append(Struck(kind.name, kind.title, at, without, run, seen, verdict))
    notes += [*too_late(fitted, at, num_steps), *dict.fromkeys(failed)]
    return Drill(healthy, tuple(struck), num_steps, seed, policy.mode, tuple(notes))


def _actions(record: Record) -> tuple[str, ...]:
    acted = [done for done in record.interventions if done.remedy != NOTICE]
    return tuple(f"rule {done.rule!r} at step {done.step}: {done.remedy}" for done in acted)


def _routine(policy: Policy) -> tuple[str, ...]:
    is_acting = policy.mode == "enforce"
    return tuple(rule.name for rule in policy.rules if is_acting and isinstance(rule.when, Always))
