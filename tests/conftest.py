"""What every test shares: one thread, fixed seeds, loguru off the terminal, and a bit-exact view of a training."""

import random

import numpy as np
import pytest
import torch
from loguru import logger


torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def seeded():
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def quiet():
    logger.remove()


@pytest.fixture
def lines():
    """What loguru shows to a person, as "LEVEL|message"."""
    told = []
    handler = logger.add(lambda message: told.append(str(message).rstrip("\n")), format="{level}|{message}", level=0)
    yield told
    logger.remove(handler)


def flatten(value, place=""):
    if isinstance(value, torch.Tensor) and value.layout == torch.sparse_coo:
        yield from flatten([value._indices(), value._values()], place)
    elif isinstance(value, torch.Tensor):
        value = value.detach().cpu()
        value = torch.view_as_real(value) if value.is_complex() else value
        yield (
            place,
            (
                str(value.dtype),
                value.clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8).numpy().tobytes(),
            ),
        )
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from flatten(item, f"{place}.{key}")
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from flatten(item, f"{place}.{index}")
    else:
        yield place, repr(value)


@pytest.fixture(scope="session")
def bits():
    """Function that returns every bit a training depends on, by name: parameters, buffers, optimizer state, and RNG."""

    def read(model, *optimizers):
        random_state = {"torch": torch.get_rng_state(), "numpy": np.random.get_state()[1:], "python": random.getstate()}
        state = [optimizer.state_dict() for optimizer in optimizers]
        return dict(flatten({"model": model.state_dict(), "optimizer": state, "random": random_state}))

    return read
