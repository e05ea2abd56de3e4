"""Models behind torch.compile, DistributedDataParallel or DataParallel: guarded under the names the user wrote."""

import math

import pytest
import torch
import torch.distributed as dist
from torch import nn

import gradguard


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


@pytest.fixture
def one_process():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def names(guard):
    guard.close()
    return gradguard.read_run(guard.run_dir).parameters


def expected_names(model):
    return [name for name, _ in model.named_parameters()]


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_compiled_model_trains_as_unguarded_and_skips_without_a_trace(make_net, batches, train, bits, backend):
    results = []
    for is_guarded in (False, True):
        model = make_net()
        compiled = torch.compile(model, backend=backend)
        optimizer = sgd(compiled)
        bad = [batches[0] * math.nan] if is_guarded else []
        guard = train(compiled, optimizer, [*bad, *batches[:3], *bad, *batches[3:]], is_guarded=is_guarded)
        results.append(bits(model, optimizer))
    assert results[0] == results[1]
    assert sum(record.kind == "intervention" and record.remedy != "notify" for record in guard.records) == 2


@pytest.mark.parametrize("is_in_place", [False, True], ids=["torch.compile(model)", "model.compile()"])
def test_a_compiled_model_keeps_its_names_and_the_record_says_what_cannot_be_seen(make_net, tmp_path, is_in_place):
    model = make_net()
    compiled = model
    if is_in_place:
        model.compile(backend="eager")
    else:
        compiled = torch.compile(model, backend="eager")
    guard = gradguard.attach(compiled, sgd(model), run_dir=tmp_path / "run")
    assert "compiled" in guard.records[0].message
    assert names(guard) == expected_names(model)


def test_a_model_with_a_compiled_part_keeps_its_names(make_net, tmp_path):
    model = nn.ModuleDict({"plain": nn.Linear(2, 2), "fast": torch.compile(make_net(), backend="eager")})
    guard = gradguard.attach(model, sgd(model), run_dir=tmp_path / "run")
    assert names(guard) == ["plain.weight", "plain.bias", *(f"fast.{name}" for name in expected_names(make_net()))]


def test_a_ddp_model_is_guarded_under_the_names_of_the_model_inside(make_net, batches, train, tmp_path, one_process):
    model = make_net()
    ddp = nn.parallel.DistributedDataParallel(model)
    guard = train(ddp, sgd(ddp), [*batches, batches[0] * math.nan], run_dir=tmp_path / "run")
    assert guard.last.skipped
    assert set(guard.last.findings[0].parameters) <= set(expected_names(model))
    assert all(buffer.isfinite().all() for buffer in model.buffers())
    assert names(guard) == expected_names(model)


def test_the_model_inside_may_be_given_too(make_net, batches, train, tmp_path, one_process):
    model = make_net()
    ddp = nn.parallel.DistributedDataParallel(model)
    optimizer = sgd(model)
    guard = gradguard.attach(model, optimizer, run_dir=tmp_path / "run")
    train(ddp, optimizer, [*batches, batches[0] * math.nan], is_guarded=False)
    assert guard.last.skipped
    assert names(guard) == expected_names(model)


def test_a_compiled_ddp_model_loses_both_prefixes(make_net, tmp_path, one_process):
    model = make_net()
    both = torch.compile(nn.parallel.DistributedDataParallel(model), backend="eager")
    assert names(gradguard.attach(both, sgd(both), run_dir=tmp_path / "run")) == expected_names(model)


def test_a_data_parallel_model_loses_its_prefix(make_net, tmp_path):
    model = make_net()
    wrapped = nn.DataParallel(model)
    assert names(gradguard.attach(wrapped, sgd(wrapped), run_dir=tmp_path / "run")) == expected_names(model)


def test_a_part_that_the_user_called_module_keeps_its_name(tmp_path):
    model = nn.ModuleDict({"module": nn.Linear(2, 1), "other": nn.Linear(2, 1)})
    guard = gradguard.attach(model, sgd(model), run_dir=tmp_path / "run")
    assert names(guard) == ["module.weight", "module.bias", "other.weight", "other.bias"]
