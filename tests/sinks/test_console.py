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
        "WARNING|step 103: exploding_gradient in h.3.attn.weight and 2 more: The gradient norm is 32 times its usual "
        "size. Done: gradient norm 41.2 -> 3.9 (clip_norm)."
    ]


def test_a_critical_finding_is_an_error_and_routine_work_is_no_warning(lines):
    console = Console()
    console.emit(clip(finding=spike(severity="critical")))
    console.emit(Intervention(rule="r", diagnosis="always", remedy="clip_norm", change=Change(summary="s")))
    assert lines[0].startswith("ERROR|")
    assert lines[1] == "INFO|step 0: always. Done: s (clip_norm)."


def test_repeats_are_shown_three_times_then_at_ever_larger_counts(lines):
    console = Console()
    for step in range(1000):
        console.emit(clip(step))
    steps = [int(line.split("step ")[1].split(":")[0]) + 1 for line in lines]
    assert steps == [1, 2, 3, 10, 30, 100, 300, 1000]
    assert lines[3].endswith("(10 times so far)")
    assert "so far" not in lines[1]
    assert lines[2].endswith("(3 times so far; next shown: the 10th, 30th, 100th, ...)")


def test_what_comes_again_is_told_in_short_and_what_more_is_done_about_it_shorter_still(lines):
    console = Console()
    console.emit(clip(103))
    console.emit(clip(104))
    change = Change(summary="learning rate 0.1 -> 0.05")
    common = {"step": 104, "rule": "tame", "diagnosis": "exploding_gradient", "finding": spike(104)}
    console.emit(Intervention(remedy="scale_lr", change=change, **common))
    assert lines[1:] == [
        "WARNING|step 104: exploding_gradient again in h.3.attn.weight and 2 more, gradient norm 41.2 against 1.3. "
        "Done: gradient norm 41.2 -> 3.9 (clip_norm).",
        "WARNING|step 104: also done: learning rate 0.1 -> 0.05 (scale_lr).",
    ]


def test_a_warning_that_changes_nothing_says_what_helps_once(lines):
    console = Console()
    for step in (3, 4):
        finding = Finding(diagnosis="stale_gradients", step=step, message="Gradients were not reset.")
        change = Change(summary="nothing was changed")
        console.emit(
            Intervention(
                step=step, rule="r", diagnosis="stale_gradients", remedy="notify", finding=finding, change=change
            )
        )
    assert lines == [
        "WARNING|step 3: stale_gradients: Gradients were not reset. What helps: Call "
        "optimizer.zero_grad() once per step, before the first backward. More: gradguard explain stale_gradients",
        "WARNING|step 4: stale_gradients again.",
    ]


def test_a_name_that_the_message_holds_is_not_said_twice(lines):
    finding = spike().model_copy(update={"message": "h.3.attn.weight got a NaN gradient."})
    Console().emit(clip(finding=finding))
    assert lines[0].startswith("WARNING|step 103: exploding_gradient: h.3.attn.weight got a NaN gradient. Done: ")


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
    assert lines[0].endswith("32 times its usual size. Would have done: skip_step.")


def test_a_remedy_that_made_it_worse_is_a_warning_and_the_unknown_is_silent(lines):
    console = Console()
    for verdict in ("worse", "helped", "unknown"):
        console.emit(Outcome(step=9, of=4, horizon=5, verdict=verdict, reason="Because."))
    assert lines == [
        "WARNING|step 9: what was done at step 4 made it worse: Because.",
        "INFO|step 9: what was done at step 4 helped: Because.",
    ]


def test_what_was_done_at_one_step_is_judged_in_one_line_that_names_it(lines):
    console = Console()
    for seq, remedy in enumerate(("scale_lr", "rollback")):
        change = Change(summary="s")
        console.emit(
            Intervention(seq=seq, step=7, rule="r", diagnosis="d", remedy=remedy, finding=spike(7), change=change)
        )
    lines.clear()
    for seq in (0, 1):
        console.emit(Outcome(step=57, of=seq, horizon=50, verdict="helped", reason="it did not come back in 50 steps"))
    assert lines == ["INFO|step 57: rollback + scale_lr at step 7 helped: d did not come back in 50 steps"]


