"""Dynamo's caches, from which code that is compiled for a step on fake tensors is removed
again."""

import contextlib
import copy
import functools
import inspect
from collections.abc import Iterator
from typing import Any

import torch


@functools.cache
def compiles_apart() -> bool:
    """Returns whether torch.compile can keep compiled code in a region of its own, which does
    not count towards the limit of compilations. Older versions cannot."""
    return "isolate_recompiles" in inspect.signature(torch.compile).parameters


@contextlib.contextmanager
def compiler_as_it_was(region: int | None) -> Iterator[None]:
    """Removes from Dynamo's caches, after the block, the code that was compiled in the region,
    and the sizes that Dynamo has seen: a size that differs from call to call becomes a symbol
    from the next compilation on. Without a region it removes all entries of the code that was
    compiled: earlier entries are compiled once more."""
    from torch._dynamo import eval_frame, pgo

    before = {id(code): len(_entries(code, None)) for code in _codes()}
    sizes = copy.deepcopy(getattr(pgo, "_CODE_STATE", None))
    try:
        yield
    finally:
        if hasattr(pgo, "_CODE_STATE"):
            pgo._CODE_STATE = sizes
        for code in _codes():
            if region is not None:
                _invalidate(_entries(code, region))
            elif before.get(id(code), 0) != len(_entries(code, None)):
                # This function is in C++; no version of PyTorch declares it there.
                eval_frame.reset_code(code)  # type: ignore[attr-defined]


def _codes() -> list[Any]:
    """Returns all code that has been compiled."""
    from torch._dynamo import convert_frame

    trackers = (convert_frame.input_codes, convert_frame.output_codes)
    codes = [weak() for tracker in trackers for weak in tracker.seen]
    return [code for code in codes if code is not None]


def _entries(code: Any, region: int | None) -> list[Any]:
    from torch._C._dynamo import eval_frame

    if region is None:
        return [*eval_frame._debug_get_cache_entry_list(code)]
    return [*eval_frame._get_cache_entries_for_region(code, region)]


def _invalidate(entries: list[Any]) -> None:
    """Invalidates entries, as Dynamo does if an object is gone for which it compiled. Code that
    another thread may be running is not reset."""
    from torch._dynamo.guards import DeletedGuardManagerWrapper

    for entry in entries:
        state = entry.guard_manager.extra_state
        if state is not None:
            state.invalidate(
                entry, DeletedGuardManagerWrapper("a step on fake tensors has ended")
            )
