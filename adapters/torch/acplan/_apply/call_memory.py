"""The memory that a call of a unit reads and writes in forward: its own, and memory from
outside, which is copied if the recomputation would find it changed."""

from collections.abc import Container, Iterable, Sequence
from typing import Any

import torch

from acplan._apply.outside_memory import Outside, copy_for_readers, note_reader
from acplan._apply.tape import WITH_MEMORY, Tape, memory_of
from acplan._base.tensors import tensors_of

_NO_PLACE = 1 << 62  # after all places


class CallMemory:
    """The memory that a call has made, read and updated, by the memory's number.

    `state`: the Python state of the unit, which holds tensors that the call has read.
    """

    def __init__(self, tape: Tape) -> None:
        self.state = tape.state
        self._tape = tape
        self._own: set[int] = set()
        # Running statistics, with the last place at which the call updates them.
        self._statistics_writes: dict[int, int] = {}
        # Memory that the call has not made, with the first place at which an operator that runs
        # again reads it, or None.
        self._read: dict[int, int | None] = {}
        # The call has written to no memory from outside, and met no tensors that consist of
        # several.
        self.is_quiet = True

    def has_read_only(self, memory: Container[int]) -> bool:
        """Returns whether the call has read no other memory from outside."""
        return all(number in memory for number in self._read)

    def note_own(self, out: Any) -> None:
        """Notes the memory of an operator's results as the call's own."""
        for tensor in (out,) if type(out) is torch.Tensor else tensors_of(out):
            memory = memory_of(tensor)
            if memory is not None:
                self._own.add(memory)

    def forget_own(self, alive: Iterable[torch.Tensor]) -> None:
        """Forgets the memory that the call has made, except the memory of these tensors: the
        rest may have been given to others since."""
        self._own = {m for m in map(memory_of, alive) if m is not None}

    def note_read(self, args: Iterable[Any], kwargs: dict[str, Any], place: int | None) -> None:
        """Notes what an operator reads. `place`: the operator's place if it runs again, or
        None."""
        own = self._own
        for value in (*args, *kwargs.values()) if kwargs else args:
            if type(value) in WITH_MEMORY:
                memory = memory_of(value)
                if memory is None or memory in own:
                    continue
                if memory not in self._read:
                    note_reader(value.untyped_storage(), self._tape)
                    if self.state is not None:
                        self.state.hold(memory)
                        if memory in self.state.statistics:
                            # Nothing counts their updates.
                            self._copy_statistics(memory, value)
                if self._read.get(memory) is None:
                    self._read[memory] = place
            elif type(value) in (list, tuple) and value:
                self.note_read(value, {}, place)

    def note_written(
        self, targets: Sequence[torch.Tensor], statistics: Sequence[torch.Tensor]
    ) -> None:
        """Copies memory from outside before its first write. Statistics are only written to,
        and are copied only if another operator has read them."""
        tape, place = self._tape, len(self._tape.items)
        for tensor in targets if targets is statistics else (*targets, *statistics):
            memory = memory_of(tensor)
            if memory is None or memory in self._own:
                continue
            self.is_quiet = False
            copy_for_readers(tensor, tape)
            is_moved_on = any(tensor is statistic for statistic in statistics)
            if is_moved_on and memory not in self._read:
                self._statistics_writes[memory] = place
                continue
            entry = tape.outside_memory.get(memory)
            if entry is None:
                tape.outside_memory[memory] = Outside(tensor, place)
            else:
                entry.last = _NO_PLACE if entry.is_of_end else place

    def is_moved_on(self, tensor: torch.Tensor) -> bool:
        """Returns whether a tensor is a statistic, or the count of its updates, of a module."""
        return self.state is not None and memory_of(tensor) in self.state.statistics

    def let_go_of_copies(self) -> None:
        """Forgets copies that nothing reads if the call is recomputed as planned."""
        for memory, entry in self._tape.outside_memory.items():
            place = self._read.get(memory)
            is_written = entry.last >= 0 and not entry.is_of_end
            if is_written and (place is None or place >= entry.last):
                entry.let_go()

    def _copy_statistics(self, memory: int, tensor: torch.Tensor) -> None:
        """Copies running statistics at a read: in their state after the call's last update, if
        the call has updated them."""
        self.is_quiet = False
        moved_at = self._statistics_writes.get(memory, -1)
        copy = Outside(tensor, moved_at, is_of_end=moved_at >= 0)
        self._tape.outside_memory.setdefault(memory, copy)
