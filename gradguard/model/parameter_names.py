"""What a model's parameters are called, whatever wraps the model."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from gradguard.model.module_walk import named_tensors


WRAPPERS = ("module", "_orig_mod", "_fsdp_wrapped_module")  # added to names by DDP, torch.compile and FSDP1


def clean_name(name: str, wrappers: Sequence[str]) -> str:
    """Return a fully qualified name without the parts that wrapping the model added.

    Example:
        >>> clean_name("_orig_mod.head.weight", ["_orig_mod"])
        'head.weight'
    """
    if not wrappers and not any(wrapper in name for wrapper in WRAPPERS[1:]):
        return name
    parts = name.split(".")
    for wrapper in wrappers:
        if parts[0] == wrapper:
            parts.pop(0)
    return ".".join(part for part in parts if part not in WRAPPERS[1:])


def wrappers_of(model: nn.Module) -> list[str]:
    """Return the prefixes that belong to wrappers around the user's model (DDP, DataParallel, torch.compile)."""
    found = []
    while True:
        if isinstance(model, (nn.parallel.DistributedDataParallel, nn.DataParallel)):
            found.append("module")
            model = model.module
        elif isinstance(inner := getattr(model, "_orig_mod", None), nn.Module):
            found.append("_orig_mod")
            model = inner
        else:
            return found


def is_compiled(model: nn.Module) -> bool:
    """Return whether the model, or a module in it, went through torch.compile."""
    return any("_orig_mod" in m._modules or m._compiled_call_impl is not None for m in model.modules())


def named_parameters(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """Return (fully qualified name, parameter) of each parameter; tied ones have the name that comes first."""
    wrappers, named = wrappers_of(model), named_tensors(model).parameters
    names = "\n".join([name for name, _ in named])
    if not wrappers and not any(wrapper in names for wrapper in WRAPPERS[1:]):
        return named
    return [(clean_name(name, wrappers), param) for name, param in named]


def parameter_names(model: nn.Module) -> dict[int, str]:
    """Return {id(parameter): fully qualified name}; tied parameters have the name that comes first."""
    return {id(param): name for name, param in named_parameters(model)}
