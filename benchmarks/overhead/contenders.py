"""Who takes part: the bare step, `clip_grad_norm_`, the guard under four policies, and rivals that are installed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.optim import SGD, Optimizer

import gradguard
from benchmarks.overhead import rivals
from gradguard.errors import did_you_mean
from gradguard.guard import Guard
from gradguard.policy.schema import Policy


NEVER = 1e9  # a limit that no gradient here reaches

Step = Callable[[Tensor | float], None]


@dataclass(frozen=True)
class Setting:
    """What a contender is given.

    Args:
        model: a copy of its own.
        optimizer: of this model.
        params: the model's parameters.
        limit: a gradient norm that every step exceeds.
        folder: empty, for a record.
    """

    model: nn.Module
    optimizer: Optimizer
    params: Sequence[Tensor]
    limit: float
    folder: Path


@dataclass(frozen=True)
class Running:
    """A contender at work.

    Args:
        step: takes the loss, does what the contender does, and steps the optimizer; this is what is timed.
        close: ends it.
        guard: of those that have one.
        on_gradients: what its hooks do in a backward, for workloads without one.
    """

    step: Step
    close: Callable[[], None] = lambda: None
    guard: Guard | None = None
    on_gradients: Callable[[], None] | None = None


@dataclass(frozen=True)
class Contender:
    """One way of stepping.

    Args:
        name: short and unique.
        what: it is, in a few words.
        begin: makes it ready.
        against: the contender whose overhead its own is divided by.
        is_guard: attaches a guard to the model and the optimizer.
        is_in_backward: works in hooks during the backward, so backward and step are timed together.
        is_changing: changes the gradients, so preset ones are put back after its step.
        is_noisy: leaves threads or processes at work that slow the others down, so it has a pass of its own.
        needs_backward: cannot take part where there is no backward.
        package: that must be installed.
    """

    name: str
    what: str
    begin: Callable[[Setting], Running]
    against: str = "clip"
    is_guard: bool = False
    is_in_backward: bool = False
    is_changing: bool = False
    is_noisy: bool = False
    needs_backward: bool = False
    package: str = ""


def _bare(setting: Setting) -> Running:
    step = setting.optimizer.step
    return Running(lambda loss: step())


def _clip(setting: Setting, limit: float) -> Running:
    params, step = setting.params, setting.optimizer.step

    def run(loss: Tensor | float) -> None:
        clip_grad_norm_(params, limit)
        step()

    return Running(run)


def _clip_walking(setting: Setting) -> Running:
    model, step = setting.model, setting.optimizer.step

    def run(loss: Tensor | float) -> None:
        clip_grad_norm_(model.parameters(), NEVER)
        step()

    return Running(run)


def _norms(setting: Setting) -> Running:
    """Read the norms in a step hook and bring them to the host: what no guard that knows them can do without."""
    params, step = list(setting.params), setting.optimizer.step

    def measure(optimizer: Optimizer, args: object, kwargs: object) -> None:
        torch.stack(torch._foreach_norm([param.grad for param in params])).tolist()  # type: ignore[misc]

    handle = setting.optimizer.register_step_pre_hook(measure)
    return Running(lambda loss: step(), handle.remove)


def _guard(setting: Setting, policy: str | Policy) -> Running:
    guard = gradguard.attach(setting.model, setting.optimizer, policy, run_dir=setting.folder / "run")
    observe, step = guard.observe, setting.optimizer.step

    def run(loss: Tensor | float) -> None:
        observe(loss)
        step()

    return Running(run, guard.close, guard)


def _always_clip(setting: Setting, limit: float) -> Running:
    path = setting.folder / "always-clip.yaml"
    rule = f"rules:\n  - {{name: always-clip, when: always, do: {{clip_norm: {{max_norm: {limit!r}}}}}}}\n"
    path.write_text(f"version: 1\nextends: default\n{rule}", encoding="utf-8")
    return _guard(setting, gradguard.load_policy(path))


def _zclip(setting: Setting) -> Running:
    act, step = rivals.zclip(setting.model), setting.optimizer.step

    def run(loss: Tensor | float) -> None:
        act()
        step()

    return Running(run)


def _smartclip(setting: Setting) -> Running:
    act, step = rivals.smartclip(setting.model), setting.optimizer.step

    def run(loss: Tensor | float) -> None:
        act()
        step()

    return Running(run)


def _hooks(setting: Setting) -> Running:
    hooks, step = rivals.Hooks(setting.params), setting.optimizer.step
    return Running(lambda loss: step(), hooks.close, on_gradients=hooks.read_all)


def _wandb(setting: Setting) -> Running:
    watch, step = rivals.Watch(setting.model, setting.folder), setting.optimizer.step

    def run(loss: Tensor | float) -> None:
        watch.log(float(loss))
        step()

    return Running(run, watch.close)


CONTENDERS = {
    contender.name: contender
    for contender in (
        Contender("bare", "step() alone", _bare),
        Contender("clip", "clip_grad_norm_(list of parameters, 1e9)", lambda s: _clip(s, NEVER)),
        Contender("clip-walk", "clip_grad_norm_(model.parameters(), 1e9)", _clip_walking),
        Contender("norms", "norms of all gradients, read in a hook: the least that a guard needs", _norms),
        Contender("observe", "guard, preset observe", lambda s: _guard(s, "observe"), is_guard=True),
        Contender("default", "guard, preset default", lambda s: _guard(s, "default"), is_guard=True),
        Contender(
            "always",
            "guard, default and a clip at every step, none due",
            lambda s: _always_clip(s, NEVER),
            is_guard=True,
        ),
        Contender(
            "clip-due", "clip_grad_norm_, a clip due at every step", lambda s: _clip(s, s.limit), is_changing=True
        ),
        Contender(
            "always-due",
            "guard, default and a clip due at every step",
            lambda s: _always_clip(s, s.limit),
            against="clip-due",
            is_guard=True,
            is_changing=True,
        ),
        Contender("zclip", "ZClip, no fixed limit", _zclip, is_changing=True, package="zclip"),
        Contender("smartclip", "smartclip.AutoClip", _smartclip, is_changing=True, package="smartclip"),
        Contender("hooks", "five statistics in a hook on every parameter", _hooks, is_in_backward=True),
        Contender(
            "wandb",
            "wandb.watch offline, at every step",
            _wandb,
            is_in_backward=True,
            is_noisy=True,
            needs_backward=True,
            package="wandb",
        ),
    )
}
ANCHORS = ("bare", "clip")  # without these there is nothing to compare with
CORE = ("bare", "clip", "observe", "default", "always", "clip-due", "always-due")


def warm_up() -> None:
    """Guard a toy once, so that what is loaded on first use is loaded."""
    model = nn.Linear(1, 1)
    gradguard.attach(model, SGD(model.parameters()), "default").close()


def choose(names: Sequence[str]) -> list[Contender]:
    """Return the contenders of these names and what they are compared with, all when none is given.

    Raises:
        ValueError: a name is unknown.
    """
    for name in names:
        if name not in CONTENDERS:
            raise ValueError(f"unknown guard {name!r}{did_you_mean(name, CONTENDERS)}")
    wanted = {*(names or CONTENDERS), *ANCHORS}
    wanted |= {CONTENDERS[name].against for name in wanted}
    return [contender for name, contender in CONTENDERS.items() if name in wanted]
