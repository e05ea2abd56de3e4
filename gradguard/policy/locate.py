"""A policy file read with the place of every key and value, so that each mistake can be pointed at.

    bytes --read--> Node tree (value + place) --plain--> dicts, lists and scalars

YAML follows the core schema of YAML 1.2: `1e-3` is a number, `on`, `off`, `yes`, `no` and `1:30` are text, `010` is
ten, only `true` and `false` are booleans. Tags are refused, and so are duplicate keys, of which PyYAML keeps the last
in silence. JSON is composed as YAML once its syntax is proved. TOML has no positions; its places are dotted paths.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import yaml


if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SUFFIXES = (".yaml", ".yml", ".toml", ".json")
# A policy is written by people: the largest preset has about 100 values in 2 kB, 7 levels deep. The bounds lie far
# above that, and keep a hostile file (an alias bomb, a million brackets) from costing more than a moment.
MAX_BYTES = 256 * 1024
MAX_NODES = 20_000
MAX_DEPTH = 40
YAML_TAG = "tag:yaml.org,2002:"


class Place(NamedTuple):
    """Where something stands: a file, then line and column (1-based) or a dotted path."""

    file: str
    line: int = 0
    column: int = 0
    path: str = ""

    def __str__(self) -> str:
        """Return `file:line:column`, `file: path` or `file`, whatever is known."""
        if self.line:
            return f"{self.file}:{self.line}:{self.column}"
        return f"{self.file}: {self.path}" if self.path else self.file


class Problem(NamedTuple):
    """One mistake and where it is; as text, the line that a person reads."""

    place: Place
    message: str

    def __str__(self) -> str:
        """Return `place: message`."""
        return f"{self.place}: {self.message}"


@dataclass(frozen=True, slots=True)
class Node:
    """A value of the file with its place.

    Args:
        value: a scalar, a list of nodes or a mapping of nodes.
        place: where the value begins.
        key_place: where the key begins under which the value stands; equal to `place` in a list.
    """

    value: Any
    place: Place
    key_place: Place

    def plain(self) -> Any:
        """Return the value without places."""
        if isinstance(self.value, dict):
            return {key: child.plain() for key, child in self.value.items()}
        if isinstance(self.value, list):
            return [child.plain() for child in self.value]
        return self.value


def read(data: bytes, suffix: str, file: str, problems: list[Problem]) -> Node | None:
    """Return the tree of a policy file.

    Args:
        data: the content of the file.
        suffix: one of `SUFFIXES`.
        file: its name in problems.
        problems: mistakes are appended to it.

    Returns:
        The root, always a mapping; None when the content is no such thing, with the reason appended to `problems`.
    """
    whole = Place(file)
    if len(data) > MAX_BYTES:
        problems.append(Problem(whole, f"larger than {MAX_BYTES // 1024} KiB; this is hardly a policy file"))
        return None
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        bad = f"byte 0x{data[error.start]:02x} at offset {error.start}"
        problems.append(Problem(whole, f"not UTF-8 text ({bad}); save the file as UTF-8"))
        return None
    try:
        root = _read_toml(text, file) if suffix == ".toml" else _read_yaml(text, file, suffix, problems)
    except _FileError as error:
        problems.append(error.problem)
        return None
    except ValueError as error:  # an integer of thousands of digits, half of a surrogate pair
        problems.append(Problem(whole, f"cannot be read: {error}"))
        return None
    except RecursionError:
        problems.append(Problem(whole, f"nested deeper than {MAX_DEPTH} levels"))
        return None
    if root is None or root.value is None or (root.value == {} and not problems):
        problems.append(Problem(whole, "the file is empty; `gradguard init` writes a policy to start from"))
        return None
    if not isinstance(root.value, dict):
        kind = "a list" if isinstance(root.value, list) else f"{root.value!r}"
        problems.append(Problem(root.place, f"a policy is a mapping of keys to values, got {kind}"))
        return None
    return root


class _FileError(Exception):
    """A mistake that ends the reading of a file."""

    def __init__(self, place: Place, message: str) -> None:
        super().__init__(message)
        self.problem = Problem(place, message)


def _read_toml(text: str, file: str) -> Node:
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        message, _, where = str(error).partition(" (at ")
        found = re.match(r"line (\d+), column (\d+)", where)
        place = Place(file, int(found[1]), int(found[2])) if found else Place(file)
        raise _FileError(place, f"not valid TOML: {message[:1].lower() + message[1:]}") from None

    def locate(value: Any, path: str) -> Node:
        place = Place(file, path=path)
        if isinstance(value, dict):
            value = {key: locate(child, f"{path}.{key}".lstrip(".")) for key, child in value.items()}
        elif isinstance(value, list):
            value = [locate(child, f"{path}[{index}]") for index, child in enumerate(value)]
        return Node(value, place, place)

    return locate(data, "")


def _read_yaml(text: str, file: str, suffix: str, problems: list[Problem]) -> Node | None:
    if suffix == ".json":
        try:
            json.loads(text)
        except json.JSONDecodeError as error:
            place = Place(file, error.lineno, error.colno) if text.strip() else Place(file)
            raise _FileError(place, f"not valid JSON: {error.msg[:1].lower() + error.msg[1:]}") from None
        # Valid JSON has tabs between its tokens only, where YAML does not allow them.
        text = text.replace("\t", " ")
    try:
        root = _Composer(text).get_single_node()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = Place(file, mark.line + 1, mark.column + 1) if mark else Place(file)
        hint = "; indent with spaces, YAML allows no tabs there" if "'\\t'" in str(error.problem) else ""
        message = ", ".join(part for part in (error.context, error.problem) if part)
        raise _FileError(place, f"not valid YAML: {message}{hint}") from None
    except yaml.reader.ReaderError as error:
        before = text[: error.position]
        place = Place(file, before.count("\n") + 1, len(before) - before.rfind("\n"))
        raise _FileError(place, f"control character {chr(error.character)!r}; is this a text file?") from None
    return None if root is None else _Locator(file, problems).locate(root)


class _Composer(yaml.SafeLoader):
    """PyYAML's composer with the scalars of YAML 1.2 and a bound on the depth."""

    # With an empty table of its own, `add_implicit_resolver` below leaves the one of SafeLoader alone.
    yaml_implicit_resolvers: dict[Any, Any] = {}  # noqa: RUF012 (PyYAML's own way to hold them)
    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.composer.ComposerError(None, None, f"nested deeper than {MAX_DEPTH} levels", mark)
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


