"""Are weights far from the usual scale of an initialisation?"""

from __future__ import annotations

from collections.abc import Iterator

from gradguard.checklist.facts import Facts
from gradguard.checklist.finding import PreflightFinding, at_most, few
from gradguard.evidence.weight_scale import MAX_RATIO, MIN_RATIO, he_std, is_unusual, scale_ratio
from gradguard.printable import layer_name


def check(facts: Facts) -> Iterator[PreflightFinding]:
    """Yield layers far from He's scale, as a hint: alone it proves nothing, the signal decides."""
    odd = []
    for parameter in facts.parameters:
        if parameter.is_weight and parameter.std > 0 and is_unusual(scale_ratio(parameter.std, parameter.fan_in)):
            odd.append(parameter)
    if odd:
        worst = odd[0]
        yield PreflightFinding(
            severity="info",
            message=(
                f"The weights of {few([p.layer for p in odd])} are outside of {MIN_RATIO:g} to {MAX_RATIO:g} times "
                f"He's scale: {layer_name(worst.layer)} has {worst.std:.2g} where He's rule gives "
                f"{he_std(worst.fan_in):.2g}."
            ),
            cure="fine when meant (SIREN, small heads, a normalisation behind it); otherwise nn.init.kaiming_normal_",
            layers=at_most([p.name for p in odd]),
            evidence={"ratio": scale_ratio(worst.std, worst.fan_in)},
        )
