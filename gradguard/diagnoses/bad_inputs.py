"""What is fed to the model is not fit for it: NaN, or numbers of a size that no initialisation is made for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from pydantic import Field

from gradguard.contracts import DIAGNOSES, STAYS, Diagnosis
from gradguard.evidence.origin import Origin
from gradguard.evidence.origin_words import what_to_do, where_it_began
from gradguard.evidence.probe_stats import Activations, InputStats
from gradguard.evidence.stats import ParameterTable, StepStats
from gradguard.printable import short
from gradguard.records import Finding, Severity


TWO_VALUED = 0.02  # relative distance of the variance from that of 0 and one other value: masks, one-hot inputs
NORMALISED = 3.0  # std of what the first layers give, up to which the model takes care of the scale itself
SMALL_PEAK = 0.5  # largest entry, below which small inputs are not just sparse or quiet ones


@dataclass
class InputState:
    """Whether the scale of the first inputs was judged, and what is known of NaN.

    `is_hurt`: since the last probe a loss or a gradient was not finite; `told`: by severity, inputs that were reported.
    """

    judged: bool = False
    is_hurt: bool = False
    told: dict[str, list[str]] = field(default_factory=dict)


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
        "positions) are left out. Only worth knowing when the first layers bring the scale in order. NaN and infinity "
        "are looked for at every probe and in the batch of every step that is not finite, and only worth knowing while "
        "losses and gradients stay finite: the model may take them for missing values, or for places that a mask "
        "leaves out."
    )
    cure = (
        "Standardise the inputs (subtract the mean, divide by the standard deviation of the training data), or begin "
        "the model with a normalisation layer. Drop or fill in samples with NaN."
    )
    source = "LeCun et al. 1998 (Efficient BackProp, section 4.3); limits of TheDeepChecker and UMLAUT, widened"
    reads = frozenset({"activations"})
    lasts = STAYS
    locates = True
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
        if stats.origin is not None and stats.origin.stage == "input":
            state.is_hurt = True
            return state, self._at_fault(stats, stats.origin) if self._is_new(state, stats.origin.place, True) else None
        is_sound = stats.finite and (not stats.has_loss or math.isfinite(stats.loss)) and stats.loss_scale == 1.0
        state.is_hurt = state.is_hurt or not is_sound  # a GradScaler hides its steps
        if seen is None:
            return state, None
        is_hurt, state.is_hurt = state.is_hurt, False
        for given in seen.inputs:
            if given.nonfinite and not _is_mask(given) and self._is_new(state, given.name, is_hurt):
                return state, self._nonfinite(stats, seen, given, is_hurt)
        if state.judged or not seen.inputs:
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
                f"Input {given.name!r} is {what}: mean {short(given.mean)}, standard deviation {short(given.std)}, "
                f"up to {short(given.largest)}; about 0 and 1 are what layers are made for."
            ),
            advice=self.cure,
            evidence={"mean": given.mean, "std": given.std, "largest": given.largest},
        )

    def _is_new(self, state: InputState, name: str, is_hurt: bool) -> bool:
        """Return whether an input was not reported yet with this severity or a higher one, and note that it is."""
        if name in state.told.get("warn", ()) or (not is_hurt and name in state.told.get("info", ())):
            return False
        state.told.setdefault("warn" if is_hurt else "info", []).append(name)
        return True

    def _at_fault(self, stats: StepStats, origin: Origin) -> Finding:
        """The batch that made this very step not finite."""
        which = where_it_began(origin)
        return Finding(
            diagnosis=self.name,
            step=stats.step,
            severity="warn",
            statistic="NaN or infinite entries",
            value=origin.entries,
            threshold=0,
            message=f"{which[0].upper()}{which[1:]}: the loss or a gradient of this step is not finite.",
            advice=what_to_do(origin),
            evidence=origin.evidence(),
        )

    def _nonfinite(self, stats: StepStats, seen: Activations, given: InputStats, is_hurt: bool) -> Finding:
        entries = "a NaN or infinite entry" if given.nonfinite == 1 else f"{given.nonfinite:,} NaN or infinite entries"
        passes = f" in the last {seen.num_passes} forward passes" if seen.num_passes > 1 else ""
        taken = "" if is_hurt else " The loss and the gradients are finite all the same."
        return Finding(
            diagnosis=self.name,
            step=stats.step,
            severity="warn" if is_hurt else "info",
            statistic="NaN or infinite entries",
            value=given.nonfinite,
            threshold=0,
            message=f"Input {given.name!r} holds {entries}{passes}.{taken}",
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
