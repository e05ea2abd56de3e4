"""The end of a run that a policy gives up: the last good state is kept, and a person is told what to do next."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from gradguard.contracts import DIAGNOSES
from gradguard.gradients.sharded import is_sharded
from gradguard.outcomes.tally import Tally
from gradguard.outcomes.verdict import WORDS
from gradguard.record.directory import LAST_GOOD_FILE, RunDirectory
from gradguard.records import Event, Finding, Verdict
from gradguard.snapshots.last_good import as_checkpoint
from gradguard.snapshots.tensor_file import write_tensors


if TYPE_CHECKING:
    from gradguard.flow.pipeline import Pipeline


def keep_last_good(pipeline: Pipeline, directory: RunDirectory | None) -> str:
    """Keep the last good state in the run directory; return a sentence about it, "" when it cannot be kept.

    Parameters that are spread over ranks are not kept: this rank has only its part of them.

    Args:
        pipeline: has the snapshots, if the policy needs any.
        directory: where to; None when the run is not recorded.
    """
    snapshots = pipeline.target.snapshots
    if directory is None or snapshots is None or snapshots.good is None:
        return ""
    if any(is_sharded(param) for param in pipeline.target.params):
        return ""
    path = directory.path / LAST_GOOD_FILE
    try:
        directory.before_write()  # it may have been deleted, or be another run's by now
        write_tensors(path, as_checkpoint(snapshots.good.read(), pipeline.target.model, pipeline.target.optimizer))
    except Exception as error:
        pipeline.on_fault("keeping the last good state", error)
        return ""
    message = f"The last good state, of step {snapshots.good.step}, is in {path}."
    data = {"step": snapshots.good.step, "file": str(path)}
    pipeline.recorder.write(Event(step=pipeline.step, event="state_kept", message=message, data=data))
    return message


def reason_to_stop(pipeline: Pipeline) -> str:
    """Return why the last action of a run ended it, where that is more than its finding says."""
    policy = pipeline.policy
    is_spent = any(record.kind == "intervention" and record.reason == "gave_up" for record in pipeline.records)
    if not is_spent:
        return ""
    within = f" in the last {policy.budget_within} steps" if policy.budget_within is not None else ""
    actions = "1 action" if policy.budget == 1 else f"{policy.budget} actions"
    return f"The run's budget is spent: {actions} did not help{within}."


def last_words(
    step: int, why: str, finding: Finding | None, tally: Tally, kept: str = "", run_dir: str | None = None
) -> str:
    """Return what `TrainingStopped` says: why, what was tried, what of it helped, what to do next.

    Args:
        step: at which the run was stopped.
        why: a sentence, "" when the finding says it all.
        finding: for which.
        tally: what was tried in the run, and what of it helped.
        kept: where the last good state is, "" when there is none.
        run_dir: where the record is, None when it is in memory only.

    Example:
        >>> tally = Tally()
        >>> tally.did("plateau", "scale_lr")
        >>> tally.judged("plateau", "scale_lr", "no_effect")
        >>> finding = Finding(diagnosis="plateau", step=9, message="The loss stands still.", advice="Check the labels.")
        >>> last_words(9, "", finding, tally)
        'stopped at step 9: The loss stands still. Tried: scale_lr once (no effect). What to do: Check the labels.'
    """
    parts = [f"stopped at step {step}:", why, finding.message if finding is not None else "a rule said so."]
    if finding is not None:
        parts += [_tried(finding.diagnosis, tally), _what_next(finding)]
    parts += [kept, f"See: gradguard audit {run_dir}" if run_dir is not None else ""]
    return " ".join(filter(None, parts))


def _tried(diagnosis: str, tally: Tally) -> str:
    """Return what was tried against a diagnosis before the run was given up."""
    tried = tally.of(diagnosis)
    if not tried:
        return "Nothing else was tried."
    told = "; ".join(f"{remedy} {_times(times)} ({_verdict(verdicts)})" for remedy, times, verdicts in tried)
    return f"Tried: {told}."


def _times(times: int) -> str:
    return "once" if times == 1 else "twice" if times == 2 else f"{times} times"


def _verdict(verdicts: Mapping[Verdict, int]) -> str:
    if len(verdicts) <= 1:
        return WORDS[next(iter(verdicts), "unknown")]
    return ", ".join(f"{verdicts[name]} {phrase}" for name, phrase in WORDS.items() if name in verdicts)


def _what_next(finding: Finding) -> str:
    """Return the advice that came with the finding, or the cure that the diagnosis knows."""
    advice = finding.advice
    if not advice:
        try:
            advice = DIAGNOSES.get(finding.diagnosis).cure
        except KeyError:  # a class that a policy was given in Python, under no name
            return ""
    return f"What to do: {advice}" if advice else ""
