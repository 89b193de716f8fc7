"""Memory from outside of a unit to which a call of the unit writes: codebooks that follow a
moving average, counters, weights that are normalised in forward.

The recomputation must read there what forward read at the same place, and must not write there.
Forward keeps a copy of the memory from before the first write of the call. In the recomputation
a private copy of that copy takes the memory's place, for all operators, so reads and writes
follow each other as they did in forward, whatever anybody has written since.

If a call writes to memory that an earlier call of a unit has read and may read again, it copies
the memory for that call first: the storage knows its readers.

A plan that acplan made of a trace needs no copy once a call has run as planned: no operator
that reads the memory before the last write runs again (graph/trace/operator_statistics.cc). The
copy is dropped when the call ends, if forward saw that this holds. If an operator would read
the memory after all, the recomputation ends with an error.
"""

import weakref
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import is_fake
from torch.utils._mode_utils import no_dispatch

if TYPE_CHECKING:
    from acplan._apply.tape import Tape


# The tapes of calls that are only watched: what they read is not known, but their reach is.
QUIET: "weakref.WeakSet[Tape]" = weakref.WeakSet()


class Outside:
    """Some memory, a copy of its earlier contents, and the last place at which the call wrote
    to it.

    `is_of_end`: the copy has the contents from when the call ended, so it is for reads after
    the last place. Otherwise it has the contents from before the first write.
    """

    __slots__ = ("storage", "last", "is_of_end", "is_kept", "_before", "_private")

    def __init__(self, tensor: torch.Tensor, last: int, is_of_end: bool = False) -> None:
        self.storage = tensor.untyped_storage()
        self.last = last
        self.is_of_end = is_of_end
        self.is_kept = True
        # Nothing is written to fake tensors, and the copy would be counted.
        self._before = None if is_fake(tensor) else _copy_of(self.storage)
        self._private: torch.UntypedStorage | None = None

    def is_for(self, place: int | None) -> bool:
        """Returns whether the copy is what an operator at this place reads. None stands for a
        place that is not known."""
        if not self.is_of_end:
            return self.is_kept
        return self.last < 0 or (place is not None and place > self.last)

    @property
    def is_gone(self) -> bool:
        """Returns whether nobody has what the memory was before the first write."""
        return not self.is_kept or (self.is_of_end and self.last >= 0)

    def let_go(self) -> None:
        """Forgets the copy, which nothing will need."""
        self.is_kept = False
        self._before = None

    def private(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns the view of the private copy that corresponds to the tensor, a view of the
        memory."""
        if self._before is None:
            return tensor
        if self._private is None:
            self._private = _copy_of(self._before)
        with no_dispatch(), torch.no_grad():
            alias = torch.empty((0,), dtype=tensor.dtype, device=tensor.device)
            alias.set_(self._private, tensor.storage_offset(), tensor.size(), tensor.stride())
            if tensor.is_conj():
                alias = torch._conj(alias)
            return torch._neg_view(alias) if tensor.is_neg() else alias

    def end(self) -> None:
        """Forgets the private copy, at the end of a recomputation."""
        self._private = None


def _copy_of(storage: torch.UntypedStorage) -> torch.UntypedStorage:
    """Returns a copy of memory. No mode sees the operator that copies: a recomputation would
    write somewhere else, and the copy would hold what happened to be in its memory."""
    with no_dispatch():
        copy: torch.UntypedStorage = storage.clone()
    return copy


def note_reader(storage: Any, tape: "Tape") -> None:
    """Notes on a storage that a tape's operators may read it again."""
    readers = storage.__dict__.get("acplan_readers")
    if readers is None:
        storage.acplan_readers = [weakref.ref(tape)]
    else:
        readers[:] = [reader for reader in readers if reader() is not None]
        readers.append(weakref.ref(tape))


def _readers_of(storage: Any) -> "Iterator[Tape]":
    """Yields the tapes whose operators may read a storage again."""
    for reader in storage.__dict__.get("acplan_readers", ()):
        tape = reader()
        if tape is not None and not tape.is_done:
            yield tape
    for tape in [*QUIET]:
        if not tape.is_done and storage._cdata in tape.memory_in_reach():
            yield tape


def has_readers(storage: Any) -> bool:
    """Returns whether a tape's operators may read a storage again."""
    return any(True for _ in _readers_of(storage))


def copy_for_readers(tensor: torch.Tensor, writer: "Tape") -> None:
    """Copies memory that is about to be written to for the other tapes that may read it."""
    storage = tensor.untyped_storage()
    for tape in _readers_of(storage):
        if tape is writer:
            continue
        entry = tape.outside_memory.get(storage._cdata)
        if entry is None or not (entry.is_kept or entry.is_of_end):
            last = -1 if entry is None else entry.last
            tape.outside_memory[storage._cdata] = Outside(tensor, last, is_of_end=True)


def version_of(tensor: torch.Tensor) -> int:
    """Returns how often a tensor's memory has been written to, as autograd counts."""
    return 0 if tensor.is_inference() else tensor._version


def set_versions(versions: Sequence[tuple[torch.Tensor, int]]) -> None:
    """Restores the counts of writes if they differ: the writes went elsewhere."""
    for tensor, version in versions:
        if version_of(tensor) == version:
            continue
        try:
            torch._C._autograd._unsafe_set_version_counter((tensor,), (version,))
        except TypeError:  # before PyTorch 2.7 it takes one tensor
            torch._C._autograd._unsafe_set_version_counter(tensor, version)  # type: ignore[arg-type]
