"""The fast path decides and writes what a slow and obvious guard does: one entry, one parameter, one step at a time.

Real gradients go through a real guard with a record on disk. The reference sees the same tensors, works in float64 with
whole lists instead of windows, and keeps no state but what happened.
"""

import itertools
import math
import tempfile

import numpy as np
import pytest
import reference
import torch
from histories import histories, loss_histories
from hypothesis import given, settings
from hypothesis import strategies as st

import gradguard
from gradguard.diagnoses import exploding_gradient as exploding_module
from gradguard.record.statistics import Flag


WITHIN = 10  # steps in which the rule must have acted twice before it climbs
WINDOW = {"window": 12, "warmup": 8}
LARGEST = 1e18  # what float32 can square


class SlowGuard:
    """The policy below, spelt out.

    Args:
        num_parameters: P.
        cooldown, budget: of the rule on explosions.
        always: the limit that is always in force.
    """

    def __init__(self, num_parameters, cooldown, budget, always):
        self.exploding = reference.ExplodingGradient(
            num_parameters, zscore=6.0, ratio=20.0, extreme_ratio=100.0, is_deep=False, **WINDOW
        )
        self.spike = reference.LossSpike(zscore=10.0, **WINDOW)
        self.cooldown, self.budget, self.always = cooldown, budget, always
        self.clips, self.last_clip, self.num_clips = [], None, 0

    def step(self, step, grads, loss):
        """Return (records, row) of one step."""
        norms = [-1.0 if grad is None else self.norm(grad) for grad in grads]
        present = [norm for norm in norms if norm != -1.0]
        is_finite = all(map(math.isfinite, present))
        total = math.hypot(*present) if is_finite else math.nan if any(map(math.isnan, present)) else math.inf
        levels = [float(np.float32(level)) for level in (total, *norms)]
        medians = [reference.lower_median(row.accepted(12)) for row in self.exploding.history]
        counts = [len(row.accepted(12)) for row in self.exploding.history]
        alarm = self.exploding.step(step, levels)
        is_bad = not is_finite or not math.isfinite(loss)
        is_spike = self.spike.step(loss, 0.1, is_learned=is_finite)
        records, clip_coef = [], 1.0
        if is_bad:
            records.append(("intervention", "drop", 0, "skip_step", "fired"))
        if alarm is not None:
            records.append(self.tame(step, alarm, levels, medians))
        if is_spike:
            reason = ("withheld", "spike", 0, "skip_step", "superseded") if is_bad else None
            records.append(reason or ("intervention", "spike", 0, "skip_step", "fired"))
        is_skipped = is_bad or is_spike
        if is_skipped:
            records = [
                ("withheld", *record[1:4], "superseded")
                if record[:4] == ("intervention", "tame", 0, "clip_norm")
                else record
                for record in records
            ]
        elif is_finite:
            norms_left = list(present)
            if ("intervention", "tame", 0, "clip_norm", "fired") in records:
                rows = range(len(grads)) if 0 in alarm.rows else [row - 1 for row in alarm.rows]
                is_global = 0 in alarm.rows
                limits = [3.0 * median if count >= 5 else 1.0 for median, count in zip(medians, counts, strict=True)]
                if is_global:
                    factor = reference.clip_coefficient(total, limits[0])
                    clip_coef *= factor
                    norms_left = [norm * factor for norm in norms_left]
                else:
                    norms_left = [
                        norm * (reference.clip_coefficient(norm, limits[row + 1]) if row in rows else 1.0)
                        for row, norm in enumerate(norms)
                        if norm != -1.0
                    ]
            clip_coef *= reference.clip_coefficient(math.hypot(*norms_left), self.always)
        flags = Flag(0)
        flags |= Flag.FINDING if records else Flag(0)
        flags |= Flag.INTERVENTION if any(record[0] == "intervention" for record in records) else Flag(0)
        flags |= Flag.SKIPPED_BY_GUARD if is_skipped else Flag(0)
        return sorted(records), (loss, total, clip_coef, flags, norms)

    def tame(self, step, alarm, levels, medians):
        """Return the record of an explosion: what the rule's history allows."""
        if 0 not in alarm.rows:
            row = max(alarm.rows, key=lambda row: levels[row] / medians[row])
            if levels[row] < exploding_module.SHARE * medians[0]:
                return ("withheld", "tame", 0, "clip_norm", "below_severity")
        if self.num_clips >= self.budget:
            return ("withheld", "tame", 0, "clip_norm", "budget")
        if self.last_clip is not None and step - self.last_clip <= self.cooldown:
            return ("withheld", "tame", 0, "clip_norm", "cooldown")
        self.num_clips += 1
        self.last_clip = step
        if len([past for past in self.clips if step - past <= WITHIN]) >= 2:
            self.clips = []
            return ("intervention", "tame", 1, "notify", "escalated")
        self.clips.append(step)
        return ("intervention", "tame", 0, "clip_norm", "fired")

    @staticmethod
    def norm(grad):
        num_nan, num_inf = reference.num_nonfinite(grad)
        return math.nan if num_nan else math.inf if num_inf else reference.norm(grad)


