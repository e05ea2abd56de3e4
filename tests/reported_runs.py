"""Runs recorded by hand, as pages have to show them: sick, healthy, empty, hostile."""

import numpy as np

from gradguard.evidence.probe_stats import Activations, Updates
from gradguard.evidence.stats import ParameterTable
from gradguard.record.directory import RunDirectory
from gradguard.record.statistics import Flag
from gradguard.records import Change, Event, Finding, Intervention, Outcome, Withheld


HOSTILE = "<script>alert(1)</script>"
HOSTILE_IMAGE = "<img src=x onerror=alert(2)>%{y}<b>bold</b>\x1b[2J"
NAMES = ["wte.weight", "h.0.attention.weight", HOSTILE, HOSTILE_IMAGE]
STEPS = 240
SPIKE, NAN, PLATEAU = 60, 150, 220
RULE = {"exploding_gradient": {"about": "level", "window": 50, "ratio": 20.0, "extreme_ratio": 100.0, "zscore": 6.0}}
POLICY = {
    "version": 1,
    "mode": "enforce",
    "horizon": 20,
    "rules": [
        {"name": "tame", "when": RULE, "do": [{"clip_norm": {"max_norm": {"median_times": 3.0}}}]},
        {"name": HOSTILE, "when": {"loss_spike": {}}, "do": [{"notify": {}}]},
        {"name": "always-clip", "when": "always", "do": [{"clip_norm": {"max_norm": 5.0}}]},
    ],
}


class Recording:
    """Writes a run: losses that fall, norms that wobble, and what is put in."""

    def __init__(self, path, names=NAMES, policy=POLICY, name=None, versions=None, sizes=1.0, dead=(0.1, 0.7)):
        info = {"policy": policy, "versions": versions or {"python": "3.11", "torch": HOSTILE}}
        self.names, self.sizes, self.dead = list(names), np.array(sizes), dead
        self.directory = RunDirectory.create(path, name=name, info=info)
        table = ParameterTable(self.names, [(4, 4)] * len(names), ["float32"] * len(names), [0] * len(names))
        self.directory.write_layout(table)
        self.rng = np.random.default_rng(0)

    def norms(self):
        return (self.sizes * np.exp(self.rng.normal(0, 0.2, len(self.names)))).astype(np.float32)

    def step(self, step, scale=1.0, **changes):
        norms = self.norms() * np.float32(scale)
        values = {"loss": 4.0 * np.exp(-step / 100) + 0.5, "lr": 1e-3, "lr_factor": 1.0, "clip_coef": 1.0}
        values |= {"global_norm": float(np.linalg.norm(norms)), "loss_scale": 1.0, "flags": 0, **changes}
        self.directory.statistics.append(step, norms=norms, **values)

    def probe(self, step):
        norms = self.norms()
        columns = {"mean": norms * 0.01, "std": norms, "max": norms * 4, "min": -norms * 4}
        columns |= {"zero_ratio": np.full(len(norms), 0.1), "norm": norms, "histogram": np.full((len(norms), 25), 0.04)}
        self.directory.gradients.append(step, columns, np.zeros(len(norms), dtype=bool))
        self.directory.probes.append(
            step, Updates(norms * 1e-3, np.ones_like(norms), step=step, lr=1e-3, lr_max=1e-3, cosine=0.1)
        )
        count = np.array([256, 256])
        share = np.array(self.dead, dtype=np.float32)
        places = {"names": ("h.0.act", HOSTILE), "kinds": ("relu", "relu"), "num_samples": count, "num_units": count}
        shares = {"dead": share, "saturated": share * np.nan, "zero_ratio": share, "mean": share, "std": share}
        rest = {"nonfinite": count * 0, "output": None, "inputs": (), "through_time": {}}
        self.directory.probes.append(step, Activations(**places, **shares, **rest))

    def write(self, record):
        return self.directory.journal.append(record, durable=False).seq

    def finish(self, status="closed"):
        self.directory.finish(status)
        return self.directory.path


