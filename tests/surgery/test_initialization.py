"""Fresh weights have the size that the formulas say and come from the generator alone, for every layer of torch."""

import math

import pytest
import torch
from torch import nn

from gradguard.surgery.initialization import GAINS, gain_of, redraw, reinitialize_module, seeded


FUNCTIONS = {
    "relu": torch.relu,
    "relu6": nn.functional.relu6,
    "leaky_relu": nn.functional.leaky_relu,
    "prelu": lambda z: nn.functional.leaky_relu(z, 0.25),
    "rrelu": lambda z: nn.functional.leaky_relu(z, (1 / 8 + 1 / 3) / 2),
    "elu": nn.functional.elu,
    "celu": nn.functional.celu,
    "selu": nn.functional.selu,
    "gelu": nn.functional.gelu,
    "silu": nn.functional.silu,
    "mish": nn.functional.mish,
    "hardswish": nn.functional.hardswish,
    "tanh": torch.tanh,
    "hardtanh": nn.functional.hardtanh,
    "softsign": nn.functional.softsign,
}


def generator():
    return torch.Generator().manual_seed(0)


@pytest.mark.parametrize("kind", GAINS)
def test_a_gain_makes_up_for_what_the_activation_takes(kind):
    """Quadrature over a standard normal input."""
    z = torch.linspace(-12.0, 12.0, 240_001, dtype=torch.float64)
    density = torch.exp(-z.square() / 2) / math.sqrt(2 * math.pi)
    passed = torch.trapezoid(density * FUNCTIONS[kind](z).square(), z)
    assert gain_of(kind) == pytest.approx(float(passed) ** -0.5, abs=2e-4)


def test_what_is_not_known_has_a_gain_of_1():
    assert [gain_of(kind) for kind in (None, "sigmoid", "surprise")] == [1.0] * 3


@pytest.mark.parametrize("shape", [(200, 300), (64, 32, 5, 5)])
@pytest.mark.parametrize(
    ("scheme", "variance"), [("he", lambda fan_in, fan_out: 1 / fan_in), ("xavier", lambda i, o: 2 / (i + o))]
)
def test_he_and_xavier_have_the_variance_that_they_promise(shape, scheme, variance):
    weight = torch.zeros(shape)
    redraw(weight, scheme, 1.5, generator())
    receptive = math.prod(shape[2:])
    expected = 1.5**2 * variance(shape[1] * receptive, shape[0] * receptive)
    assert float(weight.var()) == pytest.approx(expected, rel=0.05)
    assert abs(float(weight.mean())) < 5 * math.sqrt(expected / weight.numel())


@pytest.mark.parametrize("shape", [(8, 20), (20, 8), (8, 5, 2, 2)])
@pytest.mark.parametrize("scheme", ["orthogonal", "lsuv"])
def test_orthogonal_weights_have_orthonormal_rows_or_columns(shape, scheme):
    weight = torch.zeros(shape)
    redraw(weight, scheme, 2.0, generator())
    matrix = weight.flatten(1) / 2.0
    product = matrix @ matrix.T if matrix.shape[0] <= matrix.shape[1] else matrix.T @ matrix
    torch.testing.assert_close(product, torch.eye(len(product)), atol=1e-5, rtol=0)


@pytest.mark.parametrize("scheme", ["he", "xavier", "orthogonal", "lsuv"])
def test_the_global_generator_is_not_touched_and_the_own_one_decides(scheme):
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first, second, third = (torch.zeros(6, 6) for _ in range(3))
    redraw(first, scheme, 1.0, seeded(3, 10))
    redraw(second, scheme, 1.0, seeded(3, 10))
    redraw(third, scheme, 1.0, seeded(3, 11))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first, second)
    assert not torch.equal(first, third)


def test_low_precision_and_strided_weights_keep_their_kind():
    weight = torch.zeros(8, 6, dtype=torch.bfloat16).T
    redraw(weight, "he", 1.0, generator())
    assert (weight.dtype, weight.shape, weight.is_contiguous()) == (torch.bfloat16, (6, 8), False)
    assert float(weight.float().std()) > 0.1


def spoiled(module):
    with torch.no_grad():
        for param in module.parameters():
            param.fill_(7.0)
    return module


def drawn(module, scheme="he"):
    own = [name for name, _ in module.named_parameters(recurse=False)]
    return reinitialize_module(module, own, scheme, 1.0, generator())


@pytest.mark.parametrize(
    "module",
    [
        nn.Linear(8, 4),
        nn.Conv1d(4, 6, 3),
        nn.Conv2d(4, 6, 3, groups=2),
        nn.ConvTranspose2d(4, 6, 3),
        nn.Bilinear(3, 4, 5),
    ],
    ids=lambda module: type(module).__name__,
)
def test_weights_of_layers_are_drawn_and_biases_are_0(module):
    assert drawn(spoiled(module)) == ["weight", "bias"]
    assert module.bias.unique().tolist() == [0.0]
    assert 0.05 < float(module.weight.detach().std()) < 1.0


@pytest.mark.parametrize(
    "module",
    [nn.BatchNorm1d(5), nn.LayerNorm(5), nn.GroupNorm(1, 5), nn.InstanceNorm1d(5, affine=True)],
    ids=lambda module: type(module).__name__,
)
def test_normalisation_layers_become_1_and_0(module):
    assert drawn(spoiled(module)) == ["weight", "bias"]
    assert (module.weight.unique().tolist(), module.bias.unique().tolist()) == ([1.0], [0.0])


def test_a_norm_without_a_bias():
    assert drawn(spoiled(nn.RMSNorm(5))) == ["weight"]


@pytest.mark.parametrize("cell", [nn.RNN, nn.GRU, nn.LSTM, nn.RNNCell, nn.GRUCell, nn.LSTMCell])
def test_recurrent_weights_are_orthogonal_gate_by_gate(cell):
    module = spoiled(cell(3, 6))
    assert set(drawn(module)) == {name for name, _ in module.named_parameters()}
    for name, param in module.named_parameters():
        if name.startswith("weight_hh"):
            for gate in param.detach().split(6):
                torch.testing.assert_close(gate @ gate.T, torch.eye(6), atol=1e-5, rtol=0)
        elif name.startswith("bias"):
            assert param.unique().tolist() == [0.0]
        else:
            assert 0.1 < float(param.detach().std()) < 1.0


def test_a_projected_lstm_is_drawn_too():
    assert len(drawn(spoiled(nn.LSTM(3, 6, proj_size=2)))) == 5


@pytest.mark.parametrize("cls", [nn.Embedding, nn.EmbeddingBag])
def test_embeddings_are_normal_and_the_padding_is_0(cls):
    module = spoiled(cls(500, 8, padding_idx=3))
    assert drawn(module) == ["weight"]
    assert float(module.weight.detach().std()) == pytest.approx(1.0, abs=0.05)
    assert module.weight[3].tolist() == [0.0] * 8


def test_attention_is_drawn_and_its_bias_is_0():
    module = spoiled(nn.MultiheadAttention(8, 2))
    assert drawn(module) == ["in_proj_weight", "in_proj_bias"]
    assert module.in_proj_bias.unique().tolist() == [0.0]


def test_what_is_of_another_kind_and_what_is_not_named_stays():
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.full((4, 4), 7.0))

    assert drawn(Own()) == []
    module = spoiled(nn.Linear(8, 4))
    assert reinitialize_module(module, ["bias"], "he", 1.0, generator()) == ["bias"]
    assert module.weight.unique().tolist() == [7.0]
