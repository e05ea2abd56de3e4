"""The exception tree, and the help with misspelt names."""

import copy
import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradguard import errors
from gradguard.checklist.finding import PreflightFinding
from gradguard.errors import GradguardError, PolicyError, PreflightFailed, TrainingStopped, did_you_mean
from gradguard.records import Finding


ALL = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, GradguardError)]
LAW = settings(max_examples=40, deadline=None, derandomize=True)
NAMES = st.text("abcdefghij_", min_size=3, max_size=12)
FINDING = Finding(diagnosis="nonfinite", step=3)
EXAMPLES = [
    errors.AttachError("no parameters"),
    errors.UsageError("not a number"),
    errors.RunDirectoryError("a file"),
    errors.RecordError("torn"),
    PolicyError(["a.yaml:1:1: first", "a.yaml:2:1: second"]),
    errors.PreflightFailed("softmax twice", [PreflightFinding(severity="warn", message="softmax twice")]),
    TrainingStopped("stopped at step 3", FINDING),
]


def test_every_error_is_in_the_tree_that_the_module_draws():
    assert all(cls.__name__ in errors.__doc__ for cls in ALL)
    assert {type(error) for error in EXAMPLES} == set(ALL) - {GradguardError}


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_everything_but_a_stop_and_a_failed_preflight_is_a_value_error(error):
    assert isinstance(error, ValueError) != isinstance(error, (TrainingStopped, PreflightFailed))
    assert isinstance(error, AssertionError) == isinstance(error, PreflightFailed)
    assert isinstance(error, RuntimeError) == isinstance(error, TrainingStopped)


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("send", [copy.copy, copy.deepcopy, lambda error: pickle.loads(pickle.dumps(error))])
def test_an_error_says_the_same_in_another_process(error, send):
    """Ranks and data loaders send what went wrong by pickle."""
    found = send(error)
    assert type(found) is type(error)
    assert str(found) == str(error)
    assert vars(found) == vars(error)


def test_a_policy_error_lists_every_problem_on_a_line_of_its_own():
    error = PolicyError(["first", "second"])
    assert error.problems == ("first", "second")
    assert str(error) == "first\nsecond"


def test_a_stop_carries_its_finding():
    assert TrainingStopped("stop", FINDING).finding is FINDING
    assert TrainingStopped("stop").finding is None


@LAW
@given(st.lists(NAMES, min_size=1, max_size=6, unique=True), st.data())
def test_a_known_name_is_its_own_nearest(known, data):
    name = data.draw(st.sampled_from(known))
    assert did_you_mean(name, known) == f"; did you mean {name!r}?"


@LAW
@given(NAMES, st.lists(NAMES, max_size=6, unique=True))
def test_the_hint_names_what_is_known(name, known):
    hint = did_you_mean(name, known)
    if hint.startswith("; did you mean"):
        assert hint.split("'")[1] in known
    else:
        assert hint == ("; known: " + ", ".join(sorted(known)) if known else "; none are known")
