"""Law 8: the diagnoses and the policy, run over a record, give what was recorded: the zoo, and every kind of run."""

import io
import math

import pytest
import torch
from attach.test_grad_scaler import Training as Scaled
from deferring import FUSED, train
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st
from laws.test_exact_resume import POLICIES, STEPS, Training
from replay.replaying import assert_replayed
from torch import nn

import gradguard
from benchmarks.zoo.catalogue import ZOO
from benchmarks.zoo.replay import record
from gradguard.replay.recorded import Recorded


QUICK = settings(deadline=None, derandomize=True, phases=[Phase.explicit, Phase.generate])
# A calm one, an explosion that is rolled back, a stop after 148 decisions, surgery. All set-ups take minutes:
# python -m benchmarks.zoo.replay --policies default,repair
SET_UPS = {"F01": "default", "F09": "default", "XF10": "default", "F35": "repair"}


@pytest.mark.parametrize("id", SET_UPS)
def test_a_set_up_of_the_zoo_is_replayed(tmp_path, id):
    for name in record(ZOO[id], 0, SET_UPS[id], tmp_path / "run"):
        assert_replayed(tmp_path / "run", name=name)


@settings(QUICK, max_examples=3)
@given(stop=st.integers(0, STEPS), policy=st.sampled_from(sorted(POLICIES)), attach_first=st.booleans())
@example(stop=0, policy="own", attach_first=False)
@example(stop=27, policy="own", attach_first=False)
@example(stop=53, policy="own", attach_first=True)
@example(stop=53, policy="limits", attach_first=True)
@example(stop=60, policy="default", attach_first=False)
def test_a_resumed_run_is_replayed(tmp_path_factory, stop, policy, attach_first):
    """Both halves, each from its own record: the second begins with what the first knew."""
    path = tmp_path_factory.mktemp("run")
    first = Training(POLICIES[policy])
    first.attach(run_dir=path / "first")
    first.run(range(stop))
    file = io.BytesIO()
    first.save(file)
    first.guard.close()
    second = Training(first.policy)
    second.load(file, attach_first, run_dir=path / "second")
    second.run(range(stop, STEPS))
    second.guard.close()
    for half, num_steps in ("first", stop), ("second", STEPS - stop):
        if num_steps:
            assert_replayed(path / half, gradguard.load_policy(first.policy))


def test_a_run_that_was_set_back_is_replayed(tmp_path):
    """The same guard loads an earlier state twice: its steps are numbered anew."""
    training = Training(POLICIES["own"])
    training.attach(run_dir=tmp_path / "run")
    training.run(range(45))
    file = io.BytesIO()
    training.save(file)
    for stop in (70, 62):
        training.run(range(45, stop))
        file.seek(0)
        parts = torch.load(file, weights_only=True)
        for name in ("model", "optimizer", "schedule", "guard"):
            getattr(training, name).load_state_dict(parts[name])
    training.run(range(45, STEPS))
    training.guard.close()
    assert_replayed(tmp_path / "run", POLICIES["own"], at_least=20)


TRAININGS = st.fixed_dictionaries(
    {
        "optimizer": st.sampled_from(sorted(FUSED)),
        "losses": st.dictionaries(
            st.integers(1, 49), st.sampled_from([math.nan, math.inf, 20.0, 1e3, 1e8]), max_size=5
        ),
        "inputs": st.dictionaries(st.integers(1, 49), st.sampled_from([math.nan, -math.inf, 10.0, 50.0]), max_size=2),
        "num_micro_batches": st.integers(1, 3),
        "observe": st.sampled_from(["tensor", "number", None]),
        "closure": st.booleans(),
        "asks": st.booleans(),
    }
)


@settings(QUICK, max_examples=15)
@given(
    preset=st.sampled_from(["default", "observe", "pretrain", "finetune", "rnn", "repair"]),
    sync=st.sampled_from(["immediate", "deferred"]),
    options=TRAININGS,
)
def test_any_training_is_replayed(tmp_path_factory, preset, sync, options):
    """Judged before its steps or after them, with and without losses, micro-batches and closures."""
    path = tmp_path_factory.mktemp("run") / "run"
    train(preset, sync, run_dir=path, **options)
    assert_replayed(path)


@pytest.mark.parametrize("sync", ["immediate", "deferred"])
def test_rollbacks_and_a_stop_are_replayed(tmp_path, sync):
    run = train("default", sync, losses=dict.fromkeys(range(15, 120), math.nan), steps=120, run_dir=tmp_path / "run")
    assert run.stopped is not None
    replayed = assert_replayed(tmp_path / "run", at_least=10)
    assert replayed.stopped_at == run.stopped


def test_micro_batches_that_are_dropped_are_replayed(tmp_path):
    rules = [{"when": {"nonfinite": {"where": "microbatch"}}, "do": "drop_microbatch"}]
    train(rules, "immediate", inputs={7: math.nan, 20: math.inf}, num_micro_batches=3, run_dir=tmp_path / "run")
    assert_replayed(tmp_path / "run", at_least=2)


