"""Signals wait while a model is not as its user left it.

Ctrl-C raises KeyboardInterrupt between any two instructions of Python, those included that
put a model back: one that comes then would leave fake tensors in it. So while a step is
traced, handlers of signals that Python code has set are called where the step can end as it
does at any error, which is at its next operator, or at the end. A second Ctrl-C is not held
back: who presses it wants to end what does not come to an operator.
"""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

_NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGALRM", "SIGUSR1", "SIGUSR2")
_SIGNALS = [getattr(signal, name) for name in _NAMES if hasattr(signal, name)]

Handler = Callable[[int, FrameType | None], Any]


class _Held:
    """Of the main thread, the only one in which Python calls handlers."""

    def __init__(self) -> None:
        self.handlers: dict[int, Handler] = {}
        self.came: list[tuple[int, FrameType | None]] = []
        self.is_holding = False

    def hold(self) -> None:
        self.is_holding = True
        for number in _SIGNALS:
            handler = signal.getsignal(number)
            if callable(handler):
                self.handlers[number] = handler
                signal.signal(number, self._note)

    def let_go(self) -> None:
        while self.handlers:
            signal.signal(*self.handlers.popitem())
        self.is_holding = False

    def call(self) -> None:
        """The handlers of those that came, of which one may raise."""
        while self.came:
            number, frame = self.came.pop(0)
            handler = self.handlers.get(number) or signal.getsignal(number)
            if callable(handler):
                handler(number, frame)

    def _note(self, number: int, frame: FrameType | None) -> None:
        is_second = any(number == signal.SIGINT == other for other, _ in self.came)
        self.came.append((number, frame))
        if is_second:
            self.call()


_HELD = _Held()


def _is_main() -> bool:
    return threading.current_thread() is threading.main_thread()


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Until the end, or the next give_way(), no handler of a signal is called."""
    if not _is_main() or _HELD.is_holding:
        yield
        return
    try:
        _HELD.hold()
        yield
    finally:
        _HELD.let_go()
        _HELD.call()


@contextlib.contextmanager
def interrupted_as_ever() -> Iterator[None]:
    """While it lasts, they are called at once."""
    if not _is_main() or not _HELD.is_holding:
        yield
        return
    _HELD.let_go()
    try:
        _HELD.call()
        yield
    finally:
        _HELD.hold()


def give_way() -> None:
    """Calls the handlers of signals that came meanwhile."""
    if _HELD.came and _is_main():
        _HELD.call()
