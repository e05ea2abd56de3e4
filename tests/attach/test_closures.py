"""step(closure): the gradients come into being inside the step, for LBFGS several times over."""

import math

import pytest
import torch

import gradguard


class Closure:
    """Evaluates the loss on a batch, a bad one at the given evaluations."""

    def __init__(self, model, optimizer, loss_of, batch, bad_at=()):
        self.model, self.optimizer, self.loss_of = model, optimizer, loss_of
        self.batch, self.bad_at = batch, bad_at
        self.num_evaluations = 0

    def __call__(self):
        self.optimizer.zero_grad()
        loss = self.loss_of(self.model, self.batch)
        if self.num_evaluations in self.bad_at:
            loss = loss * math.nan
        self.num_evaluations += 1
        loss.backward()
        return loss


def lbfgs(make_net, **options):
    model = make_net()
    return model, torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4, **options)


def test_the_step_returns_what_the_closure_returned(make_net, loss_of, batches):
    model = make_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    gradguard.attach(model, optimizer)
    returned = []

    def evaluate():
        returned.append(Closure(model, optimizer, loss_of, batches[0])())
        return returned[0]

    assert optimizer.step(evaluate) is returned[0]
    assert optimizer.step(closure=evaluate) is returned[0]


@pytest.mark.parametrize("as_keyword", [False, True])
def test_the_closure_may_come_as_a_keyword_and_may_return_a_number_or_nothing(make_net, loss_of, batches, as_keyword):
    model = make_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard = gradguard.attach(model, optimizer)
    for value in (0.5, math.inf, None):

        def evaluate(value=value):
            Closure(model, optimizer, loss_of, batches[0])()
            return value

        optimizer.step(**{"closure": evaluate}) if as_keyword else optimizer.step(evaluate)
        assert guard.last.skipped == (value == math.inf)


def test_a_loss_that_was_observed_wins_over_the_closure_s(make_net, loss_of, batches):
    """A loss scaled or summed inside the closure is not the one that the user wants judged."""
    model = make_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard = gradguard.attach(model, optimizer)
    guard.observe(0.5)

    def evaluate():
        Closure(model, optimizer, loss_of, batches[0])()
        return math.nan

    optimizer.step(evaluate)
    assert not guard.last.skipped


def test_a_closure_is_evaluated_as_often_as_without_a_guard(make_net, loss_of, batches):
    counts = []
    for is_guarded in (False, True):
        model, optimizer = lbfgs(make_net)
        if is_guarded:
            gradguard.attach(model, optimizer)
        closures = [Closure(model, optimizer, loss_of, batch) for batch in batches]
        for closure in closures:
            optimizer.step(closure)
        counts.append([closure.num_evaluations for closure in closures])
    assert counts[0] == counts[1]
    assert max(counts[0]) > 1


@pytest.mark.parametrize("bad_at", [(1,), (2, 3), (3,)])
def test_an_lbfgs_step_that_ends_in_nan_is_taken_back_whole(make_net, loss_of, batches, bits, bad_at):
    """Its first gradient was fine; what happens at a later evaluation cannot be stopped from outside."""
    model, optimizer = lbfgs(make_net)
    for batch in batches:
        optimizer.step(Closure(model, optimizer, loss_of, batch))
    expected = bits(model, optimizer)

    model, optimizer = lbfgs(make_net)
    guard = gradguard.attach(model, optimizer)
    for index, batch in enumerate(batches):
        if index in (0, 5):
            closure = Closure(model, optimizer, loss_of, batches[1], bad_at)
            optimizer.step(closure)
            assert closure.num_evaluations > bad_at[0]
            assert guard.last.skipped_by == "guard"
            assert [finding.diagnosis for finding in guard.last.findings] == ["nonfinite"]
        optimizer.step(Closure(model, optimizer, loss_of, batch))
        assert not guard.last.skipped
    assert bits(model, optimizer) == expected


def test_an_lbfgs_line_search_runs_as_without_a_guard_and_survives_a_nan(make_net, loss_of, batches, bits):
    model, optimizer = lbfgs(make_net, line_search_fn="strong_wolfe")
    for batch in batches:
        optimizer.step(Closure(model, optimizer, loss_of, batch))
    expected = bits(model, optimizer)

    model, optimizer = lbfgs(make_net, line_search_fn="strong_wolfe")
    guard = gradguard.attach(model, optimizer)
    for index, batch in enumerate(batches):
        if index == 3:
            optimizer.step(Closure(model, optimizer, loss_of, batch, bad_at=(0,)))
            assert guard.last.skipped
        optimizer.step(Closure(model, optimizer, loss_of, batch))
    assert bits(model, optimizer) == expected


def test_a_closure_that_raises_leaves_the_guard_ready_for_the_next_step(make_net, loss_of, batches, train, bits):
    model = make_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    guard = gradguard.attach(model, optimizer)
    before = bits(model, optimizer)

    def broken():
        raise KeyError("of the user's own")

    with pytest.raises(KeyError, match="of the user's own"):
        optimizer.step(broken)
    assert bits(model, optimizer) == before
    for batch in batches:
        optimizer.step(Closure(model, optimizer, loss_of, batch))
    guard.close()
    guarded = bits(model, optimizer)
    model = make_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    train(model, optimizer, batches, is_guarded=False, is_closure=True)
    assert bits(model, optimizer) == guarded


def test_a_step_without_a_closure_after_steps_with_one_is_judged_too(make_net, loss_of, batches):
    model = make_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard = gradguard.attach(model, optimizer)
    optimizer.step(Closure(model, optimizer, loss_of, batches[0]))
    Closure(model, optimizer, loss_of, batches[0], bad_at=(0,))()
    optimizer.step()
    assert guard.last.skipped
    assert guard.step == 2
