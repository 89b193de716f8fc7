"""Saved results, and arguments of units, that wait in the host's memory until they are needed.

A plan may *offload* an operator's saved results. They are copied to the host as soon as they
are made, and the device's memory is let go (*released*) when the next unit's call in forward
ends; they come back (are *fetched*) into new memory when that call begins to run again, which
backward does before it runs this one again. So each of the two copies has the time of another
unit, and what waits for them waits on the device: at the release, and when the unit itself runs
again. If no call follows, backward's first recomputation is the end of forward, and the unit's
own recomputation fetches.

An argument is held by PyTorch's checkpoint, which saves it as autograd saves a tensor: a pair
of hooks, in place only while it does so, puts an object of ours in its place. The argument is
sent as its call begins, and is otherwise like a result. Its memory is released if nothing else
holds it, as with the output of one block that is the input of the next.

A storage moves once a call, with everything that the call saved of it. The host has it as it
was made, and memory that is written to later is sent again. If a unit is called otherwise than
planned, or runs again in another order or never, a copy is made later or not at all, and no
result changes: before a call runs again, it fetches everything that has not been fetched for
it.
"""

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves

from acplan._apply.outside_memory import version_of
from acplan._apply.tape import Saved, Tape, each, memory_of
from acplan._base.errors import AcplanError
from acplan._base.host_link import Buffer, Copy, Link, queues_of
from acplan._base.stand_ins import has_plain_shape
from acplan._base.tensors import tensors_of


@contextlib.contextmanager
def _unseen() -> Iterator[Sequence[Any]]:
    """Hides the block's operators from all modes: from those that count operators, which it
    yields, and from those that decide about them. Fake tensors stay fake."""
    with contextlib.ExitStack() as undo:
        undo.enter_context(torch._C._AutoDispatchBelowADInplaceOrView())
        modes = undo.enter_context(_disable_current_modes())
        for mode in modes:
            if isinstance(mode, FakeTensorMode):
                undo.enter_context(mode)
        yield modes


class Cargo:
    """A storage on its way to the host and back."""

    def __init__(self, tensor: torch.Tensor, link: Link) -> None:
        self._link = link
        self._device = tensor.device
        # All bytes of the storage on the device, while they are there or on the way there.
        self._bytes: torch.Tensor | None = _bytes_of(tensor)
        self._buffer: Buffer | None = link.take(self._bytes.numel())
        self._copy: Copy | None = link.send(self._bytes, self._buffer)

    def send_again(self) -> None:
        """Sends the storage again, as it has been written to since."""
        if self._bytes is not None and self._buffer is not None:
            self._copy = self._link.send(self._bytes, self._buffer)

    def release(self) -> None:
        """Lets the device use the memory for something else."""
        self._wait()

    def fetch(self, observers: Iterable[Any]) -> None:
        assert self._buffer is not None
        size = self._buffer.size
        self._bytes = torch.empty(size, dtype=torch.uint8, device=self._device)
        self._copy = self._link.fetch(self._buffer, self._bytes)
        for observer in observers:
            on_fetch = getattr(observer, "on_fetch", None)
            if on_fetch is not None:
                on_fetch(self._bytes)

    def view(self, away: "Away") -> torch.Tensor:
        assert self._bytes is not None
        flat = self._bytes.view(away.dtype)
        return flat.as_strided(away.size, away.stride, away.offset)

    def close(self) -> None:
        """Waits for copies under way, and gives the host's buffer back."""
        self._wait()
        buffer, self._buffer = self._buffer, None
        if buffer is not None:
            self._link.give_back(buffer)

    def _wait(self) -> None:
        copy, self._copy = self._copy, None
        if copy is not None and self._bytes is not None:
            copy.wait(self._bytes)
        self._bytes = None

    def __del__(self) -> None:
        # The cargo may be that of a graph through which nobody ran backward.
        with contextlib.suppress(Exception):
            self.close()


class Away:
    """The place holder of a saved tensor that is with the host."""

    __slots__ = ("cargo", "size", "stride", "offset", "dtype")

    def __init__(self, tensor: torch.Tensor, cargo: Cargo) -> None:
        self.cargo = cargo
        self.size = tensor.shape
        self.stride = tensor.stride()
        self.offset = tensor.storage_offset()
        self.dtype = tensor.dtype


