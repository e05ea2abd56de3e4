"""Groups that differ, come later or are loaded; parameters that are frozen, unused, tied or not the model's."""

import copy
import math

import pytest
import torch
from torch import nn

import gradguard


def in_two_groups(model):
    return torch.optim.AdamW(
        [
            {"params": [model.body[0].weight, model.body[3].weight], "lr": 0.01},
            {"params": [model.body[0].bias, *model.body[1].parameters(), model.body[3].bias], "weight_decay": 0.0},
        ],
        lr=0.003,
    )


def spoiled(batch):
    batch = batch.clone()
    batch[0] = math.nan
    return batch


def watched(guard):
    """Return the names of the parameters that the record says are watched."""
    guard.close()
    return gradguard.read_run(guard.run_dir).parameters


def test_groups_with_their_own_options_stay_bit_identical_and_skip_without_a_trace(make_net, batches, train, bits):
    model = make_net()
    optimizer = in_two_groups(model)
    train(model, optimizer, batches, is_guarded=False)
    expected = bits(model, optimizer)

    model = make_net()
    optimizer = in_two_groups(model)
    guard = train(model, optimizer, [spoiled(batches[0]), *batches[:4], spoiled(batches[0]), *batches[4:]])
    assert bits(model, optimizer) == expected
    assert sum(record.kind == "intervention" and record.remedy != "notify" for record in guard.records) == 2


def test_every_parameter_of_every_group_is_watched_under_its_full_name(make_net, tmp_path):
    model = make_net()
    guard = gradguard.attach(model, in_two_groups(model), run_dir=tmp_path / "run")
    assert sorted(watched(guard)) == sorted(name for name, _ in model.named_parameters())


def test_optimizer_state_loaded_after_attaching_is_used_and_guarded(make_net, batches, train, bits):
    model = make_net()
    optimizer = in_two_groups(model)
    train(model, optimizer, batches, is_guarded=False)
    saved = model.state_dict(), optimizer.state_dict()

    results = []
    for is_guarded in (False, True):
        model = make_net()
        optimizer = in_two_groups(model)
        guard = gradguard.attach(model, optimizer) if is_guarded else None
        model.load_state_dict(saved[0])
        optimizer.load_state_dict(copy.deepcopy(saved[1]))
        train(model, optimizer, batches[:3], is_guarded=False)
        if guard is not None:
            train(model, optimizer, [spoiled(batches[0])], is_guarded=False)
            assert guard.last.skipped
            assert guard.step == 4
        results.append(bits(model, optimizer))
    assert results[0] == results[1]


def test_a_rollback_after_loading_weights_goes_to_the_loaded_ones(make_net, batches, train):
    """The state at attach time is not the one that the training starts from."""
    trained = make_net()
    optimizer = in_two_groups(trained)
    train(trained, optimizer, batches, is_guarded=False)
    weights, state = copy.deepcopy((trained.state_dict(), optimizer.state_dict()))
    policy = gradguard.Policy(rules=[{"when": "nonfinite", "do": "rollback"}])

    model = make_net()
    fresh = in_two_groups(model)
    guard = gradguard.attach(model, fresh, policy)
    model.load_state_dict(weights)
    fresh.load_state_dict(state)
    train(model, fresh, [*batches[:3], spoiled(batches[0])], is_guarded=False)
    assert [record.remedy for record in guard.last.interventions] == ["rollback"]
    for name, param in model.named_parameters():
        assert torch.equal(param, weights[name]), name
    torch.testing.assert_close(fresh.state_dict()["state"], state["state"], rtol=0, atol=0)


def test_weights_loaded_after_attaching_do_not_let_a_first_bad_batch_into_the_buffers(make_net, batches, train):
    weights = make_net().state_dict()
    model = make_net()
    optimizer = in_two_groups(model)
    guard = gradguard.attach(model, optimizer)
    model.load_state_dict(weights)
    train(model, optimizer, [spoiled(batches[0])], is_guarded=False)
    assert guard.last.skipped
    assert all(buffer.isfinite().all() for buffer in model.buffers())


