"""Runs the user's training a few times and writes down what happens; afterwards everything is as before."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from gradguard.checklist.batch import Batch
from gradguard.checklist.facts import Facts, Group, Loss, Parameter
from gradguard.checklist.independence import leak
from gradguard.checklist.loss_facts import bad_labels, output_facts, react
from gradguard.checklist.loss_kind import by_type
from gradguard.checklist.passes import Failed, Passes
from gradguard.checklist.probes import Probes
from gradguard.checklist.restore import Remembered
from gradguard.checklist.statistics import describe, norm_of, num_nonfinite
from gradguard.checklist.trial import look_for_twins, overfit, slope_ratios, try_steps
from gradguard.checklist.weights import parameter_facts
from gradguard.model.parameter_names import clean_name, wrappers_of


DROPOUT = nn.modules.dropout._DropoutNd
MODED = (DROPOUT, nn.modules.batchnorm._BatchNorm)
OnStep = Callable[[int, float], None]


@dataclass(frozen=True)
class Wanted:
    """What the user asked for.

    Args:
        num_classes: that the labels may have; None for as many as the output has.
        overfit_steps: 0 for no one-batch overfit.
        on_step: called with (step, loss) in the overfit.
    """

    num_classes: int | None = None
    overfit_steps: int = 0
    on_step: OnStep = lambda step, loss: None


def measure(model: nn.Module, optimizer: Optimizer, batch: Batch, wanted: Wanted) -> Facts:
    """Return the facts of a training; all that raises in the user's code is among them."""
    wrappers, inner = wrappers_of(model), unwrapped(model)
    with torch.inference_mode(False), torch.enable_grad():
        parameters, tensors = parameter_facts(inner, optimizer)
        facts = _static_facts(inner, optimizer, batch, wanted, parameters)
        modules = [inner, *([batch.loss_fn] if isinstance(batch.loss_fn, nn.Module) else [])]
        names = {id(module): clean_name(name, wrappers) for name, module in inner.named_modules()}
        with Remembered(modules, tensors) as remembered:
            for module in inner.modules():
                module._compiled_call_impl = None  # hooks are not seen by compiled code
            passes = Passes(inner, batch, tensors, remembered)
            try:
                _Measuring(facts, passes, Probes(inner, names), optimizer, wanted).run()
            except Failed as failed:
                facts.failure = failed.failure
    return facts


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the user's model inside of DDP, DataParallel and torch.compile."""
    for wrapper in wrappers_of(model):
        model = getattr(model, wrapper)
    return model


def _static_facts(
    model: nn.Module, optimizer: Optimizer, batch: Batch, wanted: Wanted, parameters: list[Parameter]
) -> Facts:
    groups = tuple(
        Group(
            lr=float(group["lr"]),
            initial_lr=float(group.get("initial_lr", group["lr"])),
            weight_decay=float(group.get("weight_decay", 0.0)),
            is_maximized=bool(group.get("maximize", False)),
        )
        for group in optimizer.param_groups
    )
    facts = Facts(type(optimizer).__name__, groups, parameters, num_classes=wanted.num_classes)
    facts.nonfinite_buffers = tuple(name for name, buffer in model.named_buffers() if num_nonfinite(buffer))
    facts.inputs = tuple(describe(name, tensor) for name, tensor in batch.named_inputs())
    if batch.target is not None:
        facts.targets = describe("targets", batch.target)
        if not facts.targets.is_floating:
            facts.num_labels = len(torch.unique(batch.target))
    facts.is_training = model.training
    moded = [(name, module) for name, module in model.named_modules() if isinstance(module, MODED)]
    facts.dropout = {name: module.p for name, module in moded if isinstance(module, DROPOUT)}
    facts.resting = tuple(name for name, module in moded if not module.training)
    return facts


