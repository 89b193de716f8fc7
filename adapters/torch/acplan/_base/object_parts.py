"""The parts of an object: its elements, its attributes, its slots."""

import collections
import contextlib
import functools
import types
from typing import Any

import torch

# The most elements that are looked at one by one. A longer container holds data, and only the
# container itself is noted.
MOST_ELEMENTS = 4096


# Objects and functions of these modules are for other threads, or run the step rather than
# being part of it.
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
    """Returns whether the class of `thing` is one of `kinds`. isinstance() asks the object as
    well, which may be the proxy of another object, or raise an error."""
    return issubclass(type(thing), kinds)


def elements_of(thing: Any) -> list[Any] | None:
    """Returns the elements of a container, for dictionaries the values, or None if `thing` is
    not a container. It asks the base class: a derived class may have no length, or count
    otherwise."""
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
    except Exception:  # there is none, or its class answers otherwise
        return None
    return attributes if type(attributes) is dict else None


@functools.cache
def slots_of(kind: type) -> tuple[types.MemberDescriptorType, ...]:
    """Returns the descriptors that read and write the attributes of a class with
    `__slots__`."""
    return tuple(
        member
        for base in kind.__mro__
        if "__slots__" in vars(base)
        for member in vars(base).values()
        if type(member) is types.MemberDescriptorType
    )


def slots_filled(thing: Any) -> dict[types.MemberDescriptorType, Any]:
    values = {}
    kind: Any = type(thing)
    for slot in slots_of(kind):
        with contextlib.suppress(AttributeError):
            values[slot] = slot.__get__(thing)
    return values
