"""Learning-rate schedulers: they never see the guard's factor, so a cut is neither undone nor compounded."""

import math

import pytest
import torch
from torch.optim import lr_scheduler as schedules

import gradguard


STEPS = 12
CUT_AT = 4
FACTOR = 0.25
CUT = gradguard.Policy(
    rules=[{"when": "nonfinite", "do": ["skip_step", {"scale_lr": {"factor": FACTOR, "recover_steps": 0}}]}]
)

SCHEDULERS = {
    "LambdaLR": lambda o: schedules.LambdaLR(o, lambda step: 0.95**step),
    "MultiplicativeLR": lambda o: schedules.MultiplicativeLR(o, lambda step: 0.95),
    "StepLR": lambda o: schedules.StepLR(o, step_size=3, gamma=0.5),
    "MultiStepLR": lambda o: schedules.MultiStepLR(o, milestones=[2, 6], gamma=0.5),
    "ConstantLR": lambda o: schedules.ConstantLR(o, factor=0.5, total_iters=6),
    "LinearLR": lambda o: schedules.LinearLR(o, start_factor=0.1, total_iters=6),
    "ExponentialLR": lambda o: schedules.ExponentialLR(o, gamma=0.9),
    "PolynomialLR": lambda o: schedules.PolynomialLR(o, total_iters=10, power=2.0),
    "CosineAnnealingLR": lambda o: schedules.CosineAnnealingLR(o, T_max=5),
    "CosineAnnealingWarmRestarts": lambda o: schedules.CosineAnnealingWarmRestarts(o, T_0=4),
    "CyclicLR": lambda o: schedules.CyclicLR(o, base_lr=0.01, max_lr=0.1, step_size_up=3),
    "OneCycleLR": lambda o: schedules.OneCycleLR(o, max_lr=0.1, total_steps=STEPS + 2),
    "ReduceLROnPlateau": lambda o: schedules.ReduceLROnPlateau(o, patience=1),
    "SequentialLR": lambda o: schedules.SequentialLR(
        o, [schedules.LinearLR(o, total_iters=3), schedules.ExponentialLR(o, gamma=0.9)], milestones=[3]
    ),
    "ChainedScheduler": lambda o: schedules.ChainedScheduler(
        [schedules.ConstantLR(o, total_iters=4), schedules.ExponentialLR(o, gamma=0.9)]
    ),
}


@pytest.fixture(params=SCHEDULERS)
def make_scheduler(request):
    return SCHEDULERS[request.param]


@pytest.fixture(params=[float, torch.tensor], ids=["float", "tensor"])
def as_rate(request):
    return request.param


def build(make_net, as_rate):
    model = make_net()
    halves = [{"params": model.body[0].parameters()}, {"params": model.body[3].parameters(), "lr": as_rate(0.02)}]
    return model, torch.optim.SGD(halves, lr=as_rate(0.05), momentum=0.9, foreach=False)


def advance(scheduler):
    if isinstance(scheduler, schedules.ReduceLROnPlateau):
        scheduler.step(1.0)
    else:
        scheduler.step()


def rates(optimizer):
    return [float(group["lr"]) for group in optimizer.param_groups]


def update(model, optimizer, loss_of, batch, before_step):
    optimizer.zero_grad()
    loss = loss_of(model, batch)
    loss.backward()
    before_step(loss)
    optimizer.step()


def test_a_cut_is_neither_undone_nor_compounded_and_the_schedule_runs_as_without_it(
    make_scheduler, as_rate, make_net, loss_of, batches, bits, tmp_path
):
    """Against a loop that cuts by hand: same weights to the last bit, same schedule, and the true rate on record."""
    model, optimizer = build(make_net, as_rate)
    scheduler = make_scheduler(optimizer)
    scheduled = []
    for step in range(STEPS):
        scheduled.append(rates(optimizer))
        if step != CUT_AT:
            kept = [group["lr"] for group in optimizer.param_groups]
            for group in optimizer.param_groups:
                group["lr"] = group["lr"] * (FACTOR if step > CUT_AT else 1.0)
            update(model, optimizer, loss_of, batches[step % 8], lambda loss: None)
            for group, rate in zip(optimizer.param_groups, kept, strict=True):
                group["lr"] = rate
        else:
            optimizer.zero_grad()
            optimizer.step()
        advance(scheduler)
    expected = bits(model, optimizer)

    model, optimizer = build(make_net, as_rate)
    scheduler = make_scheduler(optimizer)
    guard = gradguard.attach(model, optimizer, CUT, run_dir=tmp_path / "run")
    seen = []
    for step in range(STEPS):
        seen.append(rates(optimizer))
        before = [group["lr"] for group in optimizer.param_groups]
        batch = batches[step % 8] * (math.nan if step == CUT_AT else 1.0)
        update(model, optimizer, loss_of, batch, guard.observe)
        assert all(group["lr"] is rate for group, rate in zip(optimizer.param_groups, before, strict=True))
        advance(scheduler)
    assert seen == scheduled
    assert bits(model, optimizer) == expected
    guard.close()
    statistics = gradguard.read_run(guard.run_dir).statistics
    assert list(statistics["lr"]) == pytest.approx([first for first, _ in scheduled], rel=1e-6)
    assert list(statistics["lr_factor"]) == [1.0] * CUT_AT + [FACTOR] * (STEPS - CUT_AT)


def test_a_step_that_is_skipped_first_brings_no_warning(make_scheduler, make_net, loss_of, batches):
    """Torch warns when a scheduler is stepped before its optimizer, but a skipped step is a step."""
    model, optimizer = build(make_net, float)
    scheduler = make_scheduler(optimizer)
    guard = gradguard.attach(model, optimizer)
    for step in range(4):
        update(model, optimizer, loss_of, batches[step] * (math.nan if step == 0 else 1.0), guard.observe)
        advance(scheduler)
        assert guard.last.skipped == (step == 0)


