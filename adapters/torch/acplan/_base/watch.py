"""A watch that sees only some operators: those that write to memory or draw random numbers, and
those that are not PyTorch's own.

A mode is called for each operator, and that takes the host longer than most operators do. The
watch is a function for a key of PyTorch's dispatcher that nothing else uses. All other
operators of PyTorch skip the key, at no cost, and so does each operator of a thread that does
not watch.

The watch is also called for the operators of which kernels are made, such as the copy in
`contiguous()`. They write to the results of their operator, or to the arguments that its schema
names, which the watch has then seen before.
"""

import contextlib
import functools
import sys
import threading
from collections.abc import Iterator
from typing import Any, Protocol

import torch
from torch.library import Library, fallthrough_kernel

from acplan._base.operators import STATISTICS, traits_of

_KEY_NAME = "TESTING_ONLY_GenericMode"
# A kernel runs without this key, which every operator with a gradient takes away.
_OUTSIDE_KERNELS = torch._C.DispatchKey.AutogradOther
_set_included: Any = torch._C._dispatch_tls_set_dispatch_key_included
_is_excluded: Any = torch._C._dispatch_tls_is_dispatch_key_excluded


class Watch(Protocol):
    """A call that is watched."""

    def see(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Is called before an operator runs."""
        ...


class _Watches(threading.local):
    """The watches of a thread, from the outermost to the innermost."""

    def __init__(self) -> None:
        self.active: tuple[Watch, ...] = ()


_THREAD = _Watches()


@contextlib.contextmanager
def _watches(active: tuple[Watch, ...]) -> Iterator[None]:
    before = _THREAD.active
    _switch_to(active)
    try:
        yield
    finally:
        _switch_to(before)


def _switch_to(active: tuple[Watch, ...]) -> None:
    _THREAD.active = active
    _set_included(_key(), bool(active))


def begin(watch: Watch) -> None:
    """Begins a watch. `can_watch` has to be true."""
    _switch_to((*_THREAD.active, watch))


def end() -> None:
    """Ends the watch that was begun last."""
    _switch_to(_THREAD.active[:-1])


def looking_away() -> contextlib.AbstractContextManager[None]:
    """Stops all watches of this thread within the block."""
    return _watches(()) if _THREAD.active else contextlib.nullcontext()


def is_watching() -> bool:
    return bool(_THREAD.active)


def _see(func: Any, *args: Any, **kwargs: Any) -> Any:
    key = _key()
    # The operator's own operators are not seen.
    _set_included(key, False)
    try:
        if func.namespace != "aten" or traits_of(func).is_random or not _is_in_kernel():
            for watch in _THREAD.active:
                watch.see(func, args, kwargs)
        return func(*args, **kwargs)
    finally:
        _set_included(key, True)


def _is_in_kernel() -> bool:
    return bool(_is_excluded(_OUTSIDE_KERNELS))


@functools.cache
def _key() -> Any:
    return torch._C._parse_dispatch_key(_KEY_NAME)


def can_watch() -> bool:
    """Returns whether this PyTorch has what a watch needs. Prepares it for all operators that
    there are now."""
    loaded = (len(sys.modules), len(_DEFINED), len(torch.ops.loaded_libraries))
    if _PREPARED.loaded == loaded or _PREPARED.is_missing:
        return not _PREPARED.is_missing
    try:
        _prepare()
    except (AttributeError, RuntimeError, TypeError):
        _PREPARED.is_missing = True
        return False
    _PREPARED.loaded = loaded
    return True


_DEFINED: Any = getattr(torch.library, "_defs", ())


class _Prepared:
    """The operators that have a kernel for the key. A library's kernels exist as long as the
    library."""

    def __init__(self) -> None:
        self.is_missing = False
        self.loaded = (0, 0, 0)
        self.names: set[str] = set()
        self.libraries: dict[str, Library] = {}

    def library(self, namespace: str) -> Library:
        if namespace not in self.libraries:
            self.libraries[namespace] = Library(namespace, "IMPL")  # noqa: TOR901
        return self.libraries[namespace]


_PREPARED = _Prepared()


def _prepare() -> None:
    if not _PREPARED.names:
        # For operators that are defined later. PyTorch does not call it if a mode is on.
        _PREPARED.library("_").fallback(_see, _KEY_NAME)
    for full_name in torch._C._dispatch_get_all_op_names():
        if full_name in _PREPARED.names:
            continue
        _PREPARED.names.add(full_name)
        namespace, _, name = full_name.partition("::")
        packet, _, overload = name.partition(".")
        try:
            func = getattr(
                getattr(getattr(torch.ops, namespace), packet), overload or "default"
            )
        except AttributeError:  # it is for TorchScript alone
            continue
        kernel = functools.partial(_see, func) if _is_seen(func) else fallthrough_kernel
        _PREPARED.library(namespace).impl(name, kernel, _KEY_NAME)


def _is_seen(func: Any) -> bool:
    arguments = (argument.name for argument in func._schema.arguments)
    traits = traits_of(func)
    is_plain = not (func._schema.is_mutable or traits.is_random)
    return func.namespace != "aten" or not is_plain or any(a in STATISTICS for a in arguments)
