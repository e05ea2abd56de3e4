"""What the guard did in one run of a set-up, beside the same run without it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from statistics import median

from pydantic import TypeAdapter
from pydantic_core import to_json

from benchmarks.zoo.catalogue import ZOO
from benchmarks.zoo.jury import Jury, RivalAlarm
from benchmarks.zoo.onset import SUDDEN
from benchmarks.zoo.setup import Group, Repair, Setup
from benchmarks.zoo.train import Trained, train
from gradguard.policy.schema import Policy
from gradguard.records import SEVERITIES, Finding, Severity


RECOVERED = 0.02  # distance from the clean score, as a share of it, within which a run counts as recovered
REPAIRED = 0.05  # and from the reference's within which it counts as repaired
NUM_KEPT = 5  # findings of one diagnosis that are kept in full


@dataclass(frozen=True)
class Alarm:
    """All findings of one diagnosis in one run.

    Args:
        diagnosis: its name.
        first_step: of the first finding at "warn" or above; if there is none, of the first.
        first_since: of the first finding at "warn" or above at or after the onset of the trouble; None without one.
        severity: the worst.
        count: how many at "warn" or above.
        findings: the first few at "warn" or above; if there are none, the first few.
    """

    diagnosis: str
    first_step: int
    first_since: int | None
    severity: Severity
    count: int
    findings: tuple[Finding, ...]

    @property
    def is_loud(self) -> bool:
        """Whether any finding was at "warn" or above."""
        return self.count > 0


@dataclass(frozen=True)
class Result:
    """One set-up at one seed.

    Args:
        id: of the set-up.
        group: of the set-up.
        repair: of the set-up.
        seed: of the run.
        steps: of the run.
        onset: step at which trouble begins.
        is_sudden: whether it strikes at once, or builds up.
        held_out: whether the set-up is kept for the last test.
        expected: diagnoses that name the trouble.
        alarms: what was found, by diagnosis.
        interventions: how often each remedy was carried out.
        withheld: how often an action was withheld, by "remedy: reason".
        stopped: why the guard ended the run, or "".
        guarded: score with the guard.
        unguarded: score without.
        reference: score of the clean run (transient) or of the run as a person would fix it (failing).
        is_identical: every bit of the model, the optimizer and the random generator is the same with and without.
        loss: median loss of the first and the last tenth of the unguarded run, and of the guarded one.
        seconds: wall time of the unguarded and of the guarded loop; the first includes what judges it.
        rivals: alarms of other rule sets on the unguarded run, by rule set; empty when they were not asked.
        extremes: of the statistics of `extremes.STATISTICS` in the unguarded run; likewise.
    """

    id: str
    group: Group
    repair: Repair | None
    seed: int
    steps: int
    onset: int
    is_sudden: bool
    held_out: bool
    expected: tuple[str, ...]
    alarms: tuple[Alarm, ...]
    interventions: Counter[str]
    withheld: Counter[str]
    stopped: str
    guarded: float
    unguarded: float
    reference: float | None
    is_identical: bool
    loss: tuple[float, float, float, float]
    seconds: tuple[float, float]
    rivals: dict[str, tuple[RivalAlarm, ...]] = field(default_factory=dict)
    extremes: dict[str, float] = field(default_factory=dict)

    @property
    def loud(self) -> tuple[Alarm, ...]:
        """The diagnoses that spoke at "warn" or above."""
        return tuple(alarm for alarm in self.alarms if alarm.is_loud)

    @property
    def acted(self) -> int:
        """Interventions that changed something; a notice changes nothing."""
        return self.interventions.total() - self.interventions["notify"]

    @property
    def abstained(self) -> bool:
        """Whether the guard changed nothing, or ended the run."""
        return self.acted == 0 or bool(self.stopped)

    @property
    def latency(self) -> int | None:
        """Steps from the onset to the first alarm at "warn" or above since then; None when there was none."""
        since = [alarm.first_since for alarm in self.alarms if alarm.first_since is not None]
        return min(since) - self.onset if since else None

    @property
    def is_named(self) -> bool:
        """Whether one of the expected diagnoses spoke at "warn" or above."""
        return any(alarm.diagnosis in self.expected for alarm in self.loud)

    def is_near_reference(self, tolerance: float) -> bool:
        """Return whether the guarded score is the reference's, but for a share of it."""
        return self.reference is not None and is_near(self.guarded, self.reference, tolerance)


