"""What a pre-flight measures, as plain numbers: all that a check sees. No torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


LossKind = Literal["cross_entropy", "nll", "bce_with_logits", "bce", "mse", "l1", "other"]
NEVER_NEGATIVE: tuple[LossKind, ...] = ("cross_entropy", "nll", "bce_with_logits", "bce", "mse", "l1")
Stage = Literal["forward", "loss", "backward", "labels"]


@dataclass
class Tensors:
    """One tensor: what is in it.

    Args:
        name: "inputs", "inputs[1]", "inputs['pixels']", "targets", "output".
        shape: of it.
        dtype: such as "float32".
        is_floating: False for integers and bools; these have no statistics but `smallest` and `largest`.
        mean: of the finite entries.
        std: of the finite entries.
        smallest: finite entry.
        largest: finite entry.
        nonfinite: entries that are NaN or infinite.
        is_whole: all finite entries are whole numbers.
        num_values: different finite entries, counted up to 3.
        feature_stds: (F,) standard deviation of each feature of an (N, F) tensor of at least 16 rows, else empty.
        zero_share: share of the entries that are exactly 0.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    is_floating: bool
    mean: float = 0.0
    std: float = 0.0
    smallest: float = 0.0
    largest: float = 0.0
    nonfinite: int = 0
    is_whole: bool = False
    num_values: int = 3
    feature_stds: tuple[float, ...] = ()
    zero_share: float = 0.0


