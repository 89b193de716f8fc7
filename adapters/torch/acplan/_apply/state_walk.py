"""The walk that finds the Python state of a unit's modules, and the ways to note and to restore
each kind of thing."""

import builtins
import collections
import dis
import functools
import random
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from acplan._base.torchscript import Attributes, is_scripted

_LIBRARIES = frozenset(
    "acplan accelerate asyncio bitsandbytes concurrent deepspeed diffusers functools "
    "lightning logging multiprocessing numpy peft pytorch_lightning queue re threading "
    "torch torchao transformer_engine transformers triton typing weakref".split()
)
# Objects of these classes cannot change.
_ATOMS = frozenset(
    [int, float, bool, str, bytes, complex, type(None), type, types.ModuleType, range]
    + [torch.dtype, torch.device, torch.Size]
    + [types.BuiltinFunctionType, types.MethodType, property, Ellipsis.__class__]
)
# The walk ends where things are data rather than state. These limits are, in this order: the
# length up to which it goes through the elements of containers, the length up to which it notes
# containers, its depth, and the number of things.
_MOST_WALKED = 256
_MOST_NOTED = 1 << 15
_MOST_DEPTH = 4
_MOST_THINGS = 1 << 12
_OF_GLOBALS = frozenset(["LOAD_GLOBAL", "STORE_GLOBAL", "DELETE_GLOBAL", "LOAD_NAME"])
# The attributes of nn.Module itself, none of which forward changes.
_OF_MODULES = frozenset(torch.nn.Module().__dict__) - {"training"}

Noted = tuple[Any, Any, Callable[[Any, Any], None]]
Before = dict[Any, Any] | list[Any]


class Walk:
    def __init__(self) -> None:
        self.noted: list[Noted] = [(random, random.getstate(), _put_random)]
        # The places of tensors: the thing, what is noted of it, and the key.
        self.places: list[tuple[Any, Before, Any]] = []
        self._visited: set[int] = set()
        self._uses_numpy = False
        # Only changes of what is noted, and of modules, change what the walk finds.
        self.is_regular = True

    def add_module(self, module: torch.nn.Module) -> None:
        attributes = module.__dict__
        if is_scripted(module):
            # Its code sets no attribute, or it is in no unit.
            own = dict(Attributes(module).items())
            self.places += [(own, own, n) for n, p in own.items() if p is not None]
            return
        if module._parameters:
            # They are not restored, only watched.
            own = dict(module._parameters)
            self.places += [(own, own, n) for n, p in own.items() if p is not None]
        if module._buffers:
            self._note(module._buffers, dict(module._buffers), put_in_dict)
            self._note_places(self.noted[-1])
        for hooks in (module._forward_hooks, module._forward_pre_hooks):
            for hook in hooks.values():
                self._add(hook, 0)
        if str(type(module).__module__).startswith("torch.nn.modules."):
            # Their code changes no attribute.
            self._note(attributes, module.training, put_training)
            return
        before = dict(attributes)
        self._note(attributes, before, put_in_dict)
        for name, value in before.items():
            if type(value) in _ATOMS:
                continue
            if isinstance(value, torch.Tensor):
                self.places.append((attributes, before, name))
            elif name not in _OF_MODULES:
                self._add(value, 0)
        for code in _code_of(type(module)):  # type: ignore[arg-type]  # types have hashes
            self._add_variables(code)

    def _note_places(self, noted: Noted) -> None:
        thing, before, _ = noted
        if isinstance(before, (dict, list)):
            pairs = before.items() if isinstance(before, dict) else enumerate(before)
            self.places += [
                (thing, before, key) for key, v in pairs if isinstance(v, torch.Tensor)
            ]

    def _note(self, thing: Any, before: Any, setter: Callable[[Any, Any], None]) -> None:
        self._visited.add(id(thing))
        self.noted.append((thing, before, setter))

    def _add(self, thing: Any, depth: int) -> None:
        kind = type(thing)
        if kind in _ATOMS or id(thing) in self._visited or depth > _MOST_DEPTH:
            return
        if len(self.noted) > _MOST_THINGS:
            return
        if isinstance(thing, (torch.nn.Module, torch.Tensor, type)):
            return
        if kind is types.FunctionType:
            self._visited.add(id(thing))
            self._add_function(thing, depth)
        elif isinstance(thing, functools.partial):
            self._visited.add(id(thing))
            self.is_regular = False
            self._add_each((thing.func, *thing.args, *thing.keywords.values()), depth)
        elif kind is types.MethodType:
            self._add(thing.__self__, depth)
        else:
            self._add_object(thing, depth)

    def _add_object(self, thing: Any, depth: int) -> None:
        for base, setter in _CONTAINERS:
            if not isinstance(thing, base):
                continue
            length = base.__len__(thing)
            self.is_regular &= length <= _MOST_NOTED
            if length <= _MOST_NOTED:
                self._note(thing, COPIES[setter](thing), setter)
                self._note_places(self.noted[-1])
            if length <= _MOST_WALKED:
                is_mapping = isinstance(thing, dict)
                values = dict.values(thing) if is_mapping else base.__iter__(thing)
                self._add_each(list(values), depth)
            break
        else:
            if isinstance(thing, tuple):
                self._visited.add(id(thing))
                self._add_each(tuple.__iter__(thing), depth)
        if _is_of_library(type(thing)):  # type: ignore[arg-type]  # types have hashes
            self._add_of_numpy(thing)
            return
        if isinstance(thing, random.Random):
            self._note(thing, thing.getstate(), _put_random)
        attributes = _attributes_of(thing)
        if attributes is not None and id(attributes) not in self._visited:
            self._visited.add(id(thing))
            self._note(attributes, dict(attributes), put_in_dict)
            self._note_places(self.noted[-1])
            self._add_each([*attributes.values()], depth)

    def _add_each(self, things: Iterable[Any], depth: int) -> None:
        for thing in things:
            if type(thing) not in _ATOMS:
                self._add(thing, depth + 1)

    def _add_of_numpy(self, thing: Any) -> None:
        numpy = sys.modules.get("numpy")
        if numpy is None:
            return
        if isinstance(thing, numpy.ndarray):
            if thing.dtype != object and thing.flags.writeable:
                self._note(thing, thing.copy(), _put_in_array)
        elif isinstance(thing, numpy.random.RandomState):
            self._note(thing, thing.get_state(), _put_state)
        elif isinstance(thing, numpy.random.Generator):
            self._note(thing, thing.bit_generator.state, _put_bits)

    def _add_function(self, function: types.FunctionType, depth: int) -> None:
        for code in _variables_of(function):
            self._add_variables(code)
        for cell in function.__closure__ or ():
            if id(cell) in self._visited:
                continue
            try:
                value = cell.cell_contents
            except ValueError:  # it is empty
                continue
            self._note(cell, [value], put_in_cell)
            self._note_places(self.noted[-1])
            self._add_each((value,), depth)

    def _add_variables(self, code: "Code") -> None:
        if code.uses_numpy and not self._uses_numpy:
            self._uses_numpy = True
            of_numpy: Any = sys.modules["numpy"].random.mtrand._rand
            self._note(of_numpy, of_numpy.get_state(), _put_state)
        if not code.names or id(code) in self._visited:
            return
        before = _variables(code)
        self._note(code, before, put_variables)
        self._note_places((code.space, before, put_variables))
        self._add_each(before.values(), 0)


