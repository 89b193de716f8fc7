"""Calls of units without gradients, which no checkpoint sees: the memory that they write to is
copied for earlier calls that may read it again."""

import contextlib
import itertools
from typing import Any

import torch

from acplan._apply.mode import Mode
from acplan._apply.outside_memory import copy_for_readers, has_readers
from acplan._apply.tape import Tape, storage_of
from acplan._base.operators import statistics_of, traits_of, written_by


def watching_writes(module: torch.nn.Module) -> contextlib.AbstractContextManager[Any]:
    """Copies memory that the module writes to within the block, if an earlier call has read it
    and may run again."""
    tensors = itertools.chain(module.parameters(), module.buffers())
    storages = (storage_of(tensor) for tensor in tensors)
    if any(storage is not None and has_readers(storage) for storage in storages):
        return _Writes(Tape(), ())
    return contextlib.nullcontext()


class _Writes(Mode):
    """A mode that runs every operator unchanged, after the copies of what it writes to."""

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if traits_of(func).writes:
            for tensor in (
                *written_by(func, args, kwargs),
                *statistics_of(func, args, kwargs),
            ):
                if storage_of(tensor) is not None:
                    copy_for_readers(tensor, self._tape)
        return func(*args, **kwargs)
