"""A policy file that holds suggested rules, with the reason for each number as a comment."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import yaml

from gradguard.policy.forms import Always
from gradguard.policy.schema import Policy, Rule, Rung
from gradguard.printable import printable
from gradguard.registry import Component


WIDTH = 100


class Base(NamedTuple):
    """What a policy file extends: its name there, and what that stands for."""

    name: str
    policy: Policy


def policy_text(head: Sequence[str], base: Base | None, policy: Policy, reasons: Mapping[str, str]) -> str:
    """Return a policy as YAML.

    Args:
        head: sentences for the top of the file.
        base: what it extends, with the same rules but for the suggested ones; None when the file must hold everything.
        policy: with the suggested rules in place.
        reasons: by name, of the rules that differ from the base.
    """
    lines = [line for sentence in head for line in _comment(sentence, "")]
    lines.append("version: 1")
    if base is not None:
        lines.append(f"extends: {_dump(base.name)}")
    known = (base.policy if base is not None else Policy()).model_dump(mode="json")
    blocks = {name: block for name, block in policy.model_dump(mode="json").items() if block != known[name]}
    blocks.pop("rules", None)
    if blocks:
        lines += _dump(blocks).split("\n")
    rules = [rule for rule in policy.rules if base is None or rule.name in reasons]
    if rules:
        lines.append("rules:")
    for rule in rules:
        if rule.name in reasons:
            lines += _comment(reasons[rule.name], "  ")
        told = _dump([_rule(rule)])
        lines += [f"  {line}" for line in told.split("\n")]
    return "\n".join(lines) + "\n"


def _comment(sentence: str, indent: str) -> list[str]:
    return [f"{indent}# {line}" for line in textwrap.wrap(printable(sentence), WIDTH - len(indent) - 2)]


def _dump(value: Any) -> str:
    text = yaml.safe_dump(value, sort_keys=False, default_flow_style=None, width=WIDTH, allow_unicode=False)
    return text.removesuffix("...\n").rstrip("\n")


def _rule(rule: Rule) -> dict[str, Any]:
    told: dict[str, Any] = {"name": rule.name, "when": _component(rule.when), "do": _remedies(rule.do)}
    told |= rule.model_dump(mode="json", exclude_defaults=True, exclude={"name", "when", "do", "escalate"})
    if rule.escalate:
        told["escalate"] = [_rung(rung) for rung in rule.escalate]
    return told


def _rung(rung: Rung) -> dict[str, Any]:
    told = rung.model_dump(mode="json", exclude_defaults=True, exclude={"do"})
    return {**told, "do": _remedies(rung.do)}


def _remedies(remedies: Sequence[Component]) -> Any:
    return _component(remedies[0]) if len(remedies) == 1 else [_component(remedy) for remedy in remedies]


def _component(component: Component) -> Any:
    if isinstance(component, Always):
        return component.name
    options = component.model_dump(mode="json", exclude_defaults=True)
    return {component.name: options} if options else component.name
