"""What the presets do about a diagnosis."""

from __future__ import annotations

from gradguard.contracts import Diagnosis, Remedy
from gradguard.policy.load import load_preset, preset_names


def answers(diagnosis: str) -> dict[str, list[str]]:
    """Return the remedies that presets carry out against a diagnosis, each with the names of these presets.

    What only tells of it is left out.

    Example:
        >>> answers("bad_initialization")
        {'reinitialize': ['repair']}
    """
    found: dict[str, list[str]] = {}
    for preset in preset_names():
        policy = load_preset(preset)
        if policy.mode != "enforce":
            continue
        for rule in policy.rules:
            if isinstance(rule.when, Diagnosis) and rule.when.name == diagnosis:
                for remedy in _acting(rule.ladder()):
                    presets = found.setdefault(remedy.name, [])
                    if preset not in presets:
                        presets.append(preset)
    return found


def _acting(ladder: tuple[tuple[Remedy, ...], ...]) -> list[Remedy]:
    return [remedy for rung in ladder for remedy in rung if remedy.kind != "notice"]