class Growing(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(4, 4)
        self.head = nn.Linear(4, 1)

    def forward(self, inputs):
        return self.head(self.stem(inputs).tanh())


def growing(is_head_in=False):
    torch.manual_seed(0)
    model = Growing()
    params = model.parameters() if is_head_in else model.stem.parameters()
    return model, torch.optim.SGD(params, lr=0.05, momentum=0.9)


def test_a_group_added_after_attaching_is_watched_from_then_on(batches, train, tmp_path):
    model, optimizer = growing()
    guard = gradguard.attach(model, optimizer, run_dir=tmp_path / "run")
    train(model, optimizer, batches[:2], is_guarded=False)
    optimizer.add_param_group({"params": model.head.parameters(), "lr": 0.01})
    train(model, optimizer, batches[2:4], is_guarded=False)
    train(model, optimizer, batches[4:5], is_guarded=False)
    model.zero_grad()
    model.stem.weight.grad = torch.zeros(4, 4)
    model.head.bias.grad = torch.tensor([math.nan])
    optimizer.step()
    assert guard.last.skipped
    assert guard.last.findings[0].parameters == ("head.bias",)
    assert [record.event for record in guard.records if record.kind == "event"] == ["attached", "parameters_changed"]
    assert watched(guard) == ["stem.weight", "stem.bias", "head.weight", "head.bias"]
    norms = gradguard.read_run(guard.run_dir).statistics["norms"]
    assert norms.shape == (6, 4)
    assert not (norms[:2, 2:] > 0).any()
    assert (norms[2:5] > 0).all()


def test_adding_a_group_changes_nothing_and_a_skip_in_the_same_step_leaves_no_trace(batches, train, bits):
    model, optimizer = growing()
    train(model, optimizer, batches[:3], is_guarded=False)
    optimizer.add_param_group({"params": model.head.parameters(), "lr": 0.01})
    train(model, optimizer, batches[3:], is_guarded=False)
    expected = bits(model, optimizer)

    model, optimizer = growing()
    guard = gradguard.attach(model, optimizer)
    train(model, optimizer, batches[:3], is_guarded=False)
    optimizer.add_param_group({"params": model.head.parameters(), "lr": 0.01})
    train(model, optimizer, [spoiled(batches[0])], is_guarded=False)
    assert guard.last.skipped
    train(model, optimizer, batches[3:], is_guarded=False)
    assert bits(model, optimizer) == expected


def test_frozen_parameters_are_left_alone_and_guarded_once_they_are_unfrozen(batches, train, bits):
    results = []
    for is_guarded in (False, True):
        model, optimizer = growing(is_head_in=True)
        model.stem.requires_grad_(False)
        guard = gradguard.attach(model, optimizer) if is_guarded else None
        train(model, optimizer, batches[:3], is_guarded=False)
        model.stem.requires_grad_(True)
        train(model, optimizer, batches[3:], is_guarded=False)
        results.append(bits(model, optimizer))
        if guard is not None:
            assert not [record for record in guard.records if record.kind != "event"]
            train(model, optimizer, [], is_guarded=False)
            model.stem.bias.grad[0] = math.inf
            optimizer.step()
            assert guard.last.skipped
            assert guard.last.findings[0].parameters == ("stem.bias",)
    assert results[0] == results[1]


class TwoRoads(nn.Module):
    """Takes one of two layers in turn: the other one has no gradient."""

    def __init__(self):
        super().__init__()
        self.roads = nn.ModuleList([nn.Linear(4, 1), nn.Linear(4, 1)])
        self.turn = 0

    def forward(self, inputs):
        self.turn = 1 - self.turn
        return self.roads[self.turn](inputs)


@pytest.mark.parametrize("is_first_step_whole", [False, True])
def test_parameters_without_a_gradient_at_some_steps_are_no_finding(batches, train, bits, is_first_step_whole):
    results = []
    for is_guarded in (False, True):
        torch.manual_seed(0)
        model = TwoRoads()
        optimizer = torch.optim.Adam(model.parameters())
        guard = gradguard.attach(model, optimizer) if is_guarded else None
        if is_first_step_whole:
            for param in model.parameters():
                param.grad = torch.ones_like(param)
            optimizer.step()
        train(model, optimizer, batches * 5, is_guarded=False)
        results.append(bits(model, optimizer))
        if guard is not None:
            assert not [record for record in guard.records if record.kind != "event"]
            train(model, optimizer, [spoiled(batches[0])], is_guarded=False)
            assert guard.last.skipped
            assert bits(model, optimizer) == results[1]
    assert results[0] == results[1]


def test_a_step_without_any_gradient_is_no_finding(batches, train):
    model, optimizer = growing(is_head_in=True)
    guard = gradguard.attach(model, optimizer)
    optimizer.step()
    assert not guard.last.skipped
    train(model, optimizer, batches, is_guarded=False)
    optimizer.zero_grad()
    optimizer.step()
    assert guard.last.global_norm == 0.0
    assert not guard.last.findings


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode = nn.Linear(4, 4, bias=False)
        self.decode = nn.Linear(4, 4)
        self.decode.weight = self.encode.weight

    def forward(self, inputs):
        return self.decode(self.encode(inputs).tanh()).sum(1, keepdim=True)


def test_tied_weights_count_once_and_are_clipped_once(batches, loss_of, tmp_path):
    torch.manual_seed(0)
    model = Tied()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    policy = gradguard.Policy(rules=[{"when": "always", "do": {"clip_norm": {"max_norm": 0.5}}}])
    guard = gradguard.attach(model, optimizer, policy, run_dir=tmp_path / "run")
    loss_of(model, batches[0]).backward()
    unclipped = [param.grad.clone() for param in model.parameters()]
    optimizer.step()
    clipped = [param.grad.clone() for param in model.parameters()]
    for param, grad in zip(model.parameters(), unclipped, strict=True):
        param.grad = grad
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    torch.testing.assert_close(clipped, [param.grad for param in model.parameters()])
    assert float(norm) > 0.5
    guard.close()
    run = gradguard.read_run(guard.run_dir)
    assert run.parameters == ["encode.weight", "decode.bias"]
    assert run.statistics["global_norm"][0] == pytest.approx(float(norm), rel=1e-5)


def test_parameters_of_the_optimizer_that_are_not_the_model_s_are_watched_too(batches, train, tmp_path):
    """A loss with weights of its own, such as learned task weights."""
    model, _ = growing()
    extra = nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([*model.parameters(), extra], lr=0.05)
    guard = gradguard.attach(model, optimizer, run_dir=tmp_path / "run")
    extra.grad = torch.tensor([1.0, math.nan, 1.0])
    optimizer.step()
    assert guard.last.skipped
    assert watched(guard)[-1] == "param_groups.0.4"
