"""What stands in the place of functions of PyTorch in one thread: others, which may train
or compile meanwhile, get PyTorch's own."""

import contextlib
import functools
import threading
from collections.abc import Callable
from typing import Any
from unittest import mock


def here(original: Callable[..., Any], other: Callable[..., Any]) -> Callable[..., Any]:
    """`other` in the thread that asks for it now, `original` in all others."""
    owner = threading.get_ident()

    def called(*args: Any, **kwargs: Any) -> Any:
        chosen = other if threading.get_ident() == owner else original
        return chosen(*args, **kwargs)

    with contextlib.suppress(AttributeError, TypeError):
        functools.update_wrapper(called, original)
    return called


def replaced_here(owner: Any, name: str, other: Any) -> Any:
    """mock.patch.object, which for functions and properties holds in this thread alone."""
    original = vars(owner).get(name)
    if isinstance(other, property) and isinstance(original, property):
        assert original.fget is not None and other.fget is not None
        return mock.patch.object(owner, name, property(here(original.fget, other.fget)))
    if callable(other) and callable(original):
        return mock.patch.object(owner, name, here(original, other))
    return mock.patch.object(owner, name, other)
