import io

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_runs import ACTED, HOSTILE, NAMES, act, add_rows, judge, start_run
from rich.console import Console, Group

from gradguard.record.statistics import Flag
from gradguard.records import Event
from gradguard.watch.happened import happened
from gradguard.watch.plain import event_lines, headline, last_line, progress_line
from gradguard.watch.screen import screen
from gradguard.watch.watcher import Watcher


def shown(view, width=80, height=None, is_unicode=True):
    """The lines of a screen as the terminal gets them, without colours."""
    out = Console(width=width, file=io.StringIO(), highlight=False, markup=False, emoji=False)
    out.print(screen(view, width, height, is_unicode))
    return out.file.getvalue().split("\n")[:-1]


def sick(path, names=NAMES, steps=300):
    """A run with a NaN at step 200 and an explosion at 250, both judged."""
    run = start_run(path, names)
    run.journal.append(Event(event="attached", message="3 parameters"))
    nan = act(run, 200, "nonfinite", "skip_step", names[1])
    big = act(run, 250, parameter=names[0])
    judge(run, nan, 250)
    judge(run, big, 300, "worse", "the loss rose")

    def norms(step):
        return [300.0 if step == 250 else 1.0, np.nan if step == 200 else 2.0, -1.0]

    flags = {200: ACTED | Flag.SKIPPED_BY_GUARD, 250: ACTED}
    add_rows(
        run, range(steps), norms, flags=lambda step: flags.get(step, 0), loss=lambda s: np.nan if s == 200 else 3.0
    )
    run.statistics.flush()
    return run


def look(run, **options):
    return Watcher(run.path, **options).look()


def test_the_screen_says_what_broke_in_which_layer_what_was_done_and_whether_it_helped(tmp_path):
    text = "\n".join(shown(look(sick(tmp_path / "exp"))))
    assert "running" in text
    assert "step 299" in text
    told = [line.rstrip() for line in text[text.index("What happened") :].splitlines()]
    assert told[1:5] == [
        "step 250 exploding_gradient in wte.weight (+1 more)",
        "  The gradient norm of wte.weight is 300 times its usual 1.",
        "  → clip_norm: 300 -> 3",
        "  worse: the loss rose",
    ]
    assert told[5] == "step 200 nonfinite in h.0.weight (+1 more)"
    assert "· found 2  ▲ acted 2  ✕ skipped 1" in text
    row = next(line.split() for line in text.splitlines() if line.startswith("wte.weight"))
    assert row == ["wte.weight", "1", "300", "300x", "250", "1"]


@pytest.mark.parametrize("width", [40, 60, 80, 200])
@pytest.mark.parametrize("height", [8, 15, 24, 30, 60])
def test_it_fits_terminals_of_any_size(tmp_path, width, height):
    lines = shown(look(sick(tmp_path / "exp")), width, height)
    assert max(map(len, lines)) <= width
    assert len(lines) <= max(height, 14)


def test_several_remedies_of_one_finding_are_told_under_it_and_the_same_verdict_once(tmp_path):
    run = start_run(tmp_path / "exp")
    add_rows(run, range(60))
    records = [act(run, 7, remedy=remedy) for remedy in ("rollback", "scale_lr", "keep_clipping")]
    for record, verdict in zip(records, ("helped", "helped", "worse"), strict=True):
        judge(run, record, 57, verdict, verdict.upper())
    text = "\n".join(shown(look(run)))
    told = [line.strip() for line in text[text.index("What happened") :].splitlines()[1:]]
    assert told == [
        "step 7 exploding_gradient in h.0.weight (+1 more)",
        "The gradient norm of h.0.weight is 300 times its usual 1.",
        "→ rollback: 300 -> 3",
        "→ scale_lr: 300 -> 3",
        "helped: HELPED",
        "→ keep_clipping: 300 -> 3",
        "worse: WORSE",
    ]


@pytest.mark.parametrize(
    ("room", "expected"),
    [
        (5, ["step 7 exploding_gradient in", "The gradient norm of", "-> clip_norm", "helped: it did not"]),
        (4, ["step 7 exploding_gradient in", "-> clip_norm", "helped"]),
        (3, ["step 7 exploding_gradient in"]),
        (2, ["step 7 exploding_gradient in"]),
        (1, []),
    ],
)
def test_where_room_is_scarce_the_newest_is_told_in_short(tmp_path, room, expected):
    run = start_run(tmp_path / "exp")
    act(run, 3, "nonfinite")
    judge(run, act(run, 7), 57)
    out = Console(width=80, file=io.StringIO())
    out.print(Group(*happened(look(run).entries, 80, room)))
    told = [line.strip() for line in out.file.getvalue().splitlines()[1:]]
    assert len(told) <= room
    assert [line[: len(start)] for line, start in zip(told, expected, strict=False)] == expected


def test_without_block_characters_it_is_plain_ascii(tmp_path):
    text = "\n".join(shown(look(sick(tmp_path / "exp")), is_unicode=False))
    assert text.isascii()


def test_names_cannot_colour_or_forge_anything(tmp_path):
    view = look(sick(tmp_path / "exp", (HOSTILE, f"h.{HOSTILE}", "b")))
    text = "\n".join(shown(view))
    assert all(line.isprintable() for line in text.split("\n"))
    assert "[red]x[/red]%s{0}<script>" in text.replace("\n", "").replace("  ", "")
    lines = [headline(view), *event_lines(view), progress_line(view), last_line(view)]
    assert all(line.isprintable() for line in lines)
    assert len(lines) == 8