class Argument:
    """An argument that a checkpoint holds by position: the tensor, or its place holder."""

    __slots__ = ("value", "is_overwritten", "_version")
    has_value = True

    def __init__(self, tensor: torch.Tensor) -> None:
        # Not an alias: where no mode sees it made, that has a count of writes of its own.
        self.value: Any = tensor
        self.is_overwritten = False
        self._version = version_of(tensor)

    def note_writes(self) -> None:
        """Notes whether the tensor, if it is still on the device, has been written to."""
        if type(self.value) is not Away and version_of(self.value) != self._version:
            self.is_overwritten = True

    def note_arrival(self) -> None:
        """Counts writes from now on, as the copy to the device was one."""
        self._version = version_of(self.value)


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """Returns all bytes of the tensor's storage."""
    count = tensor.untyped_storage().nbytes() // tensor.element_size()
    return tensor.as_strided((count,), (1,), 0).view(torch.uint8)


def _is_movable(tensor: torch.Tensor) -> bool:
    if not has_plain_shape(tensor, True) or memory_of(tensor) is None:
        return False
    size = tensor.untyped_storage().nbytes()
    return size > 0 and size % tensor.element_size() == 0


class Freight:
    """The cargo of one call of a unit, from forward until it runs again."""

    _ON_DEVICE, _RELEASED, _FETCHED, _LANDED = range(4)

    def __init__(self, traffic: "Traffic", chain: "_Chain", tape: Tape, sends: bool) -> None:
        """Begins the freight of a call. `sends`: the plan offloads results here."""
        tape.freight = self
        self.sends = sends
        self.before: Callable[[], Freight | None] = _nothing
        self.chain = chain
        self._traffic = traffic
        self._tape = weakref.ref(tape)
        self._state = self._ON_DEVICE
        self._offloaded: list[Saved | Argument] = []
        # Indexed by memory, in the order in which the memory was made.
        self._cargo: dict[int | None, Cargo] = {}

    # Forward

    @contextlib.contextmanager
    def holding(self, arguments: Sequence[torch.Tensor]) -> Iterator[None]:
        """Sends some arguments of a checkpoint that begins in the block and saves them."""
        sent_memory = {*map(memory_of, arguments)}

        def hold(tensor: torch.Tensor) -> Argument:
            with _unseen():
                argument = Argument(tensor)
                self._offloaded.append(argument)
                if memory_of(tensor) in sent_memory:
                    self._send(tensor)
            return argument

        with torch.autograd.graph.saved_tensors_hooks(hold, self._give):
            yield

    def _give(self, argument: Argument) -> torch.Tensor:
        """Returns an argument for the recomputation that is about to begin."""
        self._traffic.arrive(self)
        argument.note_writes()
        if argument.is_overwritten:
            raise AcplanError(
                f"a tensor of shape {tuple(argument.value.shape)}, an argument of a unit, was "
                "written to in place before the unit is recomputed; write x = x + y there in "
                "place of x += y"
            )
        tensor: torch.Tensor = argument.value
        return tensor

    def send(self, saved: Saved) -> None:
        self._offloaded.append(saved)
        for tensor in tensors_of(saved.value):
            with _unseen():
                self._send(tensor)

    def _send(self, tensor: torch.Tensor) -> None:
        key = memory_of(tensor)
        if key not in self._cargo and _is_movable(tensor):
            self._cargo[key] = Cargo(tensor, self._traffic.link_of(tensor))

    def send_again(self, targets: Sequence[torch.Tensor]) -> None:
        for key in {memory_of(tensor) for tensor in targets}:
            if key in self._cargo:
                with _unseen():
                    self._cargo[key].send_again()

    def release(self) -> None:
        """Releases the device's memory of results that are held only for this call's
        recomputation."""
        tape = self._tape()
        if self._state != self._ON_DEVICE:
            return
        self._state = self._RELEASED
        if tape is None or not self._cargo:
            return
        if tape.outputs_changed():
            tape.drop()
        values = [saved.value for saved in self._offloaded]
        self._close_but(set(map(memory_of, tensors_of(values))))
        with _unseen():
            for argument in self._arguments():
                argument.note_writes()
                argument.value = self._away(argument.value)
            for saved in tape.saved():
                if saved.has_value:
                    saved.value = each(saved.value, self._away)
            for cargo in self._cargo.values():
                cargo.release()
        tape.forget_outputs(self._cargo.keys())
        tape.forget_arguments(self._cargo.keys())

    def _arguments(self) -> Iterator[Argument]:
        yield from (item for item in self._offloaded if isinstance(item, Argument))

    def _away(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        cargo = self._cargo.get(memory_of(value))
        return value if cargo is None else Away(value, cargo)

    # Backward

    def fetch(self) -> None:
        """Fetches the cargo, if it is away."""
        tape = self._tape()
        if self._state != self._RELEASED:
            return
        self._state = self._FETCHED
        if tape is None or not self._cargo:
            return
        items: list[Saved | Argument] = [*tape.saved(), *self._arguments()]
        leaves = tree_leaves([item.value for item in items])
        needed_cargo = {leaf.cargo for leaf in leaves if type(leaf) is Away}
        self._close_but({key for key, cargo in self._cargo.items() if cargo in needed_cargo})
        with _unseen() as observers:
            for cargo in self._cargo.values():
                cargo.fetch(observers)
            for saved in tape.saved():
                if saved.has_value:
                    saved.value = each(saved.value, _back)
            for argument in self._arguments():
                if type(argument.value) is Away:
                    argument.value = _back(argument.value)

    def land(self) -> None:
        """Makes all of it available to the operators from here on."""
        is_new = self._state == self._FETCHED
        self._state = self._LANDED
        self._close_but(set())
        if is_new:
            for argument in self._arguments():
                argument.note_arrival()

    def drop(self) -> None:
        """Closes all cargo, which is no longer needed."""
        self._close_but(set())

    def _close_but(self, keys: set[int | None]) -> None:
        for key in [key for key in self._cargo if key not in keys]:
            self._cargo.pop(key).close()

    # The recomputation

    def begin(self) -> None:
        self._traffic.begin(self)

    def end(self) -> None:
        self._traffic.end()


def _nothing() -> None:
    return None


def _back(value: Any) -> Any:
    return value.cargo.view(value) if type(value) is Away else value


class _Chain:
    """The calls of units that one thread makes in forward, of which it has the last one."""

    def __init__(self) -> None:
        self.last: Callable[[], Freight | None] = _nothing
        # The number of open calls of units, in forward or again.
        self.depth = 0

    def add(self, freight: Freight) -> None:
        self.close()
        freight.before, self.last = self.last, weakref.ref(freight)

    def close(self) -> None:
        """Releases what the last call offloads: nobody needs it on the device any longer."""
        last = self.last()
        if last is not None:
            last.release()


class Traffic:
    """The traffic between the host and the devices on which the units of one plan run: it knows
    which call of a unit follows which. Calls inside units, and inside recomputations, have no
    part in it."""

    def __init__(self) -> None:
        self._threads = threading.local()
        self._links: dict[torch.device, Link] = {}
        self._lock = threading.RLock()

    def __reduce__(self) -> Any:
        return Traffic, ()

    def __deepcopy__(self, memo: dict[int, Any]) -> "Traffic":
        return Traffic()

    def start(self, tape: Tape, sends: bool) -> Freight | None:
        """Returns the freight of a call of a unit, or None for a call inside another one."""
        chain = self._chain()
        return None if chain.depth > 0 else Freight(self, chain, tape, sends)

    @contextlib.contextmanager
    def during_call(self) -> Iterator[None]:
        """Counts the block as a call."""
        chain = self._chain()
        chain.depth += 1
        try:
            yield
        finally:
            chain.depth -= 1

    def ended(self, freight: Freight) -> None:
        """Adds a call that has ended in forward to its chain."""
        with self._lock:
            freight.chain.add(freight)

    def begin(self, freight: Freight) -> None:
        """Fetches the cargo of a call that runs again, and counts the call."""
        self.arrive(freight)
        self._chain().depth += 1

    def arrive(self, freight: Freight) -> None:
        """Fetches the cargo of a call that runs again, and that of the call before it."""
        with self._lock:
            freight.chain.close()
            freight.chain.last = _nothing
            freight.fetch()
            before = freight.before()
            if before is not None:
                before.fetch()
            freight.land()

    def end(self) -> None:
        self._chain().depth -= 1

    def link_of(self, tensor: torch.Tensor) -> Link:
        with self._lock:
            link = self._links.get(tensor.device)
            if link is None:
                link = self._links[tensor.device] = Link(queues_of(tensor))
            return link

    def _chain(self) -> _Chain:
        chain: _Chain | None = getattr(self._threads, "chain", None)
        if chain is None:
            chain = self._threads.chain = _Chain()
        return chain


class Begins:
    """A context that starts and ends the freight of a recomputation that has no other mode."""

    def __init__(self, freight: Freight) -> None:
        self._freight = freight

    def __enter__(self) -> None:
        self._freight.begin()

    def __exit__(self, *_: Any) -> None:
        self._freight.end()
