"""Models that checkpoint by themselves, or keep what they generate from: what is planned
is the step without it."""

import contextlib
import functools
import inspect
import logging
import types
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
import torch.utils.checkpoint
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    CheckpointWrapper,
)

from acplan import caches
from acplan.one_thread import here

_LOGGER = logging.getLogger("acplan")


@contextlib.contextmanager
def without_checkpointing(
    model: torch.nn.Module, is_told: bool = True
) -> Iterator[torch.nn.Module]:
    """The model without caches and checkpoints, which it has again at the end: wrappers of
    PyTorch (those of a plan of acplan among them), modules with the attribute
    `gradient_checkpointing`, and calls of torch.utils.checkpoint but those of plans
    that are applied meanwhile."""
    found: list[str] = []
    with contextlib.ExitStack() as undo:
        for path, module in model.named_modules():
            name = path or type(module).__name__
            if vars(module).get("gradient_checkpointing") is True:
                found.append(name)
                undo.callback(setattr, module, "gradient_checkpointing", True)
                module.gradient_checkpointing = False
        undo.enter_context(caches.switched_off(model))
        inner = _unwrapped(model, undo, found)
        for owner, attribute, value in _plain(found):
            undo.enter_context(mock.patch.object(owner, attribute, value))
        if is_told:
            undo.callback(_tell, found)
        yield inner


def _unwrapped(
    model: torch.nn.Module, undo: contextlib.ExitStack, found: list[str]
) -> torch.nn.Module:
    while isinstance(model, CheckpointWrapper):
        model = model._checkpoint_wrapped_module
        found.append(type(model).__name__)
    for path, parent in list(model.named_modules()):
        for name, child in list(parent._modules.items()):
            if not isinstance(child, CheckpointWrapper):
                continue
            found.append(f"{path}.{name}" if path else name)
            undo.callback(parent._modules.__setitem__, name, child)
            while isinstance(child, CheckpointWrapper):
                child = child._checkpoint_wrapped_module
            parent._modules[name] = child
    return model


def _plain(found: list[str]) -> Iterator[tuple[Any, str, Any]]:
    """Of torch.utils.checkpoint what all its callers go through, however they have
    imported it; in place of which the function is just called."""
    module: Any = torch.utils.checkpoint
    # From PyTorch 2.15 on all of them go through another one.
    name = "_checkpoint_without_reentrant_generator"
    name = f"{name}_impl" if hasattr(module, f"{name}_impl") else name
    checkpointed = getattr(module, name)
    signature = inspect.signature(checkpointed)

    def note(function: Any) -> None:
        called = _name_of(function)
        if called not in found:
            found.append(called)

    def apply(function: Callable[..., Any], preserve: bool, *args: Any) -> Any:
        note(function)
        return function(*args)

    def generator(function: Any, *args: Any, **kwargs: Any) -> Iterator[None]:
        given = signature.bind(function, *args, **kwargs).arguments
        if _is_planned(function, given.get("context_fn")):
            yield from checkpointed(function, *args, **kwargs)
        else:
            note(function)
            yield

    # In this thread: others may train meanwhile.
    plain = types.SimpleNamespace(
        apply=here(module.CheckpointFunction.apply, apply)
    )
    yield module, "CheckpointFunction", plain
    yield module, name, here(checkpointed, generator)


def _is_planned(function: Any, context_fn: Any) -> bool:
    """Plans wrap modules, and have policies of their own where they list operators."""
    made_by = getattr(getattr(context_fn, "func", context_fn), "__module__", "")
    return made_by.startswith("acplan.") or isinstance(function, torch.nn.Module)


def _name_of(function: Any) -> str:
    inner = function.func if isinstance(function, functools.partial) else function
    inner = getattr(inner, "__self__", inner)
    name = getattr(inner, "__qualname__", None)
    return str(name or type(inner).__name__)


def _tell(found: list[str]) -> None:
    if found:
        more = f" and {len(found) - 1} more" if len(found) > 1 else ""
        _LOGGER.warning(
            "the model checkpoints by itself (%s%s); that is switched off for the "
            "trace: switch it off for training, too, before a plan is applied",
            found[0],
            more,
        )
