"""Whether a sample's output depends on the other samples of the batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gradguard.checklist.batch import mapped, tensors_of
from gradguard.checklist.passes import Passes
from gradguard.checklist.statistics import dense


MIN_SAMPLES = 4
BATCH_STATISTICS = (nn.modules.batchnorm._BatchNorm,)


@torch.no_grad()
def leak(passes: Passes, output: Any) -> float | None:
    """Return how far the last sample's output moves, over the spread of the outputs, when the others change.

    They become copies of the first sample, so that every input is one that the model can take.

    Measured in evaluation mode, where batch normalisation keeps the samples apart. None where it cannot be told: no
    common first dimension, fewer than four samples, outputs that are all equal, normalisation that always uses the
    batch's statistics.
    """
    tensors = list(tensors_of(passes.batch.inputs))
    if not isinstance(output, Tensor) or output.ndim < 1 or any(t.ndim < 1 for t in tensors):
        return None
    (count, *others) = {len(tensor) for tensor in (*tensors, output)}
    if others or count < MIN_SAMPLES or _mixes_on_purpose(passes.model):
        return None
    order = torch.zeros(count, dtype=torch.int64)
    order[-1] = count - 1
    modules: Sequence[tuple[nn.Module, bool]] = [(module, module.training) for module in passes.model.modules()]
    try:
        passes.model.eval()
        results = []
        for inputs in (
            passes.batch.inputs,
            mapped(lambda tensor: tensor[order.to(tensor.device)], passes.batch.inputs),
        ):
            passes.remembered.rewind()
            for module, _ in modules:
                module.training = False
            results.append(dense(passes.batch.output(passes.model, inputs)))
    except Exception:  # a model that does not run in evaluation mode is not our business
        return None
    finally:
        for module, was_training in modules:
            module.training = was_training
    first, second = results
    spread = float(first.std(0).mean())
    if not (0 < spread < float("inf")):
        return None
    return float((first[-1] - second[-1]).abs().max()) / spread


def _mixes_on_purpose(model: nn.Module) -> bool:
    return any(isinstance(m, BATCH_STATISTICS) and m.running_mean is None for m in model.modules())
