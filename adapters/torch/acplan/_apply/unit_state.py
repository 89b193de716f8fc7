"""The Python state of a unit, which is restored for its recomputation.

A module's code may read and change more than tensors in place: attributes of its modules and
the objects, lists and dictionaries in them, buffers that are given another tensor, variables of
closures and of the file that the code is in, and the random states of Python and NumPy. If that
code runs once more, it must read what it read in forward, and none of its changes may be seen
afterwards.

`UnitState` notes all of it by identity when a call of a unit begins. For the recomputation it
restores every value, and at the end it restores the values from before the recomputation. So
the code runs on the state of its own call, whatever other calls, other modules or the training
loop have changed since, and a change happens once. Tensors that operators of the call have read
are held until the unit has run again; it is the same tensor object, so changes *in* it are for
_apply/outside_memory.py. Tensors that the call has not read are not held: an attribute that is
only written to, such as the last attention map, keeps no memory.

The state is found by a walk from the modules, through things that belong to the user: not
through objects of PyTorch and of other libraries in `_LIBRARIES`, which keep accounts of their
own (sharding, hooks that move weights), and not through parameters, which autograd watches.
Attributes of modules are noted for every class, also of libraries.
"""

import builtins
import collections
import dis
import functools
import random
import sys
import types
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from acplan._apply.tape import memory_of
from acplan._base.operators import MOVED_ON
from acplan._base.torchscript import Attributes, is_scripted, let_optimize, stop_optimizing

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
_Before = dict[Any, Any] | list[Any]
_Weak = tuple[Any, _Before, Any, weakref.ref[torch.Tensor]]


class UnitState:
    """The state that some modules read, as it is when this object is made."""

    __slots__ = ("_noted", "_optimized", "_present", "_weak", "statistics", "tensors")

    def __init__(self, modules: Iterable[torch.nn.Module]) -> None:
        walk = _Walk()
        for module in modules:
            walk.add_module(module)
        self._noted = walk.noted
        self._present: list[Noted] | None = None
        self._optimized = False
        # Noted tensors that the call has not read, indexed by memory.
        self._weak: dict[int, list[_Weak]] = {}
        # The memory of running statistics and of the counts of their updates.
        self.statistics: set[int | None] = set()
        # The tensors that the call has read.
        self.tensors: list[torch.Tensor] = []
        for thing, before, key in walk.places:
            tensor = before[key]
            memory = memory_of(tensor)
            if key in MOVED_ON:
                self.statistics.add(memory)
            if memory is None or tensor.device.type == "cpu":
                # Nothing shows whether Python reads it, by tolist() for example.
                self.tensors.append(tensor)
                continue
            place = (thing, before, key, weakref.ref(tensor))
            self._weak.setdefault(memory, []).append(place)
            before[key] = None

    def memory(self) -> set[int]:
        """Returns the memory of all noted tensors."""
        held = {memory for t in self.tensors if (memory := memory_of(t)) is not None}
        return held | self._weak.keys()

    def kinds(self) -> set[type]:
        """Returns the classes of the noted tensors."""
        refs = [ref for places in self._weak.values() for *_, ref in places]
        return {*map(type, self.tensors)} | {type(ref()) for ref in refs}

    def is_settled(self) -> bool:
        """Returns whether all tensors that the call has not read are where they were: none is
        made anew by each call."""
        return all(
            thing is before or _value_in(thing, key) is ref()
            for places in self._weak.values()
            for thing, before, key, ref in places
        )

    def hold(self, memory: int) -> None:
        """Holds the noted tensors that have this memory, which the call reads."""
        for place in self._weak.pop(memory, ()):
            thing, before, key, ref = place
            tensor = ref()
            if tensor is not None:
                before[key] = tensor
                self.tensors.append(tensor)

    def hold_all(self) -> None:
        """Holds all noted tensors, as it is not known which ones the call reads."""
        for memory in [*self._weak]:
            self.hold(memory)

    def put_back(self) -> None:
        """Restores the state from when this object was made. The first call remembers the
        present state, for `restore`."""
        weak = [place for places in self._weak.values() for place in places]
        for thing, before, key, ref in weak:
            tensor = ref()
            if tensor is None:
                # Nobody reads it: the current tensor is as good.
                is_mapping = isinstance(thing, dict) and key in thing
                tensor = dict.__getitem__(thing, key) if is_mapping else torch.empty(0)
            before[key] = tensor
        if self._present is None:
            self._optimized = stop_optimizing()
            self._present = [
                (thing, _COPIES[setter](thing), setter) for thing, _, setter in self._noted
            ]
        for thing, before, setter in self._noted:
            setter(thing, before)

    def restore(self) -> None:
        """Restores the state from the first call of `put_back`."""
        present, self._present = self._present, None
        if present is not None:
            let_optimize(self._optimized)
        for thing, before, setter in reversed(present or ()):
            setter(thing, before)
        for places in self._weak.values():
            for _, unread, key, _ in places:
                unread[key] = None


