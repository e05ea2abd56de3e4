"""How a guard sits on an optimizer: once, removably, and in nobody's way."""

import copy
import gc
import math
import pickle
import weakref

import pytest
import torch
from guarded import noise
from torch import nn

import gradguard


def training():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3))
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def take_step(model, optimizer, step, guard=None, factor=1.0):
    optimizer.zero_grad()
    loss = factor * model(noise(step, 8, 4)).square().mean()
    loss.backward()
    if guard is not None:
        guard.observe(loss)
    optimizer.step()


def num_hooks(model, optimizer):
    counts = [len(optimizer._optimizer_step_pre_hooks), len(optimizer._optimizer_step_post_hooks)]
    counts += [len(m._forward_hooks) + len(m._forward_pre_hooks) + len(m._backward_hooks) for m in model.modules()]
    counts += [len(p._backward_hooks or ()) + len(p._post_accumulate_grad_hooks or ()) for p in model.parameters()]
    return sum(counts)


def test_a_notebook_cell_that_is_run_again_is_refused_and_nothing_is_compounded(bits):
    policy = gradguard.Policy.model_validate({"rules": [{"when": "always", "do": {"rescale": {"factor": 0.5}}}]})
    results = []
    for times in (1, 3):
        model, optimizer = training()
        gradguard.attach(model, optimizer, policy)
        hooks = num_hooks(model, optimizer)
        for _ in range(times - 1):
            with pytest.raises(gradguard.AttachError, match="guarded already"):
                gradguard.attach(model, optimizer, policy)
        assert num_hooks(model, optimizer) == hooks
        take_step(model, optimizer, 0)
        results.append(bits(model, optimizer))
    assert results[0] == results[1]


def test_closing_leaves_not_one_hook_and_one_may_attach_again():
    model, optimizer = training()
    before = num_hooks(model, optimizer)
    for _ in range(3):
        guard = gradguard.attach(model, optimizer)
        take_step(model, optimizer, 0, guard)
        guard.close()
        assert num_hooks(model, optimizer) == before


@pytest.mark.parametrize("policy", ["default", "repair"])
def test_a_cell_that_makes_a_new_optimizer_for_the_same_model_leaves_nothing_of_the_old_guard(policy, tmp_path):
    """The guards are not closed: the cell is simply run again."""
    model, _ = training()
    counts, kept = [], []
    for cell in range(3):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        guard = gradguard.attach(model, optimizer, policy, run_dir=tmp_path / str(cell))
        for step in range(3):
            take_step(model, optimizer, step, guard)
        gc.collect()
        counts.append(num_hooks(model, optimizer))
        kept.append(weakref.ref(guard))
    assert counts == counts[:1] * 3
    assert [ref() is None for ref in kept] == [True, True, False]
    del guard, optimizer
    gc.collect()
    assert num_hooks(model, torch.optim.SGD(model.parameters())) == 0
    runs = [gradguard.read_run(tmp_path / str(cell)) for cell in range(3)]
    assert [(run.status, len(run.statistics["step"])) for run in runs] == [("closed", 3)] * 3


def test_a_guard_that_was_given_no_name_works_for_as_long_as_its_optimizer():
    model, optimizer = training()
    gradguard.attach(model, optimizer)
    gc.collect()
    before = copy.deepcopy(model.state_dict())
    take_step(model, optimizer, 0, factor=math.nan)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))])
def test_a_scheduler_built_before_never_warns_and_a_copy_reports_to_nobody(duplicate):
    """Warnings are errors here, also torch's about a step method that was replaced."""
    model, optimizer = training()
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    step_method = optimizer.step
    guard = gradguard.attach(model, optimizer)
    assert optimizer.step is step_method
    take_step(model, optimizer, 0, guard)
    scheduler.step()
    other_model, other_optimizer = duplicate((model, optimizer))
    take_step(other_model, other_optimizer, 1, factor=math.nan)
    assert guard.step == 1
    assert all(parameter.isnan().any() for parameter in other_model.parameters())
    take_step(model, optimizer, 1, guard, factor=math.nan)
    assert guard.last.skipped


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_an_error_in_the_users_code_passes_through_and_the_next_step_is_as_ever(where, bits):
    """A label out of range is a data error: it is the user's to catch."""

    def run(is_guarded):
        model, optimizer = training()
        guard = gradguard.attach(model, optimizer) if is_guarded else None
        caught = []
        for step in range(5):
            labels = torch.arange(8) % 3
            if step == 2 and where == "forward":
                labels[0] = 7
            optimizer.zero_grad()
            try:
                loss = nn.functional.cross_entropy(model(noise(step, 8, 4)), labels)
                if step == 2 and where == "backward":
                    loss.register_hook(_fail)
                loss.backward()
                if guard is not None:
                    guard.observe(loss)
                optimizer.step()
            except (IndexError, ArithmeticError) as error:
                caught.append((step, type(error)))
        return caught, bits(model, optimizer), guard

    caught, state, guard = run(is_guarded=True)
    assert caught == [(2, IndexError if where == "forward" else ArithmeticError)]
    assert (caught, state) == run(is_guarded=False)[:2]
    assert guard.step == 4
    assert guard.last.findings == ()