def test_a_run_without_steps_and_one_without_losses_have_a_screen(tmp_path):
    run = start_run(tmp_path / "empty")
    assert "no step yet" in "\n".join(shown(look(run)))
    assert "Nothing found or done so far." in "\n".join(shown(look(run)))
    run = start_run(tmp_path / "silent")
    add_rows(run, range(5), loss=np.nan)
    run.statistics.flush()
    text = "\n".join(shown(look(run)))
    assert "not observed; call guard.observe(loss)" in text
    assert "nothing found or done in these steps" in text


def test_layers_are_shown_only_near_something_that_was_found(tmp_path):
    run = start_run(tmp_path / "calm")
    add_rows(run, range(60))
    run.statistics.flush()
    assert "Worst layers" not in "\n".join(shown(look(run)))
    assert "Worst layers" in "\n".join(shown(look(sick(tmp_path / "sick", steps=280))))
    assert "Worst layers" not in "\n".join(shown(look(sick(tmp_path / "cured", steps=400))))


def test_the_verdict_stands_on_top_and_is_true(tmp_path):
    def second_line(run):
        run.statistics.flush()
        lines = [line.strip() for line in shown(look(run))]
        return lines[next(number for number, line in enumerate(lines) if line.endswith("running")) + 1]

    run = start_run(tmp_path / "calm")
    add_rows(run, range(60))
    assert second_line(run) == "No alarm so far"
    run = start_run(tmp_path / "blind")
    add_rows(run, range(60), loss=np.nan)
    assert second_line(run) == "No alarm so far; no loss was handed over, only the gradients are watched"
    run = start_run(tmp_path / "lost")
    act(run, 50, "nonfinite", "skip_step")
    lost = ACTED | Flag.SKIPPED_BY_GUARD
    add_rows(run, range(60), loss=lambda s: np.nan if s > 50 else 1.0, flags=lambda s: lost if s > 50 else 0)
    assert second_line(run) == "The last 9 losses are NaN"
    run = start_run(tmp_path / "thrown")
    act(run, 58, "nonfinite", "skip_step")
    add_rows(run, range(60), flags=lambda s: lost if s % 2 else 0)
    assert second_line(run) == "25 of the last 50 steps were thrown away"
    run = sick(tmp_path / "sick")
    assert second_line(run) == "The last: exploding gradient at step 250, clip_norm made it worse"
    judge(run, act(run, 290, "nonfinite", "rollback"), 340)
    assert second_line(run) == "The last: NaN or infinity at step 290, rollback helped"
    act(run, 295, "plateau", "notify")
    assert second_line(run) == "The last: plateau at step 295, a warning: nothing was changed"


def test_a_step_at_which_the_guard_only_warned_is_not_said_to_be_acted_on(tmp_path):
    run = start_run(tmp_path / "exp")
    for step, remedy in ((3, "notify"), (5, "notify"), (5, "clip_norm"), (7, "notify")):
        act(run, step, remedy=remedy)
    add_rows(run, range(60), flags=lambda step: ACTED if step in (3, 5, 7) else 0)
    run.statistics.flush()
    text = "\n".join(shown(look(run)))
    assert "· found 3  ! warned 2  ▲ acted 1" in text
    told = text[text.index("step 5 ") :].splitlines()[:4]
    assert not any("notify" in line for line in told)


def test_the_present_value_lies_within_the_bounds_of_its_curve(tmp_path):
    run = start_run(tmp_path / "exp")
    add_rows(run, range(200), loss=lambda step: 2.33 if step == 199 else 2.5 + step % 3)
    run.statistics.flush()
    assert any(line.split()[:1] == ["2.33"] for line in shown(look(run)))


def test_lines_without_a_terminal_tell_the_same(tmp_path):
    view = look(sick(tmp_path / "exp"))
    assert headline(view).startswith(f"{view.path}: running, step 299, loss 3, gradient norm 1.5")
    lines = event_lines(view)
    assert [line.partition("step ")[2] for line in lines] == [
        "0: attached. 3 parameters",
        "200: nonfinite in h.0.weight (+1 more) -> skip_step: 300 -> 3. "
        "The gradient norm of h.0.weight is 300 times its usual 1.",
        "250: exploding_gradient in wte.weight (+1 more) -> clip_norm: 300 -> 3. "
        "The gradient norm of wte.weight is 300 times its usual 1.",
        "250: what was done at step 200: helped. it did not come back",
        "300: what was done at step 250: worse. the loss rose",
    ]


numbers = st.floats(width=32)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(numbers, numbers, numbers, st.integers(0, 31)), max_size=20), st.integers(40, 130))
def test_any_statistics_have_a_screen(tmp_path_factory, rows, width):
    run = start_run(tmp_path_factory.mktemp("any") / "exp", ("a",))
    add_rows(
        run,
        range(len(rows)),
        lambda step: [rows[step][0]],
        loss=lambda step: rows[step][1],
        global_norm=lambda step: rows[step][2],
        flags=lambda step: rows[step][3],
    )
    run.statistics.flush()
    lines = shown(look(run), width)
    run.finish()
    assert max(map(len, lines)) <= width
