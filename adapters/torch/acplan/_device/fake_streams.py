"""Fake CUDA streams and events: a program on fake tensors names the streams on which it
allocates and communicates, and waits for nothing."""

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch

from acplan._base.patching import set_attribute


class FakeStream:
    """A stream. The number of the default stream is 0."""

    device = torch.device("cuda", 0)

    def __init__(self, number: int) -> None:
        self.number = number

    @property
    def stream_id(self) -> int:
        return self.number

    def wait_stream(self, stream: Any) -> None:
        pass

    def wait_event(self, event: Any) -> None:
        pass

    def record_event(self, event: Any = None) -> Any:
        return FakeEvent() if event is None else event

    def synchronize(self) -> None:
        pass

    def query(self) -> bool:
        return True


class FakeEvent:
    """An event that has happened."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def record(self, stream: Any = None) -> None:
        pass

    def wait(self, stream: Any = None) -> None:
        pass

    def synchronize(self) -> None:
        pass

    def query(self) -> bool:
        return True


# The streams around the current code, the innermost last; empty outside of fake_streams().
_open_streams: list[FakeStream] = []


def current_stream_number() -> int:
    """Returns the number of the current fake stream, or 0 if there are none."""
    return _open_streams[-1].number if _open_streams else 0


@contextlib.contextmanager
def fake_streams() -> Iterator[None]:
    """Gives the block fake streams and events in place of CUDA's. Streams have numbers in the
    order in which they are made."""
    default = FakeStream(0)
    numbers = itertools.count(1)

    def make(*_: Any, **__: Any) -> FakeStream:
        return FakeStream(next(numbers))

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
        for name, function in functions.items():
            undo.enter_context(set_attribute(torch.cuda, name, function))
        _open_streams.append(default)
        undo.callback(_open_streams.clear)
        yield
