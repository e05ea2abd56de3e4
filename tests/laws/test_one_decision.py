"""Every rank decides the same: a loss that is bad on one rank only makes all of them skip, and none of them wait."""

from pathlib import Path

import pytest
from two_ranks import run_two_ranks

import gradguard


RANK = Path(__file__).with_name("one_rank.py")


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory):
    """What two processes that train together tell, a list of lines for each, and where the record is."""
    folder = tmp_path_factory.mktemp("ranks")
    told = run_two_ranks(RANK, folder)
    return told, folder / "run"


def test_a_loss_that_is_nan_on_one_rank_only_makes_both_skip_that_step(two_ranks):
    ranks = [told[0] for told in two_ranks[0]]
    assert ranks[0]["skipped"] == ranks[1]["skipped"] == [3, 6]


def test_the_ranks_end_with_the_same_weights_and_the_same_findings(two_ranks):
    ranks = [told[0] for told in two_ranks[0]]
    assert ranks[0]["weights"] == ranks[1]["weights"]
    assert ranks[0]["findings"] == ranks[1]["findings"]


def test_a_stop_reaches_both(two_ranks):
    ranks = [told[0] for told in two_ranks[0]]
    assert [rank["stopped_at"] for rank in ranks] == [9, 9]


def test_one_record_is_written_and_it_names_the_rank_whose_loss_was_bad(two_ranks):
    ranks, path = [told[0] for told in two_ranks[0]], two_ranks[1]
    assert [rank["run_dir"] for rank in ranks] == [str(path), None]
    run = gradguard.read_run(path)
    assert [record.step for record in run.interventions] == [3, 6, 9]
    assert [str(finding.evidence["ranks"]) for finding in run.findings] == ["1", "1", "0"]


def test_a_guard_that_gives_up_on_one_rank_lets_the_others_train_on(two_ranks):
    """It still takes part in what the ranks exchange at each step: nobody waits for it."""
    assert [told[1:] for told in two_ranks[0]] == [[6], [6]]
