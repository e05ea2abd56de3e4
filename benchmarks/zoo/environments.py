"""A pole on a cart, many at once: the classic control task (Barto, Sutton and Anderson 1983)."""

from __future__ import annotations

import torch
from torch import Tensor


GRAVITY, FORCE, TICK = 9.8, 10.0, 0.02
CART, POLE, HALF_LENGTH = 1.0, 0.1, 0.5
MAX_ANGLE, MAX_PLACE = 0.21, 2.4
NUM_INPUTS, NUM_ACTIONS = 4, 2


class CartPoles:
    """Carts with poles; one that falls, or has stood for `limit` ticks, starts again.

    Args:
        count: how many, N.
        seed: of the starts.
        limit: ticks of an episode.
    """

    def __init__(self, count: int, seed: int, limit: int = 100) -> None:
        self._generator = torch.Generator().manual_seed(seed)
        self._limit = limit
        self.state = self._fresh(count)
        self.age = torch.zeros(count)

    def _fresh(self, count: int) -> Tensor:
        return torch.rand(count, NUM_INPUTS, generator=self._generator) * 0.1 - 0.05

    def step(self, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Push every cart left (0) or right (1).

        Returns:
            The states (N, 4) just after, before any restart; whether each pole fell (N,); whether each episode is over.
        """
        place, speed, angle, spin = self.state.unbind(1)
        force = (action.float() * 2 - 1) * FORCE
        sin, cos = angle.sin(), angle.cos()
        total = CART + POLE
        push = (force + POLE * HALF_LENGTH * spin.square() * sin) / total
        turn = (GRAVITY * sin - cos * push) / (HALF_LENGTH * (4 / 3 - POLE * cos.square() / total))
        pull = push - POLE * HALF_LENGTH * turn * cos / total
        after = torch.stack([place + TICK * speed, speed + TICK * pull, angle + TICK * spin, spin + TICK * turn], dim=1)
        self.age += 1
        fell = (after[:, 0].abs() > MAX_PLACE) | (after[:, 2].abs() > MAX_ANGLE)
        over = fell | (self.age >= self._limit)
        self.state = torch.where(over[:, None], self._fresh(len(after)), after)
        self.age[over] = 0
        return after, fell, over
