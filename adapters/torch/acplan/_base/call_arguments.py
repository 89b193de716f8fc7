"""Copies of a call's arguments, as they are when the call is made.

A unit runs its module again in backward, and by then the caller may have changed the arguments:
a list that grows with each layer, a dictionary that is filled, an object of its own whose
attributes are set. So the recomputation is given copies of lists, tuples, dictionaries, sets
and deques, of classes derived from them, and of objects of classes written in Python, at every
depth. Tensors, modules, functions and classes are not copied, nor are objects that cannot be
made without calling their class, that are released (`__del__`), or that belong to PyTorch or to
other threads.

Forward itself is given the caller's own objects, so that the caller sees what forward writes to
them; each recomputation has a copy of its own, so that nothing is written twice. Copies hold
the tensors of the call alone, and not those that are added later: the memory is that of the
trace.
"""

import collections
import enum
import types
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from acplan._base.object_parts import (
    attributes_of,
    elements_of,
    is_a,
    is_of_others,
    slots_filled,
)

# The most elements of a container that are copied. A longer container is copied, its elements
# are not.
_MOST_ELEMENTS = 4096
Change = Callable[[Any], Any]
_PLAIN = frozenset(
    [torch.Tensor, torch.nn.Parameter, torch._subclasses.FakeTensor, torch.Size]
    + [torch.dtype, torch.device, type(None), bool, int, float, complex, str, bytes]
)
_THEMSELVES = (
    torch.nn.Module, torch.Size, torch.Generator, type, enum.Enum, types.ModuleType,
    types.FunctionType, types.BuiltinFunctionType, types.MethodType, str, bytes, int, float,
)  # fmt: skip


def holds_nothing(args: Iterable[Any], kwargs: Mapping[str, Any]) -> bool:
    """Returns whether all arguments are tensors, numbers and the like, which need no copy. This
    is so for nearly all calls."""
    values = (*args, *kwargs.values())
    return _PLAIN.issuperset(map(type, values))


def copy_of(value: Any) -> Any:
    return Copies().copy_of(value)


def tensors_given(*values: Any) -> list[torch.Tensor]:
    """Returns the tensors that a call holds as long as it may run again, each once."""
    copies = Copies()
    for value in values:
        copies.copy_of(value)
    return copies.tensors


def _same(thing: Any) -> Any:
    return thing


class Copies:
    """Copies of several values that may have things in common, and the tensors in these values.
    In the copies, `of_tensor` returns what replaces a tensor, and `of_other` what replaces a
    thing that cannot be copied."""

    def __init__(self, of_tensor: Change = _same, of_other: Change = _same) -> None:
        self.tensors: list[torch.Tensor] = []
        self._of_tensor = of_tensor
        self._of_other = of_other
        # A thing and its copy, indexed by the thing's id, which stays valid as the thing is
        # held.
        self._copies_by_id: dict[int, tuple[Any, Any]] = {}

    def copy_of(self, thing: Any) -> Any:
        kind = type(thing)
        if issubclass(kind, torch.Tensor):
            if id(thing) not in self._copies_by_id:
                self._copies_by_id[id(thing)] = (thing, self._of_tensor(thing))
                self.tensors.append(thing)
            return self._copies_by_id[id(thing)][1]
        if kind in _PLAIN or issubclass(kind, _THEMSELVES):
            return thing
        if kind is weakref.ref:
            # A part that refers to its whole refers to the copy of it.
            entry = self._copies_by_id.get(id(thing()))
            return thing if entry is None else weakref.ref(entry[1])
        if id(thing) not in self._copies_by_id:
            copy = _new(thing)
            self._copies_by_id[id(thing)] = (thing, copy)
            copy = self._filled(thing, copy)
            self._copies_by_id[id(thing)] = (thing, copy)
        return self._copies_by_id[id(thing)][1]

    def _filled(self, thing: Any, copy: Any) -> Any:
        """Returns the copy, filled with copies of what `thing` holds, or `thing` itself if it
        cannot be copied."""
        if is_a(thing, tuple):
            copy = self._tuple(thing)
        elif copy is thing:
            return self._of_other(thing)
        elif is_a(thing, dict):
            kind: Any = _base(thing, _DICTIONARIES)
            keep = dict.__len__(thing) > _MOST_ELEMENTS
            for key, value in [*dict.items(thing)]:
                kind.__setitem__(copy, key, value if keep else self.copy_of(value))
        elif (elements := elements_of(thing)) is not None:
            kind = _base(thing, _SEQUENCES)
            if len(elements) <= _MOST_ELEMENTS and not is_a(thing, set):
                elements = [self.copy_of(element) for element in elements]
            (kind.update if kind is set else kind.extend)(copy, elements)
        if copy is not thing:
            self._fill_attributes(thing, copy)
        return copy

    def _tuple(self, thing: Any) -> Any:
        """Returns a new tuple only if the copy of an element is a new object: nobody can change
        a tuple."""
        before = elements_of(thing) or []
        elements = [self.copy_of(element) for element in before]
        if all(new is old for new, old in zip(elements, before)):
            return thing
        try:
            return tuple.__new__(type(thing), elements)
        except TypeError:  # such as the results of operators, whose class is made in C
            return type(thing)(elements)

    def _fill_attributes(self, thing: Any, copy: Any) -> None:
        attributes, own = attributes_of(thing), attributes_of(copy)
        if attributes is not None and own is not None:
            own.update({name: self.copy_of(value) for name, value in attributes.items()})
        for slot, value in slots_filled(thing).items():
            slot.__set__(copy, self.copy_of(value))


_DICTIONARIES = (collections.OrderedDict, dict)
_SEQUENCES = (list, collections.deque, set)


def _base(thing: Any, kinds: tuple[type, ...]) -> Any:
    return next((kind for kind in kinds if is_a(thing, kind)), None)


def _new(thing: Any) -> Any:
    """Returns an empty object of the same class, or `thing` itself if none can be made."""
    kind: Any = type(thing)
    base = _base(thing, (*_DICTIONARIES, *_SEQUENCES))
    try:
        if base is collections.deque:
            copy = base.__new__(kind)
            collections.deque.__init__(copy, (), thing.maxlen)
            return copy
        if issubclass(kind, collections.defaultdict):
            copy = collections.defaultdict.__new__(kind)
            collections.defaultdict.__init__(copy, thing.default_factory)
            return copy
        if base is not None:
            return base.__new__(kind)
        if not _is_of_its_users(thing, kind):
            return thing
        return object.__new__(kind)
    except Exception:  # raised by any code of the class's author
        return thing


# An object must not be released twice, and an object that is called is code.
_NOT_COPIED = frozenset({"__del__", "__call__"})


def _is_of_its_users(thing: Any, kind: type) -> bool:
    """Returns whether `thing` is an object of a class written in Python that only holds
    things."""
    if any(not _NOT_COPIED.isdisjoint(vars(base)) for base in kind.__mro__):
        return False
    if is_of_others(thing):
        return False
    if attributes_of(thing) is None and not slots_filled(thing):
        return False
    return str(kind.__module__).partition(".")[0] not in ("torch", "builtins")
