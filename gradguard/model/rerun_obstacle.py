"""Why a model must not be called once more: it would leave a trace, or show something else."""

from __future__ import annotations

from itertools import chain

from torch import nn
from torch.nn.modules import module as torch_module

from gradguard.model.inert_hook import InertHook
from gradguard.model.parameter_names import is_compiled


def rerun_obstacle(model: nn.Module) -> str:
    """Return a clause, "" when nothing speaks against it.

    Hooks of others may keep what they see, or count it; those of torch's own (weight normalisation) do not.

    Example:
        >>> model = nn.Linear(1, 1)
        >>> rerun_obstacle(model)
        ''
        >>> _ = model.register_forward_hook(lambda module, args, output: None)
        >>> rerun_obstacle(model)
        'a module has forward hooks, so the batch was not run once more'
    """
    if is_compiled(model):
        return "the model is compiled, so the batch was not run once more"
    everywhere = (torch_module._global_forward_hooks, torch_module._global_forward_pre_hooks)
    own = [hooks for module in model.modules() for hooks in (module._forward_hooks, module._forward_pre_hooks)]
    if not all(map(_is_harmless, chain.from_iterable(hooks.values() for hooks in (*everywhere, *own)))):
        return "a module has forward hooks, so the batch was not run once more"
    return ""


def _is_harmless(hook: object) -> bool:
    made_by = getattr(hook, "__module__", None) or type(hook).__module__
    return isinstance(hook, InertHook) or str(made_by).partition(".")[0] == "torch"
