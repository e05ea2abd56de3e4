"""clip_norm with `adagc` before torch's Adam is the AdaGC optimizer, where that is right: no gradient of zero."""

import copy

import pytest
import torch
from clipping import gradients, make_model, put
from pytorch_optimizer import AdaGC

import gradguard


NEVER = 1e9  # a release that never comes


def pair(**options):
    """Return (guarded model, its Adam, guard) and (model, AdaGC)."""
    ours, theirs = make_model(), make_model()
    theirs.load_state_dict(copy.deepcopy(ours.state_dict()))
    adam = torch.optim.Adam(ours.parameters(), lr=1e-2, eps=1e-8)
    limit = {"adagc": 1.05, "beta": 0.98, "warmup": 29, "release": NEVER, **options}
    rule = {"when": "always", "do": {"clip_norm": {"max_norm": limit}}}
    guard = gradguard.attach(ours, adam, gradguard.Policy.model_validate({"rules": [rule], "sinks": []}))
    # They count the step before they compare it with the warm-up.
    oracle = AdaGC(theirs.parameters(), lr=1e-2, weight_decay=0.0, warmup_steps=30, foreach=False)
    return (ours, adam, guard), (theirs, oracle)


@pytest.mark.parametrize("size", [1.0, 0.01])
def test_weights_and_averages_are_those_of_adagc_at_every_step(size):
    """With gradients that a clip to 1 shortens during the warm-up, and with such as it does not."""
    (ours, adam, guard), (theirs, oracle) = pair()
    for grads in gradients(120):
        grads = [grad * size for grad in grads]
        put(ours, grads)
        put(theirs, grads)
        adam.step()
        oracle.step()
        (tracker,) = guard._pipeline.judgement.trackers.values()
        for row, (mine, other) in enumerate(zip(ours.parameters(), theirs.parameters(), strict=True)):
            torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-6)
            assert float(tracker.gamma[row]) == pytest.approx(float(oracle.state[other]["gamma"]), rel=1e-4)
    guard.close()


def test_where_one_zero_gradient_freezes_a_parameter_ours_is_trained():
    (ours, adam, guard), (theirs, oracle) = pair(release=1.5)
    starts = [param.detach().clone() for param in ours.parameters()]
    for step in range(300):
        grads = [torch.ones_like(param) * (0.0 if step == 3 else 0.05) for param in ours.parameters()]
        put(ours, grads)
        put(theirs, grads)
        adam.step()
        oracle.step()
    guard.close()
    for mine, other, start in zip(ours.parameters(), theirs.parameters(), starts, strict=True):
        assert float((mine - start).detach().abs().min()) > 5 * float((other - start).detach().abs().max())
