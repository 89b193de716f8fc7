"""Fake tensors that autograd takes for plain ones, and that leave nothing behind."""

import contextlib
import functools
import gc
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from acplan._base.patching import in_this_thread, replaced_here, set_attribute

ValueOf = Callable[[torch.Tensor], torch.Tensor | None]

_make = FakeTensor.__new__
_NAME = "__torch_dispatch__"
_DISPATCH = FakeTensor.__dict__[_NAME]
# The containers of a cache's results, which hold nothing else.
_HOLDERS = (dict, list, tuple)
_CACHE = functools._lru_cache_wrapper
_LOOKED_FOR = frozenset({FakeTensor, _CACHE})
_LINK = "functools._lru_list_elem"


@contextlib.contextmanager
def plain_fakes(value_of: ValueOf) -> Iterator[None]:
    """Makes fake tensors, within the block, without a dispatch of their own.

    If a view is written to, autograd makes it anew if its tensors have such a dispatch, by
    operators that no real step runs: after each `relu_` on the output of a linear layer, for
    example. The mode to which the tensors belong must be active whenever they are used; tensors
    that are still held at the end become real, with their value if they have one, else empty.

    A module that is moved to a device or type that it already has stays unchanged, as with
    plain tensors: PyTorch would swap fake ones, which it cannot if others refer to them.
    """
    moves = replaced_here(torch.nn.Module, "_apply", _apply_to_module)
    constructor = staticmethod(in_this_thread(_made_apart, _made_plain))
    with set_attribute(FakeTensor, "__new__", constructor), moves:
        try:
            with _earlier_objects_kept():
                yield
        finally:
            _leave_nothing(value_of)


@contextlib.contextmanager
def _earlier_objects_kept() -> Iterator[None]:
    """Keeps collections within the block from looking at objects that were made before it,
    which are a million and more."""
    is_first = gc.get_freeze_count() == 0
    if is_first:
        gc.freeze()
    try:
        yield
    finally:
        if is_first:
            gc.unfreeze()


_move: Any = torch.nn.Module._apply


def _apply_to_module(
    module: torch.nn.Module, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True
) -> torch.nn.Module:
    if recurse:
        for child in module.children():
            child._apply(fn)
    own = (*module._parameters.values(), *module._buffers.values())
    tensors = [tensor for tensor in own if tensor is not None]
    if any(isinstance(tensor, FakeTensor) for tensor in tensors):
        with torch.no_grad():
            if all(fn(tensor) is tensor for tensor in tensors):
                return module
            if not torch.__future__.get_overwrite_module_params_on_conversion():
                return _apply_one_by_one(module, fn)
    result: torch.nn.Module = _move(module, fn, False)
    return result


def _apply_one_by_one(
    module: torch.nn.Module, fn: Callable[[torch.Tensor], torch.Tensor]
) -> torch.nn.Module:
    """Moves a module's tensors as if they were plain: parameters stay the same objects if they
    can."""
    for name, parameter in module._parameters.items():
        if parameter is None:
            continue
        tensor = fn(parameter)
        if torch._has_compatible_shallow_copy_type(parameter, tensor):
            parameter.data = tensor
        else:
            module._parameters[name] = torch.nn.Parameter(tensor, parameter.requires_grad)
    for name, buffer in module._buffers.items():
        if buffer is not None:
            module._buffers[name] = fn(buffer)
    return module


# PyTorch reads the class once, when a tensor is made.
_MAKING = threading.RLock()


def _made_plain(cls: type[FakeTensor], *args: Any, **kwargs: Any) -> FakeTensor:
    with _MAKING:
        setattr(FakeTensor, _NAME, torch._C._disabled_torch_dispatch_impl)
        try:
            return _make(cls, *args, **kwargs)
        finally:
            setattr(FakeTensor, _NAME, _DISPATCH)


def _made_apart(cls: type[FakeTensor], *args: Any, **kwargs: Any) -> FakeTensor:
    """Makes a fake tensor in another thread, as PyTorch makes it."""
    with _MAKING:
        return _make(cls, *args, **kwargs)


def _leave_nothing(value_of: ValueOf) -> None:
    """Empties the caches of functions that hold fake tensors, such as those for position
    embeddings of detectors, which would return fake tensors to later calls. Makes the fakes
    that remain real."""
    # There are a million objects and more.
    objects = [thing for thing in gc.get_objects() if type(thing) in _LOOKED_FOR]
    fakes = [thing for thing in objects if type(thing) is FakeTensor]
    for cache in objects:
        if type(cache) is _CACHE and _holds_fakes(cache):
            cache.cache_clear()
    for fake in filter(_is_plain, fakes):
        _make_real(fake, value_of(fake))


def _is_plain(fake: FakeTensor) -> bool:
    if not hasattr(fake, "fake_device"):  # an error has left it half made
        return False
    return not torch._C._dispatch_keys(fake).has(torch._C.DispatchKey.Python)


def _make_real(fake: FakeTensor, value: torch.Tensor | None) -> None:
    """Gives a fake tensor memory: kernels would read memory that does not exist."""
    if fake.fake_device.type == "cuda" and not _has_cuda():
        return  # there are no kernels either
    if fake.layout is not torch.strided:
        return  # its parts cannot be replaced
    if value is None:
        value = torch.empty(0, dtype=fake.dtype)
    with torch.no_grad():
        fake.data = value.to(fake.fake_device)


def _has_cuda() -> bool:
    # torch.cuda.is_available() would answer for the fake device.
    count = getattr(torch._C, "_cuda_getDeviceCount", lambda: 0)
    return int(count()) > 0


def _holds_fakes(cache: Any) -> bool:
    if cache.cache_info().currsize == 0:
        return False
    visited: set[int] = set()
    pending = gc.get_referents(cache)
    while pending:
        thing = pending.pop()
        if isinstance(thing, FakeTensor):
            return True
        if id(thing) in visited or not (isinstance(thing, _HOLDERS) or _is_link(thing)):
            continue
        visited.add(id(thing))
        pending.extend(gc.get_referents(thing))
    return False


def _is_link(thing: Any) -> bool:
    kind = type(thing)
    return f"{kind.__module__}.{kind.__qualname__}" == _LINK
