"""What is fed to the model is not fit for it: NaN, or numbers of a size that no initialisation is made for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from pydantic import Field

from gradguard.contracts import DIAGNOSES, Diagnosis
from gradguard.probe_stats import Activations, InputStats
from gradguard.records import Finding, Severity
from gradguard.stats import ParameterTable, StepStats


TWO_VALUED = 0.02  # relative distance of the variance from that of 0 and one other value: masks, one-hot inputs
NORMALISED = 3.0  # std of what the first layers give, up to which the model takes care of the scale itself
SMALL_PEAK = 0.5  # largest entry, below which small inputs are not just sparse or quiet ones


@dataclass
class InputState:
    """`judged`: whether the scale of the first inputs was judged; `told`: inputs in which NaN was reported."""

    judged: bool = False
    told: list[str] = field(default_factory=list)


@DIAGNOSES.register
class BadInputs(Diagnosis[InputState]):
    """An input of the model holds NaN, or is far from zero mean and unit variance.

    Args:
        max_std: standard deviation above which the inputs are too large, > 0.
        min_std: and below which they are too small, > 0.
        max_offset: |mean| over the standard deviation above which they are off centre, > 0.
    """

    name = "bad_inputs"
    what = "The numbers that go into the model are NaN, far too large, far too small or far from zero."
    computed = (
        "Mean and standard deviation of every floating tensor that the model was called with, of the first probe. "
        "Reported when std > `max_std`, std < `min_std` with no entry above 0.5, or |mean|/std > `max_offset`. "
        "Constant tensors, tensors of two values (masks, one-hot inputs) and those with one number a sample (times, "
        "positions) are left out. Only worth knowing when the first layers bring the scale in order. NaN is looked for "
        "at every probe."
    )
    cure = (
        "Standardise the inputs (subtract the mean, divide by the standard deviation of the training data), or begin "
        "the model with a normalisation layer. Drop or fill in samples with NaN."
    )
    source = "LeCun et al. 1998 (Efficient BackProp, section 4.3); limits of TheDeepChecker and UMLAUT, widened"
    reads = frozenset({"activations"})
    precedence = 10

    max_std: float = Field(default=20.0, gt=0)
    min_std: float = Field(default=0.05, gt=0)
    max_offset: float = Field(default=10.0, gt=0)

    def rests_when_quiet(self) -> bool:
        return True

    def init(self, table: ParameterTable, rows: Sequence[int]) -> InputState:
        return InputState()

    def update(self, state: InputState, stats: StepStats) -> tuple[InputState, Finding | None]:
        seen = stats.activations
        if seen is None or not seen.inputs:
            return state, None
        for given in seen.inputs:
            if given.nonfinite and not _is_mask(given) and given.name not in state.told:
                state.told.append(given.name)
                return state, self._nonfinite(stats, given)
        if state.judged:
            return state, None
        state.judged = True
        for given in seen.inputs:
            if finding := self._scale(stats, seen, given):
                return state, finding
        return state, None

    def _scale(self, stats: StepStats, seen: Activations, given: InputStats) -> Finding | None:
        if len(given.shape) < 2 or math.prod(given.shape[1:]) < 2 or _is_mask(given):
            return None
        offset = abs(given.mean) / given.std
        if given.std > self.max_std:
            statistic, value, threshold, what = "std of the input", given.std, self.max_std, "far too large"
        elif given.std < self.min_std and given.largest < SMALL_PEAK:
            statistic, value, threshold, what = "std of the input", given.std, self.min_std, "far too small"
        elif offset > self.max_offset:
            statistic, value, threshold, what = "|mean|/std of the input", offset, self.max_offset, "far from zero"
        else:
            return None
        severity: Severity = "info" if _is_normalised(seen, given.std > self.max_std) else "warn"
        return Finding(
            diagnosis=self.name,
            step=stats.step,
            severity=severity,
            statistic=statistic,
            value=value,
            threshold=threshold,
            message=(
                f"Input {given.name!r} is {what}: mean {given.mean:.3g}, standard deviation {given.std:.3g}, up to "
                f"{given.largest:.3g}; about 0 and 1 are what layers are made for."
            ),
            advice=self.cure,
            evidence={"mean": given.mean, "std": given.std, "largest": given.largest},
        )

    def _nonfinite(self, stats: StepStats, given: InputStats) -> Finding:
        return Finding(
            diagnosis=self.name,
            step=stats.step,
            severity="warn",
            statistic="NaN or infinite entries",
            value=given.nonfinite,
            threshold=0,
            message=f"Input {given.name!r} holds {given.nonfinite} NaN or infinite entries.",
            advice="Look for the samples with NaN or infinite values, and drop them or fill them in.",
            evidence={"shape": str(given.shape)},
        )


def _is_mask(given: InputStats) -> bool:
    """Return whether the finite entries are constant, or 0 and one other value, as in masks and one-hot inputs."""
    variance = given.std * given.std
    if not variance > 1e-12 * given.largest * given.largest:
        return True
    expected = abs(given.mean) * (given.largest - abs(given.mean))
    return abs(variance - expected) < TWO_VALUED * variance


def _is_normalised(seen: Activations, is_large: bool) -> bool:
    """Return whether what the first place gives has a usual scale although the input has not."""
    if not seen.names or seen.kinds[0] == "input":
        return False
    std = float(seen.std[0])
    return std < NORMALISED if is_large else std > 1.0 / NORMALISED
