"""Two runs compared, as one value: computed here, shown by the command line or handed on as JSON."""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import computed_field

from gradguard.audit.headline import acted_counts, plural, verdict
from gradguard.audit.read import Run
from gradguard.audit.summary import Losses, summarise
from gradguard.compare.actions import Action, ActionCount, align_actions, count_actions
from gradguard.compare.align import Alignment, align
from gradguard.compare.divergence import NORMS, Difference, first_differences
from gradguard.compare.setups import Setting, setup_differences
from gradguard.printable import tidy
from gradguard.records import Frozen


Answer = Literal["same", "longer", "apart", "nothing_in_common"]
WORDS = {
    "lr": "the learning rate",
    "lr_factor": "the guard's factor on the learning rate",
    "loss_scale": "the loss scale",
    "loss": "the loss",
    "global_norm": "the gradient norm",
    "clip_coef": "what gradients were scaled by",
    "flags": "what was found or done",
}


class Side(Frozen):
    """One of the two runs.

    Args:
        path: the run directory.
        status: see `Run.status`.
        num_steps: recorded steps.
        first_step: None when there is none.
        last_step: likewise.
        loss: the losses.
        norm_median: median of the finite gradient norms; None when there is none.
        norm_max: largest of them.
        num_nonfinite: steps whose gradient norm was NaN or infinite.
        num_skipped: steps that the guard or GradScaler skipped.
        clip_share: share of the steps whose gradient was scaled down, in [0, 1]; None without steps.
        findings: number of findings by severity.
        num_interventions: how often the guard acted; all that it did about one thing at one step is one.
        verdict: how the run went, in a sentence.
        only: recorded steps that the other run does not have.
    """

    path: str
    status: str
    num_steps: int
    first_step: int | None
    last_step: int | None
    loss: Losses
    norm_median: float | None
    norm_max: float | None
    num_nonfinite: int
    num_skipped: int
    clip_share: float | None
    findings: dict[str, int]
    num_interventions: int
    verdict: str
    only: int


class Comparison(Frozen):
    """Two runs, A and B.

    Args:
        a: the first.
        b: the second.
        answer: "same"; "longer" when they are the same as far as both go; "apart"; or "nothing_in_common" when no step
            is in both.
        num_common: steps that both have.
        first_common: None when there is none.
        last_common: likewise.
        rtol: relative difference up to which two numbers were taken for the same.
        differences: the first of each quantity that differs, in the order of steps and causes.
        num_parameters: parameters that both have.
        only_a: names of the parameters that A alone has.
        only_b: names of the parameters that B alone has.
        settings: what was set up differently.
        counts: what the guard did in each, by diagnosis and remedy.
        actions: each intervention, in the order of steps.
    """

    a: Side
    b: Side
    answer: Answer
    num_common: int
    first_common: int | None
    last_common: int | None
    rtol: float
    differences: tuple[Difference, ...]
    num_parameters: int
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]
    settings: tuple[Setting, ...]
    counts: tuple[ActionCount, ...]
    actions: tuple[Action, ...]

    @computed_field  # type: ignore[prop-decorator]
    @property
    def headline(self) -> str:
        """One or two sentences: are they the same, and where do they part."""
        return _headline(self)


def compare_runs(run_a: Run, run_b: Run, rtol: float = 0.0) -> Comparison:
    """Return in what two runs differ, and from where on.

    Args:
        run_a: A.
        run_b: B.
        rtol: relative difference up to which two numbers are the same; 0 for the same bits.
    """
    where = align(run_a.statistics["step"], run_b.statistics["step"])
    in_b = set(run_b.parameters)
    in_a = set(run_a.parameters)
    common = [name for name in run_a.parameters if name in in_b]
    differences = first_differences(run_a, run_b, where, common, rtol)
    actions = align_actions(run_a, run_b, set(where.steps.tolist()))
    return Comparison(
        a=_side(run_a, len(where.only_a)),
        b=_side(run_b, len(where.only_b)),
        answer=_answer(where, differences, actions, in_a == in_b),
        num_common=len(where.steps),
        first_common=int(where.steps[0]) if len(where.steps) else None,
        last_common=int(where.steps[-1]) if len(where.steps) else None,
        rtol=rtol,
        differences=differences,
        num_parameters=len(common),
        only_a=tuple(name for name in run_a.parameters if name not in in_b),
        only_b=tuple(name for name in run_b.parameters if name not in in_a),
        settings=setup_differences(run_a, run_b),
        counts=count_actions(actions),
        actions=actions,
    )


