"""A model that answers the same whatever it is asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pydantic import Field

from gradguard.contracts import DIAGNOSES, STAYS, Diagnosis
from gradguard.evidence.probe_stats import OutputStats
from gradguard.evidence.progress import WINDOW, share_left
from gradguard.evidence.stats import ParameterTable, StepStats
from gradguard.printable import short
from gradguard.records import Finding, Severity


CONFIRM = 2  # probes in a row
CONFIRM_FLAT = 3  # for outputs that never differed
NOT_LEARNED = 0.5  # share of the initial loss above which a collapse is a failure
NOT_MOVED = 0.9  # and that above which outputs that never differed are
MIN_SAMPLES = 16
REPEAT_AFTER = 500  # steps between two findings of one severity while it lasts


@dataclass
class CollapseState:
    """The first spread above zero; probes in a row with a collapsed, and with a flat output."""

    first: float = 0.0
    collapsed: int = 0
    flat: int = 0
    last_alarm: dict[str, int] = field(default_factory=dict)


@DIAGNOSES.register
class CollapsedOutput(Diagnosis[CollapseState]):
    """The output hardly differs from sample to sample any more, or never did.

    Args:
        share: spread of the output over the samples, over its first spread, below which it has collapsed, in (0, 1).
        flat: spread over the mean absolute output below which samples cannot be told from each other, in (0, 1).
    """

    name = "collapsed_output"
    what = "The model gives nearly the same output for every sample: the input does not reach it any more."
    computed = (
        "spread = standard deviation of the output over the samples, averaged over the outputs. Reported when it is "
        "below `share` of its first value at two probes in a row while the loss is above half of its start, or below "
        "`flat` of the mean absolute output at three while the loss is above 0.9 of it. Critical when the spread is "
        "exactly 0 after it was not."
    )
    cure = (
        "Look for what came first: dead or saturated layers, vanished weights (weight decay far too high), an exploded "
        "step. Start again from before it with a lower learning rate, He or Xavier initialisation, normalisation."
    )
    source = "TheDeepChecker (Ben Braiek and Khomh 2022); healthy set-ups keep 0.447 of their first spread"
    follows = (
        "nonfinite",
        "exploding_gradient",
        "divergence",
        "loss_spike",
        "update_spike",
        "dead_units",
        "saturated_units",
        "vanishing_gradient",
        "bad_initialization",
        "bad_inputs",
    )
    lasts = STAYS
    reads = frozenset({"activations"})
    precedence = 70

    share: float = Field(default=0.01, gt=0, lt=1)
    flat: float = Field(default=0.01, gt=0, lt=1)

    def rests_when_quiet(self) -> bool:
        return True

    def loss_windows(self) -> Sequence[int]:
        return (WINDOW,)

    def init(self, table: ParameterTable, rows: Sequence[int]) -> CollapseState:
        return CollapseState()

    def update(self, state: CollapseState, stats: StepStats) -> tuple[CollapseState, Finding | None]:
        output = stats.activations.output if stats.activations is not None else None
        if output is None or output.num_samples < MIN_SAMPLES or not output.spread >= 0.0:
            return state, None
        left = share_left(stats)
        if not state.first > 0.0:
            state.first = output.spread
        is_collapsed = output.spread < self.share * state.first and not left < NOT_LEARNED
        is_flat = output.spread < self.flat * output.level and not left < NOT_MOVED
        state.collapsed = state.collapsed + 1 if is_collapsed else 0
        state.flat = state.flat + 1 if is_flat else 0
        if state.collapsed >= CONFIRM or state.flat >= CONFIRM_FLAT:
            return state, self._finding(state, stats, output, left)
        return state, None

    def _finding(self, state: CollapseState, stats: StepStats, output: OutputStats, left: float) -> Finding | None:
        is_collapsed = state.collapsed >= CONFIRM
        severity: Severity = "critical" if is_collapsed and output.spread == 0.0 else "warn"
        if left != left:  # nothing says that it does not learn
            severity = "info"
        if stats.step - state.last_alarm.get(severity, -REPEAT_AFTER) < REPEAT_AFTER:
            return None
        state.last_alarm[severity] = stats.step
        baseline = state.first if is_collapsed else output.level
        first = short(state.first, 2)
        return Finding(
            diagnosis=self.name,
            step=stats.step,
            severity=severity,
            statistic="spread of the output over samples",
            value=output.spread,
            baseline=baseline,
            threshold=(self.share if is_collapsed else self.flat) * baseline,
            message=(
                f"The output differs by {short(output.spread, 2)} from sample to sample, where "
                + (f"it was {first} at first." if is_collapsed else f"its size is {short(output.level, 2)}.")
            ),
            advice=self.cure,
            evidence={"level": output.level, "loss_left": left},
        )
