"""Looks at activations for as many forward passes as 256 samples take, and then takes its hooks off again.

wait ... probe due -> hooks on the model alone;  a training forward begins -> hooks on its places, until it ends
-> samples are there -> launch: hooks off, samples -> numbers on their device -> Activations

Passes for evaluation, and those that checkpointing repeats in the backward pass, meet no hook on a place: that alone
would already change the fast path that nn.TransformerEncoderLayer takes in evaluation.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from gradguard.evidence.probe_stats import Activations
from gradguard.model.inert_hook import InertHook
from gradguard.model.model_boundary import input_tensors, is_readable, output_tensor
from gradguard.probes.activation_places import Found, Place, find_places, has_fast_path, roots_below, roots_of
from gradguard.probes.activation_samples import Samples
from gradguard.probes.time_gradient import sample_sequence


MAX_PASSES = 8  # forward passes after which a probe ends with the samples that it has


class ActivationProbe:
    """Samples activations, and what goes into and comes out of the model.

    Args:
        model: whose forward passes are looked at; where it is never called itself, the modules in it that are.
        on_fault: called with (what failed, error) when a hook fails; the probe is off from then on.
        keeps_dead: say which units are dead, not only how many.

    Attributes:
        is_on: a probe is under way.
    """

    def __init__(self, model: nn.Module, on_fault: Callable[[str, Exception], None], keeps_dead: bool = False) -> None:
        self._keeps_dead = keeps_dead
        self._on_fault = on_fault
        self._lock = threading.Lock()  # nn.DataParallel runs its copies in threads
        self._model = model
        self._roots = roots_of(model)
        self._depth = 0  # how often nobody called the roots, so that those below took their place
        self._found: dict[int, Found] = {}
        self._root_handles: list[RemovableHandle] = []
        self._handles: list[RemovableHandle] = []
        self._inside: nn.Module | None = None
        self._calls: dict[str, int] = {}
        self._met: dict[int, weakref.ref[Tensor]] = {}
        self._signed: set[str] = set()  # weighted modules whose inputs are below 0, so no ReLU's: not looked at again
        self._is_off = False
        self.is_on = False
        self.samples = Samples()

    def begin(self) -> None:
        """Start a probe: the next training forwards are looked at."""
        if self._is_off or self.is_on:
            return
        self.is_on = True
        self.samples = Samples()
        self._hook_roots()

    def is_complete(self) -> bool:
        """Return whether there are as many samples as a probe is about, or passes enough to do without."""
        return self.is_on and (self.samples.num_passes >= MAX_PASSES or self.samples.is_complete())

    def step_taken(self) -> None:
        """Note a step. Where none of the modules was ever called, those within them are looked at from now on."""
        self._leave()
        if self.is_on and not self.samples.num_passes and self._descend():
            self._unhook()
            self._hook_roots()

    def _descend(self) -> bool:
        """Look at the modules below the roots instead; return whether there are any."""
        kept = [root for root in self._roots if has_fast_path(root[1])]
        below = [
            root for name, module in self._roots if not has_fast_path(module) for root in roots_below(module, name)
        ]
        if not below:
            return False
        self._roots = [*kept, *below]
        self._depth += 1
        return True

    def launch(self) -> Callable[[], Activations]:
        """End the probe: take the hooks off, start to measure, and return what waits for the numbers."""
        self._unhook()
        self.is_on = False
        samples, self.samples = self.samples, Samples()
        recurrent = {name: module for found in self._found.values() for name, module in found.recurrent}
        return samples.launch(self._unseen(samples), recurrent, self._signed, self._keeps_dead)

    def start_over(self) -> None:
        """Break off the probe that is under way, and look for places afresh at the next: modules were exchanged."""
        self._unhook()
        self.is_on = False
        self._found.clear()
        self._signed.clear()

    def close(self) -> None:
        """Take all hooks off for good."""
        self._unhook()
        self.is_on = False
        self._is_off = True

    def state_dict(self) -> dict[str, Any]:
        """Return what was sampled so far, and how deep in the model."""
        return {
            "is_on": self.is_on,
            "depth": self._depth,
            "signed": sorted(self._signed),
            "samples": self.samples.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with a probe that was under way."""
        self._unhook()
        self._signed = set(state["signed"])
        self._roots, self._depth = roots_of(self._model), 0
        while self._depth < state["depth"] and self._descend():
            pass
        self._found = {id(module): find_places(module, name) for name, module in self._roots}
        self.is_on = state["is_on"] and not self._is_off
        self.samples = Samples.from_state_dict(state["samples"])
        if self.is_on:
            self._hook_roots()

    def _hook_roots(self) -> None:
        for name, module in self._roots:
            if _is_closed(module) or has_fast_path(module):
                continue
            before = InertHook(lambda m, args, kwargs, name=name: self._enter(name, m, args, kwargs))
            after = InertHook(lambda m, args, output: self._exit(m, output))
            self._root_handles.append(module.register_forward_pre_hook(before, with_kwargs=True))
            self._root_handles.append(module.register_forward_hook(after, always_call=True))

    def _unhook(self) -> None:
        self._leave()
        for handle in self._root_handles:
            handle.remove()
        self._root_handles.clear()

    def _leave(self) -> None:
        """Take the hooks off the places."""
        self._inside = None
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._met.clear()

    def _enter(self, name: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A forward pass of the model begins."""
        if torch.jit._trace.is_tracing():  # type: ignore[no-untyped-call]
            return
        if not module.training or not torch.is_grad_enabled() or _is_in_backward():
            return
        if self._inside is not None and self._inside is not module:
            return
        self._guarded(self._start_pass, name, module, args, kwargs)

    def _start_pass(self, name: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._leave()
        self._inside = module
        self._calls = {}
        if id(module) not in self._found:
            self._found[id(module)] = find_places(module, name)
        found = self._found[id(module)]
        inputs = input_tensors(args, kwargs)
        self._met = {id(tensor): weakref.ref(tensor) for tensor in inputs.values()}
        if len(self._roots) == 1:
            self.samples.boundary.take_inputs(inputs)
        self.samples.limit(len(found.places))
        for place in found.places:
            # A frozen part in evaluation mode may take a fast path that a hook would close.
            if place.module.training and place.name not in self._signed and not self.samples.is_full(place.name):
                self._hook(place)
        for path, recurrent in found.recurrent:
            if recurrent is module:
                self._take_sequence(path, recurrent, args, kwargs)
            elif recurrent.training:
                hook = InertHook(lambda m, args, kwargs, path=path: self._at_recurrent(path, m, args, kwargs))
                self._handles.append(recurrent.register_forward_pre_hook(hook, with_kwargs=True))

    def _hook(self, place: Place) -> None:
        if place.is_input:
            before = InertHook(lambda m, args: self._at(place, args[0] if args else None))
            self._handles.append(place.module.register_forward_pre_hook(before))
        else:
            after = InertHook(lambda m, args, output: self._at(place, output))
            self._handles.append(place.module.register_forward_hook(after))

    def _at(self, place: Place, value: Any) -> None:
        """A place has its activation."""
        self._guarded(self._take, place, value)

    def _take(self, place: Place, value: Any) -> None:
        if place.is_input and not (isinstance(value, Tensor) and value.requires_grad):
            return  # data, not an activation of a layer that is trained
        if place.is_input and self._is_met(value):
            return
        with self._lock:
            call = self._calls[place.name] = self._calls.get(place.name, 0) + 1
            if not is_readable(value) or value.ndim < 2:
                self.samples.unseen.setdefault(f"{place.name!r} gave {_describe(value)}, which is not looked at")
                return
            self._met[id(value)] = weakref.ref(value)
            self.samples.take(place, call, value)

    def _is_met(self, value: Tensor) -> bool:
        """Return whether this tensor, or what it is a view of, was looked at before in this pass."""
        base = value._base
        return any((known := self._met.get(id(t))) is not None and known() is t for t in (value, base) if t is not None)

    def _at_recurrent(self, name: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._guarded(self._take_sequence, name, module, args, kwargs)

    def _take_sequence(self, name: str, module: nn.RNNBase, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if name not in self.samples.sequences:
            sequence = sample_sequence(module, args, kwargs)
            if sequence is None:
                why = "its gradient through time is not measured: it takes a packed or very short sequence"
                self.samples.unseen.setdefault(f"{name!r}: {why}")
            else:
                self.samples.sequences[name] = sequence

    def _exit(self, module: nn.Module, output: Any) -> None:
        """A forward pass ends, or was broken off (then there is no output)."""
        if self._inside is module:
            self._guarded(self._end_pass, output)

    def _end_pass(self, output: Any) -> None:
        self._leave()
        if output is None:
            return
        self.samples.num_passes += 1
        if len(self._roots) == 1:
            self.samples.boundary.take_output(output_tensor(output))

    def _guarded(self, take: Callable[..., None], *args: Any) -> None:
        """Call a part of the probe; if it fails, the probe is off and the forward pass goes on."""
        try:
            take(*args)
        except Exception as error:
            self.close()
            self._on_fault("looking at activations (now off)", error)

    def _unseen(self, samples: Samples) -> list[str]:
        """Return what could not be looked at, beside what the samples say themselves."""
        unseen = []
        for name, module in self._roots:
            found = self._found.get(id(module))
            if found is None and _is_closed(module):
                found = find_places(module, name)
            unseen += found.unseen if found is not None else []
            if has_fast_path(module):
                called = repr(name) if name else "the model"
                unseen.append(f"{called} is called by itself and has a fast path, which hooks would close")
        if not samples.num_passes:
            unseen.append("no forward pass of the model was seen while it was in training mode")
        elif len(self._roots) > 1:
            unseen.append("the model has several parts that are called apart: its input and output are not looked at")
        return unseen


def _is_closed(module: nn.Module) -> bool:
    """Return whether a hook on the module itself would be compiled with it."""
    return module._compiled_call_impl is not None or isinstance(module, torch.jit.ScriptModule)


def _is_in_backward() -> bool:
    """Return whether a backward pass runs: a forward pass within it is a repetition by checkpointing."""
    return bool(torch._C._current_graph_task_id() != -1)


def _describe(value: Any) -> str:
    if not isinstance(value, Tensor):
        return f"a {type(value).__name__}"
    return f"a tensor of shape {tuple(value.shape)}, {str(value.dtype).removeprefix('torch.')}, {value.layout}"
