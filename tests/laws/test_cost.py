"""What a healthy step costs, in things that can be counted: operations, objects, walks over the model, memory."""

import gc
import tracemalloc
from collections import Counter

import pydantic
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import gradguard


ALWAYS = {"name": "always", "when": "always", "do": {"clip_norm": {"max_norm": 1e-3}}}


class Operations(TorchDispatchMode):
    """Counts what reaches torch's dispatcher."""

    def __init__(self):
        super().__init__()
        self.counts = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.counts[function.overloadpacket.__name__] += 1
        return function(*args, **(kwargs or {}))


def training(num_layers, policy, **options):
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(4, 4) for _ in range(num_layers)])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, **options)

    def step(guard=None):
        optimizer.zero_grad()
        loss = model(torch.ones(3, 4)).square().mean()
        loss.backward()
        if guard is not None:
            guard.observe(loss)
        return optimizer

    return model, optimizer, step


def with_always():
    policy = gradguard.load_policy(None).model_dump(mode="json")
    return gradguard.Policy(**{**policy, "rules": [*policy["rules"], ALWAYS]})


@pytest.mark.parametrize("make_policy", [lambda: gradguard.load_policy(None), with_always], ids=["default", "always"])
@pytest.mark.parametrize("options", [{"fused": True}, {"foreach": True}], ids=["fused", "foreach"])
def test_the_operations_of_a_step_do_not_grow_with_the_number_of_tensors(tmp_path, make_policy, options):
    """A batched pass is one operation, however many tensors it is over."""
    found = []
    for num_layers in (2, 20):
        model, optimizer, step = training(num_layers, None, **options)
        bare, guarded = Operations(), Operations()
        for _ in range(3):
            step().step()
        step()
        with bare:
            optimizer.step()
        with gradguard.attach(model, optimizer, make_policy(), run_dir=tmp_path / f"{num_layers}") as guard:
            for _ in range(33):
                step(guard).step()
            step(guard)
            with guarded:
                optimizer.step()
        found.append(guarded.counts - bare.counts)
    assert found[0] == found[1]
    assert found[0]["_foreach_norm"] == 1
    assert found[0]["_foreach_mul_"] == (1 if "foreach" in options and make_policy is with_always else 0)


def test_nor_where_many_small_gradients_are_measured_as_one(tmp_path):
    found = []
    for num_layers in (40, 80):
        model, optimizer, step = training(num_layers, None, fused=True)
        bare, guarded = Operations(), Operations()
        for _ in range(3):
            step().step()
        step()
        with bare:
            optimizer.step()
        with gradguard.attach(model, optimizer, run_dir=tmp_path / f"{num_layers}") as guard:
            for _ in range(33):
                step(guard).step()
            step(guard)
            with guarded:
                optimizer.step()
        found.append(guarded.counts - bare.counts)
    assert found[0]["linalg_vector_norm"] == found[1]["linalg_vector_norm"] == found[1]["_foreach_norm"] == 0


@pytest.mark.parametrize("make_policy", [lambda: gradguard.load_policy(None), with_always], ids=["default", "always"])
def test_a_healthy_step_builds_no_pydantic_object(tmp_path, monkeypatch, make_policy):
    model, optimizer, step = training(3, None)
    with gradguard.attach(model, optimizer, make_policy(), run_dir=tmp_path / "run") as guard:
        for _ in range(30):
            step(guard).step()
        built = []
        monkeypatch.setattr(pydantic.BaseModel, "__init__", lambda self, **data: built.append(type(self)))
        for _ in range(30):
            step(guard).step()
        monkeypatch.undo()
    assert built == []


def test_memory_does_not_grow_with_the_length_of_the_run(tmp_path):
    model, optimizer, step = training(3, None)
    with gradguard.attach(model, optimizer, run_dir=tmp_path / "run") as guard:
        for _ in range(450):
            step(guard).step()
        tracemalloc.start()
        try:
            for _ in range(50):
                step(guard).step()
            gc.collect()
            before, _ = tracemalloc.get_traced_memory()
            for _ in range(600):
                step(guard).step()
            gc.collect()
            after, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert after - before < 64 * 1024


def test_attaching_walks_the_model_a_few_times_only(tmp_path, monkeypatch):
    model, optimizer, _ = training(30, None)
    walks = []
    named_parameters = nn.Module.named_parameters
    monkeypatch.setattr(
        nn.Module, "named_parameters", lambda self, *a, **k: (walks.append(self), named_parameters(self, *a, **k))[1]
    )
    gradguard.attach(model, optimizer, run_dir=tmp_path / "run").close()
    assert len([module for module in walks if module is model]) <= 6