def test_outcomes_that_repeat_are_shown_once_and_then_at_ever_larger_counts(lines):
    console = Console()
    for step in range(30):
        console.emit(clip(step).model_copy(update={"seq": step}))
    lines.clear()
    for step in range(30):
        console.emit(Outcome(step=step + 50, of=step, horizon=50, verdict="helped", reason="it did not come back"))
    assert [line.partition(":")[0] for line in lines] == ["INFO|step 50", "INFO|step 59", "INFO|step 79"]


@pytest.mark.parametrize("event", ["closed", "stopped", "failed"])
def test_the_last_line_says_what_the_run_came_to(lines, event):
    console = Console()
    console.emit(Event(event=event, message=f"{event} after 9 steps"))
    assert lines == [f"INFO|{event} after 9 steps. No alarm was raised."]
    lines.clear()
    for seq in range(3):
        console.emit(clip(seq).model_copy(update={"seq": seq}))
    change = Change(summary="nothing was changed")
    console.emit(Intervention(rule="r", diagnosis="plateau", remedy="notify", finding=spike(4), change=change))
    for seq, verdict in enumerate(("helped", "worse", "unknown")):
        console.emit(Outcome(step=9, of=seq, horizon=9 - seq, verdict=verdict, reason="so"))
    console.emit(Event(event=event, message=f"{event} after 9 steps"))
    assert lines[-1] == (
        f"INFO|{event} after 9 steps. The guard acted 3 times: clip_norm 3 times against exploding_gradient. Of 2 that "
        "were judged, 1 helped, 1 made it worse. It also warned of plateau, and left that to you."
    )


def test_what_is_told_and_dealt_with_in_one_step_is_one_event_and_never_said_to_be_left(lines):
    console = Console()
    for remedy in ("notify", "scale_lr", "keep_clipping"):
        common = {"step": 7, "rule": "r", "diagnosis": "d", "finding": spike(7)}
        console.emit(Intervention(remedy=remedy, change=Change(summary=f"s {remedy}"), **common))
    assert not any("hing was changed" in line for line in lines)
    assert lines[1] == "WARNING|step 7: done: s scale_lr (scale_lr)."
    assert lines[2] == "WARNING|step 7: also done: s keep_clipping (keep_clipping)."
    console.emit(Event(event="closed", message="closed after 9 steps"))
    assert lines[-1] == (
        "INFO|closed after 9 steps. The guard acted once: scale_lr, keep_clipping against d. "
        "Whether that helped could not be judged."
    )


def test_a_run_without_a_step_is_not_said_to_be_without_an_alarm(lines):
    Console().emit(Event(event="closed", message="closed: no step was taken"))
    assert lines == ["INFO|closed: no step was taken."]


def test_the_last_line_of_a_run_that_was_only_watched_says_what_was_left_alone(lines):
    console = Console()
    for step in (1, 2):
        for remedy in ("scale_lr", "rollback"):
            console.emit(
                Withheld(step=step, rule="r", diagnosis="d", remedy=remedy, reason="dry_run", finding=spike(step))
            )
    console.emit(Event(event="closed", message="closed after 9 steps"))
    assert lines[-1].endswith("closed after 9 steps. Found, and left alone as the policy says: d twice.")


def test_events_are_information_and_a_fault_of_the_guard_is_told_by_the_guard_itself(lines):
    console = Console()
    console.emit(Event(event="attached", message="{3} parameters"))
    console.emit(Event(event="internal_error", step=2, message="disk full"))
    console.emit(Event(event="scaler_skip", step=3))
    console.emit(Event(event="resumed", step=4, message="resumed at step 4 from a saved state"))
    assert lines == [
        "INFO|{3} parameters",
        "DEBUG|step 3: scaler_skip",
        "INFO|step 4: resumed at step 4 from a saved state",
    ]


def test_a_console_that_has_counted_can_be_copied_and_starts_anew_when_made_again(lines):
    console = Console()
    for step in range(5):
        console.emit(clip(step))
    console.model_copy(deep=True).close()
    lines.clear()
    Console().emit(clip(5))
    assert len(lines) == 1
