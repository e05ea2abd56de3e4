"""Makes a policy fit for the drill's model, whose parameters have other names than the user's."""

from __future__ import annotations

from collections.abc import Sequence

from gradguard.policy.patterns import select, unmatched
from gradguard.policy.schema import Policy


def fit(policy: Policy, names: Sequence[str]) -> tuple[Policy, list[str]]:
    """Return the policy with the patterns left out that match nothing, and a sentence for each place that had some.

    Where no pattern is left the rule is drilled over all parameters. Sinks are left out too: nobody is to be told of
    an alarm that is a drill.

    Args:
        policy: the user's.
        names: the parameters of the drill's model.

    Example:
        >>> from gradguard.policy.schema import Policy
        >>> clip = {"clip_norm": {"max_norm": 1.0}}
        >>> policy = Policy(rules=[{"when": "always", "parameters": ["wte.*", "!*.bias"], "do": clip}])
        >>> fitted, notes = fit(policy, ["head.weight", "head.bias"])
        >>> fitted.rules[0].parameters, notes
        (('!*.bias',), ["rule 'always': the drill's model has no parameter like wte.*; drilled over all but *.bias"])
    """
    notes = []
    rules = []
    for rule in policy.rules:
        if rule.parameters is not None and (missing := _missing(rule.parameters, names)):
            kept = _kept(rule.parameters, missing, names)
            notes.append(_note(f"rule {rule.name!r}", missing, kept))
            rule = rule.model_copy(update={"parameters": kept or None})
        rules.append(rule)
    monitor = policy.monitor
    if missing := _missing(monitor.parameters, names):
        kept = _kept(monitor.parameters, missing, names)
        notes.append(_note("monitor", missing, kept))
        monitor = monitor.model_copy(update={"parameters": kept or ("*",)})
    return policy.model_copy(update={"rules": tuple(rules), "monitor": monitor, "sinks": ()}), notes


def too_late(policy: Policy, at: int, num_steps: int) -> list[str]:
    """Return a sentence for what the policy has no time for, when the faults strike at step `at` of `num_steps`."""
    notes = []
    for rule in policy.rules:
        warmup = int(getattr(rule.when, "warmup", 0))
        if warmup > at:
            needed = -(-warmup * num_steps // max(at, 1))
            notes.append(
                f"rule {rule.name!r} looks from step {warmup} on, the faults strike at step {at}: "
                f"it needs --steps {needed} or more"
            )
        if rule.until is not None and rule.until < at:
            notes.append(f"rule {rule.name!r} acts until step {rule.until}, before the faults strike at step {at}")
    return notes


def _missing(patterns: Sequence[str], names: Sequence[str]) -> list[str]:
    return [pattern for pattern in patterns if not pattern.startswith("!") and unmatched([pattern], names)]


def _kept(patterns: Sequence[str], missing: Sequence[str], names: Sequence[str]) -> tuple[str, ...]:
    kept = tuple(pattern for pattern in patterns if pattern not in missing)
    return kept if select(kept, names) else ()


def _note(place: str, missing: Sequence[str], kept: Sequence[str]) -> str:
    over = "all parameters"
    if kept:
        is_rest = all(pattern.startswith("!") for pattern in kept)
        bare = ", ".join(pattern.removeprefix("!") for pattern in kept)
        over = f"all but {bare}" if is_rest else ", ".join(kept)
    return f"{place}: the drill's model has no parameter like {', '.join(missing)}; drilled over {over}"
