"""Dynamo's caches, from which what is compiled for a step on fake tensors goes again."""

import contextlib
import copy
import functools
import inspect
from collections.abc import Iterator
from typing import Any

import torch


@functools.cache
def compiles_apart() -> bool:
    """Returns whether torch.compile can keep what it compiles in a region of its own, which
    does not count towards the limit of compilations. Older versions cannot."""
    return "isolate_recompiles" in inspect.signature(torch.compile).parameters


@contextlib.contextmanager
def compiler_as_it_was(region: int | None) -> Iterator[None]:
    """At the end Dynamo forgets what was compiled in the region, and which sizes it has
    seen: that a size differs from call to call makes it a symbol from the next compilation
    on. Without a region it forgets all that it has of the code that was compiled: what it
    had before is compiled once more.
    """
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
                # From C++; no version of PyTorch declares it there.
                eval_frame.reset_code(code)  # type: ignore[attr-defined]


def _codes() -> list[Any]:
    """Returns all that has been compiled."""
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
    """As Dynamo does where an object is gone that it compiled for. Code that another thread
    may be running is not reset."""
    from torch._dynamo.guards import DeletedGuardManagerWrapper

    for entry in entries:
        state = entry.guard_manager.extra_state
        if state is not None:
            state.invalidate(
                entry, DeletedGuardManagerWrapper("a step on fake tensors has ended")
            )
