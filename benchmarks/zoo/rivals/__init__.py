"""The rule sets of others, one a file, written from their published definitions.

What all of them share: tensors are looked at every `recorder.STRIDE` steps unless a definition says otherwise, and an
epoch is `recorder.EPOCH` steps. Where a definition leaves a choice, the reading that helps the rule set was taken.
"""

from __future__ import annotations

import importlib
import pkgutil

from benchmarks.zoo.rule_set import RuleSet


def load() -> dict[str, type[RuleSet]]:
    """Return the rule sets of this folder by name, in the order of their files."""
    found: dict[str, type[RuleSet]] = {}
    for module in sorted(pkgutil.iter_modules(__path__), key=lambda module: module.name):
        members = vars(importlib.import_module(f"{__name__}.{module.name}")).values()
        for member in members:
            if isinstance(member, type) and issubclass(member, RuleSet) and member.__module__.endswith(module.name):
                if member.name in found:
                    raise ValueError(f"two rule sets are called {member.name!r}")
                found[member.name] = member
    return found


RIVALS = load()
