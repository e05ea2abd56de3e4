"""Healthy runs that one fault strikes in their middle: the guard has to bring them to where the clean run ends."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from benchmarks.zoo.healthy import HEALTHY
from benchmarks.zoo.setup import Setup
from gradguard.faults import Fault


STEPS, ONSET = 500, 200  # enough steps after the fault that a few lost ones do not show in the score
LATE = 480  # for what time alone would heal
BURST = 8  # batches in a row
BASES = {"H01": "2.weight", "H02": "4.weight", "H03": "0.weight", "H05": "5.weight", "H08": "layers.0.linear1.weight"}
NORMED = {"H03": "1", "H05": "2"}  # bases with batch normalisation, and the name of their first one


def _faults(weight: str) -> dict[str, tuple[str, Fault]]:
    return {
        "nan-batch": ("a NaN in one batch", Fault("nan", "batch", at=ONSET)),
        "bad-batch": ("one batch x-100", Fault("scale", "batch", at=ONSET, factor=-100.0)),
        "lr-spike": ("learning rate x200 for a step", Fault("scale", "lr", at=ONSET, factor=200.0)),
        "bit-flip": ("a flipped bit in a weight", Fault("bitflip", "weight", at=ONSET, parameters=weight)),
        "nan-burst": (f"a NaN in {BURST} batches in a row", Fault("nan", "batch", at=range(ONSET, ONSET + BURST))),
    }


def _spoil_running_variance(name: str) -> Callable[[nn.Module, int], None]:
    """Return what makes one running variance infinite, as memory damage does: training goes on, evaluation is lost."""

    def strike(model: nn.Module, step: int) -> None:
        if step == ONSET:
            variance = model.get_submodule(name).running_var
            assert isinstance(variance, torch.Tensor)
            variance[0] = float("inf")

    return strike


def _struck(base: Setup, fault_id: str, title: str, onset: int = ONSET, **changes: object) -> Setup:
    return Setup(
        id=f"T-{fault_id}@{base.id}",
        title=f"{base.title}: {title}",
        group="transient",
        make=base.make,
        steps=STEPS,
        onset=onset,
        clean=base.id,
        **changes,  # type: ignore[arg-type]
    )


def _build() -> list[Setup]:
    setups = []
    bases = {setup.id: setup for setup in HEALTHY if setup.id in BASES}
    for id, weight in BASES.items():
        for fault_id, (title, fault) in _faults(weight).items():
            setups.append(_struck(bases[id], fault_id, title, faults=(fault,)))
    for id, norm in NORMED.items():
        nan = Fault("nan", "batch", at=ONSET, module=norm)
        huge = Fault("scale", "batch", at=LATE, module=norm, factor=1e6)
        setups.append(_struck(bases[id], "bn-nan", "a NaN reaches batch normalisation", faults=(nan,)))
        setups.append(_struck(bases[id], "bn-huge", "huge values reach batch normalisation", LATE, faults=(huge,)))
        strike = _spoil_running_variance(norm)
        setups.append(_struck(bases[id], "bn-buffer", "an infinite running variance", poison=strike))
    return setups


TRANSIENT = tuple(_build())
