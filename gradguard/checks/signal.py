"""Does the signal keep its level from layer to layer?"""

from __future__ import annotations

from collections.abc import Iterator

from gradguard.checklist.facts import Facts
from gradguard.checklist.finding import PreflightFinding, at_most
from gradguard.evidence.signal_trend import change_per_layer
from gradguard.evidence.weight_scale import he_std
from gradguard.printable import layer_name


def check(facts: Facts) -> Iterator[PreflightFinding]:
    """Yield a spread over the samples that grows or shrinks geometrically with the depth."""
    by_name = {parameter.name: parameter for parameter in facts.parameters}
    zero = {parameter.name for parameter in facts.parameters if parameter.norm == 0}
    # The head is left out: how small it should be is a matter of the loss, not of the depth.
    layers = [p for p in facts.places if p.kind == "weighted" and p.parameter not in zero and p.num_samples > 1][:-1]
    factor = change_per_layer([place.spread for place in layers])
    if factor is None:
        return
    first, last = layers[0], layers[-1]
    middle = by_name.get(layers[len(layers) // 2].parameter)
    weights = ""
    if middle is not None:
        usual = f"{middle.std:.2g}; He's rule gives {he_std(middle.fan_in):.2g}"
        weights = f" The weights of {layer_name(middle.layer)} have a standard deviation of {usual}."
    what = "shrinks" if factor < 1 else "grows"
    yield PreflightFinding(
        severity="critical" if factor > 1 else "warn",
        message=(
            f"The signal {what} by a factor of {1 / factor if factor < 1 else factor:.3g} a layer: samples differ by "
            f"{first.spread:.2g} behind {layer_name(first.name)} and by {last.spread:.2g} behind "
            f"{layer_name(last.name)}.{weights}"
        ),
        cure=(
            "initialise by fan-in (He for ReLU, Xavier for tanh), add normalisation layers or residual connections"
            + ("; replace sigmoids by ReLU" if any(p.kind == "sigmoid" for p in facts.places) else "")
        ),
        layers=at_most([place.name for place in layers]),
        evidence={"factor": factor, "first": first.spread, "last": last.spread},
    )
