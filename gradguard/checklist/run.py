"""preflight: checks a training before its first step."""

from __future__ import annotations

import importlib
import pkgutil
import warnings
from collections.abc import Callable, Collection, Iterable
from typing import Any

from torch import nn
from torch.nn.parameter import UninitializedParameter
from torch.optim import Optimizer

from gradguard.checklist.batch import Batch, LossFunction
from gradguard.checklist.facts import Facts
from gradguard.checklist.finding import PreflightFinding
from gradguard.checklist.measure import Wanted, measure, unwrapped
from gradguard.checklist.overfit_bar import overfit_bar
from gradguard.checklist.report import PreflightReport
from gradguard.checklist.restore import RandomState
from gradguard.errors import UsageError, did_you_mean
from gradguard.gradients.sharded import is_sharded
from gradguard.records import SEVERITIES


Check = Callable[[Facts], Iterable[PreflightFinding]]


def preflight(
    model: nn.Module,
    optimizer: Optimizer,
    batch: Any,
    loss_fn: LossFunction | None,
    *,
    num_classes: int | None = None,
    overfit: bool = False,
    overfit_steps: int = 100,
    skip: Collection[str] = (),
) -> PreflightReport:
    """Check a training before its first step: initialisation, data, loss, optimizer, gradients, learning rate.

    The model is run on the batch about ten times, with the mode that it is in, and a few steps are tried. Afterwards
    parameters, buffers, gradients, optimizer state, modes and random generators are bit for bit as before, whatever
    happens. It takes memory for two more copies of the parameters and one of the optimizer's state. What raises in the
    training is a finding, not an exception. The loss function is called some twenty times: it should have no memory.

    Args:
        model: as it will be trained; inside of DDP or torch.compile the model itself is looked at.
        optimizer: as it will be used; a copy of it is tried.
        batch: (inputs, targets) with inputs a tensor for `model(inputs)`, a tuple for `model(*inputs)` or a dict for
            `model(**inputs)`; or a dict for `model(**batch)`.
        loss_fn: function of (output, targets), or of (output, batch) for a dict; None for a model that takes a dict and
            returns its loss as `output.loss`.
        num_classes: of the labels; None for as many as the output has.
        overfit: also train on this one batch for `overfit_steps` and see whether it can be learnt.
        overfit_steps: at least 1.
        skip: names of checks to leave out, such as "sample_independence" for a model that mixes samples on purpose.

    Returns:
        The report: `report.show()`, `report.ok`, `report.raise_for_findings()` in a test.

    Raises:
        UsageError: an argument does not fit; nothing was run.

    Example:
        >>> import gradguard, torch
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Softmax(1))
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> batch = torch.randn(32, 4), torch.randint(3, (32,))
        >>> report = gradguard.preflight(model, optimizer, batch, torch.nn.CrossEntropyLoss())
        >>> report.ok, [finding.check for finding in report.findings]
        (False, ['output_layer'])
    """
    checks = known_checks()
    _refuse(model, optimizer, num_classes, overfit_steps, skip, checks)
    form = Batch(batch, loss_fn)
    before = RandomState()  # a progress bar draws random numbers, too
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, about shapes and the like, come as findings
        try:
            with overfit_bar(overfit_steps if overfit else 0) as on_step:
                facts = measure(model, optimizer, form, Wanted(num_classes, overfit_steps if overfit else 0, on_step))
        finally:
            before.put_back()
    wanted = [name for name in checks if name not in skip]
    findings = [found.model_copy(update={"check": name}) for name in wanted for found in checks[name](facts)]
    findings.sort(key=lambda found: -SEVERITIES.index(found.severity))
    return PreflightReport(
        subject=_subject(model, facts),
        findings=tuple(findings),
        checked=tuple(name for name in wanted if name != "overfit" or overfit),
        skipped=tuple(name for name in checks if name in skip),
        unseen=tuple(facts.unseen),
        loss=facts.loss.value,
        overfit=facts.overfit,
    )


def known_checks() -> dict[str, Check]:
    """Return every check in `gradguard.checks` by the name of its file."""
    package = importlib.import_module("gradguard.checks")
    names = sorted(module.name for module in pkgutil.iter_modules(package.__path__))
    return {name: importlib.import_module(f"gradguard.checks.{name}").check for name in names}


def _refuse(
    model: object,
    optimizer: object,
    num_classes: object,
    overfit_steps: object,
    skip: Collection[str],
    checks: Collection[str],
) -> None:
    if not isinstance(model, nn.Module):
        raise UsageError(f"preflight(model, ...) expects a torch.nn.Module first, got {type(model).__name__}")
    if not isinstance(optimizer, Optimizer):
        hint = "; pass its inner optimizer" if hasattr(optimizer, "optimizer") else ""
        raise UsageError(f"preflight expects a torch.optim.Optimizer second, got {type(optimizer).__name__}{hint}")
    parameters = list(unwrapped(model).parameters())
    if not parameters:
        raise UsageError("the model has no parameters: there is nothing to train")
    if any(isinstance(p, UninitializedParameter) for p in parameters):
        raise UsageError("the model has lazy layers without weights; run it once on a batch before the pre-flight")
    if any(p.is_meta for p in parameters):
        raise UsageError("the model is on the meta device, without values; initialise it before the pre-flight")
    if any(is_sharded(p) for p in parameters) or type(model).__name__ == "FullyShardedDataParallel":
        raise UsageError("the model is sharded (FSDP); run the pre-flight on it before fully_shard")
    if isinstance(num_classes, bool) or not (num_classes is None or (isinstance(num_classes, int) and num_classes > 1)):
        raise UsageError(f"num_classes must be a whole number from 2 on or None, got {num_classes!r}")
    if isinstance(overfit_steps, bool) or not isinstance(overfit_steps, int) or overfit_steps < 1:
        raise UsageError(f"overfit_steps must be a whole number from 1 on, got {overfit_steps!r}")
    if isinstance(skip, str):
        raise UsageError(f"skip takes a list of names, got the text {skip!r}; pass [{skip!r}]")
    for name in skip:
        if name not in checks:
            raise UsageError(f"unknown check {name!r} in skip{did_you_mean(str(name), checks)}")


def _subject(model: nn.Module, facts: Facts) -> str:
    count = sum(parameter.numel() for parameter in unwrapped(model).parameters())
    rates = " and ".join(sorted({f"{group.lr:g}" for group in facts.groups}))
    shape = " x ".join(map(str, facts.inputs[0].shape)) if facts.inputs else "?"
    return f"{type(unwrapped(model)).__name__} of {count:,} parameters, {facts.optimizer} lr {rates}, batch {shape}"
