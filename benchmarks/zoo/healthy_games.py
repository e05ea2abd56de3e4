"""Healthy runs without a fixed target: two networks against each other, and learning from reward."""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, one_hot, smooth_l1_loss
from torch.optim import Adam

from benchmarks.zoo.data import batches, digits
from benchmarks.zoo.environments import NUM_ACTIONS, NUM_INPUTS, CartPoles
from benchmarks.zoo.models import mlp
from benchmarks.zoo.setup import Opening, Setup, Training
from benchmarks.zoo.supervised import accuracy, first_batch, plain_turn


NUM_MODES = 8
SPREAD = 0.3  # of a mode


def _gan(seed: int) -> Training:
    """Eight clouds on a ring; generator and discriminator have an optimizer, and a guard, each."""
    torch.manual_seed(seed)
    angles = torch.arange(NUM_MODES) * (2 * math.pi / NUM_MODES)
    modes = 2 * torch.stack([angles.cos(), angles.sin()], dim=1)
    model = nn.ModuleDict(
        {
            "generator": mlp(2, inputs=4, outputs=2),
            "critic": mlp(2, inputs=2, outputs=1, act=lambda: nn.LeakyReLU(0.2)),
        }
    )
    ones, zeros = torch.ones(64, 1), torch.zeros(64, 1)

    def fake(count: int) -> Tensor:
        return model["generator"](torch.randn(count, 4))

    def critic_loss(step: int) -> Tensor:
        real = modes[torch.randint(NUM_MODES, (64,))] + SPREAD * torch.randn(64, 2)
        right = binary_cross_entropy_with_logits(model["critic"](real), ones)
        return right + binary_cross_entropy_with_logits(model["critic"](fake(64).detach()), zeros)

    def generator_loss(step: int) -> Tensor:
        return binary_cross_entropy_with_logits(model["critic"](fake(64)), ones)

    def score() -> float:
        """Return the share of samples near a mode, times the share of modes that have samples."""
        torch.manual_seed(0)
        with torch.no_grad():
            distances = torch.cdist(fake(512), modes)
        near = distances.min(1).values < 3 * SPREAD
        return near.float().mean().item() * len(distances.argmin(1)[near].unique()) / NUM_MODES

    turns = [
        plain_turn(Adam(model["critic"].parameters(), 2e-3, betas=(0.5, 0.999)), critic_loss),
        plain_turn(Adam(model["generator"].parameters(), 1e-3, betas=(0.5, 0.999)), generator_loss),
    ]
    generator = torch.Generator().manual_seed(seed)
    real = modes.repeat(8, 1) + SPREAD * torch.randn(64, 2, generator=generator)
    batch = torch.cat([real, 0.1 * torch.randn(64, 2, generator=generator)]), torch.cat([ones, zeros])
    return Training(model, turns, score, Opening(model["critic"], batch, binary_cross_entropy_with_logits))


def _bandit(seed: int) -> Training:
    """Policy gradient on images of digits: the reward is 1 for naming the class."""
    torch.manual_seed(seed)
    model, data = mlp(2), digits()
    order = batches(len(data.x), 64, seed)
    usual = [0.1]

    def loss_at(step: int) -> Tensor:
        rows = next(order)
        log_shares = model(data.x[rows]).log_softmax(1)
        action = log_shares.detach().exp().multinomial(1).squeeze(1)
        reward = (action == data.y[rows]).float()
        loss = -((reward - usual[0]) * log_shares[torch.arange(64), action]).mean()
        usual[0] = 0.9 * usual[0] + 0.1 * reward.mean().item()
        return loss

    def surprise(scores: Tensor, labels: Tensor) -> Tensor:
        log_shares = scores.log_softmax(1)
        action = log_shares.detach().exp().multinomial(1).squeeze(1)
        reward = (action == labels).float()
        return -((reward - 0.1) * log_shares[torch.arange(len(scores)), action]).mean()

    opening = first_batch(model, data, 64, seed, surprise)
    turn = plain_turn(Adam(model.parameters(), 3e-3), loss_at)
    return Training(model, [turn], lambda: accuracy(model, data), opening)


@torch.no_grad()
def _balance(model: nn.Module, ticks: int = 100, count: int = 32) -> float:
    """Return for how much of the time poles stand, up to their first fall, when the model's best action is taken."""
    poles = CartPoles(count, seed=1234, limit=10**9)
    stands = torch.ones(count, dtype=torch.bool)
    stood = 0
    for _ in range(ticks):
        _, fell, _ = poles.step(model(poles.state).argmax(1))
        stands &= ~fell
        stood += int(stands.sum())
    return stood / (ticks * count)


