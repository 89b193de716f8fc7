"""Replaces functions of PyTorch in one thread: other threads, which may train or compile
meanwhile, get PyTorch's own.

The first file of each room lists what the room replaces in PyTorch and other libraries, as
tests/structure/check_structure.py requires: a line for each name in full, and below the names
the file, the function that replaces them within a block of its own, and the reason. "Private"
says that the name, or a module on the way to it, begins with an underscore. PyTorch has each
name from 2.6 on unless the line gives versions. A `*` stands for any functions.
"""

import contextlib
import functools
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any


@contextlib.contextmanager
def set_attribute(owner: Any, name: str, value: Any, create: bool = False) -> Iterator[None]:
    """Sets an attribute of a module, class or object within the block, for all threads. At the
    end the owner's own attribute is restored, or removed if the owner had none, so that an
    inherited one shows again. Raises AttributeError if there is no such attribute, unless
    `create` allows a new one."""
    own = vars(owner)
    is_own = name in own
    if not is_own and not create:
        getattr(owner, name)
    before = own.get(name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if is_own:
            setattr(owner, name, before)
        else:
            delattr(owner, name)


def in_this_thread(
    original: Callable[..., Any], other: Callable[..., Any]
) -> Callable[..., Any]:
    """Returns a function that is `other` in the current thread and `original` in all other
    threads."""
    owner = threading.get_ident()

    def dispatcher(*args: Any, **kwargs: Any) -> Any:
        function = other if threading.get_ident() == owner else original
        return function(*args, **kwargs)

    with contextlib.suppress(AttributeError, TypeError):
        functools.update_wrapper(dispatcher, original)
    return dispatcher


def replaced_here(owner: Any, name: str, other: Any) -> Any:
    """Replaces an attribute within the block for this thread alone if it is a function, a
    property, or a constant of a module. Any other attribute is replaced for all threads."""
    # For some modules of PyTorch, the functions are in the module's class.
    original = vars(owner).get(name, getattr(owner, name, None))
    if isinstance(other, property) and isinstance(original, property):
        assert original.fget is not None and other.fget is not None
        return set_attribute(owner, name, property(in_this_thread(original.fget, other.fget)))
    if callable(other) and callable(original):
        return set_attribute(owner, name, in_this_thread(original, other))
    plainly: Any = types.ModuleType.__setattr__
    if type(owner).__setattr__ is plainly and name in vars(owner):
        return _constant_here(owner, name, other)
    return set_attribute(owner, name, other)


@contextlib.contextmanager
def _constant_here(module: types.ModuleType, name: str, value: Any) -> Iterator[None]:
    """Gives the module another class within the block, in which the name is a property: other
    threads read, and write, the module's own value."""
    owner = threading.get_ident()
    before = type(module)

    def read(self: types.ModuleType) -> Any:
        return value if threading.get_ident() == owner else vars(self)[name]

    def write(self: types.ModuleType, new: Any) -> None:
        vars(self)[name] = new

    module.__class__ = type(before.__name__, (before,), {name: property(read, write)})
    try:
        yield
    finally:
        module.__class__ = before
