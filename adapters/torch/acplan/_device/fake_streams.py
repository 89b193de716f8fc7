"""Fake CUDA streams and events: a program on fake tensors names the streams on which it
allocates and communicates, and waits for nothing. The waits that a GPU would have are noted
(stream_waits.py)."""

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch

from acplan._base.patching import set_attribute
from acplan._device.pinned_fakes import pinned_fakes
from acplan._device.stream_waits import Mark, mark_of, wait_for, wait_on_host


class FakeStream:
    """A stream. The number of the default stream is 0."""

    device = torch.device("cuda", 0)

    def __init__(self, number: int) -> None:
        self.number = number

    @property
    def stream_id(self) -> int:
        return self.number

    def wait_stream(self, stream: Any) -> None:
        wait_for(self.number, mark_of(stream.number))

    def wait_event(self, event: Any) -> None:
        event.wait(self)

    def record_event(self, event: Any = None) -> Any:
        event = FakeEvent() if event is None else event
        event.record(self)
        return event

    def synchronize(self) -> None:
        wait_on_host(mark_of(self.number))

    def query(self) -> bool:
        return True


class FakeEvent:
    """An event that has happened. It stands for what its stream had to run when it was last
    recorded."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self._mark: Mark | None = None

    def record(self, stream: Any = None) -> None:
        self._mark = mark_of(_number_of(stream))

    def wait(self, stream: Any = None) -> None:
        wait_for(_number_of(stream), self._mark)

    def synchronize(self) -> None:
        wait_on_host(self._mark)

    def query(self) -> bool:
        return True


# The streams around the current code, the innermost last; empty outside of fake_streams().
_open_streams: list[FakeStream] = []
# The numbers of the streams of process groups, by the groups' names; likewise.
_group_streams: dict[str, int] = {}
_numbers = itertools.count(1)


def _number_of(stream: Any) -> int:
    return current_stream_number() if stream is None else int(stream.number)


def current_stream_number() -> int:
    """Returns the number of the current fake stream, or 0 if there are none."""
    return _open_streams[-1].number if _open_streams else 0


def group_stream_number(group: str) -> int:
    """Returns the number of the stream on which a process group runs what the program does not
    wait for at once, or 0 if there are no fake streams."""
    if not _open_streams:
        return 0
    if group not in _group_streams:
        _group_streams[group] = next(_numbers)
    return _group_streams[group]


@contextlib.contextmanager
def fake_streams() -> Iterator[None]:
    """Gives the block fake streams and events in place of CUDA's, and lets fake tensors be
    pinned. Streams have numbers in the order in which they are made."""
    global _numbers
    default = FakeStream(0)
    _numbers = itertools.count(1)

    def make(*_: Any, **__: Any) -> FakeStream:
        return FakeStream(next(_numbers))

    @contextlib.contextmanager
    def in_stream(stream: FakeStream | None) -> Iterator[None]:
        if stream is None:
            yield
            return
        _open_streams.append(stream)
        try:
            yield
        finally:
            _open_streams.pop()

    def current(device: Any = None) -> FakeStream:
        return _open_streams[-1]

    functions: dict[str, Callable[..., Any]] = {
        "Stream": make,
        "Event": FakeEvent,
        "stream": in_stream,
        "current_stream": current,
        "default_stream": lambda device=None: default,
    }
    with contextlib.ExitStack() as undo:
        undo.enter_context(pinned_fakes())
        for name, function in functions.items():
            undo.enter_context(set_attribute(torch.cuda, name, function))
        _open_streams.append(default)
        undo.callback(_open_streams.clear)
        undo.callback(_group_streams.clear)
        yield
