"""The fingerprint of the model that a plan is for: its modules, and the shapes and types of
their parameters. A trace has it for each module, and a plan made of the trace for all modules.
Devices, values, buffers and the number of ranks are not part of it, so that a plan made on the
meta device is for the model on every rank."""

import itertools
import warnings
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    _CHECKPOINT_WRAPPED_MODULE as _WRAPPED,
)
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    ActivationWrapper,
)

from acplan._base.errors import AcplanError, PlanMismatchWarning
from acplan._base.modules import class_name_of
from acplan._base.package import __version__

# The key of a plan file's entry on the model for which, and the versions by which, it was made.
KEY = "made_for"
# The key of a module in a trace.
WEIGHTS = "weights"

_Modules = Sequence[Mapping[str, Any]]


_FROZEN, _FROZEN_AT_TIMES = ", frozen", ", frozen at times"


def weights_of(
    module: torch.nn.Module,
    dtype: torch.dtype | None = None,
    trained_before: Container[int] | None = None,
) -> dict[str, str]:
    """Returns the parameters of the module itself, such as `bfloat16[4096, 64]`; those of
    floating point have the data type `dtype`, if it is given. `trained_before` holds the ids of
    the parameters that required a gradient before a step, which may have changed that."""
    return {
        name: _text(parameter, dtype)
        if trained_before is None
        or (id(parameter) in trained_before) == parameter.requires_grad
        else _text(parameter, dtype).removesuffix(_FROZEN) + _FROZEN_AT_TIMES
        for name, parameter in module._parameters.items()
        if parameter is not None
    }


def made_for(modules: _Modules) -> dict[str, Any] | None:
    """Returns the plan's entry for the model, from the modules of the trace, or None if these
    lack it."""
    if not all(WEIGHTS in module for module in modules):
        return None  # written by a version without these keys
    keys = ("fqn", "class", WEIGHTS)
    return {
        "acplan": __version__,
        "torch": torch.__version__,
        "modules": [{key: module[key] for key in keys} for module in modules],
    }


def is_made_for(of_plan: Mapping[str, Any], model: torch.nn.Module) -> bool:
    """Returns whether a model is the one of a plan's entry."""
    expected = [_described(module) for module in of_plan["modules"]]
    return _difference(expected, list(_modules(model, None))) is None


def require_made_for(
    of_plan: Mapping[str, Any], model: torch.nn.Module, dtype: torch.dtype | None
) -> None:
    """Raises AcplanError, with the first difference, if the model is not the plan's. Warns with
    a PlanMismatchWarning if only the version of PyTorch differs."""
    try:
        expected = [_described(module) for module in of_plan["modules"]]
        made_by = str(of_plan["torch"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise AcplanError(f"plan: {KEY}: {error!r}") from None
    difference = _difference(expected, list(_modules(model, dtype)))
    if difference is not None:
        raise AcplanError(
            f"plan: it is for another model: {difference} (made by acplan "
            f"{of_plan.get('acplan')}, PyTorch {made_by})"
        )
    if _release(made_by) != _release(torch.__version__):
        warnings.warn(
            f"the plan was made with PyTorch {made_by}; modules may run other operators in "
            f"{torch.__version__}, the current one; operators that the plan does not know "
            "are recomputed",
            PlanMismatchWarning,
            stacklevel=3,
        )


_Described = tuple[str, str, dict[str, str]]


def _described(module: Mapping[str, Any]) -> _Described:
    described = module["fqn"], module["class"], dict(module[WEIGHTS].items())
    for text in (*described[:2], *described[2].values()):
        if not isinstance(text, str):
            raise ValueError(f"expected a text, found {text!r}")
    return described


def _modules(model: torch.nn.Module, dtype: torch.dtype | None) -> Iterator[_Described]:
    """Yields the modules of a model, without modules that only wrap another one."""
    root = ""
    for path, module in model.named_modules():
        if isinstance(module, ActivationWrapper):
            continue
        parts = [part for part in path.split(".") if part not in ("", _WRAPPED)]
        root = root or class_name_of(module)
        name = ".".join([root, *parts])
        yield name, class_name_of(module), weights_of(module, dtype)


def _difference(expected: Sequence[_Described], actual: Sequence[_Described]) -> str | None:
    if expected and expected[0][1] != actual[0][1]:
        return (
            f"expected a {expected[0][1]}, found a {actual[0][1]}; apply plans before "
            "torch.compile or DistributedDataParallel wraps the model"
        )
    names_in_model = {name for name, _, _ in actual}
    for ours, theirs in itertools.zip_longest(expected, actual):
        if ours is None or (theirs and ours[0] != theirs[0] and ours[0] in names_in_model):
            return f"expected no module {theirs[0]}, found a {theirs[1]}"
        name, kind, weights = ours
        if theirs is None or name != theirs[0]:
            return f"expected a module {name}, a {kind}, found none"
        if kind != theirs[1]:
            return f"{name}: expected a {kind}, found a {theirs[1]}"
        for weight in dict.fromkeys([*weights, *theirs[2]]):
            of_plan, of_model = weights.get(weight), theirs[2].get(weight)
            if of_plan != of_model and not _is_frozen_at_times(of_plan, of_model):
                text = f"expected {of_plan or 'none'}, found {of_model or 'none'}"
                return f"{name}.{weight}: {text}{_hint(of_plan, of_model)}"
    return None


def _is_frozen_at_times(of_plan: str | None, of_model: str | None) -> bool:
    if of_plan is None or of_model is None or not of_plan.endswith(_FROZEN_AT_TIMES):
        return False
    return of_plan.removesuffix(_FROZEN_AT_TIMES) == of_model.removesuffix(_FROZEN)


def _hint(of_plan: str | None, of_model: str | None) -> str:
    if not of_plan or not of_model:
        return ""
    dtype, _, shape = of_plan.partition("[")
    if shape != of_model.partition("[")[2]:
        return ""
    return (
        f"; if a mixed precision policy of fully_shard makes it {dtype}, use "
        f"param_dtype=torch.{dtype}"
    )


def _text(parameter: torch.nn.Parameter, dtype: torch.dtype | None) -> str:
    if dtype is None or not parameter.is_floating_point():
        dtype = parameter.dtype
    sizes = ", ".join(map(str, parameter.shape))
    frozen = "" if parameter.requires_grad else _FROZEN
    return f"{str(dtype).removeprefix('torch.')}[{sizes}]{frozen}"


def _release(version: str) -> list[str]:
    return version.split(".")[:2]