def _fail(gradient):
    raise ArithmeticError("not today")


def test_a_compiled_model_is_guarded_by_name_and_what_is_lost_is_said():
    torch._dynamo.reset()
    net, _ = training()
    model = torch.compile(net, backend="aot_eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    take_step(model, optimizer, 0)
    guard = gradguard.attach(model, optimizer)
    take_step(model, optimizer, 1, guard)
    take_step(model, optimizer, 2, guard, factor=math.nan)
    assert guard.last.skipped
    assert {guard._pipeline.monitor.table.names[row] for row in guard.last.findings[0].indices} == set(
        dict(net.named_parameters())
    )
    attached = next(record for record in guard.records if record.kind == "event")
    assert "compiled" in attached.message


@pytest.mark.parametrize("is_compiled", [True, False])
def test_attached_to_the_module_inside_of_a_compiled_one_it_says_once_that_its_hooks_see_nothing(is_compiled):
    torch._dynamo.reset()
    net, optimizer = training()
    model = torch.compile(net, backend="aot_eager") if is_compiled else net
    take_step(model, optimizer, 0)
    guard = gradguard.attach(net, optimizer)
    for step in range(70):
        take_step(model, optimizer, step, guard)
    take_step(model, optimizer, 70, guard, factor=math.nan)
    assert guard.last.skipped
    told = [record.message for record in guard.records if record.kind == "event" and record.event == "unseen"]
    assert len(told) == is_compiled
    assert all("compiled" in message for message in told)


def test_a_resumed_run_does_not_say_again_what_it_cannot_see():
    def go(optimizer, guard, steps):
        for step in steps:
            take_step(model, optimizer, step, guard)
        return [record.step for record in guard.records if record.kind == "event" and record.event == "unseen"]

    model, optimizer = training()
    model.eval()
    with gradguard.attach(model, optimizer) as guard:
        assert len(go(optimizer, guard, range(30))) == 1
        state = guard.state_dict()
    with gradguard.attach(model, optimizer) as guard:
        guard.load_state_dict(state)
        assert go(optimizer, guard, range(30, 80)) == []


class LineFit:
    """A small net under LBFGS whose loss overflows in the middle of a step."""

    def __init__(self):
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))
        self.optimizer = torch.optim.LBFGS(self.model.parameters(), lr=1.0, max_iter=20)
        self.inputs = torch.linspace(-3, 3, 24).view(-1, 1)

    def evaluate(self):
        self.optimizer.zero_grad()
        loss = (self.model(self.inputs).square().exp() - 5).square().mean()
        loss.backward()
        return loss

    @property
    def is_finite(self):
        return all(parameter.isfinite().all() for parameter in self.model.parameters())


def test_a_nan_inside_an_lbfgs_step_is_taken_back_with_its_memory_and_nothing_gets_worse():
    lost = LineFit()
    lost.optimizer.step(lost.evaluate)
    assert not lost.is_finite
    fit = LineFit()
    guard = gradguard.attach(fit.model, fit.optimizer)
    first = fit.evaluate().item()
    for _ in range(40):
        fit.optimizer.step(fit.evaluate)
        assert fit.is_finite
    remedies = {record.remedy for record in guard.records if record.kind == "intervention"}
    assert {"skip_step", "rollback", "scale_lr"} <= remedies
    first_finding = next(record.finding for record in guard.records if record.kind == "intervention")
    assert "within the step" in first_finding.message
    assert "gradient" not in first_finding.message
    assert "smaller lr" in first_finding.advice
    assert fit.evaluate().item() <= first
