"""The policy that was in force, a line a rule, from what the record says; no torch, no plugins needed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from gradguard.audit.responses import TELLS
from gradguard.contracts import DIAGNOSES, REMEDIES
from gradguard.printable import printable
from gradguard.report.baseline import rules_of


MAX_YAML = 100_000  # characters


def policy_words(policy: Mapping[str, Any]) -> dict[str, Any]:
    """Return a policy in words.

    Returns:
        {"facts": [[name, value]], "rules": [[name, when, do, [escalations], whether it only tells]], "yaml": text}.

    Example:
        >>> rule = {"name": "r", "when": {"loss_spike": {"window": 50}}, "do": [{"skip_step": {}}]}
        >>> policy_words({"mode": "enforce", "rules": [rule]})["rules"]
        [['r', 'loss_spike', 'skip_step', [], False]]
    """
    facts = [[printable(str(key)), _plain(value)] for key, value in policy.items() if key not in ("rules", "version")]
    return {
        "facts": facts,
        "rules": [_rule(rule) for rule in rules_of(policy)],
        "yaml": _yaml(policy),
    }


def _rule(rule: Mapping[str, Any]) -> list[Any]:
    ladder = rule.get("escalate")
    rungs = [rung for rung in ladder if isinstance(rung, dict)] if isinstance(ladder, list) else []
    when = _component(rule.get("when"))
    if parameters := rule.get("parameters"):
        when += f" in {_plain(parameters)}"
    if (severity := rule.get("min_severity")) not in (None, "warn"):
        when += f", {_plain(severity)}"
    do = rule.get("do")
    return [
        printable(str(rule.get("name", ""))),
        when,
        _together(do),
        [f"{_condition(rung)}: {_together(rung.get('do'))}" for rung in rungs],
        not rungs and isinstance(do, list) and all(isinstance(part, dict) and list(part) == [TELLS] for part in do),
    ]


def _condition(rung: Mapping[str, Any]) -> str:
    verdicts = rung.get("if_outcome")
    words = " or ".join(str(verdict).replace("_", " ") for verdict in verdicts) if isinstance(verdicts, list) else ""
    after = f"{_plain(rung['after'])} times" if rung.get("after") is not None else ""
    within = f"within {_plain(rung['within'])} steps" if rung.get("within") is not None else ""
    parts = [after, within, f"if the outcome is {printable(words)}" if words else ""]
    return " ".join(part for part in parts if part)


def _together(components: Any) -> str:
    return " + ".join(map(_component, components)) if isinstance(components, list) else _component(components)


def _component(component: Any) -> str:
    """Return a component as in a policy file, without the options that are as they are by default."""
    if not isinstance(component, dict):
        return _plain(component)
    parts = []
    for name, options in component.items():
        usual = _defaults(str(name))
        given = options if isinstance(options, dict) else {}
        given = {key: value for key, value in given.items() if value is not None and usual.get(key) != value}
        parts.append(printable(str(name)) + (f" {_plain(given)}" if given else ""))
    return " ".join(parts)


def _defaults(name: str) -> dict[str, Any]:
    """Return the options of a diagnosis or remedy that comes with the package, as they are by default."""
    known = {component.name: component for component in (*DIAGNOSES, *REMEDIES)}
    fields = known[name].model_fields if name in known else {}
    return {key: field.default for key, field in fields.items()}


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{printable(str(key))}: {_plain(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return ", ".join(map(_plain, value)) if value else "none"
    if value is None or isinstance(value, bool):
        return {None: "none", True: "yes", False: "no"}[value]
    return f"{value:g}" if isinstance(value, float) else printable(str(value))


def _yaml(policy: Mapping[str, Any]) -> str:
    text = yaml.safe_dump(dict(policy), sort_keys=False, width=100) if policy else ""
    lines = text[:MAX_YAML].splitlines()
    return "\n".join(map(printable, lines)) + ("\n..." if len(text) > MAX_YAML else "")