def _join_surrogates(text: str) -> str:
    """Return text with characters beyond U+FFFF whole, which JSON may escape as two halves and PyYAML leaves apart."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16")


_FORMS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "null": (r"~|null|Null|NULL|", lambda text: None),
    "bool": (r"true|True|TRUE|false|False|FALSE", lambda text: text.lower() == "true"),
    "int": (r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", lambda text: int(text, 0 if text[1:2] in ("o", "x") else 10)),
    "float": (
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        lambda text: float(re.sub(r"\.(?=[iInN])", "", text)),
    ),
    "str": (r"(?s:.*)", _join_surrogates),
}
for _kind in ("null", "bool", "int", "float"):
    _Composer.add_implicit_resolver(YAML_TAG + _kind, re.compile(rf"(?:{_FORMS[_kind][0]})\Z"), [None])


class _Locator:
    """Turns PyYAML's nodes into ours, within bounds."""

    def __init__(self, file: str, problems: list[Problem]) -> None:
        self.file = file
        self.problems = problems
        self.num_nodes = 0
        self.depth = 0

    def place(self, node: yaml.Node) -> Place:
        return Place(self.file, node.start_mark.line + 1, node.start_mark.column + 1)

    def locate(self, node: yaml.Node, key: yaml.Node | None = None) -> Node:
        place = self.place(node)
        self.num_nodes += 1
        self.depth += 1
        # Aliases are followed, so the bounds count what they stand for: a bomb ends here, and so does a loop.
        if self.num_nodes > MAX_NODES or self.depth > MAX_DEPTH:
            raise _FileError(place, f"more than {MAX_NODES} values or {MAX_DEPTH} levels; are aliases nested?")
        value: Any
        if isinstance(node, yaml.MappingNode) and node.tag == YAML_TAG + "map":
            value = self._mapping(node)
        elif isinstance(node, yaml.SequenceNode) and node.tag == YAML_TAG + "seq":
            value = [self.locate(child) for child in node.value]
        else:
            value = self._scalar(node)
        self.depth -= 1
        return Node(value, place, self.place(key) if key is not None else place)

    def _mapping(self, node: yaml.MappingNode) -> dict[str, Node]:
        mapping: dict[str, Node] = {}
        for key, child in node.value:
            if not isinstance(key, yaml.ScalarNode):
                self.problems.append(Problem(self.place(key), "a key must be text"))
            elif (name := _join_surrogates(key.value)) in mapping:
                first = mapping[name].key_place.line
                self.problems.append(Problem(self.place(key), f"duplicate key {name!r}, first on line {first}"))
            else:
                mapping[name] = self.locate(child, key)
        return mapping

    def _scalar(self, node: yaml.Node) -> Any:
        form, convert = _FORMS.get(node.tag.removeprefix(YAML_TAG), ("(?!)", str))
        try:
            if isinstance(node, yaml.ScalarNode) and re.fullmatch(form, node.value):
                return convert(node.value)
        except ValueError as error:
            self.problems.append(Problem(self.place(node), f"cannot be read: {error}"))
            return None
        shown = node.tag.replace(YAML_TAG, "!!")
        self.problems.append(Problem(self.place(node), f"tag {shown!r} is not allowed; a policy is plain data"))
        return node.value if isinstance(node, yaml.ScalarNode) else None
