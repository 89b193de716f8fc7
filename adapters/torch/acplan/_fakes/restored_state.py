"""Restores state other than tensors that a step on fake tensors may change.

A step runs the model's own code, which writes to more than parameters and buffers: to
attributes of modules, to lists and dictionaries in them, to objects that they hold, to the
variables of hooks, to generators of random numbers. Everything that can be reached from the
modules is noted before, and restored after. Only changed things are written to, so that a thing
that refuses to be written to, or belongs to somebody else by now, is left alone.

Variables of functions are restored if nobody asked for the step, as when a model is compiled. A
user who asks for a trace may have hooks that note what runs in it.

Not reached are global variables, things that objects written in C hide, and things that threads
pass to one another.
"""

import collections
import contextlib
import copy
import functools
import io
import random
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.nn.modules.module as modules_of_torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes

from acplan._base import torchscript
from acplan._base.errors import AcplanError
from acplan._base.object_parts import (
    MOST_ELEMENTS,
    attributes_of,
    elements_of,
    is_a,
    is_of_others,
    slots_filled,
    slots_of,
)

_PASSED_BY = (
    str, bytes, int, float, complex, type(None), type, types.ModuleType, torch.Tensor,
    torch.dtype, torch.device, torch.storage.UntypedStorage,
)  # fmt: skip
_GLOBAL_HOOKS = "_global_"


@contextlib.contextmanager
def state_kept(model: torch.nn.Module, of_functions: bool = True) -> Iterator[list[Any]]:
    """Restores, after the block, the things that are reached from the model; it yields them.
    `of_functions`: variables of functions, such as those of hooks, are reached, too."""
    with _disable_current_modes():
        things = [*_reachable_from([*model.modules(), *_global_hooks()], of_functions)]
        noted = [undo for thing in things for undo in undone(thing)]
    try:
        yield things
    finally:
        # All of them run, even if one raises.
        with _disable_current_modes(), contextlib.ExitStack() as undo:
            for one in noted:
                undo.callback(one)


@contextlib.contextmanager
def objects_kept(*roots: Any) -> Iterator[None]:
    """Restores, after the block, the things that are reached from these roots, such as a
    trainer, a data collator or a data set, except modules, optimizers and the things in
    them."""
    with _disable_current_modes():
        things = _reachable_from(roots, but=(torch.nn.Module, torch.optim.Optimizer))
        noted = [undo for thing in things for undo in undone(thing)]
    try:
        yield
    finally:
        with _disable_current_modes(), contextlib.ExitStack() as undo:
            for one in noted:
                undo.callback(one)


def read_once(data: Any, with_files: bool) -> str:
    """Returns the class of an iterator that data, a loader or a sampler reads from, which
    cannot be read again, or "" if there is none. `with_files`: a file counts as one, too; data
    with places seek in their files."""
    iterators = (thing for thing in _reachable_from([data]) if is_a(thing, Iterator))
    but = () if with_files else (io.IOBase,)
    return next((type(t).__name__ for t in iterators if not is_a(t, but)), "")


def without_saved_hooks() -> contextlib.AbstractContextManager[object]:
    """Keeps the user's hooks on tensors that autograd saves from being called within the block:
    only the last torch.autograd.graph.saved_tensors_hooks are called."""
    are_there = torch._C._autograd._top_saved_tensors_default_hooks(True) is not None
    if not are_there:
        return contextlib.nullcontext()
    return torch.autograd.graph.saved_tensors_hooks(_same, _same)


