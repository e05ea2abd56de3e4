"""Every rule of every rule set of others: silent on a calm run, and raised by the numbers that its definition gives."""

import math

import numpy as np
import pytest
from made_signals import falling, feed, layer, signals

from benchmarks.zoo.recorder import EPOCH
from benchmarks.zoo.rivals import RIVALS
from benchmarks.zoo.rivals.autotrainer import AutoTrainer
from benchmarks.zoo.rivals.deepdiagnosis import DeepDiagnosis
from benchmarks.zoo.rivals.lightning import SpikeDetection
from benchmarks.zoo.rivals.sagemaker import SageMaker
from benchmarks.zoo.rivals.sagemaker_quiet import QuietSageMaker
from benchmarks.zoo.rivals.thedeepchecker import TheDeepChecker
from benchmarks.zoo.rivals.torchmortem import TorchMortem
from benchmarks.zoo.rivals.umlaut import Umlaut
from gradguard.contracts import DIAGNOSES


STEPS = 110


def epochs(*accuracies):
    """Return a function that makes signals with the accuracies of the epochs, the same on held-out samples."""

    def make(step, **changes):
        epoch, rest = divmod(step + 1, EPOCH)
        accuracy = None if rest else (accuracies[epoch - 1],) * 2
        return signals(step, accuracy=accuracy, **changes)

    return make


def steadily(count):
    return [0.1 + 0.8 * (epoch + 1) / count for epoch in range(count)]


def with_(*layers, **changes):
    return lambda step: signals(step, *layers, **changes)


@pytest.mark.parametrize("rival", RIVALS.values(), ids=list(RIVALS))
def test_a_calm_run_raises_nothing(rival):
    assert feed(rival(STEPS), STEPS, epochs(*steadily(5))) == {}


@pytest.mark.parametrize("rival", RIVALS.values(), ids=list(RIVALS))
def test_every_rule_set_has_a_source_and_says_what_its_alarms_mean(rival):
    assert "References:" in rival.__doc__
    ours = {"update_spike", "dead_units", "saturated_units", "oscillation", "plateau", "collapsed_output"}
    ours |= {"frozen_parameters", "bad_initialization", "bad_inputs", "update_ratio", *DIAGNOSES.names()}
    assert rival.kinds
    for kinds in rival.kinds.values():
        assert kinds
        assert set(kinds) <= ours


def sagemaker_loss(loss_at):
    return lambda step: signals(step, loss=loss_at(step))


SAGEMAKER = {
    "VanishingGradient": (with_(gradient_means=[0.9e-7, 1, 1, 1]), 0),
    "ExplodingTensor": (with_(gradient_norms=[1, math.nan, 1, 1]), 0),
    "PoorWeightInitialization": (
        lambda step: signals(step, layer(input_std=1.0), layer(name="3", input_std=3.2), loss=1.0 + step),
        5,  # the sixth step without a new low has waited five
    ),
    "SaturatedActivation": (with_(layer("tanh", inside=np.array([0.0, 0.005, 0.0, 1.0]))), 0),
    "DeadRelu": (with_(layer(activity=np.array([0.0, 0.005, 0.0, 1.0]))), 0),
    "WeightUpdateRatio": (with_(update_norms=[101.0, 0, 0.01, 0]), 0),
    "AllZero": (with_(zero_shares=[1.0, 0, 0, 0]), 0),
    "UnchangedTensor": (with_(change=[1.0, 100, 100, 100]), 10),  # saved at 0, 10, 20; each like the one before
    "LossNotDecreasing": (sagemaker_loss(lambda step: 2 - 1e-4 * step), 10),  # 0.05 % in ten steps
}


@pytest.mark.parametrize("name", SAGEMAKER)
def test_sagemaker(name):
    make, first = SAGEMAKER[name]
    heard = feed(SageMaker(STEPS), STEPS, make)
    assert heard[name][0] == first
    assert set(SAGEMAKER) == set(SageMaker.kinds)


def test_sagemaker_just_within_its_limits():
    calm = (
        with_(gradient_means=[1.1e-7, 1, 1, 1]),
        with_(update_norms=[99.0, 0, 2e-7, 0]),  # 9.9 and 2e-8 of the weights
        with_(layer("tanh", inside=np.array([0.0, 0.0, 0.02, 1.0]))),
        with_(layer(activity=np.array([0.0, 0.0, 0.02, 1.0]))),
        with_(zero_shares=0.99),
        with_(gradient_ranges=1e-4),  # poor, but the loss falls
        lambda step: signals(step, change=[1.0 if step % 20 else 2.0, 100, 100, 100]),
    )
    for make in calm:
        assert feed(SageMaker(STEPS), STEPS, make) == {}


def test_sagemaker_with_two_rules_off_keeps_the_others():
    assert "LossNotDecreasing" in feed(SageMaker(STEPS), STEPS, with_(loss=1.0))
    assert feed(QuietSageMaker(STEPS), STEPS, with_(loss=1.0)) == {}
    assert set(feed(QuietSageMaker(STEPS), 1, with_(gradient_norms=math.inf))) == {"ExplodingTensor"}


