"""What every registered diagnosis, remedy and sink promises, and what the registries refuse."""

import copy
import dataclasses
import inspect
import math
import pickle

import numpy as np
import pytest
from feed import Feed, make_table
from probed import activations, given, output, updates
from pydantic import ValidationError

from gradguard.contracts import DIAGNOSES, REMEDIES, SINKS, Diagnosis, Remedy, Sink
from gradguard.policy.forms import resolve
from gradguard.policy.options import options
from gradguard.policy.schema import Policy
from gradguard.registry import Component
from gradguard.snapshots.plain import from_plain, to_plain


REGISTRIES = [DIAGNOSES, REMEDIES, SINKS]
CHOSEN = {
    "clip_adaptive": {"factor": 0.02, "eps": 0.01},
    "clip_norm": {"max_norm": {"median_times": 2.0, "window": 7, "fallback": 0.5}, "scope": "per_parameter"},
    "clip_value": {"max_value": 0.25},
    "rescale": {"factor": 0.5},
    "scale_lr": {"factor": 0.5, "recover_steps": 20, "min_factor": 0.01},
    "scale_weight_decay": {"factor": 0.0, "recover_steps": 20},
    "damp_optimizer_state": {"factor": 0.5, "reset": True, "rewarm_steps": 9},
    "reinitialize": {"scheme": "lsuv", "seed": 7},
    "revive_units": {"seed": 7},
    "replace_activation": {"kinds": ["tanh", "other"], "to": "elu", "where": "last"},
    "keep_clipping": {"max_norm": {"median_times": 3.0}, "steps": 9},
    "exploding_gradient": {"zscore": 5.0, "ratio": 4.0, "window": 12, "warmup": 6},
    "loss_spike": {"zscore": 5.0, "window": 12, "warmup": 6},
    "divergence": {"ratio": 1.2},
    "vanishing_gradient": {"max_spread": 50.0, "min_first_to_last": 0.5},
    "nonfinite": {"where": "batch"},
    "loss_scale_collapse": {"skips": 2, "min_scale": 0.5},
    "stale_gradients": {"steps": 2},
    "plateau": {"improvement": 0.9},
    "update_spike": {"zscore": 5.0, "ratio": 4.0, "window": 12, "warmup": 3},
    "update_ratio": {"smallest": 1e-4, "largest": 0.5},
    "dead_units": {"share": 0.4, "blocked": 0.9, "about": "layers"},
    "saturated_units": {"share": 0.4},
    "collapsed_output": {"share": 0.05, "flat": 0.02},
    "oscillation": {"noise": 0.1, "cosine": -0.2},
    "frozen_parameters": {"probes": 2},
    "bad_initialization": {"max_growth": 100.0},
    "bad_inputs": {"max_std": 10.0},
    "vanishing_in_time": {"min_first_to_last": 0.01},
}

every_component = pytest.mark.parametrize(
    "cls", [cls for registry in REGISTRIES for cls in registry], ids=lambda c: c.name
)
every_diagnosis = pytest.mark.parametrize("cls", list(DIAGNOSES), ids=lambda c: c.name)


def build(cls):
    return cls.model_validate(CHOSEN.get(cls.name, {}))


def policy_of(component):
    if isinstance(component, Diagnosis):
        return Policy.model_validate({"rules": [{"when": component, "do": "notify"}], "sinks": []})
    if isinstance(component, Remedy):
        return Policy.model_validate({"rules": [{"when": "nonfinite", "do": component}], "sinks": []})
    return Policy.model_validate({"sinks": [component]})


def probe_of(step, num_parameters):
    """Probes at every seventh step: healthy ones, then everything that they can show."""
    if step % 7:
        return {"activations": None, "updates": None}
    is_sick = step > 25
    seen = activations(
        kinds=("tanh", "relu", "relu"),
        dead=[0.0, 0.97 if is_sick else 0.1, 0.2],
        saturated=[0.9 if is_sick else 0.1, math.nan, math.nan],
        out=output(spread=1e-4 if is_sick else 1.0),
        inputs=[given(std=80.0, largest=255.0)],
        through_time={"rnn": 1e-6 if is_sick else 0.3},
    )
    moved = updates(
        5.0 if step == 70 else 0.8 if step > 130 else 0.01,
        count=num_parameters,
        step=step,
        cosine=-0.8 if is_sick else 0.2,
        untrained=("outside",) if is_sick else (),
        unmoved=(1,) if is_sick else (),
    )
    return {"activations": seen, "updates": moved}


