"""A snapshot as a checkpoint file that anyone can load, for a run that had to be given up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.optim import Optimizer

from gradguard.gradients.sharded import local
from gradguard.snapshots.snapshot import live_tensors


if TYPE_CHECKING:
    from gradguard.snapshots.snapshot import Snapshot


def as_checkpoint(snapshot: Snapshot, model: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
    """Return {"step", "model", "optimizer"}: the state_dicts as they were when the snapshot was taken.

    What the snapshot does not hold (the options of the param groups, tensors of other kinds) is as it is now.

    Args:
        snapshot: of this model and optimizer.
        model: gives the names.
        optimizer: gives the param groups.
    """
    saved = snapshot.state_dict()
    keys = {_place(tensor): key for key, tensor in live_tensors(model, optimizer).items()}
    named = dict(model.state_dict())
    for name, value in named.items():
        key = keys.get(_place(local(value))) if isinstance(value, Tensor) else None
        if key in saved["tensors"]:
            named[name] = saved["tensors"][key]
    state = {index: state for index, state in enumerate(saved["state"]) if state is not None}
    return {"step": snapshot.step, "model": named, "optimizer": {**optimizer.state_dict(), "state": state}}


def _place(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.data_ptr(), tensor.shape, tensor.stride()
