"""What is sampled now and then beside the gradients: activations, updates, parameters that nobody trains. No torch.

A `StepStats` carries one of these on the one step at which it is fresh, and None on all others.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


FloatArray = npt.NDArray[np.float32]
GATES = ("sigmoid", "hardsigmoid")
GATE_SIDE = 0.45  # distance of the mean from 0.5; sigmoids that weights saturate go to both sides


@dataclass(frozen=True)
class Activations:
    """Unit-level statistics of L places of the model over one probe's samples, as a structure of arrays.

    A unit is a channel (convolutions) or a feature; a place is the output of an activation module, or the input of a
    weighted module where the activation is a function called inside `forward`. A module that is called several times in
    a pass has a place for each of its first 4 calls: "relu", "relu (call 2)". An input is called "input of head".
    Inputs that were once below 0 are no ReLU's: they are told at the first probe and not looked at again.

    Args:
        names: (L,) of the places: fully qualified names of the modules.
        kinds: (L,) what kind of activation it is: "relu", "tanh", "sigmoid", "softmax", "gelu", ..., "input" for the
            input of a weighted module, "output" for the output of one.
        num_samples: (L,) samples that were seen, at least 256 where there were passes enough. All dimensions but the
            units are samples; behind a convolution a few positions of each image are, of at least 32 images.
        num_units: (L,) units.
        dead: (L,) share of the units that are 0 on every sample, in [0, 1]; for kinds that are never exactly 0, of
            those that are dormant.
        saturated: (L,) share of the entries in the flat part of a tanh or sigmoid, in [0, 1]; NaN for other kinds.
        zero_ratio: (L,) share of entries that are exactly 0.
        mean: (L,) of all entries.
        std: (L,) of all entries.
        nonfinite: (L,) entries that are NaN or infinite.
        output: of the whole model; None when its output is no floating tensor with samples in its first dimension.
        inputs: the floating tensors that were passed to the model, one each.
        through_time: how much of the gradient at the last time step of a recurrent module is left at its first, by
            the module's name; in (0, inf).
        dead_units: by place the indices of the units that `dead` counts, of those that were sampled; () unless a rule
            has a use for them.
        num_passes: forward passes that the samples come from.
        unseen: what could not be looked at, with the reason, one sentence each.
    """

    names: tuple[str, ...]
    kinds: tuple[str, ...]
    num_samples: npt.NDArray[np.int64]
    num_units: npt.NDArray[np.int64]
    dead: FloatArray
    saturated: FloatArray
    zero_ratio: FloatArray
    mean: FloatArray
    std: FloatArray
    nonfinite: npt.NDArray[np.int64]
    output: OutputStats | None
    inputs: tuple[InputStats, ...]
    through_time: dict[str, float]
    num_passes: int = 0
    unseen: tuple[str, ...] = ()
    dead_units: tuple[npt.NDArray[np.int64], ...] = ()

    def is_answer(self, place: int) -> bool:
        """Return whether a place is the last one and as wide as the output: what it says is the model's answer."""
        is_last = place == len(self.names) - 1
        return is_last and self.output is not None and int(self.num_units[place]) == self.output.num_units

    def is_gate(self, place: int) -> bool:
        """Return whether a sigmoid is open, or shut, for nearly all: a gate, which is meant to start like that."""
        return self.kinds[place] in GATES and abs(float(self.mean[place]) - 0.5) > GATE_SIDE


@dataclass(frozen=True)
class OutputStats:
    """The model's output over one probe's samples.

    Args:
        num_samples: samples that were seen.
        num_units: outputs per sample.
        spread: standard deviation over the samples, averaged over the outputs.
        level: mean of the absolute outputs.
        dead: share of the outputs that are exactly 0 on every sample.
        shape: of one batch's output.
    """

    num_samples: int
    num_units: int
    spread: float
    level: float
    dead: float
    shape: tuple[int, ...]


@dataclass(frozen=True)
class InputStats:
    """One floating tensor that was passed to the model, over one probe's samples.

    Args:
        name: of the argument, or its position.
        mean: of the finite entries.
        std: of the finite entries.
        largest: largest absolute finite entry.
        nonfinite: entries that are NaN or infinite.
        shape: of one batch.
    """

    name: str
    mean: float
    std: float
    largest: float
    nonfinite: int
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Updates:
    """What one applied step did to the P parameters, from the entries that were sampled (all of small tensors).

    Args:
        update_norms: (P,) estimated L2 norm of the parameter's change; NaN where it was not looked at.
        weight_norms: (P,) L2 norm of the parameter before it.
        step: that made the change.
        lr: learning rate of the first param group at that step, with the guard's factor.
        lr_max: largest of the rates so far.
        cosine: cosine between this change and that of the step before, over all sampled entries; NaN if unknown.
        unmoved: rows of parameters that had a gradient above 0 at this step and did not change in any entry.
        untrained: names of parameters outside of the optimizer that want a gradient, have one, and have not changed
            since the guard was attached.
        without_gradient: rows of parameters that want a gradient and have had none at any step so far.
    """

    update_norms: FloatArray
    weight_norms: FloatArray
    step: int
    lr: float
    lr_max: float
    cosine: float
    unmoved: tuple[int, ...] = ()
    untrained: tuple[str, ...] = ()
    without_gradient: tuple[int, ...] = ()