class _Measuring:
    """The order of the measurements; each adds to the facts, and the first that raises ends them."""

    def __init__(self, facts: Facts, passes: Passes, probes: Probes, optimizer: Optimizer, wanted: Wanted) -> None:
        self._facts, self._passes, self._probes = facts, passes, probes
        self._optimizer, self._wanted = optimizer, wanted

    def run(self) -> None:
        facts, passes = self._facts, self._passes
        try:
            output = passes.output(self._probes)
        finally:
            facts.places = tuple(self._probes.places)
            self._note_calls()
        main = main_tensor(output)
        self._note_output(output, main)
        loss = passes.loss(output)
        facts.loss.is_scalar, facts.loss.has_graph = loss.numel() == 1, loss.requires_grad
        if not facts.loss.is_scalar:
            return
        facts.loss.value = float(loss.detach())
        if not facts.loss.has_graph:
            return
        gradients = passes.gradients(loss)
        del loss, output
        self._note_gradients(gradients)
        target = passes.batch.target
        if main is not None and target is not None and main.is_floating_point() and passes.batch.loss_fn is not None:
            with self._attempt("how the loss reacts"):
                react(facts.loss, passes.batch, main, target)
        with self._attempt("whether samples are independent"):
            facts.leak = leak(passes, main)
            facts.is_leak_certain = self._has_certain_samples(main, target)
        if all(num_nonfinite(gradient) == 0 for gradient in gradients if gradient is not None):
            self._try(facts.loss.value, gradients)

    def _try(self, loss: float, gradients: list[Tensor | None]) -> None:
        facts, passes, steps = self._facts, self._passes, self._wanted.overfit_steps
        slopes: dict[float, float] = {}
        with self._attempt("where the gradient leads"):
            slopes = slope_ratios(passes, loss, gradients)
        with self._attempt(f"what a step of {facts.optimizer} does"):
            facts.trial = try_steps(passes, self._optimizer, facts.parameters, loss, gradients)
            facts.trial.slope_ratios = slopes
        if steps:
            with self._attempt("whether one batch can be learnt"):
                facts.overfit = overfit(passes, self._optimizer, steps, self._wanted.on_step)

    @contextmanager
    def _attempt(self, what: str) -> Iterator[None]:
        """Go on without a measurement that raises, and say so: models and losses come in every form."""
        try:
            yield
        except Exception as error:
            cause = error.failure.message if isinstance(error, Failed) else str(error)
            self._facts.unseen.append(f"{what}: {type(error).__name__}: {cause}")
            self._passes.remembered.reset_parameters()

    def _note_calls(self) -> None:
        places: dict[int, int] = {}
        for module in self._passes.model.modules():
            for parameter in module._parameters.values():
                call = self._probes.order.get(id(module), 0)
                if parameter is not None and call:
                    places[id(parameter)] = min(call, places.get(id(parameter), call))
        for fact, parameter in zip(self._facts.parameters, self._passes.parameters, strict=True):
            fact.order = places.get(id(parameter), 0)
            fact.is_called = fact.order > 0

    def _note_output(self, output: Any, main: Tensor | None) -> None:
        facts, batch = self._facts, self._passes.batch
        kind, reduction = by_type(batch.loss_fn)
        facts.loss = Loss(kind=kind, reduction=reduction)
        target = batch.target
        if main is None or not main.is_floating_point():
            return
        facts.output = output_facts(main, target)
        if target is not None and batch.loss_fn is not None:
            facts.bad_labels = bad_labels(facts.loss, batch.loss_fn, main, target, self._wanted.num_classes)
            if facts.bad_labels:  # on a GPU the loss would end the process
                raise Failed("labels", IndexError(f"labels outside of the classes: {facts.bad_labels}"))

    def _note_gradients(self, gradients: list[Tensor | None]) -> None:
        for fact, gradient in zip(self._facts.parameters, gradients, strict=True):
            if gradient is not None:
                fact.grad_norm, fact.grad_nonfinite = norm_of(gradient), num_nonfinite(gradient)
                fact.has_later_gradient = fact.grad_norm > 0
            fact.twins = float(fact.is_weight and gradient is not None)
        look_for_twins(self._passes, self._facts.parameters, gradients)

    def _has_certain_samples(self, main: Tensor | None, target: Tensor | None) -> bool:
        """Return whether the first dimension can be nothing but that of the samples."""
        inputs = self._passes.batch.named_inputs()
        return (
            main is not None
            and main.ndim >= 1
            and target is not None
            and len(inputs) == 1
            and target.ndim >= 1
            and len(target) == len(main)
            and target.numel() == len(target)
            and main.shape[1:2] != main.shape[:1]
        )


def main_tensor(output: Any) -> Tensor | None:
    """Return the model's output where it is one tensor, or names one "logits"."""
    if isinstance(output, Tensor):
        return output
    logits = output.get("logits") if isinstance(output, dict) else getattr(output, "logits", None)
    return logits if isinstance(logits, Tensor) else None
