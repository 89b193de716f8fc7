"""Models and plans that `apply` refuses."""

import functools
from collections.abc import Mapping, Sequence

import torch
from torch.distributed._composable.contract import _get_registry
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    ActivationWrapper,
)

from acplan._apply.unit import (
    Unit,
    is_idle,
    wrapped_in,
)
from acplan._base.arguments import require_module
from acplan._base.errors import AcplanError
from acplan._base.modules import class_name_of
from acplan._base.torchscript import (
    has_unknown_state,
    is_scripted,
)
from acplan._files.plan_file import PlannedModule

# Methods of transformers, the second since its version 5, and of diffusers.
_SWITCHES = (
    "gradient_checkpointing_disable",
    "activation_checkpointing_disable",
    "disable_gradient_checkpointing",
)


# The attribute of a model whose plans are switched (switching.py).
SWITCHED = "_acplan_switch"


def refuse_scripted(fqn: str, module: torch.nn.Module) -> None:
    if is_scripted(module) or has_unknown_state(module):
        raise AcplanError(
            f"plan: {fqn} is compiled by torch.jit, or contains compiled code that sets "
            "attributes, so it cannot run again. Plan for the modules around it, or for the "
            "model before it is compiled"
        )


def require_apart(owners: dict[int, list[PlannedModule]], runs: set[str]) -> None:
    """Raises AcplanError if a module of a segment is in another unit, unless one of the two
    units is inside a module of the other."""
    for units in owners.values():
        names = [unit.fqn for unit in units]
        if len(names) > 1 and runs.intersection(names):
            raise AcplanError(
                f"plan: {names[0]} and {names[1]}: expected units that have no module "
                "in common, or one inside a module of the other"
            )


def refuse_nested_offload(
    owners: Mapping[int, Sequence[PlannedModule]], paths: Mapping[str, torch.nn.Module]
) -> None:
    """Raises AcplanError if a unit inside another one offloads: its results would stay with the
    host while the outer unit runs again."""
    if not any(unit.offloads for units in owners.values() for unit in units):
        return
    pairs = (
        (outer, inner)
        for module in paths.values()
        for outer in owners.get(id(module), ())
        for part in module.modules()
        for inner in owners.get(id(part), ())
        if inner.offloads and inner is not outer
    )
    for outer, inner in pairs:
        raise AcplanError(
            f"plan: {inner.fqn} is inside {outer.fqn}: expected offload only in units "
            "that are not inside another one"
        )


def require_no_checkpoints(model: torch.nn.Module) -> None:
    """Raises AcplanError for a model that `apply` refuses because it is checkpointed, by a plan
    or otherwise."""
    require_module(model)
    refuse_checkpoints(model, class_name_of(wrapped_in(model)))


def refuse_checkpoints(model: torch.nn.Module, root: str) -> None:
    for path, module in model.named_modules():
        name = f"{root}.{path}" if path else root
        is_planned = isinstance(module, Unit) and not is_idle(module)
        if is_planned or SWITCHED in vars(module):
            raise AcplanError(
                "plan: the model already has a plan; remove it first, with acplan.remove(model)"
            )
        if isinstance(module, Unit):
            continue
        if isinstance(module, ActivationWrapper):
            raise AcplanError(
                f"plan: {name} is in a {type(module).__name__} of PyTorch already; "
                "build the model without it"
            )
        elif getattr(module, "gradient_checkpointing", False) is True:
            switch = next((n for n in _SWITCHES if hasattr(model, n)), _SWITCHES[0])
            raise AcplanError(
                f"plan: gradient checkpointing of {name} is on; switch it off first, "
                f"with model.{switch}()"
            )
        elif _is_checkpointed(module):
            raise AcplanError(
                f"plan: {name} is checkpointed already; build the model without its "
                "activation checkpointing"
            )


def _is_checkpointed(module: torch.nn.Module) -> bool:
    """Returns whether a library has replaced the module's forward by a checkpoint, as fairscale
    does, or torch.distributed._composable.checkpoint is on it."""
    forward = module.__dict__.get("forward")
    while isinstance(forward, functools.partial):
        forward = forward.func
    name = f"{getattr(forward, '__module__', '')}{getattr(forward, '__qualname__', '')}"
    return "checkpoint" in name or "checkpoint" in (_get_registry(module) or ())