class Code:
    """The variables of a file, its namespace, that a function names."""

    __slots__ = ("space", "names", "uses_numpy")

    def __init__(self, space: dict[str, Any], names: set[str]) -> None:
        self.space = space
        self.uses_numpy = any(
            str(getattr(space.get(name), attribute, "")).startswith("numpy")
            for name in names
            for attribute in ("__module__", "__name__")
        )
        self.names = tuple(name for name in sorted(names) if _is_variable(space, name))


def _is_variable(space: dict[str, Any], name: str) -> bool:
    if name not in space:
        return not hasattr(builtins, name)
    value = space[name]
    fixed = (types.ModuleType, types.FunctionType, types.BuiltinFunctionType, type)
    if isinstance(value, (*fixed, torch.nn.Module)):
        return False
    kind: Any = type(value)
    return not _is_of_library(kind) or isinstance(value, torch.Tensor)


@functools.cache
def _code_of(kind: type) -> tuple[Code, ...]:
    """Returns the variables that the methods of a module's class name."""
    codes: list[Code] = []
    for base in kind.__mro__:
        if base is torch.nn.Module or _is_of_library(base):
            continue
        for value in vars(base).values():
            function = getattr(value, "__func__", value)
            function = getattr(function, "__wrapped__", function)
            if isinstance(function, types.FunctionType):
                codes += _variables_of(function)
    return tuple(codes)


_KNOWN_CODE: dict[types.CodeType, tuple[Code, ...]] = {}


