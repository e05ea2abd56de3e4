"""The benchmark of gradient statistics measures what it says."""

from benchmarks.gradient_statistics import compare, gpt2_small


def test_the_large_case_is_gpt2_small():
    shapes = gpt2_small()
    assert len(shapes) == 148
    assert sum(shape[0] * (shape[1] if len(shape) == 2 else 1) for shape in shapes) == 124_439_808


def test_a_table_has_a_row_for_every_way(capsys):
    seconds = compare("small", [(3, 4), (5,)], repeats=1)
    told = capsys.readouterr().out
    assert all(name in told for name in seconds)
    assert list(seconds) == ["one read (norms)", "tutorials' hooks", "torch's reductions", "exact", "sampled"]
