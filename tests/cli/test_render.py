"""Names in narrow columns."""

import io

from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from gradguard.cli.render import name, table


def lines_of(shown, width):
    """Return the lines of a table with a name beside a number, as they are printed."""
    result = table("", ["layer", "norm"], right=frozenset({"norm"}))
    result.columns[1].no_wrap = True
    result.add_row(name(shown), "1.23e-05")
    out = io.StringIO()
    Console(file=out, width=width, color_system=None).print(result)
    return [line.rstrip() for line in out.getvalue().splitlines()[1:]]


parts = st.text("abcxyz019", min_size=1, max_size=8)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.lists(parts, min_size=1, max_size=9), st.sampled_from([22, 30, 50]))
def test_a_name_is_broken_behind_its_dots_and_the_number_stays_whole(words, width):
    shown = ".".join(words)
    first, *rest = lines_of(shown, width)
    head, number = first.split()
    assert number == "1.23e-05"
    pieces = [head, *(line.strip() for line in rest)]
    assert "".join(pieces) == shown
    assert all(piece.endswith(".") for piece in pieces[:-1])
    assert len(pieces) == 1 or len(shown) > width - 10


def test_a_part_that_is_wider_than_the_column_is_folded_and_nothing_is_lost():
    lines = lines_of("a." + "x" * 60, 30)
    assert "".join(line.split()[0] for line in lines) == "a." + "x" * 60


def test_what_a_name_smuggles_in_is_shown_as_text():
    assert lines_of("\x1b[2J[red]a", 60)[0].startswith(r"\x1b[2J[red]a")
