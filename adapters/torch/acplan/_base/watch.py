"""A watch that sees only some operators: those that write to memory or draw random numbers, and
those that are not PyTorch's own.

A mode is called for each operator, and that takes the host longer than most operators do. The
watch is a function for a key of PyTorch's dispatcher that nothing else uses. All other operators
of PyTorch skip the key, at no cost, and so does each operator of a thread that does not watch.

The watch also sees the operators of which kernels are made, such as the copy in `contiguous()`.
They write to the results of their operator, or to the arguments that its schema names, which the
watch has then seen before.
"""

import contextlib
import functools
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
    # What the operator itself runs is not seen.
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


@functools.cache
def can_watch() -> bool:
    """Returns whether this PyTorch has what a watch needs. The first call prepares it."""
    try:
        _LIBRARIES.append(Library("_", "IMPL"))  # noqa: TOR901
        _LIBRARIES[0].fallback(_see, _KEY_NAME)
        _LIBRARIES.append(Library("aten", "IMPL"))  # noqa: TOR901
        for name in _names_unseen():
            _LIBRARIES[1].impl(name, fallthrough_kernel, _KEY_NAME)
    except (AttributeError, RuntimeError, TypeError):
        return False
    return True


# A library's kernels exist as long as the library.
_LIBRARIES: list[Library] = []


def _names_unseen() -> Iterator[str]:
    """Yields the names of PyTorch's operators that a watch need not see."""
    names = {*torch._C._dispatch_get_all_op_names()}
    for schema in torch._C._jit_get_all_schemas():
        name = f"{schema.name}.{schema.overload_name}".rstrip(".")
        if not name.startswith("aten::") or name not in names or schema.is_mutable:
            continue
        if any(argument.name in STATISTICS for argument in schema.arguments):
            continue
        packet = getattr(torch.ops.aten, schema.name.removeprefix("aten::"))
        func = getattr(packet, schema.overload_name or "default")
        if not traits_of(func).is_random:
            yield name.removeprefix("aten::")
