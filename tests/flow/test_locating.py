"""Real runs that turn to NaN in every place where that can happen: the finding says where it was."""

import math
import weakref

import pytest
import torch
from guarded import noise
from replay.replaying import assert_replayed
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss

import gradguard
from gradguard.demo.model import GPT
from gradguard.evidence.origin import Origin
from gradguard.evidence.origin_words import WEIGHTS_ADVICE, what_to_do
from gradguard.faults import Fault, inject
from gradguard.flow.locating import EVERY, NUM_FIRST


class Layers(nn.Module):
    """Four layers; what is computed between `c` and `d` is the test's choice."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c, self.d = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 3)
        self.between = torch.relu

    def forward(self, x):
        return self.d(self.between(self.c(torch.tanh(self.b(torch.tanh(self.a(x)))))))


class Loop:
    """A training whose step, number 5, is spoilt by the test."""

    BAD = 5

    def __init__(self, model, policy=None, criterion=mse_loss, run_dir=None, observes=True):
        self.model, self.criterion, self.observes = model, criterion, observes
        self.optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        self.guard = gradguard.attach(model, self.optimizer, policy, run_dir=run_dir)
        self.findings = {}

    def run(self, steps=BAD + 1, spoil=lambda loop, step, x: x, size=16):
        for step in range(steps):
            x = noise(step, size, 6)
            if step >= self.BAD:
                x = spoil(self, step, x)
            self.optimizer.zero_grad()
            loss = self.criterion(self.model(x), noise(step + 1000, size, 3))
            loss.backward()
            if self.observes:
                self.guard.observe(loss)
            self.optimizer.step()
            self.findings[step] = {f.diagnosis: f for f in self.guard.last.findings}
        return self

    @property
    def finding(self):
        return self.findings[self.BAD]["nonfinite"]


def nan_rows(loop, step, x):
    x[2:5, 1] = math.nan
    x[9, 0] = math.inf
    return x


def root_of_negatives(loop, step, x):
    loop.model.between = torch.sqrt
    return x


def log_loss(loop, step, x):
    loop.criterion = lambda out, target: out.log().mean()
    return x


def explosion(loop, step, x):
    loop.criterion = lambda out, target: (out * 1e25).square().mean()
    loop.model.between = lambda h: h * 1e25
    return x


def root_of_zero(loop, step, x):
    loop.model.between = lambda h: (h * 0.0).abs().sqrt()
    return x


def root_loss(loop, step, x):
    loop.criterion = lambda out, target: (out - out.detach()).square().sum().sqrt()
    return x


def test_damaged_weights_get_the_same_advice_from_whatever_is_told_of_the_step():
    origin = Origin("weights", place="c.weight", largest=1e37, usual=0.1)
    assert what_to_do(origin) == WEIGHTS_ADVICE


def test_a_loss_that_overflows_of_an_output_that_exploded_is_told_as_that():
    finding = Loop(Layers()).run(spoil=explosion).finding
    assert finding.evidence["origin"] == "loss"
    assert "the model's output has exploded (up to " in finding.message
    assert "lower the learning rate" in finding.advice


def test_nan_in_the_batch_is_told_with_its_samples():
    finding = Loop(Layers()).run(spoil=nan_rows).finding
    assert "4 of the 16 samples of input '0' hold NaN or infinite values" in finding.message
    assert (finding.parameters, finding.evidence["origin"], finding.evidence["origin_samples"]) == (
        (),
        "input",
        "2, 3, 4, 9",
    )
    assert finding.advice.startswith("Look for the samples")


def test_nan_in_the_batch_is_told_of_the_inputs_at_that_very_step():
    loop = Loop(Layers()).run(Loop.BAD + 3, nan_rows)
    assert [step for step, found in loop.findings.items() if "bad_inputs" in found] == [Loop.BAD]
    assert "4 of the 16 samples" in loop.findings[Loop.BAD]["bad_inputs"].message


def test_a_batch_that_nobody_holds_any_more_is_looked_at_all_the_same():
    """`model(x[i])` makes a tensor that is gone after the backward pass."""
    finding = Loop(Layers()).run(spoil=lambda loop, step, x: nan_rows(loop, step, x)[torch.arange(16)]).finding
    assert finding.evidence["origin"] == "input"


def test_what_the_model_computes_between_two_layers_is_told_by_these():
    finding = Loop(Layers()).run(spoil=root_of_negatives).finding
    assert "it began between 'c', whose output is finite, and 'd', whose input is not" in finding.message
    assert (finding.parameters, finding.evidence["origin"]) == (("c.weight", "c.bias"), "forward")
    assert "sqrt or log of a number that is not above 0" in finding.advice


class Root(nn.Module):
    def forward(self, x):
        return x.sqrt()


def test_a_module_that_makes_nan_is_named():
    model = nn.Sequential(nn.Linear(6, 8), nn.Sequential(nn.Linear(8, 8), nn.Identity()), nn.Linear(8, 3))

    def spoil(loop, step, x):
        model[1][1] = Root()
        return x

    finding = Loop(model).run(spoil=spoil).finding
    assert "it began at the output of '1.1' (Root), whose inputs are finite" in finding.message


class Scored(Layers):
    def forward(self, x):
        return super().forward(x).log()


def test_what_the_model_computes_after_its_last_layer_is_told():
    model = Layers()

    def spoil(loop, step, x):
        model.__class__ = Scored
        return x

    finding = Loop(model).run(spoil=spoil).finding
    assert "it began in what the model itself (Scored) computes after 'd', whose output is finite" in finding.message


def test_the_loss_itself_is_told_when_the_output_is_finite():
    finding = Loop(Layers()).run(spoil=log_loss).finding
    assert "the model's output is finite, so it began in the loss function" in finding.message
    assert (finding.parameters, finding.evidence["origin"]) == ((), "loss")
    assert "log(0)" in finding.advice


def test_without_an_observed_loss_it_is_the_loss_or_the_backward_pass():
    def spoil(loop, step, x):
        loop.criterion = lambda out, target: out.sqrt().mean()
        return x

    finding = Loop(Layers(), observes=False).run(spoil=spoil).finding
    assert "began in the loss function or in the backward pass (no loss was observed)" in finding.message


def test_the_backward_pass_is_told_by_the_layers_around():
    finding = Loop(Layers()).run(spoil=root_of_zero).finding
    assert finding.message.endswith("it began in the backward pass between 'd', whose gradient is finite, and 'c'.")
    assert (finding.parameters, finding.evidence["origin_place"]) == (("c.weight", "c.bias"), "c")
    assert finding.evidence["tensors"] == 6
    assert "sqrt or norm at 0" in finding.advice


def test_a_backward_pass_that_is_bad_from_its_start_names_no_layer():
    finding = Loop(Layers()).run(spoil=root_loss).finding
    assert (finding.parameters, finding.evidence["origin"]) == ((), "backward")
    assert "in the loss function, if no clipping of gradients has spread it" in finding.message


@pytest.fixture
def gpt():
    return GPT(16, context=8, width=16, num_layers=3, num_heads=2)


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (
            Fault("bitflip", "weight", at=3, parameters="blocks.2.mlp.0.weight"),
            "'blocks.2.mlp.0.weight' holds an entry",
        ),
        (Fault("nan", "batch", at=3, module="blocks.1.mlp"), "began between 'blocks.1.mlp_norm', whose"),
    ],
    ids=["a flipped bit", "a spoilt activation"],
)
def test_a_fault_in_a_transformer_is_found_where_it_was_put(gpt, fault, expected):
    optimizer = torch.optim.AdamW(gpt.parameters(), lr=1e-3)
    guard = gradguard.attach(gpt, optimizer)
    with inject(gpt, optimizer, [fault], seed=1) as injector:
        for _ in range(6):
            tokens = torch.randint(16, (4, 8))
            optimizer.zero_grad()
            loss = cross_entropy(gpt(tokens).flatten(0, 1), tokens.flatten())
            loss.backward()
            guard.observe(loss)
            optimizer.step()
            if guard.last.findings:
                break
    assert [entry.step for entry in injector.log] == [3]
    (finding,) = {f.message: f for f in guard.last.findings if f.severity == "critical"}.values() or guard.last.findings
    assert (finding.step, expected in finding.message) == (3, True)


def test_a_flipped_bit_is_damage_to_the_model_and_is_rolled_back_at_once(gpt):
    optimizer = torch.optim.AdamW(gpt.parameters(), lr=1e-3)
    guard = gradguard.attach(gpt, optimizer)
    losses = []
    with inject(gpt, optimizer, [Fault("bitflip", "weight", at=3, parameters="blocks.2.mlp.0.weight")], seed=1):
        for _ in range(6):
            tokens = torch.randint(16, (4, 8))
            optimizer.zero_grad()
            loss = cross_entropy(gpt(tokens).flatten(0, 1), tokens.flatten())
            loss.backward()
            guard.observe(loss)
            optimizer.step()
            losses.append(math.isfinite(loss.item()))
    assert losses == [True] * 3 + [False] + [True] * 2
    (done,) = [record for record in guard.records if record.kind == "intervention"]
    assert (done.remedy, done.finding.parameters) == ("rollback", ("blocks.2.mlp.0.weight",))
    assert "a flipped bit" in done.finding.message


# What keeps from knowing.


def test_where_it_is_not_known_nobody_is_blamed():
    model = Layers()
    model.a.register_forward_hook(lambda module, args, output: None)
    finding = Loop(model).run(spoil=root_of_negatives).finding
    assert finding.message == (
        "The loss is NaN, and all 8 parameter tensors got NaN gradients: where it began is not known (a module has "
        "forward hooks, so the batch was not run once more)."
    )
    assert (finding.parameters, finding.num_parameters, len(finding.indices)) == ((), 8, 8)
    assert finding.advice.startswith("Look at the inputs and targets of this batch")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda model: {"monitor": {"rerun": False}}, "the policy has `rerun: false`"),
        (lambda model: model.compile(backend="eager"), "the model is compiled"),
    ],
    ids=["not wanted", "compiled"],
)
def test_a_batch_that_must_not_be_run_again_is_not(change, why):
    model = Layers()
    policy = gradguard.Policy(rules=[{"when": "nonfinite", "do": "skip_step"}], **(change(model) or {}))
    calls = []
    loop = Loop(model, policy)
    loop.model.between = lambda h: (calls.append(0), torch.relu(h))[1]
    loop.run(spoil=log_loss)
    assert len(calls) == Loop.BAD + 1
    assert why in loop.finding.message


def test_a_model_that_is_not_called_itself_is_not_run():
    class Inside(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Layers()

    model = Inside()
    loop = Loop(model)
    loop.model = model.inner
    assert "no call of the model was seen" in loop.run(spoil=root_of_negatives).finding.message


def test_a_model_that_fails_when_it_runs_again_does_not_break_the_training():
    model = Layers()
    seen = []

    def once(h):
        if any(h is other for other in seen) or not torch.is_grad_enabled():
            raise RuntimeError("once only")
        return h.sqrt()

    def spoil(loop, step, x):
        model.between = once
        return x

    loop = Loop(model).run(Loop.BAD + 2, spoil)
    assert "looking for it failed with RuntimeError" in loop.finding.message
    assert [record.event for record in loop.guard.records if record.kind == "event"] == ["attached"]


def accumulate(spoilt, num=3):
    model = Layers()
    loop = Loop(model)
    for step in range(3):
        loop.optimizer.zero_grad()
        for part in range(num):
            x = noise(10 * step + part, 16, 6)
            if step == 2 and part == spoilt:
                x[0] = math.nan
            loss = mse_loss(model(x), noise(part, 16, 3)) / num
            loss.backward()
            loop.guard.observe(loss)
        loop.optimizer.step()
    (finding,) = [f for f in loop.guard.last.findings if f.diagnosis == "nonfinite"]
    return finding


def test_of_several_micro_batches_the_last_is_looked_at_and_no_other_is_blamed():
    assert accumulate(spoilt=2).evidence["origin"] == "input"
    finding = accumulate(spoilt=0)
    assert finding.evidence["origin"] == "unknown"
    assert "the last of 3 forward passes is finite" in finding.message


def test_deferred_tells_what_the_gradients_tell():
    policy = gradguard.Policy(monitor={"sync": "deferred"}, rules=[{"when": "nonfinite", "do": "notify"}])
    loop = Loop(Layers(), policy).run(Loop.BAD + 2, root_of_negatives)
    finding = loop.finding
    assert "the batch is gone by the time it is judged" in finding.message
    assert loop.guard._pipeline.target.last_call.num_passes == 0


# What is looked at, and how often.


def test_a_run_of_nan_is_not_run_again_at_every_step():
    model, calls = Layers(), []
    policy = gradguard.Policy(rules=[{"when": "nonfinite", "do": "skip_step"}])

    def spoil(loop, step, x):
        model.between = lambda h: (calls.append(step), h.sqrt())[1]
        return x

    steps = Loop.BAD + 2 * EVERY + 10
    loop = Loop(model, policy).run(steps, spoil)
    again = [step for step in calls if calls.count(step) == 2]
    assert sorted(set(again)) == [
        *range(Loop.BAD, Loop.BAD + NUM_FIRST),
        Loop.BAD + NUM_FIRST - 1 + EVERY,
        Loop.BAD + NUM_FIRST - 1 + 2 * EVERY,
    ]
    later = loop.findings[Loop.BAD + NUM_FIRST + 7]["nonfinite"]
    assert "most likely as at step 7, where it began between 'c'" in later.message
    assert later.parameters == ("c.weight", "c.bias")


def test_a_batch_is_let_go_of_before_the_step_is_taken():
    model = Layers()
    loop = Loop(model)
    held = []

    def look(optimizer, args, kwargs):
        held.append(batch() is not None)

    loop.optimizer.register_step_pre_hook(look)  # runs after the guard's
    for step in range(60):
        loop.optimizer.zero_grad()
        x = noise(step, 16, 6)
        batch = weakref.ref(x)
        loss = mse_loss(model(x), noise(step + 1000, 16, 3))
        del x
        loss.backward()
        loop.guard.observe(loss)
        loop.optimizer.step()
    assert held == [False] * 60


def test_an_evaluation_holds_no_batch():
    model = Layers()
    loop = Loop(model)
    loop.run(4)
    model.eval()
    x = noise(0, 4, 6)
    batch = weakref.ref(x)
    model(x)
    del x
    assert batch() is None
    loop.guard.close()
    assert not model._forward_pre_hooks


def test_what_was_found_is_found_again_in_a_replay(tmp_path):
    def spoil(loop, step, x):
        return [nan_rows, root_of_negatives, log_loss][step % 3](loop, step, x)

    for number, steps in enumerate([nan_rows, root_of_negatives, log_loss, root_of_zero, root_loss, spoil]):
        loop = Loop(Layers(), run_dir=tmp_path / str(number)).run(Loop.BAD + 6, steps)
        loop.guard.close()
        assert loop.finding.evidence["origin"] in ("input", "forward", "loss", "backward")
        assert_replayed(tmp_path / str(number))


def test_a_masked_input_that_the_model_knows_how_to_take_is_not_blamed():
    class Filling(Layers):
        def forward(self, x):
            return super().forward(x.nan_to_num())

    def spoil(loop, step, x):
        return nan_rows(loop, step, log_loss(loop, step, x))

    finding = Loop(Filling()).run(spoil=spoil).finding
    assert finding.evidence["origin"] == "loss"
