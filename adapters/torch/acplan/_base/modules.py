"""Modules: their classes, and whose parameters they use."""

import torch

from acplan._base.errors import AcplanError

try:
    from torch.distributed.fsdp import FSDPModule as FSDPModule
except ImportError:
    raise AcplanError(
        f"expected PyTorch 2.6 or later, with torch.distributed, found {torch.__version__}"
    ) from None


def borrows_parameters(module: torch.nn.Module) -> bool:
    """Returns whether `torch.func.functional_call` has replaced parameters of the module, or of
    modules inside it, by tensors. FSDP replaces them as well, and again in backward, which does
    not count."""
    if getattr(module, "_is_fsdp_managed_module", False):
        return False
    return any(
        value is not None and not isinstance(value, torch.nn.Parameter)
        for submodule in module.modules()
        for value in submodule._parameters.values()
    )


def class_name_of(module: torch.nn.Module) -> str:
    """Returns the name of the module's class before sharding: fully_shard makes another
    class."""
    classes = type(module).__mro__
    return next(c for c in classes if not issubclass(c, FSDPModule)).__name__
