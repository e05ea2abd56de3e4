"""From a file, a preset's name or nothing to a `Policy`, with every mistake reported at its place."""

from __future__ import annotations

import difflib
import os
from dataclasses import replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from gradguard.errors import PolicyError, did_you_mean
from gradguard.policy.locate import MAX_BYTES, SUFFIXES, Node, Place, Problem, read
from gradguard.policy.problems import find_problems
from gradguard.policy.schema import Policy, default_name


PRESETS = files("gradguard.policy").joinpath("presets")


class _Source(NamedTuple):
    """Something a policy can be read from.

    Args:
        name: what problems call it.
        path: the file; None for a preset.
    """

    name: str
    path: Path | None = None

    def identity(self) -> str | Path:
        """Return what two names of one source have in common."""
        return self.name if self.path is None else self.path.resolve()

    def read(self) -> tuple[bytes, str]:
        """Return the content and the suffix that tells its format."""
        if self.path is None:
            return PRESETS.joinpath(f"{self.name}.yaml").read_bytes(), ".yaml"
        with self.path.open("rb") as file:
            return file.read(MAX_BYTES + 1), self.path.suffix.lower()


def load_policy(source: str | os.PathLike[str] | Policy | None = None) -> Policy:
    """Return the policy that a file, a preset or a `Policy` stands for.

    A policy may extend another with `extends: NAME`, a preset or a path relative to the file. Mappings are merged key
    by key and the file wins; a rule replaces the inherited rule of its name in place, others are appended;
    `remove: [NAME]` drops inherited rules.

    Args:
        source: a path (.yaml, .yml, .toml, .json), the name of a preset, a policy, or None for the preset `default`. A
            preset's name wins over a file or folder of that name.

    Returns:
        The policy, with nothing left to extend.

    Raises:
        PolicyError: there is no such policy, or it has mistakes; `.problems` lists every one.

    Example:
        >>> load_policy("observe").mode
        'observe'
    """
    if isinstance(source, Policy):
        return source
    if source is None or (isinstance(source, str) and source in preset_names()):
        return _load_preset(source or "default")
    return _load(source)


@cache
def _load_preset(name: str) -> Policy:
    """Return a preset, read once: it is frozen, so all may have the same."""
    return _load(name)


def _load(source: str | os.PathLike[str]) -> Policy:
    problems: list[Problem] = []
    found = _find(source, Path())
    root = _gather(found, (), problems)
    if root is not None:
        try:
            policy = Policy.model_validate(root.plain())
        except ValidationError as error:
            problems.extend(find_problems(error, root))
        else:
            if not problems:
                return policy
    raise PolicyError([str(problem) for problem in sorted(set(problems))])


def preset_names() -> list[str]:
    """Return the names of the presets, sorted."""
    return sorted(entry.name.removesuffix(".yaml") for entry in PRESETS.iterdir() if entry.name.endswith(".yaml"))


def load_preset(name: str) -> Policy:
    """Return a preset.

    Raises:
        PolicyError: there is no preset of that name.
    """
    if name not in preset_names():
        raise PolicyError([f"unknown preset {name!r}{did_you_mean(name, preset_names())}"])
    return load_policy(name)


def _find(source: str | os.PathLike[str], folder: Path) -> _Source:
    """Return what a name stands for, a path being relative to `folder`.

    Raises:
        PolicyError: there is no such preset and no such file.
    """
    try:
        name = os.fspath(source)
    except TypeError:
        expected = "a path, the name of a preset, a Policy or None"
        raise PolicyError([f"a policy is {expected}, got a {type(source).__name__}: {source!r}"]) from None
    presets = preset_names()
    if not name:
        raise PolicyError([f"an empty name is no policy; give a file or one of the presets {', '.join(presets)}"])
    if isinstance(source, str) and name in presets:
        return _Source(name)
    path = folder / name
    try:
        is_file, is_directory, exists = path.is_file(), path.is_dir(), path.exists()
    except (
        OSError
    ) as error:  # such as a name of a thousand characters, when the text of a policy is passed for its path
        raise PolicyError([f"{name[:60]!r} cannot be read as a path: {error.strerror}"]) from None
    if is_file:
        if path.suffix.lower() not in SUFFIXES:
            raise PolicyError(
                [f"{path}: cannot tell the format of the file; its name must end in {', '.join(SUFFIXES)}"]
            )
        return _Source(str(path), path)
    if is_directory:
        raise PolicyError(
            [f"{path}: is a directory; expected a policy file or one of the presets {', '.join(presets)}"]
        )
    if exists:
        raise PolicyError([f"{path}: is not a regular file"])
    if path.suffix.lower() not in SUFFIXES and path.name == name:
        raise PolicyError([f"no preset and no file is called {name!r}{did_you_mean(name, presets)}"])
    siblings = [entry.name for entry in path.parent.glob("*") if entry.suffix.lower() in SUFFIXES and entry.is_file()]
    near = difflib.get_close_matches(path.name, [*siblings, *presets], n=3)
    hint = f"; did you mean {' or '.join(repr(other) for other in near)}?" if near else ""
    raise PolicyError([f"{path}: no such file{hint}"])


