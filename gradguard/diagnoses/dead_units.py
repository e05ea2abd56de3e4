"""Units that give the same zero whatever comes in, and classes that can never be predicted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from pydantic import Field

from gradguard.contracts import DIAGNOSES, STAYS, Diagnosis
from gradguard.evidence.probe_stats import Activations, OutputStats
from gradguard.evidence.progress import LEARNED, WINDOW, has_learned, share_left
from gradguard.evidence.stats import ParameterTable, StepStats
from gradguard.printable import layer_name
from gradguard.records import MAX_NAMES, Finding, Severity


CONFIRM = 3  # probes in a row
CONFIRM_OUTPUT = 2  # probes in a row for the outputs: there are few of them, each one a class
MIN_SAMPLES = 64  # of one probe, for what is said at once, and on average of those in a row
MIN_UNITS = 8  # a narrower layer counts when all of its units are dead
REPEAT_AFTER = 500  # steps between two findings of one kind while it lasts
LIKE_CLASSES = 0.25  # distance of the initial loss from ln C, as a share of it, of what looks like C classes
SQUASHING = frozenset({"sigmoid", "tanh", "softmax", "hardsigmoid", "hardtanh", "log_softmax"})
MAX_LEFT = 3  # units of a layer that died: a sparse code has more of them at work
OUTSIDE = frozenset({"input", "output"})  # what is zero there may be data, or be meant: it counts when it grew


@dataclass
class DeadState:
    """By layer: probes in a row with too many dead units, and the samples of these; the dead share at the first probe.

    `output_streak` is that of the outputs; `last_alarm` is the step of the last finding by kind and severity.
    """

    streaks: dict[str, int] = field(default_factory=dict)
    samples: dict[str, int] = field(default_factory=dict)
    first: dict[str, float] = field(default_factory=dict)
    output_streak: int = 0
    last_alarm: dict[str, int] = field(default_factory=dict)


@DIAGNOSES.register
class DeadUnits(Diagnosis[DeadState]):
    """Most units of a layer are zero on every sample, or some of the model's outputs are.

    Args:
        share: dead units of a layer over all of its units from which it is reported, in (0, 1).
        blocked: and from which hardly anything passes the layer, in (0, 1).
        about: "all" dead units, those of "layers" or those of the "outputs" only; "died" are layers that hardly a unit
            is left of, that were alive at the first probe, in a run whose loss is above half of its start.
    """

    name = "dead_units"
    what = (
        "Many units give zero for every sample. They get no gradient either, so they will not come back by themselves."
    )
    computed = (
        "A unit is dead when it is 0 on every sample of a probe (with GELU and the like: when its mean is below 0.025 "
        "of the layer's). Reported when the dead share of a layer exceeds `share` at three probes in a row (at more of "
        "few samples), and at once above `blocked`, which is critical. While the loss is below half of its start the "
        "run learns all the same: then it is only worth knowing. The model's outputs count as well: classes whose "
        "output is always exactly 0 at two probes in a row, in a run whose initial loss is that of guessing among so "
        "many classes."
    )
    cure = (
        "Lower the learning rate; use LeakyReLU, ELU or GELU in place of ReLU; He initialisation with biases of zero; "
        "batch or layer normalisation; no ReLU behind the last layer. Units that died must be initialised again."
    )
    source = "Lu et al. 2019 (dying ReLU), Sokar et al. 2023 (dormant units); healthy set-ups reach a share of 0.56"
    follows = (
        "nonfinite",
        "exploding_gradient",
        "divergence",
        "loss_spike",
        "update_spike",
        "bad_inputs",
        "stale_gradients",
    )
    lasts = STAYS
    reads = frozenset({"activations"})
    precedence = 30

    share: float = Field(default=0.6, gt=0, lt=1)
    blocked: float = Field(default=0.95, gt=0, lt=1)
    about: Literal["all", "layers", "outputs", "died"] = "all"

    def rests_when_quiet(self) -> bool:
        return True

    def loss_windows(self) -> Sequence[int]:
        return (WINDOW,)

    def init(self, table: ParameterTable, rows: Sequence[int]) -> DeadState:
        return DeadState()

    def update(self, state: DeadState, stats: StepStats) -> tuple[DeadState, Finding | None]:
        seen = stats.activations
        if seen is None:
            return state, None
        left = share_left(stats)
        finding = self._layers(state, stats, seen, left) if self.about != "outputs" else None
        sees_outputs = seen.output is not None and self.about in ("all", "outputs")
        of_outputs = self._outputs(state, stats, seen) if sees_outputs else None
        return state, finding or of_outputs

    def _layers(self, state: DeadState, stats: StepStats, seen: Activations, left: float) -> Finding | None:
        found = []
        for place, name in enumerate(seen.names):
            dead, num_samples = float(seen.dead[place]), int(seen.num_samples[place])
            first = state.first.setdefault(name, dead)
            limit = self.share if seen.num_units[place] >= MIN_UNITS else self.blocked
            is_bad = dead > limit and seen.kinds[place] not in SQUASHING
            if seen.kinds[place] in OUTSIDE and not dead > 2.0 * first:
                is_bad = False
            if self.about == "died":
                num_left = round((1.0 - dead) * int(seen.num_units[place]))
                is_bad = is_bad and first <= self.share and left > LEARNED and num_left <= MAX_LEFT
            state.streaks[name] = state.streaks.get(name, 0) + 1 if is_bad else 0
            state.samples[name] = state.samples.get(name, 0) + num_samples if is_bad else 0
            lasts = state.streaks[name] >= CONFIRM and state.samples[name] >= CONFIRM * MIN_SAMPLES
            if is_bad and (lasts or (dead > self.blocked and num_samples >= MIN_SAMPLES)):
                found.append((dead, place))
        if not found:
            return None
        found.sort(key=lambda pair: -pair[0])
        worst, place = found[0]
        severity: Severity = "critical" if worst > self.blocked else "warn"
        if has_learned(left):
            severity = "info"
        names = [seen.names[index] for _, index in found]
        kind = seen.kinds[place]
        return self._tell(
            state,
            "layers",
            Finding(
                diagnosis=self.name,
                step=stats.step,
                severity=severity,
                statistic="share of dead units",
                value=worst,
                threshold=self.blocked if worst > self.blocked else self.share,
                parameters=tuple(names[:MAX_NAMES]),
                num_parameters=len(names),
                message=(
                    f"{worst:.0%} of the units of {layer_name(names[0])} ({kind}) are dead: zero for every one of "
                    f"{int(seen.num_samples[place])} samples."
                ),
                advice=self.cure,
                evidence={"layers": len(names), "units": int(seen.num_units[place]), "loss_left": left},
            ),
        )

    def _outputs(self, state: DeadState, stats: StepStats, seen: Activations) -> Finding | None:
        output = seen.output
        if output is None or output.num_samples < MIN_SAMPLES:
            return None
        is_bad = 0.0 < output.dead < 1.0 and self._are_classes(stats, output)
        state.output_streak = state.output_streak + 1 if is_bad else 0
        if state.output_streak < CONFIRM_OUTPUT:
            return None
        count = round(output.dead * output.num_units)
        return self._tell(
            state,
            "outputs",
            Finding(
                diagnosis=self.name,
                step=stats.step,
                severity="warn",
                statistic="share of dead outputs",
                value=output.dead,
                threshold=0.0,
                message=(
                    f"{count} of the model's {output.num_units} outputs are exactly 0 for every one of "
                    f"{output.num_samples} samples: these classes cannot be told from each other."
                ),
                advice="Remove the ReLU behind the last layer: the loss expects raw outputs of any sign.",
                evidence={"outputs": output.num_units},
            ),
        )

    def _are_classes(self, stats: StepStats, output: OutputStats) -> bool:
        if output.num_units < 2 or not stats.initial_loss > 0.0:
            return False
        chance = math.log(output.num_units)
        return abs(stats.initial_loss - chance) < LIKE_CLASSES * chance

    def _tell(self, state: DeadState, kind: str, finding: Finding) -> Finding | None:
        key = f"{kind} {finding.severity}"
        if finding.step - state.last_alarm.get(key, -REPEAT_AFTER) < REPEAT_AFTER:
            return None
        state.last_alarm[key] = finding.step
        return finding
