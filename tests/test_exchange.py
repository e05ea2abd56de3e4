"""What ranks agree on, in a process group of one."""

import math

import pytest
import torch
import torch.distributed as dist

from gradguard.exchange import Exchange, is_main_rank
from gradguard.stats import StepStats


pytestmark = pytest.mark.skipif(not dist.is_available(), reason="torch was built without torch.distributed")


@pytest.fixture
def group(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def agreed(loss):
    stats = StepStats(1)
    stats.has_loss = loss is not None
    stats.loss = math.nan if loss is None else loss
    Exchange(torch.device("cpu")).agree(stats)
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