def eventful_steps(num_parameters):
    """One of everything that can go wrong, with healthy steps before and after."""
    random = np.random.default_rng(0)
    for step in range(170):
        norms = [float(norm) for norm in np.exp(0.1 * random.standard_normal(num_parameters))]
        norms[0] *= 1e-3 if 20 <= step < 70 else 1.0
        loss = 1.0 + 0.05 * float(random.standard_normal())
        fields = {"is_stale": step % 11 > 6, "scaler_skips": step % 13 - 6, "loss_scale": 1.0, "bad_state": ()}
        if step in (15, 40):
            loss, norms = 80.0, [norm * 500 for norm in norms]
        if step in (18, 44):
            norms[-1] = math.nan
        if step in (25, 60):
            norms[1] = None
        fields |= {"shrinkage": 0.05 if step > 25 else 0.0}
        fields["weight_norms"] = np.full(num_parameters, 0.1 if 29 <= step < 33 else 1.0, dtype=np.float32)
        fields |= {"variance_growth": 50.0 if step == 35 else 1.0, "grown_variance": "p2" if step == 35 else ""}
        if step == 50:
            fields["bad_state"] = ("p1",)
        fields |= probe_of(step, num_parameters)
        if step > 65:
            loss, norms = loss * 9, [None if norm is None else norm * 30 for norm in norms]
        yield norms, loss, fields


def feed_of(diagnosis):
    feed = Feed({"when": diagnosis, "do": "notify"}, num_parameters=4)
    feed.stats.weight_norms[:] = 1.0
    feed.stats.weight_spreads[:] = [0.5, 0.0, 0.5, 0.5]
    return feed


def found_by(diagnosis, first=0, feed=None):
    feed = feed or feed_of(diagnosis)
    steps = list(eventful_steps(4))[first:]
    return [repr(feed.step(norms, loss, **fields)) for norms, loss, fields in steps]


@every_component
def test_a_component_is_one_file_named_like_it_with_one_public_class(cls):
    module = inspect.getmodule(cls)
    assert module.__name__.rpartition(".")[2] == cls.name
    public = [
        value
        for name, value in vars(module).items()
        if inspect.isclass(value)
        and value.__module__ == module.__name__
        and issubclass(value, Component)
        and value.name
    ]
    assert public == [cls]


@every_component
def test_a_component_explains_itself(cls):
    assert cls.what.strip()
    assert cls.computed.strip() or cls in SINKS
    assert cls.source.strip() or cls in SINKS
    if issubclass(cls, Diagnosis):
        assert cls.cure.strip()
    for text in (cls.what, cls.computed, cls.cure, cls.source):
        assert text == text.strip()
        assert text.isascii()
        assert "  " not in text


@every_component
def test_every_option_is_documented_and_no_other(cls):
    assert cls.__doc__.strip()
    described = {option.name: option.meaning for option in options(cls)}
    assert set(described) == set(cls.model_fields)
    assert all(described.values())
    _, _, section = inspect.getdoc(cls).partition("Args:\n")
    documented = [
        line.split(":")[0].strip() for line in section.splitlines() if line.startswith("    ") and line[4] != " "
    ]
    assert set(documented) == set(cls.model_fields)


@every_component
def test_a_component_is_frozen_and_refuses_unknown_options(cls):
    component = build(cls)
    for name in cls.model_fields:
        with pytest.raises(ValidationError, match="frozen"):
            setattr(component, name, getattr(component, name))
    with pytest.raises(ValidationError, match="surprise"):
        cls.model_validate({**CHOSEN.get(cls.name, {}), "surprise": 1})


@every_component
def test_a_component_survives_json_through_a_policy(cls):
    policy = policy_of(build(cls))
    found = Policy.model_validate_json(policy.model_dump_json())
    assert found == policy
    assert found.model_dump(mode="json") == policy.model_dump(mode="json")


@every_component
def test_the_long_form_of_a_component_is_the_component(cls):
    component = build(cls)
    registry = next(registry for registry in REGISTRIES if cls in registry)
    assert resolve(registry, component.as_policy()) == component


@every_component
@pytest.mark.parametrize(
    "send", [copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))], ids=["copy", "pickle"]
)
def test_a_component_can_be_sent_to_another_process(cls, send):
    component = build(cls)
    assert send(component) == component


@every_component
@pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0, "much", [1]])
def test_numbers_that_make_no_sense_are_refused(cls, bad):
    for name, field in cls.model_fields.items():
        if field.annotation in (int, float):
            with pytest.raises(ValidationError):
                cls.model_validate({**CHOSEN.get(cls.name, {}), name: bad})


@every_diagnosis
def test_a_diagnosis_finds_something_in_an_eventful_run(cls):
    """The tests below compare findings, so there must be some."""
    assert set(found_by(build(cls))) > {"[]"}