@torch.no_grad()
def _episodes(model: nn.Module, poles: CartPoles, ticks: int) -> tuple[Tensor, Tensor, Tensor]:
    """Play; return states (T, N, 4), actions (T, N) and standardised returns (T, N)."""
    states, actions, ends = [], [], []
    for _ in range(ticks):
        states.append(poles.state)
        actions.append(model(poles.state).softmax(1).multinomial(1).squeeze(1))
        _, fell, over = poles.step(actions[-1])
        ends.append((fell, over))
    returns, later = [], torch.zeros(len(poles.age))
    for fell, over in reversed(ends):
        later = 1.0 - fell.float() + 0.95 * torch.where(over, torch.zeros_like(later), later)
        returns.append(later)
    gains = torch.stack(returns[::-1])
    return torch.stack(states), torch.stack(actions), (gains - gains.mean()) / (gains.std() + 1e-6)


def _reinforce(seed: int) -> Training:
    """REINFORCE on a pole on a cart: a loss of any sign that tells nothing of the progress."""
    torch.manual_seed(seed)
    model = mlp(1, 32, inputs=NUM_INPUTS, outputs=NUM_ACTIONS, act=nn.Tanh)
    poles = CartPoles(16, seed)

    def loss_at(step: int) -> Tensor:
        states, actions, gains = _episodes(model, poles, 40)
        log_shares = model(states).log_softmax(-1).gather(-1, actions[..., None]).squeeze(-1)
        return -(gains * log_shares).mean()

    def loss(scores: Tensor, played: tuple[Tensor, Tensor]) -> Tensor:
        actions, gains = played
        return -(gains * scores.log_softmax(-1).gather(-1, actions[..., None]).squeeze(-1)).mean()

    with torch.random.fork_rng():
        states, actions, gains = _episodes(model, CartPoles(16, seed), 40)
    opening = Opening(model, (states, (actions, gains)), loss)
    turn = plain_turn(Adam(model.parameters(), 1e-2), loss_at)
    return Training(model, [turn], lambda: _balance(model), opening)


def _q_learning(seed: int) -> Training:
    """Q-learning with replay and a target network: the targets grow, and with them the loss."""
    torch.manual_seed(seed)
    model = mlp(2, inputs=NUM_INPUTS, outputs=NUM_ACTIONS)
    target = copy.deepcopy(model)
    poles = CartPoles(16, seed)
    memory: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []

    @torch.no_grad()
    def play(chance: float) -> None:
        state = poles.state
        greedy = model(state).argmax(1)
        action = torch.where(torch.rand(16) < chance, torch.randint(NUM_ACTIONS, (16,)), greedy)
        after, fell, _ = poles.step(action)
        memory.append((state, action, after, fell))

    def loss_at(step: int) -> Tensor:
        if step == 0:
            for _ in range(20):
                play(1.0)
        play(max(0.05, 1 - step / 200))
        if step % 25 == 0:
            target.load_state_dict(model.state_dict())
        chosen = [memory[i] for i in torch.randint(len(memory), (8,)).tolist()]
        state, action, after, fell = (torch.cat(parts) for parts in zip(*chosen, strict=True))
        with torch.no_grad():
            wanted = torch.where(fell, -1.0, 1.0 + 0.95 * target(after).max(1).values)
        value = (model(state) * one_hot(action, NUM_ACTIONS)).sum(1)
        return smooth_l1_loss(value, wanted)

    def loss(values: Tensor, played: tuple[Tensor, Tensor]) -> Tensor:
        action, wanted = played
        return smooth_l1_loss((values * one_hot(action, NUM_ACTIONS)).sum(1), wanted)

    starts = CartPoles(64, seed)
    pushed = torch.arange(64) % NUM_ACTIONS
    opening = Opening(model, (starts.step(pushed)[0], (pushed, torch.ones(64))), loss)
    turn = plain_turn(Adam(model.parameters(), 2e-3), loss_at)
    return Training(model, [turn], lambda: _balance(model), opening)


HEALTHY_GAMES = (
    Setup("H44", "GAN on a ring of clouds", "healthy", _gan, 600),
    Setup("H45", "REINFORCE, contextual bandit", "healthy", _bandit, 500),
    Setup("H46", "REINFORCE, pole on a cart", "healthy", _reinforce, 150),
    Setup("H47", "Q-learning, pole on a cart", "healthy", _q_learning, 500),
)