def policy(cooldown, budget, always):
    tame = {
        "name": "tame",
        "when": {"exploding_gradient": WINDOW},
        "do": {"clip_norm": {"max_norm": {"median_times": 3, "window": 12}}},
        "cooldown": cooldown,
        "budget": budget,
        "escalate": [{"after": 2, "within": WITHIN, "do": "notify"}],
    }
    rules = [
        {"name": "drop", "when": "nonfinite", "do": "skip_step"},
        tame,
        {"name": "spike", "when": {"loss_spike": WINDOW}, "do": "skip_step"},
        {"name": "clip", "when": "always", "do": {"clip_norm": {"max_norm": always}}},
    ]
    return gradguard.Policy(rules=rules, sinks=[])


def gradient(norm, random):
    """Return a gradient of this norm in a random direction; a NaN or infinite norm stands in one entry."""
    if norm is None:
        return None
    direction = random.standard_normal(3)
    direction /= np.linalg.norm(direction)
    if math.isfinite(norm):
        return torch.tensor(direction * min(norm, LARGEST), dtype=torch.float32)
    entries = torch.tensor(direction, dtype=torch.float32)
    entries[random.integers(3)] = norm
    return entries


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    histories(),
    loss_histories(),
    st.sampled_from([0, 1, 4]),
    st.sampled_from([0, 2, 100]),
    st.sampled_from([1e-2, 1.0, 1e6]),
    st.sampled_from(["fused", "foreach"]),
)
def test_decisions_and_statistics_are_those_of_the_slow_guard(history, losses, cooldown, budget, always, path):
    random = np.random.default_rng(0)
    params = torch.nn.ParameterList([torch.nn.Parameter(torch.ones(3)) for _ in history[0]])
    optimizer = torch.optim.AdamW(params, lr=0.1, **{path: True})
    slow = SlowGuard(len(params), cooldown, budget, always)
    expected_records, expected_rows = [], []
    with tempfile.TemporaryDirectory() as folder:
        with gradguard.attach(params, optimizer, policy(cooldown, budget, always), run_dir=f"{folder}/run") as guard:
            for step, (norms, (loss, _)) in enumerate(zip(history, itertools.cycle(losses))):
                grads = [gradient(norm, random) for norm in norms]
                for param, grad in zip(params, grads, strict=True):
                    param.grad = None if grad is None else grad.clone()
                records, row = slow.step(step, grads, float(np.float32(loss)))
                expected_records += [(step, *record) for record in records]
                expected_rows.append(row)
                guard.observe(torch.tensor(loss, dtype=torch.float32))
                optimizer.step()
        table = dict(gradguard.read_run(guard.run_dir).statistics)
    told = [
        (record.step, record.kind, record.rule, record.rung, record.remedy, record.reason)
        for record in guard.records
        if record.kind in ("intervention", "withheld")
    ]
    assert sorted(told) == expected_records
    loss, total, clip_coef, flags, norms = map(list, zip(*expected_rows, strict=True))
    assert table["loss"].tolist() == pytest.approx(loss, rel=0, nan_ok=True)
    assert table["global_norm"].tolist() == pytest.approx(total, rel=1e-6, nan_ok=True)
    assert table["clip_coef"].tolist() == pytest.approx(clip_coef, rel=1e-5)
    assert table["flags"].tolist() == flags
    assert table["norms"].tolist() == [pytest.approx(row, rel=1e-6, nan_ok=True) for row in norms]
