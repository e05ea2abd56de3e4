"""clip_norm with a percentile is AutoClip over a window: numpy.percentile of the norms before this one."""

import autoclip.torch
import numpy as np
import pytest
import torch
from clipping import Clipper, assert_same, gradients, grads_of, make_model, put
from torch.nn.utils import clip_grads_with_norm_, get_total_norm


NUM_FIRST = 5  # steps at which the fallback holds
UNLIMITED = 1e9


def clipper(percentile, window, scope="auto"):
    limit = {"percentile": percentile, "window": window, "fallback": UNLIMITED}
    return Clipper({"clip_norm": {"max_norm": limit, "scope": scope}}, make_model())


@pytest.mark.parametrize("percentile", [10, 50, 90, 100])
@pytest.mark.parametrize("window", [12, 500])
def test_the_limit_is_that_of_numpy(percentile, window):
    ours, theirs, norms = clipper(percentile, window), make_model(), []
    for grads in gradients(80):
        put(theirs, grads)
        norm = get_total_norm(grads)
        if len(norms) >= NUM_FIRST:
            limit = float(np.percentile(norms[-window:], percentile))
            clip_grads_with_norm_(theirs.parameters(), limit, norm)
        norms.append(float(norm))
        assert_same(ours.clip(grads), grads_of(theirs))
    ours.guard.close()


@pytest.mark.parametrize("scope", ["global", "per_parameter"])
@pytest.mark.parametrize("quantile", [0.25, 0.9])
def test_gradients_are_those_of_autoclip(scope, quantile):
    ours, theirs = clipper(100 * quantile, 30, scope), make_model()
    oracle = autoclip.torch.QuantileClip(
        theirs.parameters(), quantile=quantile, history_length=30, global_threshold=scope == "global"
    )
    for step, grads in enumerate(gradients(90)):
        put(theirs, grads)
        oracle.step()
        found = ours.clip(grads)
        if step >= NUM_FIRST:
            assert_same(found, grads_of(theirs))
    ours.guard.close()


def test_where_one_nan_turns_all_that_follow_into_nan_ours_goes_on():
    ours, theirs = clipper(90, 30), make_model()
    oracle = autoclip.torch.QuantileClip(theirs.parameters(), quantile=0.9, history_length=30, global_threshold=True)
    for step, grads in enumerate(gradients(30)):
        if step == 10:
            grads[0][0] = torch.nan
        put(theirs, grads)
        oracle.step()
        found = ours.clip(grads)
    assert all(grad.isnan().all() for grad in grads_of(theirs))
    assert all(grad.isfinite().all() for grad in found)
    ours.guard.close()


@pytest.mark.parametrize(
    ("scope", "patterns", "parts"),
    [
        ("global", ["0", "2"], [[0, 2]]),
        ("group", None, [[0, 1], [2, 3]]),
        ("group", ["*", "!1"], [[0], [2, 3]]),
        ("per_parameter", ["1", "3"], [[1], [3]]),
    ],
)
@pytest.mark.parametrize("kind", ["percentile", "median_times"])
def test_a_param_group_and_a_pattern_have_the_limit_of_their_own_norms(scope, patterns, parts, kind):
    """By hand: the same statistic, of the norms of these parameters together."""
    statistic = {
        "percentile": lambda past: np.percentile(past, 60),
        "median_times": lambda past: 1.1 * np.percentile(past, 50, method="lower"),
    }[kind]
    limit = {"percentile": {"percentile": 60}, "median_times": {"median_times": 1.1}}[kind]
    remedy = {"clip_norm": {"max_norm": {**limit, "fallback": UNLIMITED}, "scope": scope}}
    ours, theirs = Clipper(remedy, make_model(), patterns, first_group=2), make_model()
    norms = [[] for _ in parts]
    for grads in gradients(40):
        grads = [grad * size for grad, size in zip(grads, (1.0, 5.0, 0.1, 30.0), strict=True)]
        put(theirs, grads)
        for part, past in zip(parts, norms, strict=True):
            norm = get_total_norm([grads[i] for i in part])
            if len(past) >= NUM_FIRST:
                clip_grads_with_norm_([list(theirs.parameters())[i] for i in part], float(statistic(past)), norm)
            past.append(float(norm))
        assert_same(ours.clip(grads), grads_of(theirs))
    ours.guard.close()


def test_steps_at_which_none_of_a_set_has_a_gradient_do_not_count():
    remedy = {"clip_norm": {"max_norm": {"percentile": 50, "fallback": UNLIMITED}}}
    ours = Clipper(remedy, make_model(), ["0", "1"])
    for step in range(40):
        size = 0.0 if step % 4 else 1.0
        ours.clip([torch.full(param.shape, size if i < 2 else 1.0) for i, param in enumerate(ours.model)])
    usual = float(get_total_norm([torch.ones(param.shape) for param in list(ours.model)[:2]]))
    found = ours.clip([torch.full(param.shape, 5.0) for param in ours.model])
    assert float(get_total_norm(found[:2])) == pytest.approx(usual, rel=1e-5)
    ours.guard.close()