@pytest.mark.parametrize("is_guard_first", [False, True])
def test_it_does_not_matter_whether_the_guard_or_the_scheduler_came_first(
    is_guard_first, make_scheduler, make_net, loss_of, batches
):
    model, optimizer = build(make_net, float)
    guard = gradguard.attach(model, optimizer, CUT) if is_guard_first else None
    scheduler = make_scheduler(optimizer)
    guard = guard or gradguard.attach(model, optimizer, CUT)
    twin = build(make_net, float)[1]
    twin_scheduler = make_scheduler(twin)
    for step in range(STEPS):
        update(model, optimizer, loss_of, batches[step % 8] * (math.nan if step == 1 else 1.0), guard.observe)
        twin.step()
        advance(scheduler)
        advance(twin_scheduler)
        assert rates(optimizer) == rates(twin)
    assert guard.last.lr_factor == FACTOR


def test_cuts_multiply_and_recover_along_a_straight_line_of_the_logarithm(make_net, loss_of, batches):
    policy = gradguard.Policy(
        rules=[{"when": "nonfinite", "do": ["skip_step", {"scale_lr": {"factor": 0.01, "recover_steps": 4}}]}]
    )
    model, optimizer = build(make_net, float)
    guard = gradguard.attach(model, optimizer, policy)
    factors = []
    for step in range(9):
        update(model, optimizer, loss_of, batches[0] * (math.nan if step in (1, 3) else 1.0), guard.observe)
        factors.append(guard.last.lr_factor)
    assert factors == pytest.approx([1, 0.01, 0.01**0.75, 0.01**1.5, 0.01**1, 0.01**0.5, 0.01**0.25, 1, 1])


def test_a_rule_about_some_parameters_cuts_their_groups_only(make_net, loss_of, batches):
    rule = {"when": "nonfinite", "parameters": ["body.3.*"], "do": ["skip_step", {"scale_lr": {"factor": 0.5}}]}
    policy = gradguard.Policy(rules=[rule])
    model, optimizer = build(make_net, float)
    gradguard.attach(model, optimizer, policy)
    used = []
    optimizer.register_step_pre_hook(lambda *args: used.append(rates(optimizer)))
    update(model, optimizer, loss_of, batches[0], lambda loss: model.body[3].bias.grad.fill_(math.inf))
    update(model, optimizer, loss_of, batches[0], lambda loss: None)
    assert used == [[0.05, 0.01]] * 2
    assert rates(optimizer) == [0.05, 0.02]


def test_a_cut_holds_for_steps_with_a_closure_too(make_net, loss_of, batches):
    """With a closure there is nothing to judge when the step begins; a cut made before is in force all the same."""
    model, optimizer = build(make_net, float)
    guard = gradguard.attach(model, optimizer, CUT)
    update(model, optimizer, loss_of, batches[0] * math.nan, guard.observe)
    inside = []

    def evaluate():
        optimizer.zero_grad()
        loss = loss_of(model, batches[0])
        loss.backward()
        return loss

    optimizer.register_step_pre_hook(lambda *args: inside.append(rates(optimizer)))
    optimizer.step(evaluate)
    assert inside == [[0.05 * FACTOR, 0.02 * FACTOR]]
    assert rates(optimizer) == [0.05, 0.02]


def test_a_closure_that_raises_leaves_no_cut_behind(make_net, loss_of, batches):
    """Torch runs no post-hook then; a scheduler that multiplies must not take the cut rate for its own."""
    model, optimizer = build(make_net, float)
    scheduler = SCHEDULERS["ExponentialLR"](optimizer)
    guard = gradguard.attach(model, optimizer, CUT)
    update(model, optimizer, loss_of, batches[0] * math.nan, guard.observe)

    def broken():
        raise KeyError("of the user's own")

    with pytest.raises(KeyError):
        optimizer.step(broken)
    assert rates(optimizer) == [0.05, 0.02]
    advance(scheduler)
    assert rates(optimizer) == pytest.approx([0.045, 0.018])


def test_a_stop_in_the_middle_of_a_step_leaves_no_cut_behind(make_net, loss_of, batches):
    """Torch runs no post-hook then; a checkpoint written on the way out must hold the schedule's rate."""
    ladder = [{"after": 1, "within": 9, "do": "stop"}]
    rule = {"when": "nonfinite", "do": ["skip_step", {"scale_lr": {"factor": 0.5}}], "escalate": ladder}
    model, optimizer = build(make_net, float)
    guard = gradguard.attach(model, optimizer, gradguard.Policy(rules=[rule]))
    update(model, optimizer, loss_of, batches[0] * math.nan, guard.observe)
    with pytest.raises(gradguard.TrainingStopped):
        update(model, optimizer, loss_of, batches[0] * math.nan, guard.observe)
    assert rates(optimizer) == [0.05, 0.02]


def test_the_scheduler_s_own_state_is_that_of_a_run_without_a_cut(make_scheduler, make_net, loss_of, batches):
    states = []
    for policy in (None, CUT):
        model, optimizer = build(make_net, float)
        scheduler = make_scheduler(optimizer)
        guard = gradguard.attach(model, optimizer, policy) if policy else None
        for step in range(6):
            is_bad = policy is not None and step == 2
            observe = guard.observe if guard else lambda loss: None
            update(model, optimizer, loss_of, batches[step] * (math.nan if is_bad else 1.0), observe)
            advance(scheduler)
        states.append(repr(scheduler.state_dict()))
    assert states[0] == states[1]
