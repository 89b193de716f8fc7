"""Caches of keys and values, of which transformers makes one in every step unless `use_cache`
is off.

A layer that runs again would find its own keys there and add them once more. transformers
switches caches off if it checkpoints, and so do a plan and a trace: a hook passes
`use_cache=False` to modules that are called with gradients, even if the caller passes another
value. The modules' configurations stay unchanged, and are saved so; without gradients nothing
is recomputed, and caches are the same as without a plan. If the caller passes a cache to a
module all the same (prefixes that PEFT trains), the module runs again with a copy of the cache
as it was in forward.
"""

import contextlib
import functools
import inspect
from collections.abc import Iterator
from typing import Any

import torch

_SWITCH = "use_cache"


def _without_cache(
    place: int, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Returns the arguments of the call without a cache, or None for a call without gradients.
    This is the hook. `place`: the place of the switch among arguments by position."""
    if not torch.is_grad_enabled():
        return None
    if 0 <= place < len(args):
        return (*args[:place], False, *args[place + 1 :]), kwargs
    return args, {**kwargs, _SWITCH: False}


def are_off(model: torch.nn.Module) -> bool:
    return any([*_hooks_of(module)] for module in model.modules())


def switch_off(model: torch.nn.Module) -> None:
    """Lets modules of transformers make no caches in calls with gradients, until
    `switch_on`."""
    for module in model.modules():
        place = _place_of_switch(module)
        if place is not None and not [*_hooks_of(module)]:
            hook = functools.partial(_without_cache, place)
            module.register_forward_pre_hook(hook, with_kwargs=True)


def switch_on(model: torch.nn.Module) -> None:
    """Removes the hooks of `switch_off`, if there are any."""
    for module in model.modules():
        for key in [*_hooks_of(module)]:
            del module._forward_pre_hooks[key]
            module._forward_pre_hooks_with_kwargs.pop(key, None)


@contextlib.contextmanager
def switched_off(model: torch.nn.Module) -> Iterator[None]:
    """Switches caches off within the block. Caches that are off already stay off afterwards."""
    if are_off(model):
        yield
        return
    try:
        switch_off(model)
        yield
    finally:
        switch_on(model)


def _hooks_of(module: torch.nn.Module) -> Iterator[int]:
    """Yields the keys of the hook in this module; a copy of a module has a hook of its own."""
    for key, hook in module._forward_pre_hooks.items():
        if getattr(hook, "func", None) is _without_cache:
            yield key


def _place_of_switch(module: torch.nn.Module) -> int | None:
    """Returns the place of the switch among the arguments by position, -1 if it can be given by
    name alone, or None for a module without a switch."""
    if not hasattr(getattr(module, "config", None), _SWITCH):
        return None
    try:
        parameters = inspect.signature(module.forward).parameters
    except (TypeError, ValueError):
        return None
    if _SWITCH not in parameters:
        return None
    if parameters[_SWITCH].kind is inspect.Parameter.KEYWORD_ONLY:
        return -1
    return [*parameters].index(_SWITCH)
