import numpy as np

from gradguard.watch.layers import worst_layers


NAMES = ["calm", "spiky", "broken", "absent", "rare"]


def norms():
    rows = np.ones((20, 5), dtype=np.float32)
    rows[:, 3] = -1
    rows[:, 4] = -1
    rows[7, 1] = 30.0
    rows[9, 2] = np.nan
    rows[3, 4] = 2.0
    return rows


def test_the_layer_that_is_not_finite_comes_before_the_one_that_is_far_above_its_usual_norm():
    layers = worst_layers(norms(), np.arange(100, 120), NAMES, 5)
    assert [layer.name for layer in layers] == ["broken", "spiky", "calm", "rare"]
    assert [layer.step for layer in layers[:2]] == [109, 107]
    assert np.isnan(layers[0].highest)
    assert layers[0].times == np.inf
    assert layers[1].times == 30.0
    assert layers[1].usual == 1.0
    assert layers[3].now == -1


def test_a_layer_that_never_had_a_gradient_is_not_listed():
    assert "absent" not in {layer.name for layer in worst_layers(norms(), np.arange(20), NAMES, 5)}


def test_no_rows_no_layers():
    assert worst_layers(np.empty((0, 5), np.float32), np.arange(0), NAMES, 5) == []
    assert worst_layers(np.empty((5, 0), np.float32), np.arange(5), [], 5) == []


def test_layers_that_are_zero_throughout_are_calm():
    layers = worst_layers(np.zeros((5, 1), np.float32), np.arange(5), ["z"], 5)
    assert layers[0].times == 1.0
