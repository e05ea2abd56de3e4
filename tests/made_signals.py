"""Signals by hand, as the recorder would give them: a calm run of two layers unless a test says otherwise."""

from dataclasses import replace

import numpy as np

from benchmarks.zoo.signals import Activation, Details, Signals


NAMES = ("0.weight", "0.bias", "2.weight", "2.bias")
NUM = len(NAMES)


def each(value):
    """Return an array with a value for every parameter, from a number or a list."""
    return np.broadcast_to(np.array(value, dtype=np.float64), (NUM,)).copy()


def layer(kind="relu", **changes):
    """Return a layer of four units that does what it should."""
    calm = Activation(
        name="1",
        kind=kind,
        num_rows=64,
        activity=np.array([0.5, 0.6, 0.4, 0.5]),
        extremity=np.full(4, 0.4),
        inside=np.ones(4),
        not_positive=0.5,
        near_zero=0.4,
        near_limit=0.1,
        far_input=0.05,
        flat=0.02,
        std=0.8,
        input_std=1.0,
    )
    return replace(calm, **changes)


def details(*layers, **changes):
    """Return the details of a calm step; arrays from numbers or lists."""
    arrays = {
        "zero_shares": 0.1,
        "gradient_ranges": 0.05,
        "weight_means": 0.05,
        "weight_stds": 0.1,
        "small_shares": 0.0,
        "negative_shares": 0.5,
        "change": 100.0,
    }
    others = {"output_spread": 1.0, "input_mean": 0.0, "input_std": 1.0, "input_max": 1.0}
    given = {name: each(changes.pop(name, value)) for name, value in arrays.items()}
    return Details(**given, activations=layers or (layer(),), **{**others, **changes})


def falling(step):
    """Return a loss that falls by 10 % in ten steps, and so by more than 5 % from one mean of ten to the next."""
    return 2.0 * 0.9 ** (step / 10)


def signals(step, *layers, loss=None, lr=1e-3, accuracy=None, zero_share=0.1, has_gradient=True, **changes):
    """Return the signals of a calm step; arrays from numbers or lists, details for those that `details` knows."""
    arrays = {"gradient_norms": 1.0, "gradient_means": 0.01, "weight_norms": 10.0 + 0.01 * step, "update_norms": 0.01}
    given = {name: each(changes.pop(name, value)) for name, value in arrays.items()}
    return Signals(
        step=step,
        loss=falling(step) if loss is None else loss,
        lr=lr,
        names=NAMES,
        is_matrix=np.array([True, False, True, False]),
        has_gradient=each(has_gradient).astype(bool),
        zero_share=zero_share,
        accuracy=accuracy,
        details=details(*layers, **changes) if step < 10 or step % 10 == 0 else None,
        **given,
    )


def feed(rival, count, make=signals, start=0):
    """Return what a rule set says over so many steps, by alarm: the steps."""
    heard = {}
    for step in range(start, start + count):
        for name in rival.update(make(step)):
            heard.setdefault(name, []).append(step)
    return heard