def _answer(
    where: Alignment, differences: tuple[Difference, ...], actions: tuple[Action, ...], has_same_parameters: bool
) -> Answer:
    if not len(where.steps):
        return (
            "same" if not len(where.only_a) and not len(where.only_b) and has_same_parameters else "nothing_in_common"
        )
    is_other_action = any(action.in_a != action.in_b and action.is_common for action in actions)
    if differences or is_other_action or not has_same_parameters:
        return "apart"
    return "longer" if len(where.only_a) or len(where.only_b) else "same"


def _side(run: Run, only: int) -> Side:
    summary = summarise(run)
    norms = run.statistics["global_norm"]
    finite = norms[np.isfinite(norms)]
    return Side(
        path=summary.path,
        status=summary.status,
        num_steps=summary.num_steps,
        first_step=summary.first_step,
        last_step=summary.last_step,
        loss=summary.loss,
        norm_median=float(np.median(finite)) if len(finite) else None,
        norm_max=float(finite.max()) if len(finite) else None,
        num_nonfinite=len(norms) - len(finite),
        num_skipped=summary.num_skipped_by_guard + summary.num_skipped_by_scaler,
        clip_share=summary.clip_share,
        findings=summary.severities,
        num_interventions=sum(acted_counts(summary).values()),
        verdict=verdict(summary),
        only=only,
    )


def _headline(found: Comparison) -> str:
    if found.answer == "nothing_in_common":
        return "The runs have no step in common."
    if found.answer == "same":
        return f"The runs are the same{_within(found)}, all {plural(found.num_common, 'step')} of them."
    if found.answer == "longer":
        side, other, only = ("A", "B", found.a.only) if found.a.only else ("B", "A", found.b.only)
        both = (
            f" (and {other} {plural(found.b.only, 'step')} that {side} has not)"
            if found.a.only and found.b.only
            else ""
        )
        same = f"The runs are the same{_within(found)} at the {plural(found.num_common, 'step')} that both have"
        return f"{same}; {side} has {plural(only, 'step')} that {other} has not{both}."
    if not found.differences:
        return (
            f"The numbers are the same{_within(found)} at {plural(found.num_common, 'common step')}, but {_but(found)}."
        )
    first = found.differences[0]
    before = "The runs differ from their first common step on."
    if found.first_common is not None and first.step > found.first_common:
        before = f"The runs are the same{_within(found)} before step {first.step:,}."
    return f"{before} At step {first.step:,} {_first(first)}."


def _but(found: Comparison) -> str:
    if found.only_a or found.only_b:
        return "they have different parameters"
    return "the guard acted differently"


def _first(first: Difference) -> str:
    if first.quantity == "flags":
        return f"{WORDS['flags']} differs first"
    what = WORDS.get(first.quantity, "")
    if first.quantity == NORMS:
        more = f" (and of {first.num_parameters - 1} more)" if first.num_parameters > 1 else ""
        what = f"the gradient norm of {first.parameters[0]}{more}"
    return f"{what} differs first: {tidy(f'{first.a:.6g}')} in A, {tidy(f'{first.b:.6g}')} in B"


def _within(found: Comparison) -> str:
    return f" (within {found.rtol:g})" if found.rtol else ""