@every_diagnosis
@pytest.mark.parametrize("how", ["copied", "plain", "pickled"])
@pytest.mark.parametrize("cut", [0, 1, 16, 45, 70])
def test_a_saved_state_goes_on_as_an_uninterrupted_one(cls, how, cut):
    send = {
        "copied": copy.deepcopy,
        "plain": lambda state: from_plain(to_plain(state)),
        "pickled": lambda state: pickle.loads(pickle.dumps(state)),
    }[how]
    expected = found_by(build(cls))
    first = feed_of(build(cls))
    for norms, loss, fields in list(eventful_steps(4))[:cut]:
        first.step(norms, loss, **fields)
    second = feed_of(build(cls))
    second.judgement.load_state_dict(send(first.judgement.state_dict()))
    second.stats.step = cut - 1
    assert found_by(build(cls), cut, second) == expected[cut:]


@every_diagnosis
def test_a_dumped_state_is_a_copy(cls):
    diagnosis = build(cls)
    feed = feed_of(diagnosis)
    found_by(diagnosis, feed=feed)
    (entry,) = feed.judgement.entries
    dumped = diagnosis.dump_state(entry.state)
    before = pickle.dumps(dumped)
    found_by(diagnosis, feed=feed)
    assert pickle.dumps(dumped) == before
    loaded = diagnosis.load_state(diagnosis.init(feed.table, range(4)), dumped)
    assert pickle.dumps(diagnosis.dump_state(loaded)) == before


def arrays_in(value):
    if isinstance(value, np.ndarray):
        yield value
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from arrays_in(getattr(value, field.name))
    elif isinstance(value, dict):
        for item in value.values():
            yield from arrays_in(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from arrays_in(item)


@every_diagnosis
def test_a_state_keeps_nothing_that_the_next_step_overwrites(cls):
    feed = feed_of(build(cls))
    for norms, loss, fields in eventful_steps(4):
        feed.step(norms, loss, **fields)
        shared = [feed.stats.levels, feed.stats.weight_norms]
        shared += [
            array for window in feed.judgement.windows.values() for array in (window.ring, window.median, window.counts)
        ]
        for array in arrays_in(feed.judgement.entries[0].state):
            assert not any(np.shares_memory(array, other) for other in shared)


@every_diagnosis
def test_a_diagnosis_changes_nothing_that_it_is_shown(cls):
    feed = feed_of(build(cls))
    diagnosis, state = build(cls), build(cls).init(feed.table, range(4))
    for norms, loss, fields in eventful_steps(4):
        feed.step(norms, loss, **fields)
        shown = {
            name: getattr(feed.stats, name)
            for name in feed.stats.__slots__
            if name not in ("windows", "losses", "norms")
        }
        before = pickle.dumps([shown, feed.judgement.state_dict()])
        state, _ = diagnosis.update(state, feed.stats)
        assert pickle.dumps([shown, feed.judgement.state_dict()]) == before


@every_diagnosis
def test_a_diagnosis_reads_the_windows_that_it_says(cls):
    """With these and no others at hand it gets through an eventful run."""
    diagnosis = build(cls)
    feed = feed_of(diagnosis)
    assert set(feed.judgement.windows) == set(diagnosis.windows())
    assert set(feed.judgement.losses) - {50} == set(diagnosis.loss_windows()) - {50}
    found_by(diagnosis, feed=feed)


@every_diagnosis
@pytest.mark.parametrize("num_parameters", [0, 1])
def test_a_diagnosis_gets_by_with_few_parameters(cls, num_parameters):
    feed = Feed({"when": build(cls), "do": "notify"}, num_parameters=num_parameters)
    feed.stats.weight_norms[:] = 1.0
    for norms, loss, fields in eventful_steps(4):
        fields |= {"bad_state": (), "activations": None, "updates": None}
        feed.step(norms[:num_parameters], loss, **fields)


@every_diagnosis
def test_a_diagnosis_gets_by_without_a_loss_and_without_weight_norms(cls):
    feed = Feed({"when": build(cls), "do": "notify"}, num_parameters=4)
    for norms, _, fields in eventful_steps(4):
        feed.step(norms, None, **fields)


def test_states_of_other_kinds_than_dataclasses_can_be_saved_too():
    class Plain(Diagnosis[list]):
        name = "plain_list"

        def init(self, table, rows):
            return []

        def update(self, state, stats):
            return state, None

    plain = Plain()
    state = [1, {"a": np.ones(2)}]
    dumped = plain.dump_state(state)
    state[1]["a"][:] = 5
    assert plain.load_state(plain.init(make_table(1), [0]), dumped)[1]["a"].tolist() == [1.0, 1.0]


@pytest.mark.parametrize("base", [Diagnosis, Remedy, Sink])
def test_a_plugin_that_leaves_out_what_it_must_do_is_refused_when_it_is_made(base):
    class Empty(base):
        name = "empty"

    with pytest.raises(TypeError, match="abstract"):
        Empty()
