"""A diagnosis that keeps what probes saw, and trainings under it."""

import torch
from torch import nn

import gradguard
from gradguard.contracts import Diagnosis
from gradguard.probes.activation_probe import ActivationProbe


class Witness(Diagnosis):
    """Remembers everything that was sampled: [(step, what)]."""

    name = "witness"
    reads = frozenset({"activations", "updates"})

    def init(self, table, rows):
        return []

    def update(self, state, stats):
        for seen in (stats.activations, stats.updates):
            if seen is not None:
                state.append((stats.step, seen))
        return state, None

    def dump_state(self, state):
        return {}

    def load_state(self, state, dumped):
        return state


def policy(sync="immediate", every=10, **monitor):
    monitor = {"sync": sync, "probe_every": every, **monitor}
    return gradguard.Policy(monitor=monitor, rules=[{"when": Witness(), "do": "notify"}], sinks=[])


def seen_by(guard):
    return guard._pipeline.judgement.entries[0].state


def probe(model, *args, passes=1, call=None, **kwargs):
    """Return what one probe of a model sees over some forward passes."""

    def fail(what, error):
        raise error

    looking = ActivationProbe(model, fail)
    looking.begin()
    for _ in range(passes):
        (model if call is None else call)(*args, **kwargs)
    seen = looking.launch()()
    assert num_hooks(model) == 0
    return seen


def num_hooks(model):
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


def train(model, optimizer, make_batch, steps, guard=None, loss_of=None):
    for step in range(steps):
        optimizer.zero_grad()
        output = model(make_batch(step))
        loss = output.square().mean() if loss_of is None else loss_of(output)
        loss.backward()
        if guard is not None:
            guard.observe(loss)
        optimizer.step()


def draw(*shape):
    return lambda step: torch.randn(*shape, generator=torch.Generator().manual_seed(step))


def mlp(*activations, width=8):
    layers = []
    for activation in activations:
        layers += [nn.Linear(width, width), activation]
    return nn.Sequential(*layers, nn.Linear(width, 3))