@pytest.mark.parametrize("is_fused", [False, True])
@pytest.mark.parametrize("is_unscaled", [False, True])
def test_steps_that_a_scaler_skips_are_replayed(tmp_path, is_fused, is_unscaled):
    """Some of them never reach the optimizer, so that they have no row."""
    training = Scaled(is_fused, is_unscaled, run_dir=tmp_path / "run")
    for seed in range(40):
        training.step(seed, is_overflow=12 <= seed < 20, is_bad_loss=seed == 30)
    training.guard.close()
    assert "loss_scale_collapse" in str(gradguard.read_run(tmp_path / "run").findings)
    assert_replayed(tmp_path / "run", at_least=1)


def test_a_step_that_breaks_inside_is_replayed(tmp_path):
    """LBFGS evaluates its closure many times a step; what it ends in is judged apart."""
    torch.manual_seed(0)
    model = nn.Linear(2, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=1.0, max_iter=10)
    inputs = torch.randn(16, 2)
    calls = 0

    def evaluate():
        nonlocal calls
        calls += 1
        optimizer.zero_grad()
        loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean() * (math.nan if calls in (3, 9) else 1.0)
        loss.backward()
        return loss

    with gradguard.attach(model, optimizer, run_dir=tmp_path / "run"):
        for _ in range(6):
            optimizer.step(evaluate)
    assert_replayed(tmp_path / "run", at_least=1)


def test_parameters_that_join_are_replayed(tmp_path):
    """The rolling statistics start afresh twice; a rule is about some parameters only."""
    rules = [
        {
            "name": "all",
            "when": {"exploding_gradient": {"warmup": 5, "window": 10}},
            "do": {"clip_norm": {"max_norm": 1}},
        },
        {"name": "one", "when": "nonfinite", "parameters": ["body.0.*"], "do": "zero_nonfinite"},
        {"name": "spike", "when": {"loss_spike": {"warmup": 5, "window": 10}}, "do": "skip_step"},
    ]

    def join(run, step):
        if step in (19, 20, 40):
            run.optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2, 3))]})

    losses = {10: 1e5, 18: math.nan, 33: 1e6, 34: math.nan, 49: 1e6}
    train(rules, "immediate", losses=losses, around=join, run_dir=tmp_path / "run")
    assert len(Recorded(tmp_path / "run").tables) == 4
    assert_replayed(tmp_path / "run", at_least=5)


def test_weights_that_break_are_replayed(tmp_path):
    """A parameter, a buffer, and the very last step's weights, which nothing but the close looks at."""

    def spoil(run, step):
        if step == 30:
            with torch.no_grad():
                run.model.body[1].running_mean[0] = math.nan
        if step in (12, 59):
            with torch.no_grad():
                run.model.body[0].weight[0, 0] = math.nan

    train("default", "immediate", steps=60, around=spoil, run_dir=tmp_path / "run")
    found = gradguard.read_run(tmp_path / "run").findings
    assert [finding.step for finding in found if finding.evidence.get("where") == "state"][-1] == 60
    assert_replayed(tmp_path / "run", at_least=3)


def test_a_batch_that_would_spoil_a_running_variance_is_replayed(tmp_path):
    """Loss and gradients are as ever, so that nothing in the row of the step says it."""
    rules = [{"when": "variance_spike", "do": "skip_step"}]
    train(rules, "immediate", inputs={30: 1e4}, run_dir=tmp_path / "run")
    found = gradguard.read_run(tmp_path / "run").findings
    assert [(finding.diagnosis, finding.step) for finding in found] == [("variance_spike", 30)]
    assert_replayed(tmp_path / "run", at_least=1)


def test_a_norm_that_float32_cannot_hold_is_replayed(tmp_path):
    """Its row holds the largest float32; the finding tells the norm itself."""
    rules = [{"when": {"exploding_gradient": {"about": "overflow"}}, "do": {"clip_norm": {"max_norm": 1.0}}}]
    train(rules, "immediate", losses={30: 1e37}, run_dir=tmp_path / "run")
    found = gradguard.read_run(tmp_path / "run").findings
    assert [(finding.diagnosis, finding.step) for finding in found] == [("exploding_gradient", 30)]
    assert_replayed(tmp_path / "run", at_least=1)


def test_surgery_is_replayed(tmp_path):
    """What was learnt of the old weights is forgotten, so that a loss soon after is no spike; one much later is."""
    rules = [
        {"when": "nonfinite", "do": {"reinitialize": {"scheme": "he"}}},
        {"when": {"loss_spike": {"warmup": 5, "window": 10}}, "do": "notify"},
    ]
    losses = {20: math.nan, 22: 1e6, 45: 1e6}
    train(rules, "immediate", losses=losses, run_dir=tmp_path / "run")
    found = gradguard.read_run(tmp_path / "run").findings
    assert [(finding.diagnosis, finding.step) for finding in found] == [("nonfinite", 20), ("loss_spike", 45)]
    assert_replayed(tmp_path / "run")


def test_first_weights_that_are_alike_are_replayed(tmp_path):
    def spoil(run):
        with torch.no_grad():
            run.model.body[0].weight.fill_(0.5)

    train([{"when": "bad_initialization", "do": "notify"}], "immediate", start=spoil, run_dir=tmp_path / "run")
    assert_replayed(tmp_path / "run", at_least=1)
