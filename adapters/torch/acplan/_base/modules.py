"""Modules: their classes, and whose parameters they use."""

import contextlib
import inspect
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from acplan._base.errors import AcplanError

try:
    from torch.distributed.fsdp import FSDPModule as FSDPModule
except ImportError:
    raise AcplanError(
        f"expected PyTorch 2.6 or later, with torch.distributed, found {torch.__version__}"
    ) from None

_PARAMETER = torch.nn.Parameter


def borrows_parameters(module: torch.nn.Module) -> bool:
    """Returns whether `torch.func.functional_call` has replaced parameters of the module, or of
    modules inside it, by tensors. FSDP replaces them as well, and again in backward, which does
    not count."""
    if getattr(module, "_is_fsdp_managed_module", False):
        return False
    # This is asked at each call of a unit: it is quicker than a walk with names.
    pending, visited = [module], {module}
    while pending:
        submodule = pending.pop()
        for value in submodule._parameters.values():
            if type(value) is not _PARAMETER and not isinstance(
                value, (_PARAMETER, type(None))
            ):
                return True
        new = [m for m in submodule._modules.values() if m is not None and m not in visited]
        visited.update(new)
        pending += new
    return False


def class_name_of(module: torch.nn.Module) -> str:
    """Returns the name of the module's class before sharding: fully_shard makes another
    class."""
    classes = type(module).__mro__
    return next(c for c in classes if not issubclass(c, FSDPModule)).__name__


def tensors_by_name(values: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Returns the tensors among the values, and those in their mappings, lists and tuples, such
    as `batch.input_ids` or `batch.0`."""
    tensors: dict[str, torch.Tensor] = {}
    for name, value in values.items():
        if isinstance(value, torch.Tensor):
            tensors[name] = value
        elif isinstance(value, Mapping):
            tensors |= tensors_by_name({f"{name}.{key}": v for key, v in value.items()})
        elif isinstance(value, (list, tuple)):
            tensors |= tensors_by_name({f"{name}.{k}": v for k, v in enumerate(value)})
    return tensors


def arguments_by_name(
    module: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns the arguments of a call of the module by the names that its forward gives them;
    those given by position that forward does not name go by their places, "0", "1" and so
    on."""
    parameters: Iterable[inspect.Parameter] = ()
    # Code of C++ has no signature.
    with contextlib.suppress(TypeError, ValueError):
        parameters = inspect.signature(module.forward).parameters.values()
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [parameter.name for parameter in parameters if parameter.kind in kinds]
    names += [str(place) for place in range(len(names), len(args))]
    return {**dict(zip(names, args)), **kwargs}
