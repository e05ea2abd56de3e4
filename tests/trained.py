"""A small model that has been trained a little, and everything that a step of it can change."""

import copy

import torch
from torch import nn


def build():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    return model, torch.optim.Adam(model.parameters(), lr=0.01)


def train(model, optimizer, seeds):
    for seed in seeds:
        inputs = torch.randn(8, 3, generator=torch.Generator().manual_seed(seed))
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()


def state_of(model, optimizer):
    return copy.deepcopy((model.state_dict(), optimizer.state_dict()["state"]))


def assert_same(found, expected):
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
