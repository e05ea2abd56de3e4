"""attach: checks everything first, then puts the guard in place."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from typing import Any

import torch
from loguru import logger
from torch import nn
from torch.optim import Optimizer

from gradguard.environment import describe_environment
from gradguard.errors import AttachError, PolicyError
from gradguard.evidence.stats import ParameterTable
from gradguard.flow.exchange import is_main_rank
from gradguard.gradients.monitor import Monitor
from gradguard.guard import Guard
from gradguard.model.parameter_names import is_compiled
from gradguard.optimizer.attachment import listeners_of
from gradguard.policy.load import load_policy
from gradguard.policy.patterns import select, unmatched
from gradguard.policy.schema import Policy
from gradguard.printable import printable
from gradguard.record.directory import RunDirectory
from gradguard.records import Event, Finding
from gradguard.snapshots.companions import Companions


def attach(
    model: nn.Module,
    optimizer: Optimizer,
    policy: str | os.PathLike[str] | Policy | None = None,
    *,
    run_dir: str | os.PathLike[str] | None = None,
    scaler: torch.amp.GradScaler | None = None,
    also: Mapping[str, Any] | None = None,
    name: str | None = None,
    notify: Callable[[Finding], Any] | None = None,
) -> Guard:
    """Guard an optimizer's steps from now on.

    Attach after loading weights and optimizer state, and before the first step. Nothing of the model or the optimizer
    is replaced: torch's own step hooks are used, so schedulers, GradScaler, copy, pickle and torch.save go on working,
    and a copy of the optimizer is not guarded.

    Args:
        model: gives the parameters their names; its buffers are kept from taking in bad batches.
        optimizer: the parameters of this optimizer are watched; a model with two optimizers takes two guards.
        policy: a path (.yaml, .yml, .toml, .json), the name of a preset, a `Policy`, or None for the preset `default`.
        run_dir: where the record goes; one that holds a run already is left alone and `run_dir-2` is used. None keeps
            the last records in memory only.
        scaler: the GradScaler in use, so that its skipped steps are seen.
        also: what a rollback restores beside model and optimizer, by name: anything with `state_dict` and
            `load_state_dict`, such as {"scheduler": scheduler, "scaler": scaler, "ema": averaged_model}.
        name: tells several guards apart that share a run_dir.
        notify: called with the finding by the remedy `notify`.

    Returns:
        The guard; `close()` it, or use it as a context manager.

    Raises:
        AttachError: the model has nothing to train, the optimizer has other parameters or is guarded already, something
            in `also` cannot be saved, or what a rule needs has nowhere to go without a run_dir.
        PolicyError: the policy is missing or has mistakes, or names parameters that the optimizer does not have.
        RunDirectoryError: the run directory cannot be written.

    Example:
        >>> import gradguard, torch
        >>> model = torch.nn.Linear(2, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> with gradguard.attach(model, optimizer) as guard:
        ...     loss = model(torch.full((4, 2), float("nan"))).mean()
        ...     loss.backward()
        ...     guard.observe(loss)
        ...     optimizer.step()
        ...     guard.last.skipped
        True
    """
    _check(model, optimizer)
    resolved = load_policy(policy)
    monitor = Monitor(model, optimizer, resolved.monitor.parameters)
    _check_parameters(monitor)
    table = monitor.table
    _check_patterns(resolved, table)
    companions = Companions(optimizer, also, resolved.snapshots.rng)
    if run_dir is None and resolved.snapshots.where == "disk" and "snapshots" in resolved.needs():
        raise AttachError("`snapshots: {where: disk}` writes to the run directory: pass run_dir=")
    directory = None
    if run_dir is not None and is_main_rank():
        info = {"policy": resolved.model_dump(mode="json"), "versions": describe_environment()}
        directory = RunDirectory.create(run_dir, name=name, info=info)
    try:
        guard = Guard(monitor, resolved, directory=directory, scaler=scaler, notify=notify, companions=companions)
    except BaseException:
        if directory is not None:
            directory.finish("failed")
        raise
    _tell(guard, model, monitor, name)
    return guard


def _check(model: object, optimizer: object) -> None:
    if not isinstance(model, nn.Module):
        raise AttachError(f"attach(model, optimizer) expects a torch.nn.Module first, got {type(model).__name__}")
    if not isinstance(optimizer, Optimizer):
        hint = "; its inner optimizer is guarded: pass that one" if hasattr(optimizer, "optimizer") else ""
        raise AttachError(f"attach expects a torch.optim.Optimizer, got {type(optimizer).__name__}{hint}")
    if listeners_of(optimizer):
        raise AttachError("this optimizer is guarded already; close() the first guard before attaching another")


def _check_parameters(monitor: Monitor) -> None:
    owned = {id(param) for _, param in monitor.named}
    if not owned:
        raise AttachError("the model has no parameters: there is nothing to guard")
    params = [param for group in monitor.optimizer.param_groups for param in group["params"]]
    if not any(id(param) in owned for param in params):
        raise AttachError(
            f"none of the optimizer's {len(params)} parameters belongs to the model; pass the optimizer that was built "
            "from model.parameters(), and build it after moving or wrapping the model"
        )
    if not any(param.requires_grad for param in params):
        raise AttachError("every parameter of the optimizer is frozen (requires_grad=False): there is nothing to train")


def _check_patterns(policy: Policy, table: ParameterTable) -> None:
    problems = []
    for place, patterns in [
        ("monitor", policy.monitor.parameters),
        *((f"rule {rule.name!r}", rule.parameters) for rule in policy.rules if rule.parameters is not None),
    ]:
        wanted = [pattern for pattern in patterns if not pattern.startswith("!")]
        problems += [f"{place}: {message}" for message in unmatched(wanted, table.names)]
    if problems:
        raise PolicyError(problems)


def _tell(guard: Guard, model: nn.Module, monitor: Monitor, name: str | None) -> None:
    """Record and log what is guarded, and what cannot be seen or done."""
    policy = guard.policy
    snapshots = guard.snapshots
    notes = []
    if snapshots is not None:
        last = policy.needs_start_until()
        until = f", one fewer after step {last}" if 0 < last < math.inf else ""
        notes.append(
            f"rollback unavailable: {snapshots.refusal}"
            if snapshots.good is None
            else f"snapshots take {_size(snapshots.nbytes)} each and more once the optimizer has state, "
            f"{snapshots.num_copies} at a time {'in memory' if snapshots.folder is None else 'on disk'}{until}"
        )
    armed = {rule.when.name: warmup for rule in policy.rules if (warmup := getattr(rule.when, "warmup", 0))}
    if armed:
        notes.append(f"{', '.join(armed)} are looked for from step {max(armed.values())} on")
    if policy.monitor.sync == "deferred":
        reasons = "; ".join(guard.reasons_to_wait)
        told = f"sync deferred is not possible, every step waits for the device: {reasons}"
        notes.append(told if reasons else "healthy steps do not wait for the device: findings are told one step later")
    notes += guard.notes
    notes += _obstacles(policy, monitor)
    if is_compiled(model):
        notes.append("the model is compiled: gradients, weights and loss are seen, what happens inside it is not")
    if guard.directory is None and is_main_rank():
        notes.append("no run_dir: the record is kept in memory only")
    watched = f"{len(monitor.table)} parameter tensors" + (f" of {name!r}" if name else "")
    acts = "acts" if policy.mode == "enforce" else "changes nothing (mode: observe)"
    # The journal's chain covers this event, and with it the policy that run.json shows.
    sealed = {"policy_sha256": guard.directory.info["policy_sha256"]} if guard.directory is not None else {}
    message = f"gradguard watches {watched} by {len(policy.rules)} rules and {acts}"
    guard.announce(Event(event="attached", message="; ".join([message, *notes]), data={"notes": notes, **sealed}))
    if guard.directory is not None:
        logger.info("{}", printable(f"the record goes to {guard.run_dir}"))


def _size(num_bytes: int) -> str:
    if num_bytes < 1000:
        return f"{num_bytes} bytes"
    unit, name = (1e9, "GB") if num_bytes >= 1e9 else (1e6, "MB") if num_bytes >= 1e6 else (1e3, "kB")
    return f"{num_bytes / unit:.3g} {name}"


def _obstacles(policy: Policy, monitor: Monitor) -> list[str]:
    """Return which remedies cannot act on the parameters of their rule, and why."""
    found: dict[str, None] = {}
    for rule in policy.rules:
        names = monitor.table.names
        rows = range(len(names)) if rule.parameters is None else select(rule.parameters, names)
        params = [monitor.params[row] for row in rows]
        for remedy in (remedy for rung in rule.ladder() for remedy in rung):
            if why := remedy.obstacle(params):
                found[f"rule {rule.name!r} cannot use {remedy.name!r}: {why}"] = None
    return list(found)