def _same(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def fake_beside(mode: FakeTensorMode, tensor: torch.Tensor) -> torch.Tensor:
    """Returns a fake of a real tensor that shares nothing with it: a write to the fake does not
    raise the real tensor's version count, from which autograd would conclude that a tensor that
    it has saved was written to. From PyTorch 2.15 on, a tensor that detach() makes while a fake
    mode is on shares the version count of its source."""
    with _disable_current_modes():
        own = tensor.detach()
    return mode.from_tensor(own)


def copied_with(inputs: Any, of_tensor: Callable[[torch.Tensor], Any]) -> Any:
    """Returns a copy of a model's inputs, in which each tensor is the one that `of_tensor`
    returns for it: all that the model does with it, takes from it or writes to it is done to
    the copy.

    Raises AcplanError for objects that cannot be copied, and for iterators, which can be read
    once.
    """
    for thing in _reachable_from([inputs]):
        if is_a(thing, Iterator):
            raise AcplanError(
                f"an argument of the model contains a {type(thing).__name__}, which can be "
                "read only once: give its contents"
            )
    try:
        with _Copies(of_tensor):
            return copy.deepcopy(inputs, _shared_by(inputs, of_tensor))
    except Exception as error:  # of any class: the author of the object's class chose it
        raise AcplanError(
            f"the arguments of the model cannot be copied: {type(error).__name__}: {error}"
        ) from error


def _shared_by(inputs: Any, of_tensor: Callable[[torch.Tensor], Any]) -> dict[int, Any]:
    """Returns the memo of a copy: modules, which the copy shares, and parameters, which are not
    plain tensors, with their copies."""
    memo: dict[int, Any] = {}
    for thing in _reachable_from([inputs]):
        if is_a(thing, torch.nn.Module):
            memo[id(thing)] = thing
        elif is_parameter(thing):
            memo[id(thing)] = of_tensor(thing)
    return memo


class _Copies(TorchFunctionMode):
    """Within this mode, the copy of a tensor is what `of_tensor` returns."""

    def __init__(self, of_tensor: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self._of_tensor = of_tensor

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func is not torch.Tensor.__deepcopy__:
            return func(*args, **(kwargs or {}))
        tensor, memo = args
        # A tensor that occurs several times has one copy.
        memo[id(tensor)] = duplicate = self._of_tensor(tensor)
        return duplicate


Undo = Callable[[], object]


def _global_hooks() -> list[Any]:
    variables = vars(modules_of_torch)
    return [variables[name] for name in variables if name.startswith(_GLOBAL_HOOKS)]


def _reachable_from(
    roots: Iterable[Any], of_functions: bool = True, but: tuple[type, ...] = ()
) -> Iterator[Any]:
    """Yields all things that are reached from the roots, each once, except those of the classes
    in `but`, and, unless `of_functions`, those that only functions reach."""
    pending = [*roots]
    visited: dict[int, Any] = {}
    while pending:
        thing = pending.pop()
        if id(thing) in visited:
            continue
        if is_a(thing, _PASSED_BY) and not is_parameter(thing):
            continue
        if but and is_a(thing, but):
            continue
        visited[id(thing)] = thing  # holds the thing, so that its id stays valid
        yield thing
        if of_functions or not is_a(thing, types.FunctionType):
            pending += _parts_of(thing)


def not_of_optimizers(things: Iterable[Any]) -> list[Any]:
    """Returns these things except groups of parameters of optimizers and the parts of these
    groups. Wrappers of optimizers have such groups, too."""
    all_things = [*things]
    groups = [
        group
        for thing in all_things
        if is_a(thing, dict)
        for group in elements_of(dict.get(thing, "param_groups")) or []
    ]
    theirs = {id(part) for group in groups for part in [group, *_parts_of(group)]}
    return [thing for thing in all_things if id(thing) not in theirs]


def tensors_beside(parameters: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """Returns the tensors in attributes of parameters, such as the scales of quantised ones, at
    any depth, except those of modules."""
    but = (torch.nn.Module, torch.optim.Optimizer)
    things = _reachable_from([*map(vars, parameters)], of_functions=False, but=but)
    parts = (part for thing in things for part in _parts_of(thing))
    return [part for part in parts if is_a(part, torch.Tensor)]


def is_parameter(thing: Any) -> bool:
    return is_a(thing, torch.Tensor) and isinstance(thing, torch.nn.Parameter)


def _parts_of(thing: Any) -> list[Any]:
    if is_parameter(thing):
        return [*filter(None, [attributes_of(thing)])]
    if is_of_others(thing):
        return []
    if is_a(thing, types.FunctionType):
        return [*filter(_is_filled, thing.__closure__ or ())]
    if is_a(thing, types.CellType):
        return [thing.cell_contents] if _is_filled(thing) else []
    if is_a(thing, types.MethodType):
        return [thing.__self__, thing.__func__]
    parts: list[Any] = []
    if is_a(thing, functools.partial):
        parts += [thing.func, *thing.args, *thing.keywords.values()]
    elements = elements_of(thing)
    if elements is not None and len(elements) <= MOST_ELEMENTS:
        parts += elements
    attributes = attributes_of(thing)
    if attributes is not None:
        parts.append(attributes)
    parts += slots_filled(thing).values()
    return parts


def _is_filled(cell: types.CellType) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:
        return False
    return True


# Returns whether elements that have been added to a list stay there.
Stays = Callable[[list[Any]], bool]


def undone(thing: Any, stays: Stays | None = None) -> Iterator[Undo]:
    """Yields functions that restore a thing's current state. A list that has only grown keeps
    its new elements if `stays` returns true for them."""
    if is_a(thing, torch.jit.ScriptModule):
        yield functools.partial(_put_in_script, thing, torchscript.Attributes(thing).items())
    elif is_a(thing, types.CellType):
        if _is_filled(thing):
            yield functools.partial(_put_in_cell, thing, thing.cell_contents)
    elif is_a(thing, dict):
        yield functools.partial(_put_back, thing, tuple(dict.items(thing)))
    elif is_a(thing, (list, collections.deque)):
        yield functools.partial(_put_back, thing, elements_of(thing), stays)
    elif is_a(thing, set):
        yield functools.partial(_put_back, thing, set(thing))
    elif is_a(thing, functools.partial):
        before = (thing.func, thing.args, thing.keywords, thing.__dict__)
        yield functools.partial(_put_in_partial, thing, before)
    elif is_a(thing, random.Random):
        yield functools.partial(thing.setstate, thing.getstate())
    elif is_a(thing, torch.Generator):
        if thing.device.type == "cpu":
            yield functools.partial(thing.set_state, thing.get_state())
    elif slots_of(type(thing)):  # type: ignore[arg-type]
        yield functools.partial(_put_in_slots, thing, slots_filled(thing))
    elif numpy := sys.modules.get("numpy"):
        if is_a(thing, numpy.random.RandomState):
            yield functools.partial(thing.set_state, thing.get_state())
        elif is_a(thing, numpy.random.Generator):
            bits = thing.bit_generator
            yield functools.partial(setattr, bits, "state", bits.state)


def _put_in_script(module: torch.nn.Module, before: list[tuple[str, Any]]) -> None:
    own = torchscript.Attributes(module)
    for (name, value), (_, now) in zip(before, own.items()):
        if now is not value:
            own[name] = value


def _put_in_cell(cell: types.CellType, value: Any) -> None:
    if not _is_filled(cell) or cell.cell_contents is not value:
        cell.cell_contents = value


def _put_in_partial(thing: Any, before: tuple[Any, ...]) -> None:
    if thing.args is not before[1]:
        thing.__setstate__(before)


def _put_in_slots(thing: Any, before: dict[types.MemberDescriptorType, Any]) -> None:
    now = slots_filled(thing)
    for slot in now:
        if slot not in before:
            slot.__delete__(thing)
    for slot, value in before.items():
        if slot not in now or now[slot] is not value:
            slot.__set__(thing, value)


def _put_back(container: Any, before: Any, stays: Stays | None = None) -> None:
    """Restores the elements of a container, in their order: of a dictionary the pairs."""
    if _is_as_before(container, before):
        return
    new_elements = None if stays is None else _new_elements_of(container, before)
    if stays is not None and new_elements is not None and stays(new_elements):
        return
    kinds = (collections.OrderedDict, dict, list, collections.deque, set)
    # Derived classes may refuse changes that the model itself made in another way.
    kind: Any = next(kind for kind in kinds if is_a(container, kind))
    kind.clear(container)
    if is_a(container, dict):
        for key, value in before:
            kind.__setitem__(container, key, value)
        return
    add = kind.update if isinstance(before, set) else kind.extend
    add(container, before)


def _new_elements_of(container: Any, before: Any) -> list[Any] | None:
    """Returns the elements that have been added to the end of a list, or None if it has changed
    otherwise."""
    if not is_a(container, (list, collections.deque)):
        return None
    now: list[Any] = elements_of(container) or []
    is_longer = len(now) >= len(before)
    is_grown = is_longer and all(a is b for a, b in zip(now, before))
    return now[len(before) :] if is_grown else None


def _is_as_before(container: Any, before: Any) -> bool:
    """Returns whether a container has the same elements. It compares identities: equal elements
    may be other objects, and classes may not compare."""
    if is_a(container, dict):
        pairs = [*dict.items(container)]
        return len(pairs) == len(before) and all(
            name is old and value is was for (name, value), (old, was) in zip(pairs, before)
        )
    elements = elements_of(container) or []
    if isinstance(before, set):
        return {*map(id, elements)} == {*map(id, before)}
    return len(elements) == len(before) and all(
        value is old for value, old in zip(elements, before)
    )
