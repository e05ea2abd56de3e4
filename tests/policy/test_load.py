"""From a file to a policy: what is read, what is merged, and how every mistake is reported."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gradguard.contracts import REMEDIES
from gradguard.errors import PolicyError
from gradguard.policy.load import load_policy, load_preset, preset_names
from gradguard.policy.locate import MAX_BYTES, MAX_DEPTH, Node, Problem, read
from gradguard.policy.schema import Policy


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write(text: str | bytes, name: str = "p.yaml") -> str:
    data = text if isinstance(text, bytes) else text.encode()
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Path(name).write_bytes(data)
    return name


def problems_of(source: object) -> list[str]:
    with pytest.raises(PolicyError) as caught:
        load_policy(source)  # type: ignore[arg-type]
    return list(caught.value.problems)


def tree_of(text: str, suffix: str = ".yaml") -> tuple[Node | None, list[Problem]]:
    problems: list[Problem] = []
    return read(text.encode(), suffix, "p", problems), problems


def value_of(text: str) -> object:
    root, problems = tree_of(f"key: {text}\n")
    assert root is not None
    assert not problems
    return root.plain()["key"]


# What a source may be.


def test_a_policy_is_returned_as_it_is() -> None:
    policy = Policy()
    assert load_policy(policy) is policy


def test_none_is_the_preset_default() -> None:
    assert load_policy() == load_policy("default") == load_preset("default")


def test_a_path_object_and_its_text_give_the_same_policy() -> None:
    name = write("mode: observe\n")
    assert load_policy(Path(name)) == load_policy(name)
    assert load_policy(name).mode == "observe"


def test_the_three_formats_give_the_same_policy() -> None:
    write("horizon: 7\nrules:\n- {when: {exploding_gradient: {window: 9}}, do: [{clip_norm: {max_norm: 1}}]}\n")
    write(
        "horizon = 7\n[[rules]]\nwhen = {exploding_gradient = {window = 9}}\ndo = {clip_norm = {max_norm = 1}}\n",
        "p.toml",
    )
    rule = {"when": {"exploding_gradient": {"window": 9}}, "do": {"clip_norm": {"max_norm": 1}}}
    write(json.dumps({"horizon": 7, "rules": [rule]}, indent="\t"), "p.json")
    assert load_policy("p.yaml") == load_policy("p.toml") == load_policy("p.json")


def test_a_preset_wins_over_a_folder_of_its_name() -> None:
    Path("rnn").mkdir()
    assert load_policy("rnn") == load_preset("rnn")


def test_what_is_no_policy_at_all_is_refused() -> None:
    assert problems_of(3) == ["a policy is a path, the name of a preset, a Policy or None, got a int: 3"]


def test_a_misspelt_preset_is_told_the_near_one() -> None:
    assert problems_of("defalt") == ["no preset and no file is called 'defalt'; did you mean 'default'?"]
    with pytest.raises(PolicyError, match="unknown preset 'obsrve'; did you mean 'observe'"):
        load_preset("obsrve")


def test_a_missing_file_is_told_the_near_ones() -> None:
    write("version: 1\n", "conf/guard.yaml")
    assert problems_of("conf/gaurd.yaml") == ["conf/gaurd.yaml: no such file; did you mean 'guard.yaml'?"]


def test_a_directory_an_odd_suffix_and_a_policys_text_are_refused() -> None:
    Path("folder.yaml").mkdir()
    assert "folder.yaml: is a directory" in problems_of("folder.yaml")[0]
    assert "its name must end in .yaml" in problems_of(write("version: 1\n", "p.txt"))[0]
    assert "cannot be read as a path" in problems_of("version: 1\n" * 100)[0]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_is_refused_instead_of_waited_for() -> None:
    os.mkfifo("pipe.yaml")
    assert problems_of("pipe.yaml") == ["pipe.yaml: is not a regular file"]


# Text that is no policy.


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "p.yaml: the file is empty; `gradguard init` writes a policy to start from"),
        ("# nothing\n", "p.yaml: the file is empty; `gradguard init` writes a policy to start from"),
        ("- 1\n", "p.yaml:1:1: a policy is a mapping of keys to values, got a list"),
        ("hello\n", "p.yaml:1:1: a policy is a mapping of keys to values, got 'hello'"),
        ("a: 1\n\tb: 2\n", "p.yaml:2:1: not valid YAML: .*indent with spaces"),
        ("version: 1\nrules: [\n", "p.yaml:3:1: not valid YAML: .*expected the node content"),
        ("version: 1\n---\nversion: 1\n", "p.yaml:2:1: not valid YAML: expected a single document"),
        (b"version: 1\n\xff", r"p.yaml: not UTF-8 text \(byte 0xff at offset 11\)"),
        (b"version: 1\nx: \x00", r"p.yaml:2:4: control character '\\x00'"),
        (b"#" * (MAX_BYTES + 1), "p.yaml: larger than 256 KiB"),
        ("rules: " + "[" * 100_000, f"p.yaml:1:{MAX_DEPTH + 7}: .*nested deeper than"),
        ("rules: &a [*a]\n", "p.yaml:1:8: more than .* are aliases nested"),
        ("version: !!python/object/apply:os.getcwd []\n", "p.yaml:1:10: tag '!!python/object.*' is not allowed"),
        ('a: "\\ud800"\n', "p.yaml:1:4: cannot be read"),
        ('"\\ud800": 1\n', "p.yaml: cannot be read"),
        ("a: " + "9" * 5000, "p.yaml:1:4: cannot be read"),
        ("? [a]\n: 1\n", "p.yaml:1:3: a key must be text"),
    ],
)
def test_a_file_that_cannot_be_read_says_why_and_where(text: str | bytes, problem: str) -> None:
    assert any(re.match(problem, line) for line in problems_of(write(text)))


def test_an_alias_bomb_ends_at_the_bound() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 30)]
    assert "are aliases nested" in problems_of(write("\n".join(lines)))[0]


def test_a_few_aliases_are_welcome() -> None:
    policy = load_policy(
        write(
            "rules:\n- {name: a, when: nonfinite, do: &clip {clip_norm: {max_norm: 2}}}\n"
            "- {name: b, when: loss_spike, do: *clip}\n"
        )
    )
    assert policy.rules[0].do == policy.rules[1].do


@pytest.mark.parametrize("suffix", [".toml", ".json"])
def test_syntax_errors_of_toml_and_json_have_a_line(suffix: str) -> None:
    text = "version = 1\nmode = = 2\n" if suffix == ".toml" else '{"version": 1,\n"mode" 2}'
    problem = problems_of(write(text, f"p{suffix}"))[0]
    assert problem.startswith(f"p{suffix}:2:8: not valid {suffix[1:].upper()}: ")


@pytest.mark.parametrize("suffix", [".toml", ".json"])
def test_a_number_of_thousands_of_digits_is_refused(suffix: str) -> None:
    text = f"horizon = {'9' * 5000}" if suffix == ".toml" else f'{{"horizon": {"9" * 5000}}}'
    assert "cannot be read" in problems_of(write(text, f"p{suffix}"))[0]


@pytest.mark.parametrize("suffix", [".toml", ".json"])
def test_deep_nesting_is_refused_in_every_format(suffix: str) -> None:
    brackets = "[" * 100_000 + "]" * 100_000
    text = f"rules = {brackets}" if suffix == ".toml" else f'{{"rules": {brackets}}}'
    assert "nested deeper" in problems_of(write(text, f"p{suffix}"))[0]


# Scalars: YAML 1.2, without the traps of 1.1.


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *[("1e-3", 0.001), ("1E5", 1e5), (".5", 0.5), ("-2.", -2.0), ("010", 10), ("0o10", 8), ("0x1F", 31), ("+3", 3)],
        *[
            (word, word)
            for word in ("on", "off", "yes", "no", "On", "NO", "y", "n", "1:30", "1_000", "2026-01-01", "=")
        ],
        *[("true", True), ("False", False), ("null", None), ("~", None), ("", None), ("'1'", "1"), ("'true'", "true")],
        *[(".inf", float("inf")), ("-.inf", float("-inf"))],
    ],
)
def test_scalars_follow_yaml_1_2(text: str, expected: object) -> None:
    value = value_of(text)
    assert value == expected
    assert type(value) is type(expected)


@given(st.floats(allow_nan=False, allow_infinity=False))
@settings(max_examples=50, deadline=None)
def test_every_number_that_python_writes_is_read_as_that_number(number: float) -> None:
    assert value_of(repr(number)) == number


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**9), 10**9)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=10,
)


@given(st.dictionaries(st.text(max_size=8), json_values, min_size=1, max_size=3))
@settings(max_examples=60, deadline=None)
def test_json_is_read_as_json_reads_it(data: dict[str, object]) -> None:
    root, problems = tree_of(json.dumps(data, indent="\t"), ".json")
    assert root is not None
    assert not problems
    assert root.plain() == data


# Mistakes: all of them, each at its place.

MISTAKES = """\
version: 2
extend: default
mode: enforc
horizon: 0
monitor: {probe_evry: 3, parameters: [3]}
sinks: [{consol: {}}]
rules:
  - when: nonfinte
    do: [skip_step, {clip_nrom: {max_norm: 1}}]
  - name: x
    when: {exploding_gradient: {zscor: 3, ratio: 0.5, window: yes}}
    do: {clip_norm: {max_norm: abc, scope: globl}}
    escalate:
      - {after: 0, within: 1.5, do: {clip_norm: {max_norm: {median_time: 3}}}, foo: 1}
  - name: x
    when: loss_spike
    when: loss_spike
    do: []
  - 3
  - name: y
    when: always
    do: skip_step
  - name: z
    when: {nonfinite: 3}
    do: {clip_norm: {max_norm: -1}}
  - {name: w, when: {a: 1, b: 2}, do: {clip_norm: {max_norm: .nan}}, budget: .inf, min_severity: [warn]}
