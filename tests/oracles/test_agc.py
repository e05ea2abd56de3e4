"""clip_adaptive is AGC as others have it."""

import importlib.util
from pathlib import Path

import pytest
import torch
from clipping import Clipper, assert_same, make_model
from pytorch_optimizer.optimizer.agc import agc


def reference_clip(weight, grad, factor, eps):
    """The formula, one unit at a time, in float64."""
    clipped = grad.double().clone()
    units = [clipped] if grad.ndim < 2 else list(clipped)
    weights = [weight.double()] if grad.ndim < 2 else list(weight.double())
    for unit, own in zip(units, weights, strict=True):
        limit, norm = factor * max(float(own.norm()), eps), float(unit.norm())
        if norm > limit:
            unit *= limit / max(norm, 1e-6)
    return clipped.to(grad.dtype)


def of_timm():
    """Return timm's clip when its file is there; the package itself needs more than torch."""
    spec = importlib.util.find_spec("timm")
    if spec is None or spec.submodule_search_locations is None:
        return None
    path = Path(next(iter(spec.submodule_search_locations))) / "utils" / "agc.py"
    own = importlib.util.spec_from_file_location("timm_agc", path)
    module = importlib.util.module_from_spec(own)
    own.loader.exec_module(module)

    def clip(weight, grad, factor, eps):
        param = torch.nn.Parameter(weight.clone())
        param.grad = grad.clone()
        module.adaptive_clip_grad([param], factor, eps)
        return param.grad

    return clip


ORACLES = {
    "by hand": reference_clip,
    "pytorch_optimizer": lambda weight, grad, factor, eps: agc(weight, grad, eps, factor),
    "timm": of_timm(),
}
SHAPES = {1: (6,), 2: (4, 5), 3: (3, 4, 2), 4: (4, 3, 2, 2), 5: (3, 2, 2, 2, 2)}


# pytorch_optimizer takes other units of tensors of three dimensions than the rest does.
PAIRS = [(name, n) for name, clip in ORACLES.items() for n in SHAPES if clip and (name, n) != ("pytorch_optimizer", 3)]


@pytest.mark.parametrize(("oracle", "num_dims"), PAIRS)
@pytest.mark.parametrize(("factor", "eps"), [(0.01, 1e-3), (0.5, 0.1)])
def test_gradients_are_those_of_the_others(oracle, num_dims, factor, eps):
    generator = torch.Generator().manual_seed(num_dims)
    shape = SHAPES[num_dims]
    model = make_model([shape])
    with torch.no_grad():
        model[0].copy_(torch.randn(shape, generator=generator))
        model[0][0] = 0.0
    clipper = Clipper({"clip_adaptive": {"factor": factor, "eps": eps}}, model)
    for size in (1e-4, 1.0, 1e3):
        grad = torch.randn(shape, generator=generator) * size
        assert_same(clipper.clip([grad]), [ORACLES[oracle](model[0].detach(), grad, factor, eps)])
    clipper.guard.close()
