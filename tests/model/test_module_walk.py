"""The walk gives what torch's own gives, in the same order."""

import pytest
import torch
from torch import nn

from gradguard.model.module_walk import named_tensors


class Shared(nn.Module):
    """A module, a parameter and a buffer that come up twice, and some that are None."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(2, 2, bias=False)
        self.block = nn.ModuleDict({"norm": nn.BatchNorm1d(2), "again": self.first})
        self.tied = nn.Linear(2, 2)
        self.tied.weight = self.first.weight
        self.scale = nn.Parameter(torch.ones(1))
        self.register_buffer("mask", torch.ones(2), persistent=False)
        self.register_buffer("nothing", None)
        self.block["norm"].register_buffer("mask", self.mask)
        self.gone = None
        self.register_module("absent", None)


class Renaming(nn.Linear):
    def named_parameters(self, *args, **kwargs):
        return [("renamed", self.weight)]


MODELS = [
    Shared,
    lambda: nn.TransformerEncoderLayer(4, 2, 8),
    lambda: nn.Sequential(nn.Conv1d(1, 2, 3), nn.Sequential(nn.BatchNorm1d(2), nn.LSTM(4, 2, 2)), nn.Flatten()),
    lambda: nn.DataParallel(nn.Linear(2, 2)),
    lambda: torch.compile(nn.Linear(2, 2), backend="eager"),
    lambda: nn.ParameterList([nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(2))]),
    lambda: Renaming(2, 2),
    lambda: nn.Identity(),
]


@pytest.mark.parametrize("make", MODELS)
def test_it_is_torchs_own_walk(make):
    model = make()
    found = named_tensors(model)
    for own, torchs in ((found.parameters, model.named_parameters()), (found.buffers, model.named_buffers())):
        torchs = list(torchs)
        assert [name for name, _ in own] == [name for name, _ in torchs]
        assert all(one is other for (_, one), (_, other) in zip(own, torchs, strict=True))
