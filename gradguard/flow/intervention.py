"""Carries a decision out on the target and records every action and every non-action."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from gradguard.contracts import Unavailable
from gradguard.outcomes.follow_up import Judged, Outcomes
from gradguard.outcomes.main_remedy import main_first
from gradguard.outcomes.tally import Tally
from gradguard.policy.decide import Action, decide
from gradguard.policy.history import RuleHistory, charge, dump_histories, learn, load_histories
from gradguard.policy.schema import Policy, Rule
from gradguard.record.recorder import Recorder
from gradguard.records import AnyRecord, Change, Finding, Intervention, Outcome, Withheld, WithheldReason


if TYPE_CHECKING:
    from gradguard.flow.observed import SampleIds
    from gradguard.flow.target import Target

MOOT = "there was nothing to change: what it limits was within its limit"


class Answer(NamedTuple):
    """What a remedy answered.

    Args:
        change: what it did; None when it did nothing,
        reason: and then why.
        detail: one sentence, or "".
    """

    change: Change | None
    reason: WithheldReason = "unavailable"
    detail: str = ""


class Intervening:
    """Turns findings into changes.

    Args:
        policy: what is to be done.
        target: what may be changed.
        rows_of: the parameters of each rule, None for all.
        recorder: takes the records.
        on_fault: called with (what failed, error) when a remedy raises.

    Attributes:
        outcomes: the judgements that wait.
        tally: what was tried so far, and what of it helped.
        histories: what every rule did so far.
        judged: judgements made since the last step.
    """

    def __init__(
        self,
        policy: Policy,
        target: Target,
        rows_of: Mapping[str, Sequence[int] | None],
        recorder: Recorder,
        on_fault: Callable[[str, Exception], None],
    ) -> None:
        self.policy = policy
        self.target = target
        self.rows_of = rows_of
        self.recorder = recorder
        self.outcomes = Outcomes(policy.horizon)
        self.tally = Tally()
        self.histories: dict[str, RuleHistory] = {}
        self.judged: list[Outcome] = []
        self._records: list[AnyRecord] = []
        self._on_fault = on_fault

    def act(self, found: Sequence[tuple[Rule, Finding]], sample_ids: SampleIds) -> list[AnyRecord]:
        """Decide about the findings of one step, apply what is decided; return the records of all of it."""
        self._records = []
        self.target.sample_ids = sample_ids
        stats = self.target.stats
        for diagnosis in {finding.diagnosis for _, finding in found}:
            self.outcomes.saw(diagnosis, stats.step)
        decision = decide(self.policy, found, self.histories, stats.step, self.target.table.names)
        self.histories = dict(decision.histories)
        for action in decision.actions:
            self._carry_out(action, sample_ids)
        self._close_lower_rungs()
        for item in decision.withheld:
            self._records.append(
                self.recorder.write(
                    Withheld(
                        step=stats.step,
                        rule=item.rule,
                        rung=item.rung,
                        diagnosis=item.finding.diagnosis,
                        remedy=item.remedy,
                        reason=item.reason,
                        detail=item.detail,
                        finding=item.finding,
                        sample_ids=sample_ids,
                    ),
                    durable=False,
                )
            )
        return self._records

    def _close_lower_rungs(self) -> None:
        """Judge at once what rules did before that was not enough: they had to climb."""
        if self.target.is_stopped:  # what waits is judged by what the run is stopped for
            return
        climbed = [record for record in self._records if isinstance(record, Intervention) and record.rung]
        losses, num_losses = self._losses()
        for rule in dict.fromkeys(record.rule for record in climbed):
            done = {record.remedy: record for record in climbed if record.rule == rule}
            higher = done[main_first(done)[0]]
            self.take(self.outcomes.climbed(higher, losses, num_losses))

    def _carry_out(self, action: Action, sample_ids: SampleIds) -> None:
        """Apply one remedy; where a verdict on the step is unavailable the next rung that has one takes over."""
        if self._apply(action, sample_ids) or action.remedy.kind != "verdict":
            return
        ladder = action.rule.ladder()
        for rung in (*range(action.rung + 1, len(ladder)), *range(action.rung)):
            stand_ins = [Action(action.rule, action.finding, remedy, rung, "escalated") for remedy in ladder[rung]]
            verdicts = [stand_in for stand_in in stand_ins if stand_in.remedy.kind == "verdict"]
            if any([self._apply(verdict, sample_ids) for verdict in verdicts]):
                for stand_in in stand_ins:
                    if stand_in not in verdicts:
                        self._apply(stand_in, sample_ids)
                return

    def _apply(self, action: Action, sample_ids: SampleIds) -> bool:
        """Apply one remedy and record it; return whether it was available."""
        target, finding = self.target, action.finding
        answer = self._ask(action)
        common: dict[str, Any] = {
            "step": target.stats.step,
            "rule": action.rule.name,
            "rung": action.rung,
            "diagnosis": finding.diagnosis,
            "remedy": action.remedy.name,
            "finding": finding,
            "sample_ids": sample_ids,
        }
        if answer.change is None:
            self._records.append(self.recorder.write(Withheld(reason=answer.reason, detail=answer.detail, **common)))
            return answer.detail == MOOT
        record = self.recorder.write(Intervention(reason=action.reason, change=answer.change, **common))
        self._records.append(record)
        if action.remedy.kind != "notice" and not target.is_stopped:
            self._expect_outcome(record)
        return True

    def _ask(self, action: Action) -> Answer:
        """Let the remedy act, and return what it answered."""
        try:
            change = action.remedy.apply(self.target, action.finding, self._rows(action))
        except Unavailable as error:
            return Answer(None, "unavailable", str(error))
        except Exception as error:
            self._on_fault(f"remedy {action.remedy.name!r}", error)
            return Answer(None, "failed", repr(error))
        return Answer(change, detail="" if change is not None else MOOT)

    def _expect_outcome(self, done: Intervention) -> None:
        """Wait for what comes of an intervention; until then it counts against the budget of the run."""
        policy = self.policy
        self.outcomes.add(done, *self._losses())
        self.tally.did(done.diagnosis, done.remedy)
        history = self.histories[done.rule]
        if policy.budget is not None and done.step not in history.charged:
            self.histories[done.rule] = charge(history, done.step, policy.budget_within)

    def _losses(self) -> tuple[list[float], int]:
        """Return the last accepted losses, and how many there were in the whole run."""
        losses = self.target.stats.losses.get(self.policy.horizon)
        return (list(losses.values) if losses is not None else []), self.target.stats.num_losses

    def take(self, judgements: Sequence[Judged]) -> None:
        """Write judgements down and let the rules learn from them; those of one action are alike."""
        for entry, record in judgements:
            self.judged.append(self.recorder.write(record, durable=False))
            self.tally.judged(entry.diagnosis, entry.remedy, record.verdict)
            history = self.histories.get(entry.rule, RuleHistory())
            self.histories[entry.rule] = learn(history, entry.rung, entry.step, record.verdict)

    def _rows(self, action: Action) -> Sequence[int] | None:
        """Return the parameters that a remedy acts on: the rule's, narrowed to those the finding named."""
        rows = self.rows_of.get(action.rule.name)
        if action.finding.indices and action.remedy.kind == "gradient":
            named = action.finding.indices
            return named if rows is None else tuple(row for row in named if row in set(rows))
        return rows

    def state_dict(self) -> dict[str, Any]:
        """Return the rules' histories and the judgements that are due."""
        return {
            "histories": dump_histories(self.histories),
            "outcomes": self.outcomes.state_dict(),
            "tally": self.tally.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from saved histories and judgements."""
        self.histories = load_histories(state["histories"])
        self.outcomes.load_state_dict(state["outcomes"])
        self.tally.load_state_dict(state["tally"])