def test_lightning_stops_at_the_first_loss_three_times_the_mean():
    def loss(step, top):
        return signals(step, loss=top if step == 20 else 1.0)

    assert feed(SpikeDetection(STEPS), STEPS, lambda step: loss(step, 3.0)) == {"Spike": [20]}
    assert feed(SpikeDetection(STEPS), STEPS, lambda step: loss(step, 2.99)) == {}
    assert feed(SpikeDetection(STEPS), STEPS, lambda step: loss(step, math.nan)) == {"Spike": [20]}
    assert feed(SpikeDetection(STEPS), STEPS, lambda step: loss(step, -2.0)) == {}  # better than before


def test_lightning_is_easily_frightened_by_a_loss_near_zero():
    losses = [-1.0, 1.0, 0.001, 0.1]  # their mean is almost nothing
    assert feed(SpikeDetection(4), 4, lambda step: signals(step, loss=losses[step])) == {"Spike": [1]}


DEEP_DIAGNOSIS = {
    "ExplodingTensor": with_(loss=math.inf),
    "UnchangedWeight": with_(change=0.0),
    "SaturatedActivation": with_(layer("sigmoid", far_input=0.51)),
    "DeadNode": with_(layer(not_positive=0.7)),
    "LossNotDecreasing": with_(loss=0.5),
    "VanishingGradient": with_(gradient_means=[0.9e-7, 1, 1, 1]),
}


@pytest.mark.parametrize("name", DEEP_DIAGNOSIS)
def test_deepdiagnosis_ends_with_its_first_diagnosis(name):
    heard = feed(DeepDiagnosis(STEPS), STEPS, DEEP_DIAGNOSIS[name])
    assert heard == {name: [10 if name == "LossNotDecreasing" else 0]}
    assert set(DEEP_DIAGNOSIS) == set(DeepDiagnosis.kinds)


def test_deepdiagnosis_just_within_its_limits():
    near = with_(layer("sigmoid", far_input=0.5, not_positive=0.9), layer(not_positive=0.69), gradient_means=1e-7)
    assert feed(DeepDiagnosis(STEPS), STEPS, near) == {}


CHECK = 3 * EPOCH - 1  # the step of the first check; the budget makes it past 30 %


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("Explode", {"gradient_norms": [71.0, 1, 1, 1]}),
        ("Vanish", {"gradient_norms": [0.9e-4, 1, 1, 1]}),
        ("DyingReLU", {"zero_share": 0.7}),
        ("SlowConvergence", {}),
    ],
)
def test_autotrainer_names_a_run_that_does_not_learn_by_its_gradients(name, changes):
    flat = epochs(*[0.1] * 5)
    assert feed(AutoTrainer(STEPS), STEPS, lambda step: flat(step, **changes)) == {name: [CHECK]}
    learns = epochs(*steadily(5))
    assert feed(AutoTrainer(STEPS), STEPS, lambda step: learns(step, **changes)) in ({}, {name: [CHECK]})


def test_autotrainer_waits_for_three_tenths_of_the_budget():
    flat = epochs(*[0.1] * 20)
    assert feed(AutoTrainer(300), 300, flat) == {"SlowConvergence": [6 * EPOCH - 1]}  # step 65 is too early


def test_autotrainer_says_explosion_at_once_and_dying_relu_first():
    flat = epochs(*[0.1] * 20)
    assert feed(AutoTrainer(300), 300, lambda step: flat(step, loss=1e5)) == {"Explode": [CHECK]}
    marks = {"zero_share": 0.9, "gradient_norms": [71.0, 1, 1, 1]}
    assert feed(AutoTrainer(STEPS), STEPS, lambda step: flat(step, **marks)) == {"DyingReLU": [CHECK]}


def test_autotrainer_sees_accuracies_that_swing():
    swings = [0.5, 0.9, 0.86, 0.9, 0.86, 0.9]  # two tops of 0.9 over two lows of 0.86, of six epochs
    assert feed(AutoTrainer(132), 132, epochs(*swings)) == {"Oscillating": [6 * EPOCH - 1]}
    calmer = [0.5, 0.9, 0.88, 0.9, 0.88, 0.9]
    assert feed(AutoTrainer(132), 132, epochs(*calmer)) == {}


def doubling(step):
    return 1e-3 * 2.0**step


