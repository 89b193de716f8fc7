"""Restores and moves what functions that are passed with a model, such as its loss, can reach.

A step runs the code of `forward_fn`, `loss_fn` and the like on fake tensors, and that code may
keep some of them: in a scheduler of its closure, in a criterion's attributes, in a global
dictionary. So everything that the code can reach is noted before and restored after: variables
of closures, globals that the code names, default arguments, the objects of bound methods,
arguments of partials, and from there on attributes, elements and attributes of classes; and the
globals of the files that the model's classes are from, and attributes of these classes.
Libraries' globals are not looked into.

Only changes are undone. Notes on the run stay: lists that have only grown, by elements that
hold no tensor of the step. Globals and attributes of classes are restored only if they hold
tensors of the step.

Modules that are reached, such as a criterion, are moved to the device like the model. Another
tensor stays where its owner has it, on the CPU, as long as nothing else is required: code may
copy it to the device itself. If it meets tensors of the device in an operator that takes no
others, such as labels in a closure, the step begins again with that tensor on the device, where
its owner would have had to put it; and at last with the device in each attribute that names the
CPU, such as a LightningModule's or an Accelerator's, as it would be on the model's device.
"""

import collections
import contextlib
import functools
import sys
import sysconfig
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils.weak import WeakTensorKeyDictionary

from acplan._base.object_parts import (
    MOST_ELEMENTS,
    attributes_of,
    elements_of,
    is_a,
    is_of_others,
    slots_filled,
)
from acplan._base.tensors import tensors_of
from acplan._base.torchscript import holders_of
from acplan._fakes.restored_state import undone

_MISSING = object()
_LEAVES = (
    str, bytes, int, float, complex, type(None), torch.dtype, torch.device,
    torch.storage.UntypedStorage, types.BuiltinFunctionType, types.CodeType,
)  # fmt: skip
_LIBRARIES = ("torch", "numpy", "builtins", "acplan")
_PACKAGES = ("site-packages", "dist-packages")
_STANDARD = sysconfig.get_paths()["stdlib"]
Change = Callable[[torch.Tensor], Any]