@dataclass
class Parameter:
    """One parameter tensor.

    Args:
        name: fully qualified.
        kind: class of the module that owns it, "Linear".
        shape: of it.
        is_trained: requires_grad.
        memberships: in how many places of the optimizer it is.
        is_foreign: not the model's, but the optimizer's.
        is_called: the module that owns it was called in the forward pass.
        order: place of that first call among all calls; 0 for modules that were not called.
        is_weight: the weight of a linear layer or a convolution.
        fan_in: inputs of one unit of such a weight.
        mean: of its entries.
        std: of its entries.
        norm: L2.
        nonfinite: entries that are NaN or infinite.
        grad_norm: L2 of its gradient on the batch; None without one.
        grad_nonfinite: entries of it that are NaN or infinite.
        has_later_gradient: the gradient was not zero at one of the trial steps.
        twins: share of the units whose weights and gradients equal those of another unit, at every trial step.
        update_ratio: norm(change)/norm(weight) of the first trial step; None when there was none.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    is_trained: bool
    memberships: int
    is_foreign: bool = False
    is_called: bool = False
    order: int = 0
    is_weight: bool = False
    fan_in: int = 1
    mean: float = 0.0
    std: float = 0.0
    norm: float = 0.0
    nonfinite: int = 0
    grad_norm: float | None = None
    grad_nonfinite: int = 0
    has_later_gradient: bool = False
    twins: float = 0.0
    update_ratio: float | None = None

    @property
    def layer(self) -> str:
        """Name of the module that owns it."""
        return self.name.rpartition(".")[0] or self.name


@dataclass
class Place:
    """What went through one place of the model on the batch.

    Args:
        name: of the module, with the function where it is called inside of `forward`.
        kind: "relu", "tanh", "sigmoid", ... for an activation; "weighted" for the output of a linear layer or a
            convolution; "other" for the output of any other module without children.
        num_samples: samples that each unit was seen on, positions included.
        spread: standard deviation over the samples, averaged over the units.
        dead: share of the units that are 0 on every sample.
        saturated: share of the entries in the flat part of a tanh or sigmoid.
        nonfinite: entries that are NaN or infinite.
        is_fed_finite: all floating inputs of the module were finite.
        parameter: name of the weight, for weighted ones.
    """

    name: str
    kind: str
    num_samples: int = 0
    spread: float = 0.0
    dead: float = 0.0
    saturated: float = 0.0
    nonfinite: int = 0
    is_fed_finite: bool = True
    parameter: str = ""


@dataclass
class Output:
    """The model's output, where it is one tensor.

    Args:
        tensor: its statistics.
        function: the last function applied to it: "softmax", "log_softmax", "sigmoid", "relu", "tanh" or "".
        classes: size of the dimension of the classes, None when there is none.
        is_distribution: entries are not negative and sum to 1 over the classes.
        is_log_distribution: the same holds for their exponentials.
    """

    tensor: Tensors
    function: str = ""
    classes: int | None = None
    is_distribution: bool = False
    is_log_distribution: bool = False


@dataclass
class Loss:
    """The loss on the batch, and how it reacts.

    Args:
        kind: which loss it is, found by its type or by what it gives on made-up outputs.
        reduction: "mean" or "sum", where known.
        value: on the batch; None when it could not be computed.
        is_scalar: it has one entry.
        has_graph: it depends on something that wants a gradient.
        reacts_to_output: another output gives another loss.
        reacts_to_targets: other targets give another loss.
        reacts_to_order: targets in another order give another loss or another gradient.
        constant_loss: what the best constant prediction gives, for the mean squared error.
    """

    kind: LossKind = "other"
    reduction: str = ""
    value: float | None = None
    is_scalar: bool = True
    has_graph: bool = True
    reacts_to_output: bool = True
    reacts_to_targets: bool = True
    reacts_to_order: bool = True
    constant_loss: float | None = None


@dataclass
class Failure:
    """The training raised.

    Args:
        stage: in what.
        error: type of the exception.
        message: first lines of it.
        module: in which it was raised, "" if outside of the model.
    """

    stage: Stage
    error: str
    message: str
    module: str = ""


@dataclass
class Trial:
    """A few steps on the same batch with a copy of the optimizer.

    Args:
        losses: before the first step and after each.
        promised: by how much the first step changes the loss to first order: negative for a step downhill.
        slope_ratios: by step size, how much of the promised change a small step along minus the gradient brings.
    """

    losses: tuple[float, ...] = ()
    promised: float = 0.0
    slope_ratios: dict[float, float] = field(default_factory=dict)


@dataclass
class Group:
    """One param group of the optimizer.

    Args:
        lr: its learning rate now.
        initial_lr: the one that a scheduler starts from; `lr` without a scheduler.
        weight_decay: as it is.
        is_maximized: its steps go uphill.
    """

    lr: float
    initial_lr: float
    weight_decay: float = 0.0
    is_maximized: bool = False


@dataclass
class Facts:
    """Everything that was measured; what could not be is empty or None, and `unseen` says why.

    Args:
        optimizer: its class.
        groups: its param groups.
        parameters: of the model, then those that only the optimizer has.
        nonfinite_buffers: names of the model's buffers that hold a NaN or an infinity.
        inputs: tensors of the inputs.
        targets: where they are one tensor.
        bad_labels: labels outside of the classes, some of them.
        num_labels: different labels in the batch.
        num_classes: as the user said, else None.
        places: in order of the calls.
        output: None when the output is not one tensor.
        loss: as measured.
        failure: what was raised, None if nothing.
        trial: None when no step could be tried.
        overfit: the losses of the one-batch overfit, None if not asked for.
        is_training: the model's mode.
        resting: dropout and batch normalisation modules in evaluation mode.
        dropout: share that each dropout module drops, by its name.
        leak: how far a sample's output moved when the other samples were others, over the spread of the outputs;
            None where that cannot be told.
        is_leak_certain: the shapes leave no doubt about which dimension holds the samples.
        unseen: what could not be measured, and why.
    """

    optimizer: str
    groups: tuple[Group, ...]
    parameters: list[Parameter]
    nonfinite_buffers: tuple[str, ...] = ()
    inputs: tuple[Tensors, ...] = ()
    targets: Tensors | None = None
    bad_labels: tuple[int, ...] = ()
    num_labels: int | None = None
    num_classes: int | None = None
    places: tuple[Place, ...] = ()
    output: Output | None = None
    loss: Loss = field(default_factory=Loss)
    failure: Failure | None = None
    trial: Trial | None = None
    overfit: tuple[float, ...] | None = None
    is_training: bool = True
    resting: tuple[str, ...] = ()
    dropout: dict[str, float] = field(default_factory=dict)
    leak: float | None = None
    is_leak_certain: bool = False
    unseen: list[str] = field(default_factory=list)
