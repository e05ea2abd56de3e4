"""Histories of norms and losses with everything that happens to a run."""

import math

import numpy as np
from hypothesis import strategies as st


FACTORS = st.sampled_from([0.0, 1e-6, 8.0, 15.0, 30.0, 60.0, 150.0, 1e4, 1e30, math.nan, math.inf, None])
SHIFTS = st.sampled_from([1e-4, 0.2, 5.0, 40.0, 300.0])


@st.composite
def histories(draw, max_parameters=4, num_steps=60):
    """Norms by step and parameter: noise around a level, spikes, shifts, NaN, zeros, parameters that come and go."""
    num_parameters = draw(st.integers(1, max_parameters))
    random = np.random.default_rng(draw(st.integers(0, 2**16)))
    levels = 10.0 ** random.uniform(-3, 3, num_parameters)
    noise = draw(st.sampled_from([0.0, 0.05, 0.5]))
    norms = levels * np.exp(noise * random.standard_normal((num_steps, num_parameters)))
    parameters = st.sampled_from([*range(num_parameters), slice(None)])
    for step, where, factor in draw(st.lists(st.tuples(st.integers(0, num_steps - 1), parameters, SHIFTS), max_size=2)):
        norms[step:, where] *= factor
    rows = [[float(norm) for norm in step] for step in norms]
    for where in range(num_parameters):
        if draw(st.integers(0, 4)) == 0:
            first, last = sorted(draw(st.tuples(st.integers(0, num_steps), st.integers(0, num_steps))))
            for step in range(first, last):
                rows[step][where] = None
    events = st.tuples(st.integers(0, num_steps - 1), parameters, FACTORS, st.integers(1, 3))
    for step, where, factor, length in draw(st.lists(events, max_size=6)):
        for later in range(step, min(step + length, num_steps)):
            for index in range(num_parameters)[where] if isinstance(where, slice) else [where]:
                norm = rows[later][index]
                rows[later][index] = None if factor is None or norm is None else norm * factor
    return rows


@st.composite
def loss_histories(draw, num_steps=60):
    """Losses of any sign: a decay with noise, spikes, shifts, and values that are none; and learning rates."""
    random = np.random.default_rng(draw(st.integers(0, 2**16)))
    offset = draw(st.sampled_from([0.0, 0.0, -3.0]))
    noise = draw(st.sampled_from([0.0, 0.02, 0.4]))
    decay = draw(st.sampled_from([0.0, 0.01, 0.1]))
    losses = np.exp(-decay * np.arange(num_steps) + noise * random.standard_normal(num_steps))
    factors = st.sampled_from([1.5, 3.0, 10.0, 300.0, math.nan, math.inf])
    for step, factor in draw(st.lists(st.tuples(st.integers(0, num_steps - 1), factors), max_size=6)):
        losses[step] *= factor
    for step, factor in draw(st.lists(st.tuples(st.integers(0, num_steps - 1), SHIFTS), max_size=2)):
        losses[step:] *= factor
    rates = np.full(num_steps, 0.1)
    rates[draw(st.integers(0, num_steps)) :] *= draw(st.sampled_from([1.0, 10.0]))
    return [(float(loss), float(rate)) for loss, rate in zip(losses + offset, rates, strict=True)]
