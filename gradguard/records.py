"""The nouns of the flow: Finding, Decision, Change and the records that are written down.

    gradients --Monitor--> StepStats --Diagnosis--> Finding --decide--> Decision --Remedy--> Change --Journal--> record

Everything here but `StepStats` (see `evidence/stats.py`) is frozen and made only on steps where something happened.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field


Severity = Literal["info", "warn", "critical"]
SEVERITIES: tuple[Severity, ...] = ("info", "warn", "critical")

Reason = Literal["fired", "escalated", "gave_up"]
WithheldReason = Literal[
    "dry_run",
    "cooldown",
    "budget",
    "warmup",
    "no_rule",
    "superseded",
    "below_severity",
    "too_late",
    "consequence",
    "unavailable",
    "failed",
]
Verdict = Literal["helped", "no_effect", "worse", "unknown"]
Number = float | int | None

MAX_NAMES = 16  # names of parameters kept in one finding; the count is always exact


class Frozen(BaseModel):
    """An immutable value; NaN and infinity are written as the strings "NaN", "Infinity"."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")


class Cause(Frozen):
    """What a finding is a consequence of.

    Args:
        diagnosis: what was found before, at severity "warn" or above.
        step: at which it was found last.
    """

    diagnosis: str
    step: int


class Finding(Frozen):
    """One thing that a diagnosis found wrong at one step, with the evidence for it.

    Args:
        diagnosis: registered name of the diagnosis.
        step: optimizer step (0-based) at which it was found.
        severity: "info" (worth knowing), "warn" (a rule acts), "critical" (the run will not survive).
        statistic: name of the number that was judged.
        value: that number at this step.
        baseline: what it was compared with, in the same unit; None when nothing is.
        threshold: the value from which the alarm is raised, in the same unit.
        window: steps that the baseline covers.
        parameters: names of the parameters concerned, worst first, at most `MAX_NAMES`; empty when the finding is
            about the run as a whole (the loss, the global norm).
        num_parameters: how many parameters are concerned.
        message: one sentence that a newcomer understands.
        advice: what to change when the cure is structural, else "".
        evidence: further numbers and words, by name.
        follows: what it is a consequence of, as far as that can be told; None when it stands for itself.
        indices: rows of the concerned parameters, for remedies; not written down.
    """

    diagnosis: str
    step: int
    severity: Severity = "warn"
    statistic: str = ""
    value: Number = None
    baseline: Number = None
    threshold: Number = None
    window: int | None = None
    parameters: tuple[str, ...] = ()
    num_parameters: int = 0
    message: str = ""
    advice: str = ""
    evidence: dict[str, Number | str] = Field(default_factory=dict)
    follows: Cause | None = None
    indices: tuple[int, ...] = Field(default=(), exclude=True, repr=False)


class Change(Frozen):
    """What a remedy changed, before and after, in the remedy's own units.

    Args:
        summary: a few words for people, such as "global norm 41.2 -> 3.1".
        before: numbers before the change, by name.
        after: the same numbers after it.
    """

    summary: str
    before: dict[str, Number | str] = Field(default_factory=dict)
    after: dict[str, Number | str] = Field(default_factory=dict)


class Record(Frozen):
    """What every line of `interventions.jsonl` carries; the journal adds `prev` and `hash`.

    Args:
        v: version of the schema.
        seq: position in the file, from 0 without gaps.
        time: UTC, ISO 8601.
        step: optimizer step (0-based) that the record is about.
    """

    v: Literal[1] = 1
    seq: int = 0
    time: str = ""
    step: int = 0


class Outcome(Record):
    """What became of an intervention, `horizon` steps later.

    Args:
        of: `seq` of the intervention.
        verdict: "helped", "no_effect", "worse", or "unknown" (no loss was observed, or the run ended first).
        recurrences: how often the same diagnosis came back within the horizon.
        last_seen: step at which it did so last, None when it never did.
        loss_before: median of the losses in the window before the intervention.
        loss_after: median of the losses observed within the horizon.
        loss_noise: the difference of both that the usual noise explains.
        horizon: steps between the intervention and this judgement.
        reason: one sentence.
    """

    kind: Literal["outcome"] = "outcome"
    of: int
    verdict: Verdict
    recurrences: int = 0
    last_seen: int | None = None
    loss_before: Number = None
    loss_after: Number = None
    loss_noise: Number = None
    horizon: int = 0
    reason: str = ""

    def judges(self, step: int) -> bool:
        """Return whether it is about an intervention at that step, which has the `seq` that `of` names.

        A run that was resumed in a new directory also judges what was done before, and has a number of its own there.
        """
        return self.horizon == 0 or self.step - self.horizon == step


class Intervention(Record):
    """An action that was carried out, with the finding that fired it.

    Args:
        rule: the policy's rule.
        rung: 0 for the rule's own `do`, k for its k-th escalation.
        reason: "fired", "escalated", or "gave_up" when the budget of the run is spent.
        diagnosis: the finding's diagnosis, or "always".
        remedy: registered name of the remedy.
        finding: the evidence; None for a rule that always applies.
        change: before and after.
        sample_ids: what the user passed to `observe` for this step.
        outcome: filled in by `read_run` when the follow-up record is there.
    """

    kind: Literal["intervention"] = "intervention"
    rule: str
    rung: int = 0
    reason: Reason = "fired"
    diagnosis: str
    remedy: str
    finding: Finding | None = None
    change: Change
    sample_ids: tuple[int | str, ...] = ()
    outcome: Outcome | None = None


class Withheld(Record):
    """An action that was due and not carried out, with the reason.

    Args:
        reason: dry_run, cooldown, budget, warmup, no_rule, superseded, below_severity, unavailable (the remedy said
            that it cannot, such as a rollback without a snapshot) or failed (the remedy raised).
        detail: one sentence, or "".
    """

    kind: Literal["withheld"] = "withheld"
    rule: str = ""
    rung: int = 0
    diagnosis: str
    remedy: str = ""
    reason: WithheldReason
    detail: str = ""
    finding: Finding | None = None
    sample_ids: tuple[int | str, ...] = ()


class Event(Record):
    """Something else that an auditor must know: attached, closed, scaler_skip, internal_error, resumed, ...

    Args:
        event: what happened.
        message: one sentence.
        data: numbers and words, by name.
    """

    kind: Literal["event"] = "event"
    event: str
    message: str = ""
    data: dict[str, Any] = Field(default_factory=dict)


AnyRecord = Annotated[Intervention | Withheld | Outcome | Event, Field(discriminator="kind")]