def _variables_of(function: types.FunctionType) -> tuple[Code, ...]:
    """Returns the variables that a function, and the functions of its file that it names,
    name."""
    known_codes = _KNOWN_CODE.get(function.__code__)
    if known_codes is not None:
        return known_codes
    space = function.__globals__
    if str(space.get("__name__", "")).partition(".")[0] in _LIBRARIES:
        return _KNOWN_CODE.setdefault(function.__code__, ())
    pending, visited, names = [function.__code__], set(), set()
    while pending:
        code = pending.pop()
        if code in visited:
            continue
        visited.add(code)
        own = {i.argval for i in dis.get_instructions(code) if i.opname in _OF_GLOBALS}
        names |= own
        pending += [c for c in code.co_consts if isinstance(c, types.CodeType)]
        functions = (space.get(name) for name in own)
        pending += [
            f.__code__
            for f in functions
            if isinstance(f, types.FunctionType) and f.__globals__ is space
        ]
    return _KNOWN_CODE.setdefault(function.__code__, (Code(space, names),))


@functools.cache
def _is_of_library(kind: type) -> bool:
    return str(kind.__module__).partition(".")[0] in _LIBRARIES


def _attributes_of(thing: Any) -> dict[str, Any] | None:
    try:
        attributes = object.__getattribute__(thing, "__dict__")
    except AttributeError:
        return None
    return attributes if type(attributes) is dict else None


def put_in_dict(thing: dict[Any, Any], before: dict[Any, Any]) -> None:
    for key, value in before.items():
        if dict.get(thing, key, before) is not value:
            dict.__setitem__(thing, key, value)
    if dict.__len__(thing) != len(before):
        for key in [key for key in dict.keys(thing) if key not in before]:
            dict.__delitem__(thing, key)


def put_training(attributes: dict[str, Any], before: bool) -> None:
    attributes["training"] = before


def _put_in_ordered(thing: Any, before: dict[Any, Any]) -> None:
    if [*dict.items(thing)] != [*before.items()]:
        collections.OrderedDict.clear(thing)
        collections.OrderedDict.update(thing, before)


def put_in_list(thing: list[Any], before: list[Any]) -> None:
    if not _are_same(list.__iter__(thing), list.__len__(thing), before):
        list.__setitem__(thing, slice(None), before)


def _put_in_deque(thing: Any, before: list[Any]) -> None:
    deque = collections.deque
    if not _are_same(deque.__iter__(thing), deque.__len__(thing), before):
        deque.clear(thing)
        deque.extend(thing, before)


def _are_same(values: Iterator[Any], count: int, before: list[Any]) -> bool:
    return count == len(before) and all(a is b for a, b in zip(values, before))


def _put_in_set(thing: set[Any], before: set[Any]) -> None:
    if not set.__eq__(thing, before):
        set.clear(thing)
        set.update(thing, before)


def put_in_cell(cell: types.CellType, before: list[Any]) -> None:
    cell.cell_contents = before[0]


def put_variables(code: Code, before: dict[str, Any]) -> None:
    for name in code.names:
        if name not in before:
            code.space.pop(name, None)
        elif code.space.get(name, before) is not before[name]:
            code.space[name] = before[name]


def _variables(code: Code) -> dict[str, Any]:
    return {name: code.space[name] for name in code.names if name in code.space}


def values_of_variables(code: Code) -> list[Any]:
    return [code.space.get(name, code) for name in code.names]


def _put_in_array(array: Any, before: Any) -> None:
    array[...] = before


def _put_random(thing: Any, before: Any) -> None:
    if thing.getstate() != before:
        thing.setstate(before)


def _put_state(thing: Any, before: Any) -> None:
    thing.set_state(before)


def _put_bits(thing: Any, before: Any) -> None:
    thing.bit_generator.state = before


_CONTAINERS: tuple[tuple[Any, Callable[[Any, Any], None]], ...] = (
    (collections.OrderedDict, _put_in_ordered),
    (dict, put_in_dict),
    (list, put_in_list),
    (collections.deque, _put_in_deque),
    (set, _put_in_set),
)
# Functions that note a thing, by the function that restores it.
COPIES: dict[Any, Callable[[Any], Any]] = {
    put_in_dict: dict.copy,
    put_training: lambda attributes: attributes["training"],
    _put_in_ordered: lambda thing: dict(dict.items(thing)),
    put_in_list: lambda thing: [*list.__iter__(thing)],
    _put_in_deque: lambda thing: [*collections.deque.__iter__(thing)],
    _put_in_set: lambda thing: {*set.__iter__(thing)},
    put_in_cell: lambda cell: [cell.cell_contents],
    put_variables: _variables,
    _put_in_array: lambda array: array.copy(),
    _put_random: lambda thing: thing.getstate(),
    _put_state: lambda thing: thing.get_state(),
    _put_bits: lambda thing: thing.bit_generator.state,
}
OF_GENERATORS = frozenset([_put_random, _put_state, _put_bits])