def sick(path, names=NAMES, **options):
    """Record a spike of the gradient that is clipped, a NaN that comes back, a plateau that is told of."""
    run = Recording(path, names, **options)
    run.write(Event(event="attached", message=HOSTILE))
    for step in range(STEPS):
        if step % 40 == 0:
            run.probe(step)
        if step == SPIKE:
            run.step(step, scale=50.0, loss=30.0, clip_coef=0.06, flags=Flag.FINDING | Flag.INTERVENTION)
            finding = Finding(
                diagnosis="exploding_gradient",
                step=step,
                severity="critical",
                statistic="gradient norm",
                value=100.0,
                baseline=2.0,
                threshold=40.0,
                window=50,
                parameters=(HOSTILE, "wte.weight"),
                num_parameters=4,
                message=f"The gradient norm of {HOSTILE} is 100.",
                advice="Lower the learning rate.",
                evidence={HOSTILE: HOSTILE, "z": float("inf")},
            )
            change = Change(summary=f"norm of {HOSTILE} 100 -> 6", before={"norm": 100.0}, after={"norm": 6.0})
            common = {"step": step, "diagnosis": finding.diagnosis, "finding": finding, "sample_ids": (HOSTILE, 7)}
            clipped = run.write(Intervention(rule="tame", remedy="clip_norm", change=change, **common))
        elif step in (NAN, NAN + 1, NAN + 2):
            run.step(step, loss=np.nan, global_norm=np.nan, flags=Flag.SKIPPED_BY_GUARD | Flag.FINDING)
            finding = Finding(diagnosis="nonfinite", step=step, parameters=("h.0.attention.weight",), num_parameters=1)
            common = {"step": step, "diagnosis": "nonfinite", "finding": finding}
            if step == NAN + 2:
                run.write(Withheld(rule="drop", remedy="skip_step", reason="budget", detail=HOSTILE, **common))
            else:
                skipped = run.write(
                    Intervention(rule="drop", remedy="skip_step", change=Change(summary="step skipped"), **common)
                )
        elif step == PLATEAU:
            run.step(step)
            finding = Finding(diagnosis="plateau", step=step, message="The loss stands still.", advice="Look at it.")
            common = {"step": step, "diagnosis": "plateau", "finding": finding}
            run.write(Intervention(rule="tell", remedy="notify", change=Change(summary="told"), **common))
        else:
            run.step(step, lr_factor=0.5 if SPIKE < step < SPIKE + 20 else 1.0)
        if step == SPIKE + 20:
            run.write(
                Outcome(
                    step=step,
                    of=clipped,
                    verdict="helped",
                    loss_before=2.0,
                    loss_after=1.9,
                    loss_noise=0.2,
                    horizon=20,
                    reason=f"it did not come back, {HOSTILE}",
                )
            )
        if step == NAN + 21:
            run.write(
                Outcome(step=step, of=skipped, verdict="no_effect", recurrences=1, horizon=20, reason="it came back")
            )
    return run.finish()


def healthy(path, steps=120, **options):
    """Record a run in which nothing happened."""
    run = Recording(path, **options)
    for step in range(steps):
        if step % 40 == 0:
            run.probe(step)
        run.step(step)
    return run.finish()


def eventful(path, steps=1200, every=2):
    """Write a run in which the guard stepped in very often, the same way but for one rollback late in the run."""
    run = Recording(path, ["a.weight", "b.weight"])
    for step in range(steps):
        if step % every == 0:
            common = {"step": step, "diagnosis": "nonfinite", "change": Change(summary="skipped")}
            remedy = "rollback" if step == steps - 200 else "skip_step"
            run.write(Intervention(rule="tame", remedy=remedy, **common))
        run.step(step)
    return run.finish()


NORMALISED = ["conv.weight", "conv.bias", "bn.weight", "bn.bias", "fc.weight", "fc.bias"]


def normalised(path):
    """Record a healthy run with a bias before a normalisation, whose gradient is rounding, and hardly a dead unit."""
    return healthy(path, names=NORMALISED, sizes=[1.0, 1e-8, 1.0, 1.0, 1.0, 1.0], dead=(0.0, 0.004))


EARLY, WARNED, CLIPPED, OUTRANKED, MILD, UNSEEN = 2, 40, 60, 80, 100, 120


def peaks(path):
    """Record gradients far above the usual that were met in every way: acted on or not, and why."""
    run = Recording(path, ["a.weight", "b.weight"])
    for step in range(140):
        run.step(step, scale=50.0 if step in (EARLY, WARNED, CLIPPED, OUTRANKED, MILD, UNSEEN) else 1.0)
        grown = {"step": step, "diagnosis": "exploding_gradient"}
        if step in (EARLY, CLIPPED):
            run.write(Intervention(rule="tame", remedy="clip_norm", change=Change(summary="clipped"), **grown))
        if step == WARNED:
            run.write(Intervention(rule="tell", remedy="notify", change=Change(summary="told"), **grown))
        if step == OUTRANKED:
            skipped = Change(summary="step skipped")
            run.write(Intervention(step=step, rule="drop", diagnosis="nonfinite", remedy="skip_step", change=skipped))
            run.write(Withheld(rule="tame", remedy="clip_norm", reason="superseded", **grown))
        if step == MILD:
            run.write(Withheld(rule="tame", remedy="clip_norm", reason="below_severity", **grown))
    return run.finish()
