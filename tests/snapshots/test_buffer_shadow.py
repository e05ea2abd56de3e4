"""Buffers come back bit for bit, however they were written to, and cost nothing when they were not."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

import gradguard
from gradguard.snapshots.buffer_shadow import BufferShadow


def buffers_of(model):
    return {name: buffer.clone() for name, buffer in model.named_buffers()}


def assert_same(model, expected):
    found = buffers_of(model)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=0, equal_nan=True, msg=name)


class Counter(nn.Module):
    """A buffer that every forward changes in the way that `write` says."""

    def __init__(self, write):
        super().__init__()
        self.write = write
        self.register_buffer("table", torch.arange(4.0))
        self.register_buffer("missing", None)

    def forward(self, inputs):
        self.write(self, inputs)
        return inputs


def in_place(module, inputs):
    module.table.add_(inputs.mean())


def replaced(module, inputs):
    module.table = module.table + inputs.mean()


def grown(module, inputs):
    module.table = torch.cat([module.table, inputs.mean().reshape(1)])


def through_data(module, inputs):
    module.table.data.mul_(0.9).add_(inputs.mean())


def as_running_mean(module, inputs):
    functional.batch_norm(inputs, module.table, torch.ones(4), training=True)


def set_to_none(module, inputs):
    module.table = None


WAYS = [in_place, replaced, grown, through_data, as_running_mean, set_to_none]


@pytest.mark.parametrize("write", WAYS, ids=lambda write: write.__name__)
def test_what_one_forward_wrote_is_undone(write):
    model = nn.Sequential(Counter(write), nn.Identity())
    expected = buffers_of(model)
    shadow = BufferShadow(model)
    model(torch.randn(8, 4))
    assert shadow.restore() == 1
    assert_same(model, expected)


@pytest.mark.parametrize("write", [in_place, replaced, through_data, as_running_mean], ids=lambda write: write.__name__)
def test_what_was_accepted_is_what_comes_back(write):
    model = Counter(write)
    shadow = BufferShadow(model)
    for _ in range(3):
        model(torch.randn(8, 4))
        shadow.accept()
    expected = buffers_of(model)
    model(torch.randn(8, 4))
    shadow.restore()
    assert_same(model, expected)


@pytest.mark.parametrize(
    ("norm", "shape"),
    [
        (nn.BatchNorm1d(4), (8, 4)),
        (nn.BatchNorm2d(4, momentum=None), (2, 4, 3, 3)),
        (nn.SyncBatchNorm(4), (8, 4)),
        (nn.InstanceNorm1d(4, track_running_stats=True), (2, 4, 5)),
        (nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4)), (8, 4)),
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("bad", [1.0, math.nan])
def test_statistics_of_normalisations_come_back(norm, shape, bad):
    model = nn.Sequential(norm)
    shadow = BufferShadow(model)
    if isinstance(norm, nn.SyncBatchNorm):
        model.eval()
        model[0].running_mean.add_(1.0)
    else:
        model(torch.randn(shape))
    shadow.accept()
    expected = buffers_of(model)
    model(torch.randn(shape) * bad)
    shadow.restore()
    assert_same(model, expected)


def test_restoring_what_was_not_touched_restores_nothing():
    model = nn.Sequential(nn.BatchNorm1d(4), Counter(in_place))
    shadow = BufferShadow(model)
    assert shadow.restore() == 0


def test_restored_values_are_copies():
    model = Counter(in_place)
    shadow = BufferShadow(model)
    expected = buffers_of(model)
    for _ in range(3):
        model(torch.randn(8, 4))
        shadow.restore()
        assert_same(model, expected)


def test_a_model_that_was_moved_to_another_dtype_gets_its_values_back_in_it():
    model = Counter(in_place)
    shadow = BufferShadow(model)
    model.to(torch.float64)
    model(torch.randn(8, 4, dtype=torch.float64))
    shadow.restore()
    assert_same(model, {"table": torch.arange(4.0, dtype=torch.float64)})


def test_a_buffer_whose_entries_share_memory_is_put_back():
    """A table that is expanded has one entry in memory for many; it cannot be written to entry by entry."""
    model = nn.Module()
    model.register_buffer("table", torch.zeros(1).expand(3))
    shadow = BufferShadow(model)
    shadow.accept()
    model.table = torch.ones(3)
    shadow.restore()
    assert model.table.tolist() == [0.0, 0.0, 0.0]


class CountCalls(TorchDispatchMode):
    """Counts the calls that torch makes."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += 1
        return func(*args, **(kwargs or {}))


def test_buffers_that_nobody_writes_to_are_not_copied_again():
    """Small ones are, since not every way of writing to them shows."""
    model = nn.Module()
    model.register_buffer("mask", torch.zeros(300, 300))
    shadow = BufferShadow(model)
    for _ in range(100):
        shadow.accept()
    with CountCalls() as calls:
        shadow.accept()
    assert calls.count == 0


def test_all_written_buffers_are_accepted_in_one_call():
    model = nn.Sequential(*[nn.BatchNorm1d(2, track_running_stats=True) for _ in range(20)])
    shadow = BufferShadow(model)
    model(torch.randn(4, 2))
    with CountCalls() as calls:
        shadow.accept()
    assert calls.count == 1


def test_a_model_without_buffers_has_nothing_to_keep():
    shadow = BufferShadow(nn.Linear(2, 2))
    shadow.accept()
    assert (len(shadow), shadow.restore()) == (0, 0)
    assert len(BufferShadow(nn.BatchNorm1d(2))) == 3


def test_guards_on_one_model_share_what_was_accepted():
    """A GAN may be one module with two optimizers."""
    model = nn.BatchNorm1d(4)
    first, second = BufferShadow.of(model), BufferShadow.of(model)
    model(torch.randn(8, 4))
    first.accept()
    expected = buffers_of(model)
    model(torch.randn(8, 4))
    second.restore()
    assert_same(model, expected)


def train_step(model, optimizer, inputs):
    optimizer.zero_grad()
    model(inputs).square().mean().backward()
    optimizer.step()


SKIP = gradguard.Policy(rules=[{"when": "nonfinite", "do": "skip_step"}], sinks=[])


def test_a_guard_that_is_attached_anew_starts_from_the_buffers_as_they_are():
    """Between two guards the model was trained without one."""
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gradguard.attach(model, optimizer, SKIP):
        train_step(model, optimizer, torch.randn(8, 3))
    for _ in range(3):
        train_step(model, optimizer, torch.randn(8, 3))
    expected = buffers_of(model)
    with gradguard.attach(model, optimizer, SKIP) as guard:
        train_step(model, optimizer, torch.full((8, 3), math.nan))
        assert guard.last.skipped
    assert_same(model, expected)


def test_a_module_that_joins_later_is_kept_from_bad_batches_too():
    model = nn.Sequential(nn.Linear(3, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gradguard.attach(model, optimizer, SKIP) as guard:
        train_step(model, optimizer, torch.randn(8, 3))
        model.append(nn.BatchNorm1d(4))
        optimizer.add_param_group({"params": model[1].parameters()})
        train_step(model, optimizer, torch.randn(8, 3))
        expected = buffers_of(model)
        train_step(model, optimizer, torch.full((8, 3), math.nan))
        assert guard.last.skipped
    assert_same(model, expected)
