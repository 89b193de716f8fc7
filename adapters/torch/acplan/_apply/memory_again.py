"""The memory that a recomputation reads: as it was in forward, or an error."""

from collections.abc import Iterable
from typing import Any, Protocol

import torch
from torch._subclasses.fake_tensor import is_fake

from acplan._apply.outside_memory import set_versions, version_of
from acplan._apply.tape import Skipped, Tape, each, memory_of, storage_of
from acplan._base.errors import AcplanError
from acplan._base.operators import STATISTICS, Traits, statistics_of, traits_of, written_by
from acplan._base.stand_ins import Origin, StandIn, reshape
from acplan._base.tensors import tensors_of


class HasModules(Protocol):
    def modules(self) -> Iterable[torch.nn.Module]: ...


class MemoryAgain:
    """The memory of one recomputation.

    The recomputation owns the memory that it has made. Memory from outside to which the call
    wrote is replaced by copies of its earlier contents; memory to which others have written
    since is refused, and so is memory to which a skipped operator should have written: it is
    stale.
    """

    def __init__(self, tape: Tape, fqn: str, module: HasModules) -> None:
        self.has_stale = False
        self._tape = tape
        self._fqn = fqn
        self._module = module
        self._own: set[int] = set()
        # Memory to which others have written since forward.
        self._changed: set[int] = set()
        self._versions: list[tuple[torch.Tensor, int]] = []

    def begin(self) -> None:
        """Restores Python's state, and compares the counts of writes with forward's."""
        tape = self._tape
        if tape.state is not None:
            tape.state.put_back()
        self.has_stale = False
        self._own.clear()
        self._versions = [(tensor, version_of(tensor)) for tensor, _ in tape.watched]
        self._changed = {
            memory
            for (tensor, before), (_, now) in zip(tape.watched, self._versions)
            if before != now and (memory := memory_of(tensor)) is not None
        }

    def begin_again(self) -> None:
        """Undoes the changes that the recomputation has made so far."""
        self.has_stale = False
        if self._tape.state is not None:
            self._tape.state.put_back()
        for entry in self._tape.outside_memory.values():
            entry.end()

    def end(self) -> None:
        """Restores state and counts of writes from before the recomputation."""
        if self._tape.state is not None:
            self._tape.state.restore()
        for entry in self._tape.outside_memory.values():
            entry.end()
        set_versions(self._versions)
        self._versions = []

    def note_own(self, out: Any) -> Any:
        """Notes the memory of results as made by the recomputation, and returns the results."""
        for tensor in (out,) if type(out) is torch.Tensor else tensors_of(out):
            memory = memory_of(tensor)
            if memory is not None:
                self._own.add(memory)
        return out

    def write_to_nothing(
        self, item: Skipped, origin: Origin, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> bool:
        """Marks as stale the memory to which a skipped operator should have written. Returns
        False if the operator must run because it changes the shape of a real tensor."""
        if traits_of(origin.func).changes_shape:
            if not isinstance(args[0], StandIn):
                return False
            reshape(origin.func, args, kwargs)
        if item.leaves_stale:
            for tensor in written_by(origin.func, args, kwargs):
                storage: Any = storage_of(tensor)
                if storage is None:
                    origin.refuse(origin.func)
                self.has_stale = True
                # The mark lives as long as the memory.
                storage.acplan_stale = origin
        return True

    def refuse_stale(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Raises AcplanError if an operator would read stale memory."""
        for tensor in tensors_of(args, kwargs):
            if origin := stale_origin(tensor):
                origin.refuse(func)

    def as_in_forward(
        self, func: Any, traits: Traits, args: tuple[Any, ...], kwargs: dict[str, Any],
        place: int | None,
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:  # fmt: skip
        """Returns the arguments with which an operator reads memory from outside as it was in
        forward, and writes to copies of it. `place` is the operator's place on the tape, None
        if that is lost. Raises AcplanError if the contents that it reads are gone."""
        if (
            not (self._changed or self._tape.outside_memory or traits.writes)
            or traits.only_shows
            or not (traits.writes or self._reads_outside(args, kwargs))
        ):
            return args, kwargs
        statistics = statistics_of(func, args, kwargs)
        written_ids = {id(tensor) for tensor in written_by(func, args, kwargs) + statistics}

        def change(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            memory = memory_of(value)
            if memory is None:
                return value
            if memory in self._own and memory not in self._tape.outside_memory:
                return value
            return self._tensor_as_in_forward(
                func, value, memory, id(value) in written_ids, place
            )

        return each(args, change), {n: each(v, change) for n, v in kwargs.items()}

    def _reads_outside(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Returns whether an argument has memory from outside that was or is written to."""
        changed, copies = self._changed, self._tape.outside_memory
        memories = map(memory_of, tensors_of(args, kwargs))
        return any(memory in changed or memory in copies for memory in memories)

    def _tensor_as_in_forward(
        self,
        reader: Any,
        tensor: torch.Tensor,
        memory: int,
        is_written: bool,
        place: int | None,
    ) -> torch.Tensor:
        entry = self._tape.outside_memory.get(memory)
        is_replayed = entry is not None and not entry.is_of_end
        if entry is not None and (is_replayed or not is_written):
            if entry.is_for(place):
                return entry.private(tensor)
        if is_written:
            # Nothing is written to fake tensors, and a copy would count as memory.
            return tensor if is_fake(tensor) else tensor.clone()
        is_before = entry is not None and (place is None or place <= entry.last)
        if is_before or memory in self._changed:
            raise AcplanError(
                f"{self._fqn}: in backward {reader} reads {self._name_of(memory)}, which has "
                "been written to in place since forward, so the contents that forward read "
                "are lost. Trace a step in which that happens and plan again, or write to it "
                "after backward"
            )
        return tensor

    @property
    def has_gone(self) -> bool:
        """Returns whether memory that forward read is gone, so that not all can run again."""
        copies = self._tape.outside_memory.values()
        return bool(self._changed) or any(copy.is_gone for copy in copies)

    @property
    def may_differ(self) -> bool:
        """True if memory from outside may differ from what it was in forward."""
        return bool(self._changed or self._tape.outside_memory)

    def saved_as_in_forward(self, tensor: torch.Tensor, place: int | None) -> torch.Tensor:
        """Returns the tensor that autograd is to save for an operator's argument. Autograd
        saves it before the operator runs, and the recomputation may end with that: see
        `as_in_forward`."""
        memory = memory_of(tensor)
        if memory is None or not (
            memory in self._changed or memory in self._tape.outside_memory
        ):
            return tensor
        # Normalisations save statistics to which they only write, and backward does not use
        # them.
        if self._are_statistics(memory):
            return tensor
        return self._tensor_as_in_forward("autograd", tensor, memory, False, place)

    def replays(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Returns whether an operator writes to memory from outside that has a copy, so that
        later reads of the copy find what was written."""
        copies_by_memory = self._tape.outside_memory
        if not copies_by_memory:
            return False
        tensors = (*written_by(func, args, kwargs), *statistics_of(func, args, kwargs))
        memories = map(memory_of, tensors)
        copies = (
            copies_by_memory[m] for m in memories if m is not None and m in copies_by_memory
        )
        return any(copy.is_kept and not copy.is_of_end for copy in copies)

    def _are_statistics(self, memory: int) -> bool:
        buffers = (m._buffers.get(name) for m in self._module.modules() for name in STATISTICS)
        return any(memory_of(b) == memory for b in buffers if isinstance(b, torch.Tensor))

    def _name_of(self, memory: int) -> str:
        for module in self._module.modules():
            attributes = {**module._parameters, **module._buffers, **vars(module)}
            for name, value in attributes.items():
                if isinstance(value, torch.Tensor) and memory_of(value) == memory:
                    return f"{type(module).__name__}.{name}"
        return "a tensor from outside of the unit"


def stale_origin(tensor: torch.Tensor) -> Origin | None:
    """Returns the skipped operator that should have written to a tensor's memory, or None."""
    storage = storage_of(tensor)
    if storage is None:
        return None
    origin: Origin | None = storage.__dict__.get("acplan_stale")
    return origin