def _gather(source: _Source, chain: tuple[_Source, ...], problems: list[Problem]) -> Node | None:
    """Return the tree of a source merged with what it extends; None when it cannot be read at all."""
    try:
        root = read(*source.read(), file=source.name, problems=problems)
    except OSError as error:
        problems.append(Problem(Place(source.name), f"cannot be read: {error.strerror or error}"))
        return None
    if root is None:
        return None
    own = dict(root.value)
    extends, remove = own.pop("extends", None), own.pop("remove", None)
    base = None if extends is None else _base(extends, source, (*chain, source), problems)
    if base is None and extends is None and remove is not None:
        problems.append(Problem(remove.key_place, "'remove' without 'extends': there is nothing to remove"))
    if "rules" in own:
        own["rules"] = _with_unique_names(own["rules"], problems)
    if base is None:
        return replace(root, value=own)
    inherited = dict(base.value)
    if "rules" in inherited:
        inherited["rules"] = _without(inherited["rules"], remove, problems)
    merged = _merge(replace(base, value=inherited), replace(root, value=own))
    if "rules" in inherited and "rules" in own:
        merged.value["rules"] = _merge_rules(inherited["rules"], own["rules"])
    return merged


def _base(extends: Node, source: _Source, chain: tuple[_Source, ...], problems: list[Problem]) -> Node | None:
    if not isinstance(extends.value, str):
        problems.append(Problem(extends.place, "'extends' should be a preset's name or the path of a policy file"))
        return None
    try:
        found = _find(extends.value, source.path.parent if source.path else Path())
    except PolicyError as error:
        problems.append(Problem(extends.place, f"cannot extend: {error}"))
        return None
    identities = [link.identity() for link in chain]
    if found.identity() in identities:
        names = [link.name for link in chain[identities.index(found.identity()) :]]
        problems.append(Problem(extends.place, f"policies extend each other: {' -> '.join([*names, found.name])}"))
        return None
    return _gather(found, chain, problems)


def _rule_name(rule: Node) -> str | None:
    """Return the name that the schema will give the rule; None when it will have none."""
    named: Any = default_name(rule.plain())
    name = named.get("name") if isinstance(named, dict) else None
    return name if isinstance(name, str) else None


def _with_unique_names(rules: Node, problems: list[Problem]) -> Node:
    """Report names that one file uses twice."""
    if not isinstance(rules.value, list):
        return rules
    unique: list[Node] = []
    first: dict[str, Place] = {}
    for rule in rules.value:
        name = _rule_name(rule)
        if name in first:
            place = rule.value["name"].place if "name" in rule.value else rule.place
            message = f"two rules are named {name!r}, the first at {first[name]}; give one of them another 'name'"
            problems.append(Problem(place, message))
            # Under another name the rest of the rule is still checked, and nothing reports the double name again.
            renamed = Node(f"{name} (line {place.line}, item {len(unique)})", place, place)
            rule = replace(rule, value={**rule.value, "name": renamed})
        elif name is not None:
            first[name] = rule.place
        unique.append(rule)
    return replace(rules, value=unique)


def _without(rules: Node, remove: Node | None, problems: list[Problem]) -> Node:
    """Return the inherited rules without those that the file removes."""
    if remove is None or not isinstance(rules.value, list):
        return rules
    wanted = remove.value if isinstance(remove.value, list) else [remove]
    known = {name for rule in rules.value if (name := _rule_name(rule)) is not None}
    for item in wanted:
        if not isinstance(item.value, str):
            problems.append(Problem(item.place, "'remove' should be a list of the names of inherited rules"))
        elif item.value not in known:
            hint = did_you_mean(item.value, known)
            problems.append(Problem(item.place, f"no inherited rule is named {item.value!r}{hint}"))
    dropped = {item.value for item in wanted if isinstance(item.value, str)}
    return replace(rules, value=[rule for rule in rules.value if _rule_name(rule) not in dropped])


def _merge(base: Node, own: Node) -> Node:
    """Merge mappings key by key; anything else of the file replaces what it inherits."""
    if not isinstance(base.value, dict) or not isinstance(own.value, dict):
        return own
    merged = dict(base.value)
    for key, node in own.value.items():
        merged[key] = _merge(merged[key], node) if key in merged else node
    return replace(own, value=merged)


def _merge_rules(inherited: Node, own: Node) -> Node:
    """Replace inherited rules by those of the same name, in place, and append the others."""
    if not isinstance(inherited.value, list) or not isinstance(own.value, list):
        return own
    merged = list(inherited.value)
    positions = {_rule_name(rule): index for index, rule in enumerate(merged)}
    for rule in own.value:
        name = _rule_name(rule)
        if name is not None and name in positions:
            merged[positions[name]] = rule
        else:
            merged.append(rule)
    return replace(own, value=merged)