"""


def test_every_mistake_is_reported_in_one_go_at_its_line_and_column() -> None:
    expected = """\
p.yaml:1:10: version 2 is not known; known: 1
p.yaml:2:1: unknown key 'extend'; did you mean 'extends'?
p.yaml:3:7: 'mode' should be 'enforce' or 'observe' (did you mean 'enforce'?), got "enforc"
p.yaml:4:10: 'horizon' should be greater than or equal to 1, got 0
p.yaml:5:11: unknown key 'probe_evry'; did you mean 'probe_every'?
p.yaml:5:39: 'parameters[0]' should be text, got 3
p.yaml:6:10: unknown sink 'consol'; did you mean 'console'?
p.yaml:8:11: unknown diagnosis 'nonfinte'; did you mean 'nonfinite'?
p.yaml:9:22: unknown remedy 'clip_nrom'; did you mean 'clip_norm'?
p.yaml:11:33: unknown option 'zscor'; did you mean 'zscore'?
p.yaml:11:50: 'ratio' should be greater than 1, got 0.5
p.yaml:11:63: 'window' should be a whole number, got "yes"
p.yaml:12:32: 'max_norm' should be a number or a mapping KINDS, got "abc"
p.yaml:12:44: 'scope' should be 'auto', 'global', 'group' or 'per_parameter' (did you mean 'global'?), got "globl"
p.yaml:14:17: 'after' should be greater than or equal to 1, got 0
p.yaml:14:28: 'within' should be a whole number, got 1.5
p.yaml:14:60: 'median_times' is missing
p.yaml:14:61: unknown key 'median_time'; did you mean 'median_times'?
p.yaml:14:80: unknown key 'foo'; known: after, do, if_outcome, within
p.yaml:15:11: two rules are named 'x', the first at p.yaml:10:5; give one of them another 'name'
p.yaml:17:5: duplicate key 'when', first on line 16
p.yaml:18:9: 'do' should have at least one item, got []
p.yaml:19:5: 'rules[3]' should be a mapping {name: ..., when: ..., do: ...}, got 3
p.yaml:20:5: 'skip_step' cannot run at every step; with `when: always` use one of: ROUTINE
p.yaml:24:23: options of 'nonfinite' must be a mapping {option: value}, got 3
p.yaml:25:32: 'max_norm' should be greater than 0, got -1
p.yaml:26:21: expected the name of a diagnosis, or {name: {option: value}}, got {'a': 1, 'b': 2}
p.yaml:26:62: 'max_norm' should be a finite number, got NaN
p.yaml:26:78: 'budget' should be a finite number, got Infinity
p.yaml:26:98: 'min_severity' should be 'info', 'warn' or 'critical', got ["warn"]
"""
    routine = ", ".join(cls.name for cls in REMEDIES if cls.is_routine)
    kinds = "{median_times: ...}, {percentile: ...}, {quantile: ...}, {zscore: ...}, {adagc: ...}"
    assert problems_of(write(MISTAKES)) == expected.replace("ROUTINE", routine).replace("KINDS", kinds).splitlines()


def test_toml_mistakes_name_the_dotted_path() -> None:
    text = '[[rules]]\nname = "a"\nwhen = {nonfinite = {whre = 3}}\ndo = "clip_nrom"\ncooldown = -1\n'
    assert problems_of(write(text, "p.toml")) == [
        "p.toml: rules[0].cooldown: 'cooldown' should be greater than or equal to 0, got -1",
        "p.toml: rules[0].do: unknown remedy 'clip_nrom'; did you mean 'clip_norm'?",
        "p.toml: rules[0].when.nonfinite.whre: unknown option 'whre'; did you mean 'where'?",
    ]


def test_json_mistakes_have_line_and_column_and_duplicates_are_mistakes() -> None:
    text = '{\n\t"mod": 1,\n\t"rules": [{"when": "nonfinite", "do": "stop", "do": 3}]\n}'
    assert problems_of(write(text, "p.json")) == [
        "p.json:2:2: unknown key 'mod'; did you mean 'mode'?",
        "p.json:3:48: duplicate key 'do', first on line 3",
    ]


def test_two_rules_without_a_name_for_one_diagnosis_are_told_to_take_names() -> None:
    text = "rules:\n- {when: nonfinite, do: stop}\n- {when: {nonfinite: {}}, do: notify}\n"
    assert problems_of(write(text)) == [
        "p.yaml:3:3: two rules are named 'nonfinite', the first at p.yaml:2:3; give one of them another 'name'"
    ]


@given(st.binary(max_size=200) | st.text(alphabet="ab:[]{}-&*!|>#'\"\n \t,?%@`~0.1e", max_size=60).map(str.encode))
@settings(max_examples=150, deadline=None)
@pytest.mark.parametrize("suffix", [".yaml", ".json", ".toml"])
def test_no_content_makes_the_reader_fail_in_another_way(suffix: str, data: bytes) -> None:
    problems: list[Problem] = []
    root = read(data, suffix, "p", problems)
    assert root is not None or problems


def paths_of(value: object, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(inner for key, child in items for inner in paths_of(child, (*path, key)))]


@given(st.data())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_stands_in_one_place_of_a_policy_it_loads_or_is_a_mistake_with_a_place(data: st.DataObject) -> None:
    document = load_preset("default").model_dump(mode="json")
    path = data.draw(st.sampled_from(paths_of(document)[1:]))
    holder: Any = document
    for key in path[:-1]:
        holder = holder[key]
    value = data.draw(json_values | st.sampled_from(["skip_step", {"clip_norm": {"max_norm": {"x": 1}}}, {"stop": 1}]))
    if isinstance(holder, dict) and data.draw(st.booleans()):
        holder[data.draw(st.text(max_size=5))] = value
    else:
        holder[path[-1]] = value
    write(json.dumps(document, indent=1), "p.json")
    problems: tuple[str, ...] = ()
    try:
        load_policy("p.json")
    except PolicyError as error:
        problems = error.problems
    assert all(re.match(r"p\.json:\d+:\d+: .", problem) for problem in problems), problems


# Extending.


def test_mappings_are_merged_and_the_file_wins() -> None:
    write("monitor: {probe_every: 3, parameters: ['a*']}\nhorizon: 9\n", "base.yaml")
    policy = load_policy(write("extends: base.yaml\nmonitor: {probe_every: 4}\n"))
    assert (policy.monitor.probe_every, policy.monitor.parameters, policy.horizon) == (4, ("a*",), 9)


def test_a_rule_replaces_the_inherited_one_in_place_and_others_are_appended() -> None:
    write(
        "rules:\n- {name: a, when: nonfinite, do: stop}\n- {when: loss_spike, do: notify, cooldown: 5}\n", "base.yaml"
    )
    policy = load_policy(
        write(
            "extends: base.yaml\nrules:\n"
            "- {name: new, when: divergence, do: stop}\n- {when: {loss_spike: {}}, do: stop}\n"
        )
    )
    assert [(rule.name, rule.do[0].name, rule.cooldown) for rule in policy.rules] == [
        ("a", "stop", 0),
        ("loss_spike", "stop", 0),
        ("new", "stop", 0),
    ]


def test_inherited_rules_can_be_removed() -> None:
    policy = load_policy(write("extends: default\nremove: [skip-loss-spike, undo-divergence]\n"))
    inherited = [rule.name for rule in load_preset("default").rules]
    assert [rule.name for rule in policy.rules] == [
        name for name in inherited if name not in ("skip-loss-spike", "undo-divergence")
    ]
    assert len(policy.rules) == len(inherited) - 2


def test_removing_what_is_not_inherited_is_a_mistake() -> None:
    assert problems_of(write("extends: default\nremove: skip-los-spike\n")) == [
        "p.yaml:2:9: no inherited rule is named 'skip-los-spike'; did you mean 'skip-loss-spike'?"
    ]
    assert problems_of(write("version: 1\nremove: [x]\n")) == [
        "p.yaml:2:1: 'remove' without 'extends': there is nothing to remove"
    ]
    assert "should be a list of the names" in problems_of(write("extends: default\nremove: [{a: 1}]\n"))[0]


def test_a_path_is_relative_to_the_file_that_extends() -> None:
    write("horizon: 8\n", "conf/base.yaml")
    assert load_policy(write("extends: base.yaml\n", "conf/p.yaml")).horizon == 8
    assert load_policy(write("extends: ../conf/p.yaml\n", "other/q.yaml")).horizon == 8


def test_policies_that_extend_each_other_are_refused() -> None:
    write("extends: b.yaml\n", "a.yaml")
    write("extends: ./a.yaml\n", "b.yaml")
    assert problems_of("a.yaml") == ["b.yaml:1:10: policies extend each other: a.yaml -> b.yaml -> a.yaml"]
    assert "p.yaml -> p.yaml" in problems_of(write("extends: p.yaml\n"))[0]


def test_an_unknown_base_is_reported_with_the_files_other_mistakes() -> None:
    assert problems_of(write("extends: defualt\nmode: x\n")) == [
        "p.yaml:1:10: cannot extend: no preset and no file is called 'defualt'; did you mean 'default'?",
        "p.yaml:2:7: 'mode' should be 'enforce' or 'observe', got \"x\"",
    ]
    assert "should be a preset's name or the path" in problems_of(write("extends: [default]\n"))[0]


def test_a_mistake_in_the_extended_file_is_reported_at_its_place_there() -> None:
    write("# base\nrules:\n- {when: nonfinite, do: stpo}\n", "base.yaml")
    assert problems_of(write("extends: base.yaml\nhorizon: -1\n")) == [
        "base.yaml:3:25: unknown remedy 'stpo'; did you mean 'stop'?",
        "p.yaml:2:10: 'horizon' should be greater than or equal to 1, got -1",
    ]


@pytest.mark.parametrize("preset", preset_names())
def test_extending_a_preset_without_more_gives_the_preset(preset: str) -> None:
    assert load_policy(write(f"extends: {preset}\n")) == load_preset(preset)


def test_how_gradients_are_sampled_is_one_of_three_words() -> None:
    assert load_policy(write("monitor: {statistics: exact}\n")).monitor.statistics == "exact"
    assert load_policy("default").monitor.statistics == "sampled"
    with pytest.raises(PolicyError, match=r"'sampled', 'exact' or 'none' \(did you mean 'sampled'\?\), got \"sample\""):
        load_policy(write("monitor: {statistics: sample}\n"))


@pytest.mark.parametrize(
    ("rung", "problem"),
    [
        ("{do: stop}", "p.yaml:4:18: a rung needs `after` and `within`, or `if_outcome`, to say when it acts"),
        (
            "{within: 3, do: stop}",
            "p.yaml:4:18: a rung needs `after` and `within`, or `if_outcome`, to say when it acts",
        ),
        ("{after: 3, do: stop}", "p.yaml:4:18: `after` needs `within`: so many actions in how many steps?"),
        ("{after: 3, within: 2, do: stop}", "p.yaml:4:18: a rule acts once a step at most, so 3 times within 2 never"),
        ("{if_outcome: [], do: stop}", "p.yaml:4:18: a rung needs `after` and `within`, or `if_outcome`"),
        ("{if_outcome: no_efect, do: stop}", "did you mean 'no_effect'?"),
    ],
)
def test_a_rung_that_does_not_say_when_it_acts_is_a_mistake_at_its_place(rung: str, problem: str) -> None:
    (found,) = problems_of(write(f"rules:\n- when: nonfinite\n  do: skip_step\n  escalate:   [  {rung}]\n"))
    assert problem in found


def test_a_rung_that_the_cooldown_keeps_from_ever_acting_is_a_mistake() -> None:
    rule = "rules:\n- {when: nonfinite, do: skip_step, cooldown: 20, escalate: [{after: 5, within: %d, do: stop}]}\n"
    (found,) = problems_of(write(rule % 104))
    assert "p.yaml:2:3: with `cooldown: 20` the rule cannot act 5 times within 104 steps" in found
    assert "`within` should be 105 or more" in found
    assert load_policy(write(rule % 105)).rules[0].cooldown == 20


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("budget: true\n", "p.yaml:1:9: 'budget' should be a whole number, got true"),
        ("snapshots: {max_memory_share: true}\n", "p.yaml:1:31: 'max_memory_share' should be a number, got true"),
        ("rules: [{when: always, do: {rescale: {factor: false}}}]\n", "'factor' should be a number, got false"),
        ("rules: [{when: always, do: {clip_norm: {max_norm: true}}}]\n", "'max_norm' should be a number or a mapping"),
        (
            "rules: [{when: always, do: {clip_norm: {max_norm: {percentile: 90, window: true}}}}]\n",
            "'window' should be a whole number, got true",
        ),
    ],
)
def test_a_truth_value_is_no_number(text: str, problem: str) -> None:
    (found,) = problems_of(write(text))
    assert problem in found


def test_a_key_of_another_limit_is_told_with_the_keys_of_this_one() -> None:
    text = "rules: [{when: always, do: {clip_norm: {max_norm: {percentile: 90, quantile: 0.9}}}}]\n"
    (found,) = problems_of(write(text))
    assert "unknown key 'quantile'; known: fallback, percentile, window" in found


@pytest.mark.parametrize(
    "rule",
    [
        "{when: always, do: {clip_norm: {max_norm: {percentile: 90, window: 1000000000}}}}",
        "{when: {loss_spike: {window: 1000000000}}, do: notify}",
    ],
)
def test_a_window_that_would_take_all_memory_is_refused(rule: str) -> None:
    (found,) = problems_of(write(f"rules: [{rule}]\n"))
    assert "'window' should be less than or equal to 100000, got 1000000000" in found
