import pytest
from loguru import logger

from gradguard.contracts import SINKS
from gradguard.records import Change, Event, Finding, Intervention, Outcome, Withheld
from gradguard.sinks.console import Console


HOSTILE = "h.0\x1b[2J\n<red>{0}{record}</red><script>\u202eweight"


@pytest.fixture
def lines():
    told = []
    handler = logger.add(lambda message: told.append(str(message).rstrip("\n")), format="{level}|{message}", level=0)
    logger.enable("gradguard")
    yield told
    logger.remove(handler)


def spike(step=103, severity="warn", parameter="h.3.attn.weight"):
    return Finding(
        diagnosis="exploding_gradient",
        step=step,
        severity=severity,
        statistic="gradient norm",
        value=41.25,
        baseline=1.3,
        parameters=(parameter, "wte.weight"),
        num_parameters=3,
        message="The gradient norm is 32 times its usual size.",
    )


def clip(step=103, finding=None, rule="tame"):
    change = Change(summary="gradient norm 41.2 -> 3.9")
    finding = finding or spike(step)
    return Intervention(
        step=step, rule=rule, diagnosis="exploding_gradient", remedy="clip_norm", finding=finding, change=change
    )


def test_the_sink_is_found_by_its_name():
    assert SINKS.get("console") is Console


def test_an_intervention_is_one_line_that_says_what_where_how_much_what_was_done_and_what_it_means(lines):
    Console().emit(clip())
    assert lines == [
        "WARNING|step 103: exploding_gradient in h.3.attn.weight (+2 more), gradient norm 41.25 against 1.3 -> "
        "clip_norm: gradient norm 41.2 -> 3.9. The gradient norm is 32 times its usual size."
    ]


def test_a_critical_finding_is_an_error_and_routine_work_is_no_warning(lines):
    console = Console()
    console.emit(clip(finding=spike(severity="critical")))
    console.emit(Intervention(rule="r", diagnosis="always", remedy="clip_norm", change=Change(summary="s")))
    assert lines[0].startswith("ERROR|")
    assert lines[1] == "INFO|step 0: always -> clip_norm: s"


def test_repeats_are_shown_three_times_then_at_ever_larger_counts(lines):
    console = Console()
    for step in range(1000):
        console.emit(clip(step))
    steps = [int(line.split("step ")[1].split(":")[0]) + 1 for line in lines]
    assert steps == [1, 2, 3, 10, 30, 100, 300, 1000]
    assert lines[3].endswith("(10 times so far)")
    assert "so far" not in lines[2]


def test_a_new_rule_is_not_silenced_by_the_repeats_of_another(lines):
    console = Console()
    for step in range(20):
        console.emit(clip(step))
    before = len(lines)
    console.emit(clip(rule="other"))
    assert len(lines) == before + 1


def test_a_name_is_shown_as_text_whatever_it_holds(lines):
    Console().emit(clip(finding=spike(parameter=HOSTILE), rule=HOSTILE))
    (line,) = lines
    assert line.isprintable()
    assert r"h.0\x1b[2J\n<red>{0}{record}</red><script>\u202eweight" in line


def test_of_what_was_withheld_only_what_no_other_line_implies_is_shown(lines):
    console = Console()
    shown = {}
    for reason in (
        "dry_run", "cooldown", "budget", "warmup", "no_rule", "superseded", "below_severity", "unavailable", "failed",
    ):  # fmt: skip
        lines.clear()
        console.emit(Withheld(rule="r", diagnosis="d", remedy="skip_step", reason=reason, finding=spike(), detail="x"))
        shown[reason] = len(lines)
    assert {reason for reason, count in shown.items() if count} == {
        "dry_run", "budget", "no_rule", "unavailable", "failed",
    }  # fmt: skip


def test_a_dry_run_says_what_would_have_been_done(lines):
    Console().emit(Withheld(rule="r", diagnosis="d", remedy="skip_step", reason="dry_run", finding=spike()))
    assert "-> would have done skip_step. The gradient norm" in lines[0]


def test_a_remedy_that_made_it_worse_is_a_warning_and_the_unknown_is_silent(lines):
    console = Console()
    for verdict in ("worse", "helped", "unknown"):
        console.emit(Outcome(step=9, of=4, horizon=5, verdict=verdict, reason="Because."))
    assert lines == [
        "WARNING|step 9: what was done at step 4 made it worse: Because.",
        "INFO|step 9: what was done at step 4 helped: Because.",
    ]


def test_a_fault_of_the_guard_is_an_error_and_other_events_are_information(lines):
    console = Console()
    console.emit(Event(event="attached", message="{3} parameters"))
    console.emit(Event(event="internal_error", step=2, message="disk full"))
    console.emit(Event(event="scaler_skip", step=3))
    assert [line.split("|")[0] for line in lines] == ["INFO", "ERROR", "DEBUG"]
    assert lines[0] == "INFO|step 0: attached: {3} parameters"


def test_a_console_that_has_counted_can_be_copied_and_starts_anew_when_made_again(lines):
    console = Console()
    for step in range(5):
        console.emit(clip(step))
    console.model_copy(deep=True).close()
    lines.clear()
    Console().emit(clip(5))
    assert len(lines) == 1
