"""clip_norm with a z-score is ZClip, where ZClip is right: finite norms, past the warm-up, at one level."""

import math

import pytest
import zclip
from clipping import Clipper, assert_same, gradients, grads_of, make_model, put


MODES = {
    "reciprocal": {"mode": "zscore", "clip_option": "adaptive_scaling"},
    "mean": {"mode": "zscore", "clip_option": "mean"},
    "max": {"mode": "percentile"},
}
UNLIMITED = 1e9


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("zscore", "decay", "warmup"), [(2.5, 0.97, 25), (3.0, 0.9, 10)])
def test_gradients_average_and_variance_are_those_of_zclip_at_every_step(mode, zscore, decay, warmup):
    oracle = zclip.ZClip(alpha=decay, z_thresh=zscore, warmup_steps=warmup, max_grad_norm=None, **MODES[mode])
    theirs = make_model()
    options = {"zscore": zscore, "mode": mode, "decay": decay, "warmup": warmup, "min_deviation": 1e-9}
    ours = Clipper({"clip_norm": {"max_norm": {**options, "fallback": UNLIMITED, "release": 500}}}, make_model())
    num_clipped = 0
    for grads in gradients(150):
        put(theirs, grads)
        oracle.step(theirs)
        found = ours.clip(grads)
        assert_same(found, grads_of(theirs), rtol=1e-4)
        if oracle.initialized:
            assert float(ours.tracker.mean[0]) == pytest.approx(oracle.mean, rel=1e-4)
            assert float(ours.tracker.variance[0]) == pytest.approx(oracle.var, rel=1e-3)
        num_clipped += ours.guard.last.clip_coef < 1.0
    assert num_clipped >= 5
    ours.guard.close()


def test_where_zclip_locks_for_ever_ours_does_not():
    oracle, theirs = zclip.ZClip(max_grad_norm=None), make_model()
    ours = Clipper({"clip_norm": {"max_norm": {"zscore": 2.5}}}, make_model())
    kept = []
    for step, grads in enumerate(gradients(400, noise=0.02, spike_every=1000)):
        grads = [grad * (4.0 if step >= 100 else 1.0) for grad in grads]
        put(theirs, grads)
        oracle.step(theirs)
        ours.clip(grads)
        norm = math.hypot(*[float(grad.norm()) for grad in grads])
        kept.append((math.hypot(*[float(grad.norm()) for grad in grads_of(theirs)]) / norm, ours.guard.last.clip_coef))
    ours.guard.close()
    assert max(theirs for theirs, _ in kept[136:]) < 0.5
    assert sum(mine for _, mine in kept[136:]) / len(kept[136:]) > 0.95
