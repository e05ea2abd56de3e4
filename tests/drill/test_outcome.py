"""The verdict on a struck run, and on the healthy one."""

import math

import pytest

from gradguard.drill.outcome import LOST_FROM, Drill, Healthy, Run, Seen, Struck, judge


CLEAN = Run(held_out=1.0, fingerprint="a")
FINE, BAD, NAN = Run(held_out=1.01), Run(held_out=1.5), Run(held_out=math.nan)
FOUND = Seen(found="nonfinite", found_at=50)


@pytest.mark.parametrize(
    ("without", "guarded", "seen", "verdict"),
    [
        (NAN, FINE, FOUND, "recovered"),
        (BAD, FINE, Seen(), "recovered"),  # by a rule for every step, which finds nothing
        (NAN, NAN, FOUND, "not recovered"),
        (NAN, BAD, FOUND, "not recovered"),
        (NAN, Run(held_out=math.inf), FOUND, "not recovered"),
        (NAN, NAN, Seen(), "not found"),
        (FINE, FINE, Seen(), "harmless"),
        (FINE, FINE, FOUND, "harmless"),
        (FINE, BAD, FOUND, "made worse"),
        (NAN, Run(held_out=math.nan, stopped="too bad."), FOUND, "stopped"),
        (FINE, Run(held_out=1.0, failed="KeyError()"), Seen(), "made worse"),
        (NAN, Run(held_out=1.0, failed="KeyError()"), Seen(), "not recovered"),
    ],
)
def test_the_verdict(without, guarded, seen, verdict):
    assert judge(CLEAN, without, guarded, seen) == verdict


def test_a_run_is_lost_from_a_share_above_the_clean_one_and_never_below_it():
    assert not Run(held_out=0.2).is_lost(CLEAN)
    assert not Run(held_out=1 + 0.99 * LOST_FROM).is_lost(CLEAN)
    assert Run(held_out=1 + 1.01 * LOST_FROM).is_lost(CLEAN)
    assert Run(held_out=-math.inf).is_lost(CLEAN)


@pytest.mark.parametrize(
    ("guarded", "actions", "routine", "is_passed"),
    [
        (Run(1.0, "a"), (), (), True),
        (Run(1.01, "b"), (), ("clip",), True),
        (Run(1.5, "b"), (), ("clip",), False),
        (Run(1.01, "b"), (), (), False),
        (Run(1.01, "b"), ("rule 'x' at step 3: skip_step",), ("clip",), False),
        (Run(1.0, "a", stopped="no."), (), (), False),
    ],
)
def test_the_healthy_run_is_left_alone_or_changed_by_rules_for_every_step_alone(guarded, actions, routine, is_passed):
    assert Healthy(CLEAN, guarded, actions, routine).is_passed is is_passed


@pytest.mark.parametrize("verdict", ["recovered", "stopped", "harmless", "not recovered", "not found", "made worse"])
def test_one_fault_that_is_not_met_fails_the_drill(verdict):
    struck = Struck("a", "A", 50, NAN, FINE, FOUND, verdict)
    drill = Drill(Healthy(CLEAN, CLEAN), (struck,), 150, 0)
    assert drill.is_passed is (verdict in {"recovered", "stopped", "harmless"})
    assert not Drill(Healthy(CLEAN, Run(1.0, "b")), (struck,), 150, 0).is_passed