def is_near(score: float, reference: float, tolerance: float) -> bool:
    """Return whether a score is at least the reference's, but for a share of it.

    Example:
        >>> is_near(0.93, 0.94, 0.02), is_near(0.90, 0.94, 0.02), is_near(-2.42, -2.4, 0.02)
        (True, False, True)
    """
    return score >= reference - tolerance * abs(reference)


def run(setup: Setup, seed: int, policy: str | Policy = "default", with_rivals: bool = True) -> Result:
    """Train a set-up without and with the guard, and compare; other rule sets judge the run without it."""
    jury = Jury(setup.steps, setup.onset) if with_rivals else None
    plain = train(setup, seed, jury=jury)
    guarded = train(setup, seed, policy)
    return Result(
        id=setup.id,
        group=setup.group,
        repair=setup.repair,
        seed=seed,
        steps=setup.steps,
        onset=setup.onset,
        is_sudden=setup.group == "transient" or setup.id in SUDDEN,
        held_out=setup.held_out,
        expected=setup.expected,
        alarms=alarms_of(guarded.findings, setup.onset),
        interventions=guarded.interventions,
        withheld=guarded.withheld,
        stopped=guarded.stopped,
        guarded=guarded.score,
        unguarded=plain.score,
        reference=reference_score(setup, seed),
        is_identical=plain.digest == guarded.digest,
        loss=(*_ends(plain), *_ends(guarded)),
        seconds=(plain.seconds, guarded.seconds),
        rivals={} if jury is None else jury.verdicts(),
        extremes={} if jury is None else jury.extremes(),
    )


def run_by_id(id: str, seed: int, policy: str, with_rivals: bool) -> Result:
    """Do so by the set-up's id."""
    return run(ZOO[id], seed, policy, with_rivals)


def dump(results: Sequence[Result]) -> bytes:
    """Return the results as JSON; numbers that are not finite are the words "NaN", "Infinity" and "-Infinity"."""
    return to_json(results, inf_nan_mode="strings", indent=1)


def load(text: bytes) -> list[Result]:
    """Return the results that were dumped."""
    return TypeAdapter(list[Result]).validate_json(text)


def alarms_of(findings: Sequence[Finding], onset: int = 0) -> tuple[Alarm, ...]:
    """Return the findings of a run by diagnosis, in the order in which they first came."""
    alarms = []
    for diagnosis in dict.fromkeys(finding.diagnosis for finding in findings):
        own = [finding for finding in findings if finding.diagnosis == diagnosis]
        loud = [finding for finding in own if finding.severity != "info"]
        told = loud or own
        severity = max((finding.severity for finding in own), key=SEVERITIES.index)
        since = next((finding.step for finding in loud if finding.step >= onset), None)
        alarms.append(Alarm(diagnosis, told[0].step, since, severity, len(loud), tuple(told[:NUM_KEPT])))
    return tuple(alarms)


def reference_score(setup: Setup, seed: int) -> float | None:
    """Return the score of the clean run (transient) or of the run that a person fixed (failing), if there is one."""
    if setup.clean is not None:
        return _clean_score(setup.clean, setup.steps, seed)
    if setup.reference is None:
        return None
    return train(replace(setup, make=setup.reference, faults=(), poison=None), seed).score


@cache
def _clean_score(id: str, steps: int, seed: int) -> float:
    """Return the score of a healthy set-up; several faults strike the same one."""
    return train(replace(ZOO[id], steps=steps), seed).score


def _ends(trained: Trained) -> tuple[float, float]:
    tenth = max(1, len(trained.losses) // 10)
    return median(trained.losses[:tenth]), median(trained.losses[-tenth:])
