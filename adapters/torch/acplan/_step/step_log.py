"""The log of a step: its operators, storages, tensors, calls and saved tensors, in order."""

import contextlib
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from acplan._base import transforms
from acplan._base.stand_ins import inner_tensors, is_run_inside
from acplan._base.tensors import tensors_in
from acplan._device.fake_streams import current_stream_number
from acplan._fakes.sparse_fakes import sparse_parts
from acplan._step.inner_passes import InnerPasses
from acplan._step.records import Call, Operator, Saved, Storage, Tensor

_STRIDED = torch.strided
_PLAIN = frozenset([torch.Tensor, torch._subclasses.FakeTensor])


class StepLog:
    """All records of a step, by their numbers. Times count operators.

    A storage and a tensor have a number from when they are first seen until they are freed;
    after that, others may be at their addresses. In `quiet()` nothing is logged.
    """

    def __init__(self) -> None:
        self.operators: list[Operator] = []
        self.storages: list[Storage] = []
        self.tensors: list[Tensor] = []
        self.calls: list[Call] = []
        self.saved: list[Saved] = []
        self.inner_passes = InnerPasses()
        # Storages on the host that Python's own code reads, without an operator.
        self.read_on_host: list[int] = []
        self.open_calls: list[int] = []
        self.is_forward = True
        self.is_quiet = False
        # Parameters of the model are in the host's memory.
        self.has_host_parameters = False
        # The arguments of a hook whose operators run once, if one runs.
        self.once: set[int] | None = None
        self._numbers: dict[int, int] = {}
        self._tensor_numbers: dict[int, int] = {}
        # The tensor that was made last, indexed by storage, and by view of a storage.
        self._latest: dict[Any, int] = {}
        # The current memory of storages that programs resize, indexed by their numbers.
        self._memory: dict[int, int] = {}

    @property
    def now(self) -> int:
        return len(self.operators)

    @property
    def open_call(self) -> int:
        """The innermost open call, or -1."""
        return self.open_calls[-1] if self.open_calls else -1

    @contextlib.contextmanager
    def runs_once(self, arguments: Iterable[int]) -> Iterator[None]:
        """Logs operators within the block as what hooks run once in a call: policies do not
        see them, nothing that runs again uses their results, and tensors that they make of
        `arguments`, storages, are those themselves."""
        self.once = {*arguments}
        try:
            yield
        finally:
            self.once = None

    @contextlib.contextmanager
    def quiet(self) -> Iterator[None]:
        before, self.is_quiet = self.is_quiet, True
        try:
            yield
        finally:
            self.is_quiet = before

    def storage_of(self, tensor: torch.Tensor, born: int = -1) -> int:
        """Returns the number of a tensor's storage; a new storage is noted as born at
        `born`."""
        storage = tensor.untyped_storage()
        return self._number_of(storage, born, tensor.device.type == "cuda")

    def _number_of(self, storage: torch.UntypedStorage, born: int, on_device: bool) -> int:
        key = storage._cdata
        known_number = self._numbers.get(key)
        if known_number is not None:
            return known_number
        number = len(self.storages)
        stream = current_stream_number() if born >= 0 else 0
        entry = Storage(storage.nbytes(), born, on_device, stream=stream)
        self.storages.append(entry)
        self._numbers[key] = number

        def on_free() -> None:
            if self._numbers.get(key) == number:
                del self._numbers[key]
            entry.freed = self.now
            self._free_memory(number)

        on_death(storage, on_free)
        return number

    def resized(self, storage: torch.UntypedStorage, bytes_before: int) -> None:
        """Notes that the program has given a storage memory of another size, as FSDP does with
        its whole parameters. From then on the storage counts no bytes and is always there, as
        parameters are; each piece of its memory has a number, which no operator uses, and a
        life of its own. A storage that is made in the step counts as it was made."""
        # The storage of a fake tensor does not know the device, which is never the CPU.
        number = self._number_of(storage, -1, storage.device.type != "cpu")
        entry = self.storages[number]
        if entry.born >= 0:
            return
        if number not in self._memory and bytes_before:
            self._memory[number] = len(self.storages)
            self.storages.append(Storage(bytes_before, -1, entry.on_device))
        entry.bytes = 0
        entry.is_refilled = True
        self._free_memory(number)
        if size := storage.nbytes():
            self._memory[number] = len(self.storages)
            stream = current_stream_number()
            self.storages.append(Storage(size, self.now, entry.on_device, stream=stream))

    def changed_storages(self, tensors: Iterable[torch.Tensor]) -> list[int]:
        """Returns the numbers of the storages of tensors to which an operator has written, in
        ascending order, except those that it has filled with the values that they had."""
        numbers = sorted({self.storage_of(tensor) for tensor in tensors})
        return [number for number in numbers if not self.storages[number].is_refilled]

    def _free_memory(self, number: int) -> None:
        memory = self._memory.pop(number, None)
        if memory is not None:
            self.storages[memory].freed = self.now

    def stand_in(self, storage: torch.UntypedStorage, saved: Saved) -> None:
        """Counts a storage as that of a saved tensor, until it is freed."""
        key = storage._cdata
        self._numbers[key] = saved.storage

        def on_free() -> None:
            self._numbers.pop(key, None)
            saved.local_end = self.now

        on_death(storage, on_free)

    def storages_of(self, values: Any, born: int = -1) -> list[int]:
        """Returns the numbers of all storages in these values, in ascending order."""
        parts = self.plain(tensors_in(values))
        return sorted({self.storage_of(part, born) for part in parts})

    def plain(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        """Returns the tensors with memory that these are, or of which they consist."""
        if all(map(_has_memory, tensors)):
            return tensors
        parts: list[torch.Tensor] = []
        with self.quiet():
            for tensor in map(transforms.unwrapped, tensors):
                if _has_memory(tensor):
                    parts.append(tensor)
                elif is_run_inside(type(tensor)):
                    parts += self.plain(inner_tensors(tensor))
                else:
                    parts += sparse_parts(tensor)
        return parts

    def tensor_of(self, tensor: torch.Tensor, among: Iterable[int] = ()) -> int:
        """Returns the number of a tensor. Autograd passes copies of its tensors on; the tensor
        most like a copy, preferably one of `among`, stands for it."""
        storage = self.storage_of(tensor)
        known_number = self._tensor_numbers.get(tensor._cdata)
        if known_number is not None and self.tensors[known_number].storage == storage:
            return known_number
        view = _view_of(tensor, storage)
        for number in among:
            if self.tensors[number].shape == view:
                return number
        number = self._latest.get(view, self._latest.get(storage, -1))
        return number if number >= 0 else self.add_tensor(tensor, -1)

    def add_tensor(self, tensor: torch.Tensor, base: int) -> int:
        """Gives a new tensor a number. It is made from the tensor `base` or from none (-1)."""
        storage = self.storage_of(tensor)
        key, number = tensor._cdata, len(self.tensors)
        entry = Tensor(storage, base, _view_of(tensor, storage))
        self.tensors.append(entry)
        self._tensor_numbers[key] = number
        self._latest[entry.shape] = self._latest[storage] = number

        def on_free() -> None:
            if self._tensor_numbers.get(key) == number:
                del self._tensor_numbers[key]
            entry.freed = self.now

        on_death(tensor, on_free)
        return number

    def add_results(
        self, arguments_read: Sequence[torch.Tensor], results: Sequence[torch.Tensor]
    ) -> list[int]:
        """Gives numbers to the tensors that an operator of the forward pass makes."""
        if not self.is_forward or self.once is not None:
            return []
        bases: dict[int, int] = {}
        for tensor in arguments_read:
            bases.setdefault(self.storage_of(tensor), self.tensor_of(tensor))
        arguments = {id(tensor) for tensor in arguments_read}
        return [
            self.add_tensor(tensor, bases.get(self.storage_of(tensor), -1))
            for tensor in results
            if id(tensor) not in arguments
        ]

    def latest_tensor_of(self, storage: int) -> int:
        """Returns the number of the last tensor that was made in a storage, or -1."""
        places = range(len(self.tensors) - 1, -1, -1)
        return next((k for k in places if self.tensors[k].storage == storage), -1)

    def is_within(self, call: int, other: int) -> bool:
        """Returns whether a call is another one, or was made during it."""
        while call > other:
            call = self.calls[call].parent
        return call == other


def on_death(thing: Any, action: Callable[[], None]) -> None:
    """Runs `action` when a thing is freed, unless the interpreter ends before."""
    weakref.finalize(thing, action).atexit = False


def _has_memory(tensor: torch.Tensor) -> bool:
    """Returns whether a tensor is one piece of memory."""
    if type(tensor) not in _PLAIN and is_run_inside(type(tensor)):
        return False
    is_wrapped = torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    return tensor.layout is _STRIDED and not is_wrapped


def _view_of(tensor: torch.Tensor, storage: int) -> tuple[Any, ...]:
    return (storage, tensor.storage_offset(), tuple(tensor.shape), tensor.stride())
