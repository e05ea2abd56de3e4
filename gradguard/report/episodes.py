"""A run as a few episodes: what came together, or followed from each other, and what was done about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from gradguard.audit.efficacy import HORIZON
from gradguard.audit.read import Run
from gradguard.audit.responses import TELLS
from gradguard.audit.summary import Chapter, chapters
from gradguard.records import Finding, Intervention, Withheld


MAX_EPISODES = 12  # told; the table has the rest


@dataclass
class Episode:
    """Findings that belong together, with what was done about them and what was not.

    Args:
        findings: at severity "warn" or above, by step.
        done: interventions.
        withheld: what was due and not done.
        alike: further episodes that went the same way.
        last_alike: step of the last finding of these; None when there are none.
    """

    findings: list[Finding]
    done: list[Intervention] = field(default_factory=list)
    withheld: list[Withheld] = field(default_factory=list)
    alike: int = 0
    last_alike: int | None = None

    @property
    def first(self) -> int:
        """Step of the first finding."""
        return self.findings[0].step

    @property
    def last(self) -> int:
        """Step of the last finding."""
        return self.findings[-1].step

    @property
    def chain(self) -> tuple[Chapter, ...]:
        """What was found, each diagnosis where it first came, causes first."""
        return chapters(self.findings)

    @property
    def root(self) -> Finding:
        """The finding that the episode begins with."""
        name = self.chain[0].diagnosis
        return next(finding for finding in self.findings if finding.diagnosis == name)

    @property
    def acts(self) -> list[Intervention]:
        """The interventions that changed something."""
        return [record for record in self.done if record.remedy != TELLS]

    def kind(self) -> tuple[object, ...]:
        """Return what makes two episodes alike: what was found, what was done, and what came of it."""
        verdicts = {record.outcome.verdict for record in self.acts if record.outcome is not None}
        return (
            tuple(dict.fromkeys(finding.diagnosis for finding in self.findings)),
            frozenset(record.remedy for record in self.done),
            frozenset(record.reason for record in self.withheld),
            frozenset(verdicts),
        )


def episodes(run: Run) -> list[Episode]:
    """Return the episodes of a run in order; those that went alike are told once.

    Findings are of one episode when no more steps lie between them than an outcome takes to be judged, or when one is
    recorded as following from another that nothing was done about.
    """
    gap = run.policy.get("horizon")
    acted = {(record.diagnosis, record.step) for record in run.interventions if record.remedy != TELLS}
    found = _group(run.findings, gap if isinstance(gap, int) else HORIZON, acted)
    home = {(finding.step, finding.diagnosis): episode for episode in found for finding in episode.findings}
    for done in run.interventions:
        if (done.step, done.diagnosis) in home:
            home[done.step, done.diagnosis].done.append(done)
    for due in run.withheld:
        if (due.step, due.diagnosis) in home:
            home[due.step, due.diagnosis].withheld.append(due)
    return _told_once(found)


def most_telling(found: Sequence[Episode], limit: int = MAX_EPISODES) -> list[Episode]:
    """Return at most `limit` episodes in order of their steps: what did not help and what was critical goes first."""

    def weight(episode: Episode) -> tuple[bool, bool, int]:
        verdicts = {record.outcome.verdict for record in episode.acts if record.outcome is not None}
        is_critical = any(finding.severity == "critical" for finding in episode.findings)
        return (not verdicts & {"worse", "no_effect"}, not is_critical, episode.first)

    return sorted(sorted(found, key=weight)[:limit], key=lambda episode: episode.first)


def _group(findings: Sequence[Finding], gap: int, acted: set[tuple[str, int]]) -> list[Episode]:
    result: list[Episode] = []
    home: dict[tuple[str, int], Episode] = {}
    serious = [finding for finding in findings if finding.severity != "info"]
    for finding in sorted(serious, key=lambda finding: finding.step):
        cause = (finding.follows.diagnosis, finding.follows.step) if finding.follows else None
        episode = (home.get(cause) if cause and cause not in acted else None) or (
            result[-1] if result and finding.step - result[-1].last <= gap else None
        )
        if episode is None:
            episode = Episode([])
            result.append(episode)
        episode.findings.append(finding)
        home[finding.diagnosis, finding.step] = episode
    return result


def _told_once(found: Sequence[Episode]) -> list[Episode]:
    first: dict[tuple[object, ...], Episode] = {}
    for episode in found:
        kind = episode.kind()
        if kind in first:
            first[kind].alike += 1
            first[kind].last_alike = episode.last
        else:
            first[kind] = episode
    return list(first.values())
