import json
import os
import socket

import pytest
from made_runs import ACTED, act, add_rows, judge, start_run

from gradguard.errors import RecordError
from gradguard.records import Event
from gradguard.watch.watcher import STALLED_SEC, Watcher


class Clock:
    """Seconds that a test lets pass."""

    def __init__(self):
        self.time = 1000.0

    def __call__(self):
        return self.time


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def run(tmp_path):
    return start_run(tmp_path / "exp")


def watcher(run, clock, **options):
    """A watcher for whom the files were written just now."""
    return Watcher(run.path, monotonic=clock, now=lambda: 0.0, **options)


def say(run, **facts):
    run.info |= facts
    run.write_info()


def test_a_run_is_followed_from_its_first_step_to_its_end(run, clock):
    eye = watcher(run, clock)
    view = eye.look()
    assert (view.status, view.process, view.num_rows, view.rate) == ("running", "alive", 0, None)
    for second in range(1, 6):
        add_rows(run, range(64 * second - 64, 64 * second))
        run.statistics.flush()
        clock.time += 4
        view = eye.look()
    assert view.num_rows == 320
    assert (view.rate, view.is_average) == (16.0, False)
    assert view.silent_sec == 0
    clock.time += 2.5
    assert eye.look().silent_sec == 2.5
    record = act(run, 320)
    add_rows(run, [320], flags=ACTED)
    judge(run, record, 370)
    view_of_it = eye.look()
    assert [entry.outcomes for entry in view_of_it.entries] == [{"helped": 1}]
    assert len(view_of_it.new) == 2
    run.journal.append(Event(event="closed", step=320, message="closed after 321 steps"))
    run.finish()
    view = eye.look()
    assert (view.status, view.is_over, view.num_rows) == ("closed", True, 321)
    assert view.last_word == "closed after 321 steps"


def test_a_process_that_died_is_told_from_one_that_is_still(run, clock):
    say(run, pid=2**22 + 12345)
    view = watcher(run, clock).look()
    assert (view.status, view.is_over) == ("interrupted", True)
    assert "died without closing the guard" in view.last_word


def test_on_another_machine_the_process_is_not_known_and_silence_is_no_death(run, clock):
    say(run, host=f"not-{socket.gethostname()}", pid=2**22 + 12345)
    eye = watcher(run, clock)
    assert not eye.look().is_stalled
    clock.time += STALLED_SEC + 1
    view = eye.look()
    assert (view.status, view.process, view.is_over, view.is_stalled) == ("running", "unknown", False, True)


def test_a_slow_run_is_not_stalled_while_a_burst_of_rows_is_due(run, clock):
    """A step takes 20 s, so that the next 64 rows are due in 21 minutes."""
    eye = watcher(run, clock)
    eye.look()
    for burst in range(4):
        add_rows(run, range(64 * burst, 64 * burst + 64))
        run.statistics.flush()
        clock.time += 64 * 20
        eye.look()
    clock.time += 64 * 20 - 1
    assert not eye.look().is_stalled
    clock.time += 3 * 64 * 20
    assert eye.look().is_stalled


def test_a_stop_is_told_with_its_cause(run, clock):
    add_rows(run, range(5))
    act(run, 5, diagnosis="divergence", remedy="stop")
    run.journal.append(Event(event="stopped", step=5, message="stopped after 6 steps"))
    run.finish("stopped")
    view = watcher(run, clock).look()
    assert view.last_word.startswith("the policy stopped it at step 5 because of divergence. The gradient norm")


def test_another_run_in_the_same_place_is_followed_from_its_start(run, clock, tmp_path):
    add_rows(run, range(100))
    act(run, 3)
    run.finish()
    eye = watcher(run, clock)
    assert eye.look().num_rows == 100
    other = start_run(tmp_path / "other")
    add_rows(other, range(7))
    other.finish()
    os.rename(run.path, tmp_path / "gone")
    os.rename(other.path, run.path)
    view = eye.look()
    assert (view.num_rows, view.entries) == (7, [])


def test_a_run_that_was_removed_is_an_error_that_says_so(run, clock, tmp_path):
    eye = watcher(run, clock)
    eye.look()
    run.finish()
    os.rename(run.path, tmp_path / "gone")
    with pytest.raises(RecordError, match="no longer there"):
        eye.look()


def test_parameters_that_come_later_are_taken_in(run, clock):
    from made_runs import NAMES, table

    eye = watcher(run, clock)
    add_rows(run, range(3))
    run.write_layout(table((*NAMES, "head")))
    add_rows(run, range(3, 6), lambda step: [1, 1, 1, 50 if step == 4 else 1])
    run.statistics.flush()
    view = eye.look()
    assert view.num_rows == 6
    assert (view.layers[0].name, view.layers[0].step) == ("head", 4)


@pytest.mark.parametrize(
    "facts", [{"status": "\x1b[2J"}, {"policy": None}, {"created": 7}, {"pid": "x"}, {"layouts": 3}]
)
def test_facts_that_make_no_sense_are_no_error(run, clock, facts):
    path = run.path / "run.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **facts}))
    add_rows(run, range(3))
    run.statistics.flush()
    watcher(run, clock).look()