class _Walk:
    def __init__(self) -> None:
        self.noted: list[Noted] = [(random, random.getstate(), _put_random)]
        # The places of tensors: the thing, what is noted of it, and the key.
        self.places: list[tuple[Any, _Before, Any]] = []
        self._visited: set[int] = set()
        self._uses_numpy = False

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
            self._note(module._buffers, dict(module._buffers), _put_in_dict)
            self._note_places(self.noted[-1])
        for hooks in (module._forward_hooks, module._forward_pre_hooks):
            for hook in hooks.values():
                self._add(hook, 0)
        if str(type(module).__module__).startswith("torch.nn.modules."):
            # Their code changes no attribute.
            self._note(attributes, module.training, _put_training)
            return
        before = dict(attributes)
        self._note(attributes, before, _put_in_dict)
        for name, value in before.items():
            if type(value) in _ATOMS:
                continue
            if isinstance(value, torch.Tensor):
                self.places.append((attributes, before, name))
            elif name not in _OF_MODULES:
                self._add(value, 0)
        for code in _code_of(type(module)):  # type: ignore[arg-type]
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
            if length <= _MOST_NOTED:
                self._note(thing, _COPIES[setter](thing), setter)
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
        if _is_of_library(type(thing)):  # type: ignore[arg-type]
            self._add_of_numpy(thing)
            return
        if isinstance(thing, random.Random):
            self._note(thing, thing.getstate(), _put_random)
        attributes = _attributes_of(thing)
        if attributes is not None and id(attributes) not in self._visited:
            self._visited.add(id(thing))
            self._note(attributes, dict(attributes), _put_in_dict)
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
            self._note(cell, [value], _put_in_cell)
            self._note_places(self.noted[-1])
            self._add_each((value,), depth)

    def _add_variables(self, code: "_Code") -> None:
        if code.uses_numpy and not self._uses_numpy:
            self._uses_numpy = True
            of_numpy: Any = sys.modules["numpy"].random.mtrand._rand
            self._note(of_numpy, of_numpy.get_state(), _put_state)
        if not code.names or id(code) in self._visited:
            return
        before = _variables(code)
        self._note(code, before, _put_variables)
        self._note_places((code.space, before, _put_variables))
        self._add_each(before.values(), 0)


class _Code:
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
def _code_of(kind: type) -> tuple[_Code, ...]:
    """Returns the variables that the methods of a module's class name."""
    codes: list[_Code] = []
    for base in kind.__mro__:
        if base is torch.nn.Module or _is_of_library(base):
            continue
        for value in vars(base).values():
            function = getattr(value, "__func__", value)
            function = getattr(function, "__wrapped__", function)
            if isinstance(function, types.FunctionType):
                codes += _variables_of(function)
    return tuple(codes)


_KNOWN_CODE: dict[types.CodeType, tuple[_Code, ...]] = {}


def _variables_of(function: types.FunctionType) -> tuple[_Code, ...]:
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
    return _KNOWN_CODE.setdefault(function.__code__, (_Code(space, names),))


@functools.cache
def _is_of_library(kind: type) -> bool:
    return str(kind.__module__).partition(".")[0] in _LIBRARIES


def _attributes_of(thing: Any) -> dict[str, Any] | None:
    try:
        attributes = object.__getattribute__(thing, "__dict__")
    except AttributeError:
        return None
    return attributes if type(attributes) is dict else None


def _value_in(thing: Any, key: Any) -> Any:
    """Returns the value at the place of a noted tensor."""
    if isinstance(thing, types.CellType):
        return thing.cell_contents
    try:
        return thing[key]
    except (KeyError, IndexError):
        return None


def _put_in_dict(thing: dict[Any, Any], before: dict[Any, Any]) -> None:
    for key, value in before.items():
        if dict.get(thing, key, before) is not value:
            dict.__setitem__(thing, key, value)
    if dict.__len__(thing) != len(before):
        for key in [key for key in dict.keys(thing) if key not in before]:
            dict.__delitem__(thing, key)


def _put_training(attributes: dict[str, Any], before: bool) -> None:
    attributes["training"] = before


def _put_in_ordered(thing: Any, before: dict[Any, Any]) -> None:
    if [*dict.items(thing)] != [*before.items()]:
        collections.OrderedDict.clear(thing)
        collections.OrderedDict.update(thing, before)


def _put_in_list(thing: list[Any], before: list[Any]) -> None:
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


def _put_in_cell(cell: types.CellType, before: list[Any]) -> None:
    cell.cell_contents = before[0]


def _put_variables(code: _Code, before: dict[str, Any]) -> None:
    for name in code.names:
        if name not in before:
            code.space.pop(name, None)
        elif code.space.get(name, before) is not before[name]:
            code.space[name] = before[name]


def _variables(code: _Code) -> dict[str, Any]:
    return {name: code.space[name] for name in code.names if name in code.space}


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
    (dict, _put_in_dict),
    (list, _put_in_list),
    (collections.deque, _put_in_deque),
    (set, _put_in_set),
)
# Functions that note a thing, by the function that restores it.
_COPIES: dict[Any, Callable[[Any], Any]] = {
    _put_in_dict: dict.copy,
    _put_training: lambda attributes: attributes["training"],
    _put_in_ordered: lambda thing: dict(dict.items(thing)),
    _put_in_list: lambda thing: [*list.__iter__(thing)],
    _put_in_deque: lambda thing: [*collections.deque.__iter__(thing)],
    _put_in_set: lambda thing: {*set.__iter__(thing)},
    _put_in_cell: lambda cell: [cell.cell_contents],
    _put_variables: _variables,
    _put_in_array: lambda array: array.copy(),
    _put_random: lambda thing: thing.getstate(),
    _put_state: lambda thing: thing.get_state(),
    _put_bits: lambda thing: thing.bit_generator.state,
}
