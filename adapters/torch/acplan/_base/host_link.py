"""Copies between a device and the host's memory, beside the device's computations.

A link has two queues, one each way. A copy begins when all of the device's computations so far
have ended: then the memory that it reads has been made, and the memory that it writes to is
free. A computation that reads what a copy wrote, or writes to what it read, waits for it first:
on the device, by an event. The host waits for nothing, so the order of copies and computations
is that of the program.

The host's memory has buffers, pinned if the device needs that, that are used again from step to
step: there are never more bytes of them than were in use at once.
"""

import collections
import contextlib
import dataclasses
import threading
from typing import Any, Protocol

import torch
from torch._subclasses.fake_tensor import is_fake


class Copy(Protocol):
    """A copy that has been asked for."""

    def wait(self, memory: torch.Tensor) -> None:
        """Makes all later computations of the device wait for the copy: those that read its
        memory, and those that are given that memory after it is released."""


class Queues(Protocol):
    """The queues in which copies wait for each other. `after` is the last copy of the same host
    memory."""

    def send(self, source: torch.Tensor, host: torch.Tensor, after: Copy | None) -> Copy: ...

    def fetch(self, host: torch.Tensor, target: torch.Tensor, after: Copy | None) -> Copy: ...

    def new_buffer(self, size: int) -> torch.Tensor: ...


class _Ended:
    def wait(self, memory: torch.Tensor) -> None:
        pass


class Plain:
    """Copies at once: for a device that is the host itself, or that computes nothing."""

    def send(self, source: torch.Tensor, host: torch.Tensor, after: Copy | None) -> Copy:
        host.copy_(source)
        return _Ended()

    def fetch(self, host: torch.Tensor, target: torch.Tensor, after: Copy | None) -> Copy:
        target.copy_(host)
        return _Ended()

    def new_buffer(self, size: int) -> torch.Tensor:
        return torch.empty(size, dtype=torch.uint8, device="cpu")


class _Queued:
    """A copy on a stream."""

    __slots__ = ("event", "_streams", "_device", "_asked_on")

    def __init__(self, event: Any, streams: Any, device: Any, asked_on: Any) -> None:
        self.event = event
        self._streams = streams
        self._device = device
        self._asked_on = asked_on

    def wait(self, memory: torch.Tensor) -> None:
        now = self._streams.current_stream(self._device)
        now.wait_event(self.event)
        # Memory goes back to the stream on which it was allocated.
        if now != self._asked_on:
            self._asked_on.wait_event(self.event)
            memory.record_stream(now)


class Streams:
    """Copies on two streams of a device, beside the streams on which it computes."""

    def __init__(self, device: torch.device, streams: Any) -> None:
        """`streams` is PyTorch's module for the kind of device."""
        self._device = device
        self._streams = streams
        self._out = self._streams.Stream(device)
        self._in = self._streams.Stream(device)

    def send(self, source: torch.Tensor, host: torch.Tensor, after: Copy | None) -> Copy:
        return self._copy(self._out, (source, host), after)

    def fetch(self, host: torch.Tensor, target: torch.Tensor, after: Copy | None) -> Copy:
        return self._copy(self._in, (host, target), after)

    def _copy(
        self, stream: Any, pair: tuple[torch.Tensor, torch.Tensor], after: Copy | None
    ) -> Copy:
        asked_on = self._streams.current_stream(self._device)
        stream.wait_stream(asked_on)
        if isinstance(after, _Queued):
            stream.wait_event(after.event)
        with self._streams.stream(stream):
            self.start(*pair)
        return _Queued(stream.record_event(), self._streams, self._device, asked_on)

    def start(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Starts the copy on the current stream."""
        target.copy_(source, non_blocking=True)

    def new_buffer(self, size: int) -> torch.Tensor:
        return torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=True)


@dataclasses.dataclass(eq=False)
class Buffer:
    """Bytes of the host, and the copy after which they may be written to."""

    memory: torch.Tensor
    last: Copy | None = None

    @property
    def size(self) -> int:
        return self.memory.numel()


class Link:
    """The link between the host and a device."""

    def __init__(self, queues: Queues) -> None:
        self._queues = queues
        # The buffers that have been free for the longest time come first.
        self._free: list[Buffer] = []
        # Any thread may append a buffer here, even while this link is at work.
        self._returned: collections.deque[Buffer] = collections.deque()
        self._bytes = 0
        self._used_bytes = 0
        self._most_used_bytes = 0
        self._lock = threading.Lock()

    @property
    def used_bytes(self) -> int:
        """The bytes of buffers that are in use."""
        self._take_back()
        return self._used_bytes

    @property
    def most_used_bytes(self) -> int:
        """The largest used_bytes so far."""
        return self._most_used_bytes

    @property
    def pool_bytes(self) -> int:
        """The bytes of all buffers."""
        return self._bytes

    def take(self, size: int) -> Buffer:
        self._take_back()
        with self._lock:
            self._used_bytes += size
            self._most_used_bytes = max(self._most_used_bytes, self._used_bytes)
            for place, buffer in enumerate(self._free):
                if buffer.size == size:
                    return self._free.pop(place)
            self._bytes += size
            while self._bytes > self._most_used_bytes:
                self._bytes -= self._free.pop(0).size
        return Buffer(self._queues.new_buffer(size))

    def give_back(self, buffer: Buffer) -> None:
        self._returned.append(buffer)

    def _take_back(self) -> None:
        with self._lock:
            while self._returned:
                buffer = self._returned.popleft()
                self._free.append(buffer)
                self._used_bytes -= buffer.size

    def send(self, source: torch.Tensor, buffer: Buffer) -> Copy:
        buffer.last = self._queues.send(source, buffer.memory, buffer.last)
        return buffer.last

    def fetch(self, buffer: Buffer, target: torch.Tensor) -> Copy:
        buffer.last = self._queues.fetch(buffer.memory, target, buffer.last)
        return buffer.last


def queues_of(tensor: torch.Tensor) -> Queues:
    """Returns the queues for tensors on the same device as this one."""
    kind = tensor.device.type
    if kind == "cpu" or is_fake(tensor):
        return Plain()
    with contextlib.suppress(RuntimeError, AttributeError):
        return Streams(tensor.device, torch.get_device_module(tensor.device))
    return Plain()
