"""Everything that is needed to take a step again, in a file: the state before it, its inputs, its random state.

captures/step-00000042.pt, for `torch.load(path, weights_only=True)`:
    step, loss, loss_scale, sample_ids, finding (JSON or None)
    model, optimizer, also    state dicts as they were before the step
    passes                    for each forward pass: {"args", "kwargs", "random"}
    gradients                 {"names", "mean", "std", "max", "min", "zero_ratio", "norm"}, one entry a parameter
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from gradguard.model.forward_inputs import ForwardInputs
from gradguard.snapshots.buffer_shadow import BufferShadow
from gradguard.snapshots.companions import Companions
from gradguard.snapshots.state_copy import alias, tensors_in
from gradguard.snapshots.tensor_file import write_tensors


class Captures:
    """Writes captures.

    Args:
        model: that is trained.
        optimizer: of its parameters.
        companions: what the user handed over beside them.
        inputs: of the forward passes since the last step.
        folder: where captures go; None when there is no place for them.

    Attributes:
        num_written: by this run, and by those that it resumed.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        companions: Companions,
        inputs: ForwardInputs,
        folder: Path | None,
    ) -> None:
        self._model = model
        self._optimizer = optimizer
        self._companions = companions
        self.inputs = inputs
        self.folder = folder
        self.num_written = 0

    def nbytes(self) -> int:
        """Return what model and optimizer alone take in a capture now."""
        state = [self._model.state_dict(), dict(self._optimizer.state)]
        return sum(tensor.nbytes for tensor in tensors_in(state))

    def write(self, step: int, facts: dict[str, Any], buffers: BufferShadow | None) -> tuple[Path, int]:
        """Write a capture of the step that is about to be taken; return its file and size, bytes.

        Args:
            step: optimizer step.
            facts: what else goes into the file, plain.
            buffers: their values before the forward passes; None where nobody keeps them.

        Raises:
            OSError: it could not be written; nothing is left behind.
        """
        if self.folder is None:
            raise FileNotFoundError("there is no run directory to write to")
        path = self.folder / f"step-{step:08d}.pt"
        contents = {
            "step": step,
            **facts,
            "model": alias(state_before(self._model, buffers)),
            "optimizer": alias(self._optimizer.state_dict()),
            "also": self._companions.save().get("also", {}),
            "passes": [
                {"args": savable(call.args), "kwargs": savable(call.kwargs), "random": call.random}
                for call in self.inputs.passes
            ],
        }
        size = write_tensors(path, contents)
        self.num_written += 1
        return path, size


def state_before(model: nn.Module, buffers: BufferShadow | None) -> dict[str, Any]:
    """Return a model's state dict with the buffers as they were before the forward passes of this step."""
    copies = buffers.copies() if buffers is not None else {}
    return {name: copies.get(id(value), value) for name, value in model.state_dict(keep_vars=True).items()}


def savable(value: Any) -> Any:
    """Return what a model was given in a form that loads without running code; of anything else only its type's name.

    Example:
        >>> savable(("a", {"b": [1, None]}, object()))
        ['a', {'b': [1, None]}, '<object>']
    """
    if isinstance(value, Tensor):
        return alias(value)
    if value is None or isinstance(value, (str, bytes, int, float, bool)):
        return value
    if isinstance(value, dict):
        return {key if isinstance(key, (str, int)) else repr(key): savable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [savable(item) for item in value]
    return f"<{type(value).__name__}>"