CHECKER = {
    "NumericalInstability": (with_(loss=math.nan), 0),
    "VanishingGradient": (with_(gradient_means=[0.9e-6, 1, 1, 1]), 0),
    "ExplodingGradient": (lambda step: signals(step, gradient_means=[doubling(step), 1, 1, 1]), 10),
    "WeightDivergence": (lambda step: signals(step, weight_means=[doubling(step), 1, 1, 1]), 40),
    "DeadWeights": (with_(small_shares=[0.96, 0, 0, 0]), 0),
    "NegativeWeights": (with_(negative_shares=[0.96, 0, 0, 0]), 0),
    "SymmetricWeights": (with_(weight_stds=[0.0, 1, 1, 1]), 0),
    "DeadLayer": (with_(layer(activity=np.array([0.04, 0.0, 0.0, 1.0]))), 10),
    "SaturatedLayer": (with_(layer("tanh", extremity=np.array([0.9, 0.9, 0.86, 0.0]))), 10),
    "UnstableActivations": (with_(layer(std=0.4)), 10),
    "Untrained": (with_(update_norms=0.0), 10),
    "SlowUpdates": (with_(update_norms=0.9e-3), 10),
    "FastUpdates": (with_(update_norms=1.1), 10),
    "Stagnation": (lambda step: signals(step, loss=2 * 0.96 ** (step / 10)), 40),
    "LossDivergence": (lambda step: signals(step, loss=2.0 ** (step / 10)), 50),  # step 0 is a mean of its own
    "Fluctuation": (lambda step: signals(step, loss=1 + 0.5 * (step // 10 % 2)), 50),
    "ConstantOutput": (with_(output_spread=0.0), 40),
    "UnscaledInput": (with_(input_mean=5.0, input_max=9.0), 0),
}


@pytest.mark.parametrize("name", CHECKER)
def test_thedeepchecker(name):
    make, first = CHECKER[name]
    heard = feed(TheDeepChecker(STEPS), STEPS, make)
    assert heard[name][0] == first
    assert set(CHECKER) == set(TheDeepChecker.kinds)


def test_thedeepchecker_just_within_its_limits():
    calm = (
        with_(gradient_means=1.1e-6),
        lambda step: signals(step, gradient_means=1.9 ** (step % 10)),
        with_(layer(activity=np.array([0.04, 0.04, 0.06, 1.0]))),
        with_(layer("tanh", extremity=np.array([0.9, 0.9, 0.84, 0.0]), activity=np.zeros(4))),
        with_(layer(std=0.51)),
        with_(layer(std=1.99)),
        with_(update_norms=1.1e-3),
        with_(update_norms=0.9),
        with_(input_mean=0.5, input_std=0.3, input_max=1.0),
    )
    for make in calm:
        assert feed(TheDeepChecker(STEPS), STEPS, make) == {}


def late(value, calm):
    """Return a value for the second half of the run only."""
    return lambda step: value if step >= STEPS // 2 else calm


MORTEM = {
    "VanishingGradient": lambda step: signals(step, gradient_norms=[late(0.0099, 1.0)(step), 1, 1, 1]),
    "ExplodingGradient": lambda step: signals(step, gradient_norms=[1001.0 if step == 3 else 1.0, 1, 1, 1]),
    "GradientStall": lambda step: signals(step, gradient_norms=[1, 1, 0.9e-8 if step % 3 == 0 else 1.0, 1]),
    "DeadUnits": lambda step: signals(step, layer(near_zero=late(0.51, 0.0)(step))),
    "Saturation": lambda step: signals(step, layer("tanh", near_limit=late(0.51, 0.0)(step))),
    "UpdateRatio": lambda step: signals(step, update_norms=late(0.9e-4, 0.01)(step)),
    "WeightNorm": lambda step: signals(step, weight_norms=[10.0 + step, 1, 10.0 * 1.03**step, 1]),
    "Divergence": lambda step: signals(step, loss=1.05**step),
    "Plateau": with_(loss=0.7),
}


@pytest.mark.parametrize("name", MORTEM)
def test_torchmortem_speaks_at_the_end(name):
    heard = feed(TorchMortem(STEPS), STEPS, MORTEM[name])
    assert heard[name] == [STEPS - 1]
    assert set(MORTEM) == set(TorchMortem.kinds)


def test_torchmortem_just_within_its_limits():
    calm = (
        lambda step: signals(step, gradient_norms=[0.0101, 1, 1, 1]),
        lambda step: signals(step, gradient_norms=[1, 1, 0.9e-8 if step % 4 == 0 else 1.0, 1]),
        lambda step: signals(step, update_norms=0.9),
        lambda step: signals(step, loss=1.01**step),
    )
    for make in calm:
        assert feed(TorchMortem(STEPS), STEPS, make) == {}


@pytest.mark.parametrize(
    ("name", "changes", "first"),
    [
        ("InputNotNormalised", {"input_max": 1.01}, 0),
        ("NaNLoss", {"loss": math.nan}, 0),
        ("HighLearningRate", {"lr": 0.011}, 0),
        ("LowLearningRate", {"lr": 0.9e-7}, 0),
    ],
)
def test_umlaut(name, changes, first):
    heard = feed(Umlaut(STEPS), STEPS, with_(**changes))
    assert set(heard) == {name}
    assert heard[name][0] == first
    assert feed(Umlaut(STEPS), STEPS, with_(lr=0.01)) == {}


def test_the_calm_loss_falls_as_it_says():
    assert falling(10) == pytest.approx(1.8)
