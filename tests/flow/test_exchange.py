"""What ranks agree on, in a process group of one."""

import math

import pytest
import torch
import torch.distributed as dist

from gradguard.evidence.stats import StepStats
from gradguard.flow.exchange import Exchange, is_main_rank, mean_over_ranks, take_in


pytestmark = pytest.mark.skipif(not dist.is_available(), reason="torch was built without torch.distributed")


@pytest.fixture
def group(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def agreed(loss):
    stats = StepStats(1)
    said = Exchange(torch.device("cpu")).gather([] if loss is None else [loss])
    assert take_in(said.tolist(), stats) == ()
    return stats


def test_a_process_on_its_own_exchanges_nothing_and_writes_the_record():
    assert not Exchange.is_needed()
    assert is_main_rank()


@pytest.mark.usefixtures("group")
def test_a_group_of_one_exchanges_nothing_and_writes_the_record():
    assert not Exchange.is_needed()
    assert is_main_rank()


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize("loss", [0.0, -1.5, 1e300])
def test_the_loss_of_one_rank_is_the_mean(loss):
    stats = agreed(loss)
    assert (stats.loss, stats.has_loss, stats.bad_ranks) == (loss, True, ())


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_a_bad_loss_stays_bad_and_names_its_rank(loss):
    stats = agreed(loss)
    assert (math.isfinite(stats.loss), stats.has_loss, stats.bad_ranks) == (False, True, (0,))


@pytest.mark.usefixtures("group")
def test_a_loss_that_nobody_observed_is_not_made_up():
    stats = agreed(None)
    assert (math.isnan(stats.loss), stats.has_loss, stats.bad_ranks) == (True, False, ())


def test_the_mean_on_the_device_is_that_of_the_host():
    said = torch.tensor([[1.5, 1, 1], [0.0, 0, 1], [-4.0, 1, 0]], dtype=torch.float64)
    stats = StepStats(1)
    assert take_in(said.tolist(), stats) == (2,)
    assert float(mean_over_ranks(said)) == stats.loss == -1.25
    said[0, 0] = math.nan
    assert math.isnan(float(mean_over_ranks(said)))


def test_no_threshold_is_below_a_loss_that_nobody_observed():
    assert float(mean_over_ranks(torch.tensor([[0.0, 0, 1]], dtype=torch.float64))) < -1e300


@pytest.mark.usefixtures("group")
def test_micro_batches_are_averaged_whatever_they_are():
    said = Exchange(torch.device("cpu")).gather([torch.tensor([1.0]), 2.0, torch.tensor(6.0)], is_on=False)
    assert said.tolist() == [[3.0, 1.0, 0.0]]
