"""The parts of an object: its elements, its attributes, its slots."""

import collections
import contextlib
import functools
import types
from typing import Any

import torch

# Elements that are looked at one by one; what is longer are data, of which the container
# itself is noted.
MOST_ELEMENTS = 4096


# Objects and functions of these are for other threads, or run the step rather than being
# part of it.
_OF_OTHERS = (
    "threading", "queue", "multiprocessing", "concurrent", "logging", "asyncio", "acplan",
    "torch._dynamo", "torch._inductor", "torch._functorch", "torch._guards", "torch.fx",
)  # fmt: skip


_MODULES_OF_OTHERS = tuple(f"{name}." for name in _OF_OTHERS)


def is_of_others(thing: Any) -> bool:
    if is_a(thing, torch.nn.Module):
        return False
    is_function = is_a(thing, types.FunctionType)
    of_module = f"{(thing if is_function else type(thing)).__module__}."
    return of_module.startswith(_MODULES_OF_OTHERS)


def is_a(thing: Any, kinds: type | tuple[type, ...]) -> bool:
    """Asks the class alone: isinstance() asks the thing, too, of which it may be the proxy
    of another one, or end with an error."""
    return issubclass(type(thing), kinds)


def elements_of(thing: Any) -> list[Any] | None:
    """Returns what a container holds, of dictionaries the values, as its base class has it:
    classes derived from it may have no length, or count otherwise. None: it is no container."""
    if is_a(thing, dict):
        return list(dict.values(thing))
    for kind in _SEQUENCES:
        if is_a(thing, kind):
            return list(kind.__iter__(thing))
    return None


_SEQUENCES: tuple[Any, ...] = (list, tuple, set, frozenset, collections.deque)


def attributes_of(thing: Any) -> dict[str, Any] | None:
    try:
        attributes = object.__getattribute__(thing, "__dict__")
    except Exception:  # there is none, or its class says what it is
        return None
    return attributes if type(attributes) is dict else None


@functools.cache
def slots_of(kind: type) -> tuple[types.MemberDescriptorType, ...]:
    """Returns what reads and writes the attributes of classes with `__slots__`."""
    return tuple(
        member
        for base in kind.__mro__
        if "__slots__" in vars(base)
        for member in vars(base).values()
        if type(member) is types.MemberDescriptorType
    )


def slots_filled(thing: Any) -> dict[types.MemberDescriptorType, Any]:
    found = {}
    kind: Any = type(thing)
    for slot in slots_of(kind):
        with contextlib.suppress(AttributeError):
            found[slot] = slot.__get__(thing)
    return found