class FunctionsGiven:
    """The things that these functions reach, and the data in the files of the model's
    classes."""

    def __init__(self, model: torch.nn.Module, functions: Iterable[Any]) -> None:
        self.tensors: dict[int, torch.Tensor] = {}
        self._of_model = {id(module) for module in model.modules()}
        self._things: dict[int, Any] = {}
        # Globals and attributes of classes, as their owner, their name and their value.
        self._names: list[tuple[Any, str, Any]] = []
        self._spaces: list[tuple[Any, frozenset[str]]] = []
        self._walk([f for f in functions if f is not None and not isinstance(f, str)])
        # The things that hold tensors that may be moved.
        self._holders, self.movable = [*self._things.values()], dict(self.tensors)
        self._names_given = len(self._names)
        kinds = {type(module) for module in model.modules()}
        self._walk(self._named_by(kinds))

    @contextlib.contextmanager
    def state_kept(self) -> Iterator[None]:
        """Restores all of it after the block."""
        with _disable_current_modes():
            noted = [u for thing in self._things.values() for u in undone(thing, _is_note)]
            noted += [functools.partial(_put_name_back, *name) for name in self._names]
            noted += [functools.partial(_drop_new, *space) for space in self._spaces]
            noted += [
                functools.partial(_put_gradient_back, tensor, tensor.grad)
                for tensor in self.tensors.values()
                if tensor.is_leaf and tensor.requires_grad
            ]
        try:
            yield
        finally:
            with _disable_current_modes(), contextlib.ExitStack() as undo:
                for one in noted:
                    undo.callback(one)

    def move_modules(self, fake: Change) -> list[torch.Tensor]:
        """Moves the modules that are not the model's to the device. Returns their new
        tensors."""
        tensors = []
        for module in self._holders:
            if not is_a(module, torch.nn.Module):
                continue
            for values in holders_of(module):
                for name, value in [*values.items()]:
                    if is_a(value, torch.Tensor) and not is_a(value, FakeTensor):
                        values[name] = fake(value)
                        tensors.append(values[name])
        return tensors

    def move(self, tensors: Iterable[int], fake: Change) -> list[torch.Tensor]:
        """Replaces these tensors, given by their ids, in everything that holds them. Returns
        the new tensors."""
        others = {key: fake(self.movable[key]) for key in tensors}
        if not others:
            return []
        replace_in(self._holders, others)
        self._replace_names(functools.partial(_replaced, others))
        return [*others.values()]

    def move_devices(self, model: torch.nn.Module) -> bool:
        """Replaces the CPU by the device in attributes, elements and variables of all holders
        and of the model's modules: their owner had the model there. Returns whether any was."""
        changed = []

        def to_device(value: Any) -> Any:
            if not (is_a(value, torch.device) and value.type == "cpu"):
                return value
            changed.append(value)
            return torch.device("cuda", 0)

        for thing in (*map(vars, model.modules()), *self._holders):
            _replace_within(thing, to_device)
        self._replace_names(to_device)
        return bool(changed)

    def _replace_names(self, replaced: Callable[[Any], Any]) -> None:
        for owner, name, _ in self._names[: self._names_given]:
            value = _value_named(owner, name)
            if replaced(value) is not value:
                _set_name(owner, name, replaced(value))

    def _walk(self, roots: Iterable[Any]) -> None:
        pending = [*roots]
        while pending:
            thing = pending.pop()
            if is_a(thing, torch.Tensor):
                self.tensors.setdefault(id(thing), thing)
                continue
            if is_a(thing, _LEAVES) or id(thing) in self._things:
                continue
            if id(thing) in self._of_model or is_a(thing, torch.optim.Optimizer):
                continue
            if is_a(thing, types.ModuleType):
                continue
            self._things[id(thing)] = thing
            pending += self._parts(thing)

    def _parts(self, thing: Any) -> list[Any]:
        if is_a(thing, type):
            return self._of_class(thing)
        if is_a(thing, types.FunctionType):
            return self._of_function(thing)
        if is_a(thing, types.CellType):
            return _contents(thing)
        if is_a(thing, types.MethodType):
            return [thing.__self__, thing.__func__]
        if is_a(thing, (staticmethod, classmethod)):
            return [thing.__func__]
        if is_a(thing, property):
            return [f for f in (thing.fget, thing.fset) if f is not None]
        if is_of_others(thing):
            return []
        parts: list[Any] = [type(thing)]
        if is_a(thing, functools.partial):
            parts += [thing.func, thing.args, thing.keywords]
        if is_a(thing, functools._lru_cache_wrapper):
            parts.append(thing.__wrapped__)
        elements = elements_of(thing)
        if elements is not None and len(elements) <= MOST_ELEMENTS:
            parts += elements
        attributes = attributes_of(thing)
        if attributes is not None:
            parts.append(attributes)
        return [*parts, *slots_filled(thing).values()]

    def _of_function(self, function: types.FunctionType) -> list[Any]:
        parts: list[Any] = [*(function.__closure__ or ())]
        if function.__module__ and function.__module__.partition(".")[0] in _LIBRARIES:
            return parts
        parts += [function.__kwdefaults__ or {}, function.__dict__]
        self._note_name(function, "__defaults__", function.__defaults__)
        parts += function.__defaults__ or ()
        if _is_of_a_library(function.__code__.co_filename):
            return parts
        names = {*_names_in(function.__code__)}
        for name in names:
            value = function.__globals__.get(name, _MISSING)
            parts += self._global(function.__globals__, name, value, names)
        return parts

    def _global(
        self, owner: dict[str, Any], name: str, value: Any, names: set[str]
    ) -> list[Any]:
        if not is_a(value, types.ModuleType):
            self._note_name(owner, name, value)
            return [] if value is _MISSING else [value]
        if _is_of_a_library(getattr(value, "__file__", None) or "<frozen>"):
            return []
        inner = {name: vars(value)[name] for name in names & vars(value).keys()}
        data = {name: v for name, v in inner.items() if not is_a(v, types.ModuleType)}
        for inner_name, datum in data.items():
            self._note_name(vars(value), inner_name, datum)
        return [*data.values()]

    def _of_class(self, kind: type) -> list[Any]:
        module = sys.modules.get(kind.__module__)
        if str(kind.__module__).partition(".")[0] in _LIBRARIES or module is None:
            return []
        if _is_of_a_library(getattr(module, "__file__", None) or ""):
            return []
        parts: list[Any] = [*kind.__bases__]
        for name, value in [*vars(kind).items()]:
            if not name.startswith("__") or name in ("__init__", "__call__"):
                self._note_name(kind, name, value)
                parts.append(value)
        return parts

    def _named_by(self, kinds: Iterable[type]) -> list[Any]:
        """Returns the data in the files that classes are from, and in the classes."""
        data: list[Any] = []
        bases = {base for kind in kinds for base in kind.__mro__}
        modules = {base.__module__ for base in bases}
        for name in sorted(modules):
            module = sys.modules.get(name)
            if module is None or name.partition(".")[0] in _LIBRARIES:
                continue
            data += self._data_of(vars(module), vars(module))
        for base in bases:
            if str(base.__module__).partition(".")[0] not in _LIBRARIES:
                data += self._data_of(base, vars(base))
        return data

    def _data_of(self, owner: Any, names: Mapping[str, Any]) -> list[Any]:
        data: list[Any] = []
        self._spaces.append((owner, frozenset(names)))
        for name, value in [*names.items()]:
            data += self._datum(owner, name, value)
        return data

    def _datum(self, owner: Any, name: str, value: Any) -> list[Any]:
        if is_a(value, types.FunctionType) and not name.startswith("__"):
            return [*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
        is_code = is_a(value, (type, types.ModuleType))
        if name.startswith("__") or is_code or is_of_others(value):
            return []
        self._note_name(owner, name, value)
        return [value] if _is_data(value) else []

    def _note_name(self, owner: Any, name: str, value: Any) -> None:
        self._names.append((owner, name, value))


def _is_data(value: Any) -> bool:
    """Returns whether a global variable or an attribute of a class is the user's data."""
    module = sys.modules.get(type(value).__module__)
    is_of_a_library = _is_of_a_library(getattr(module, "__file__", None) or "")
    return is_a(value, (dict, list, set)) or not is_of_a_library


class Origins(TorchDispatchMode):
    """Follows from which of these tensors other tensors on the CPU are made, up to an operator
    that refuses one of them: `met` has the ids of the tensors that it was made from."""

    def __init__(self, tensors: dict[int, torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.met: set[int] = set()
        self._tensors = tensors
        self._made_of: Any = WeakTensorKeyDictionary()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        read = [t for t in tensors_of(args, kwargs or {}) if t.device.type == "cpu"]
        try:
            out = func(*args, **(kwargs or {}))
        except RuntimeError as error:
            if is_of_devices(error):
                self.met |= {k for t in read if t.dim() > 0 for k in self._origins(t)}
            raise
        origins = {key for tensor in read for key in self._origins(tensor)}
        if origins:
            for tensor in tensors_of(out):
                if tensor.device.type == "cpu":
                    self._made_of[tensor] = origins
        return out

    def _origins(self, tensor: torch.Tensor) -> set[int]:
        original = self._tensors.get(id(tensor))
        origins: set[int] = {id(tensor)} if original is tensor else set()
        return origins | (self._made_of.get(tensor) or set())


def is_of_devices(error: BaseException) -> bool:
    """Returns whether tensors of several devices met in an operator that takes those of one."""
    text = f"{type(error).__name__} {error}"
    return "DeviceMismatch" in text or "FakeTensor Device Propagation" in text


def _contents(cell: types.CellType) -> list[Any]:
    try:
        return [cell.cell_contents]
    except ValueError:
        return []


@functools.cache
def _is_of_a_library(file: str) -> bool:
    return any(f"/{name}/" in file for name in _PACKAGES) or file.startswith(
        (_STANDARD, "<frozen")
    )


def _names_in(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names_in(constant)


def _is_note(new_elements: list[Any]) -> bool:
    """Returns whether no new element of a list holds tensors of the step."""
    return not any(map(holds_fakes, new_elements))


def holds_fakes(thing: Any, depth: int = 6) -> bool:
    if is_a(thing, torch.Tensor):
        return is_a(thing, FakeTensor)
    if depth == 0 or is_a(thing, (*_LEAVES, type, types.ModuleType, torch.nn.Module)):
        return False
    if is_a(thing, types.CellType):
        return any(holds_fakes(inner, depth - 1) for inner in _contents(thing))
    parts = [*(elements_of(thing) or ())[:MOST_ELEMENTS], *slots_filled(thing).values()]
    parts += (attributes_of(thing) or {}).values()
    if is_a(thing, types.FunctionType):
        parts += thing.__closure__ or ()
    return any(holds_fakes(part, depth - 1) for part in parts)


def _put_gradient_back(tensor: torch.Tensor, gradient: torch.Tensor | None) -> None:
    if tensor.grad is not gradient:
        tensor.grad = gradient


def _value_named(owner: Any, name: str) -> Any:
    if isinstance(owner, dict):
        return owner.get(name, _MISSING)
    return vars(owner).get(name) if isinstance(owner, type) else getattr(owner, name)


def _set_name(owner: Any, name: str, value: Any) -> None:
    if value is _MISSING:
        owner.pop(name, None) if isinstance(owner, dict) else delattr(owner, name)
    elif isinstance(owner, dict):
        owner[name] = value
    else:
        setattr(owner, name, value)


def _drop_new(owner: Any, before: frozenset[str]) -> None:
    for name in [*(owner if isinstance(owner, dict) else vars(owner))]:
        if name not in before and holds_fakes(_value_named(owner, name)):
            _set_name(owner, name, _MISSING)


def _put_name_back(owner: Any, name: str, before: Any) -> None:
    now = _value_named(owner, name)
    if now is not before and (holds_fakes(now) or is_a(now, torch.device)):
        _set_name(owner, name, before)


def replace_in(things: Iterable[Any], others: dict[int, torch.Tensor]) -> None:
    """Replaces tensors, given by their ids, in the things that hold them."""
    replaced = functools.partial(_replaced, others)
    for thing in things:
        _replace_within(thing, replaced)


def _replaced(others: dict[int, torch.Tensor], value: Any) -> Any:
    """Returns the tensor that replaces a tensor, or a tuple with such tensors, or else the
    value itself."""
    if id(value) in others:
        return others[id(value)]
    if not is_a(value, tuple):
        return value
    before = elements_of(value) or []
    new = [_replaced(others, element) for element in before]
    if all(a is b for a, b in zip(new, before)):
        return value
    return tuple.__new__(type(value), new)


def _replace_within(thing: Any, replaced: Callable[[Any], Any]) -> None:
    if is_a(thing, types.CellType):
        for value in _contents(thing):
            if replaced(value) is not value:
                thing.cell_contents = replaced(value)
    elif is_a(thing, dict):
        for key, value in [*dict.items(thing)]:
            if replaced(value) is not value:
                dict.__setitem__(thing, key, replaced(value))
    elif is_a(thing, (list, collections.deque)):
        kind: Any = list if is_a(thing, list) else collections.deque
        for place, value in enumerate(elements_of(thing) or ()):
            if replaced(value) is not value:
                kind.__setitem__(thing, place, replaced(value))
    elif is_a(thing, functools.partial):
        if replaced(thing.args) is not thing.args:
            state = (thing.func, replaced(thing.args), thing.keywords, thing.__dict__)
            thing.__setstate__(state)
    for slot, value in slots_filled(thing).items():
        if replaced(value) is not value:
            slot.__set__(thing, replaced(value))
