"""The decisions of a policy over a recorded run: what it would have found and done, step by step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from gradguard.contracts import Unavailable
from gradguard.errors import PolicyError
from gradguard.evidence.stats import StepStats
from gradguard.flow.intervention import MOOT, Answer, Intervening
from gradguard.flow.judgement import Judgement
from gradguard.policy.decide import Action
from gradguard.policy.patterns import unmatched
from gradguard.policy.schema import Policy
from gradguard.records import AnyRecord, Change, Record
from gradguard.replay.answers import Answers
from gradguard.replay.paper import OffPaper, PaperTarget
from gradguard.replay.recorded import Recorded
from gradguard.replay.rejudge import Found, Rejudge
from gradguard.replay.routine import PaperRoutine, RoutineDifference, compare_routines, is_same_routine


ASSUMED = Change(summary="taken to be possible: the record does not hold what it works on")


@dataclass
class Replayed:
    """What a policy would have done.

    Args:
        records: interventions, withheld ones and outcomes, in order, as they would have been recorded.
        num_steps: judged.
        stopped_at: step at which the policy ends the run, None when it does not.
        rebaselined: steps at which the rolling statistics started afresh.
        faults: what failed during the replay, one sentence each.
        routine: where the rules for every step would have done something else than those of the run; None where not.
    """

    records: list[AnyRecord] = field(default_factory=list)
    num_steps: int = 0
    stopped_at: int | None = None
    rebaselined: list[int] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    routine: RoutineDifference | None = None


class _Pages:
    """Takes the records that a `Recorder` would write."""

    def __init__(self, records: list[AnyRecord]) -> None:
        self._records = records

    def write(self, record: Any, durable: bool = True) -> Any:
        """Number a record and keep it."""
        record = record.model_copy(update={"seq": len(self._records)})
        self._records.append(record)
        return record


class _OnPaper(Intervening):
    """Carries decisions out on paper; a remedy that the run asked as well answers as it did there.

    Attributes:
        assumed_at: step at which a remedy was asked last that the run did not ask.
    """

    answers: Answers
    assumed_at = -1

    def _ask(self, action: Action) -> Answer:
        step = self.target.stats.step
        answer = self.answers.take(action, step)
        if answer is None:
            self.assumed_at = step
        elif answer.change is None:
            return answer
        on_paper = self._try(action)
        return on_paper if answer is None else answer

    def _try(self, action: Action) -> Answer:
        if action.remedy.kind == "surgery":
            return Answer(ASSUMED)
        try:
            change = action.remedy.apply(self.target, action.finding, self._rows(action))
        except Unavailable as error:
            return Answer(None, "unavailable", str(error))
        except (OffPaper, TypeError, ImportError):
            return Answer(ASSUMED)
        return Answer(change, detail="" if change is not None else MOOT)


class Backtest:
    """Lets a policy decide over a recorded run; see `Listener`.

    Args:
        recorded: the run.
        policy: decides.

    Raises:
        PolicyError: a rule is about parameters that the run does not have.
    """

    def __init__(self, recorded: Recorded, policy: Policy) -> None:
        _check_patterns(policy, recorded.tables[0].names)
        recorded.recognise(policy)
        self._recorded, self._policy = recorded, policy
        self._answers = Answers(recorded.run.records, recorded.policy)
        self._intervening: _OnPaper | None = None
        self._routine = PaperRoutine(policy)
        was = recorded.policy
        self.has_routine = was is not None and not is_same_routine(was, policy)
        self.replayed = Replayed()

    def run(self, progress: Callable[[int], None] = lambda done: None) -> Replayed:
        """Go through all steps; `progress` is called with the number of steps so far, now and then.

        Where the rules for every step are others than the run's, the run's own are replayed as well: what they did is
        not recorded one by one.
        """
        self.replayed.num_steps = Rejudge(self._recorded, self._policy, self, self._fault).run(progress)
        if self.has_routine and self._recorded.policy is not None:
            own = Backtest(self._recorded, self._recorded.policy)
            own.has_routine = True
            Rejudge(self._recorded, own._policy, own, own._fault).run()
            self.replayed.routine = compare_routines(own._routine, self._routine)
        return self.replayed

    def _fault(self, what: str, error: Exception) -> None:
        self.replayed.faults.append(f"{what} failed: {error!r}")

    def begins(self, judgement: Judgement, stats: StepStats) -> None:
        """See `Listener`."""
        self._judgement = judgement
        self._paper = PaperTarget(stats, judgement.table)
        known = self._intervening
        pages: Any = _Pages(self.replayed.records)
        paper: Any = self._paper
        self._intervening = _OnPaper(self._policy, paper, judgement.rows_of, pages, self._fault)
        self._intervening.answers = self._answers
        if known is not None:
            self._intervening.load_state_dict(known.state_dict())

    def found(self, found: Found) -> None:
        """See `Listener`."""
        self._paper.begin()
        self._acting.act(found, ())

    def routine(self, has_findings: bool) -> None:
        """See `Listener`."""
        if not has_findings:
            self._paper.begin()
        if not self._paper.is_skipped:
            self._routine.apply(self._paper, self._judgement.rows_of)

    def forgets(self, is_in_run: bool) -> bool:
        """See `Listener`."""
        step = self._paper.stats.step
        is_as_in_run = self._acting.assumed_at != step and not self._answers.are_left(step)
        is_forgotten = is_in_run if is_as_in_run else (not is_in_run and self._paper.is_rebaselined)
        if is_forgotten:
            self.replayed.rebaselined.append(step)
        return is_forgotten

    def resumed(self, state: dict[str, Any]) -> None:
        """See `Listener`."""
        self._acting.load_state_dict(state)

    def taken_in(self, step: int) -> bool:
        """See `Listener`."""
        if self._paper.is_stopped:
            self.replayed.stopped_at = step - 1
            return True
        outcomes = self._acting.outcomes
        if outcomes.pending and step >= outcomes.next_due:
            losses = list(self._judgement.losses[self._policy.horizon].values)
            self._acting.take(outcomes.collect(step, losses, self._judgement.num_losses))
        return False

    @property
    def _acting(self) -> _OnPaper:
        assert self._intervening is not None  # `begins` comes first
        return self._intervening


def _check_patterns(policy: Policy, names: list[str]) -> None:
    problems = []
    for rule in policy.rules:
        wanted = [pattern for pattern in rule.parameters or () if not pattern.startswith("!")]
        problems += [f"rule {rule.name!r}: {message}" for message in unmatched(wanted, names)]
    if problems:
        raise PolicyError(problems)


__all__ = ["Backtest", "Record", "Replayed"]
