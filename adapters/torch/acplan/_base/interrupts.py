"""Holds signals back while a model is not in the state in which its user left it.

Ctrl-C raises KeyboardInterrupt between any two instructions of Python, also between those that
put a model back: a KeyboardInterrupt there would leave fake tensors in the model. So while a
step is traced, signal handlers that Python code has set are called only where the step can end
as it does at any error, which is at its next operator, or at the end. A second Ctrl-C is not
held back: a user who presses it wants to end code that comes to no operator.
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


class _HeldSignals:
    """The signals that the main thread holds back. Python calls handlers in no other thread."""

    def __init__(self) -> None:
        self.handlers: dict[int, Handler] = {}
        self.pending: list[tuple[int, FrameType | None]] = []
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
        """Runs the handlers of the signals that came. One of them may raise."""
        while self.pending:
            number, frame = self.pending.pop(0)
            handler = self.handlers.get(number) or signal.getsignal(number)
            if callable(handler):
                handler(number, frame)

    def _note(self, number: int, frame: FrameType | None) -> None:
        is_second = any(number == signal.SIGINT == other for other, _ in self.pending)
        self.pending.append((number, frame))
        if is_second:
            self.call()


_HELD_SIGNALS = _HeldSignals()


def _is_main() -> bool:
    return threading.current_thread() is threading.main_thread()


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Holds back the handlers of signals within the block, until its end or the next
    give_way()."""
    if not _is_main() or _HELD_SIGNALS.is_holding:
        yield
        return
    try:
        _HELD_SIGNALS.hold()
        yield
    finally:
        _HELD_SIGNALS.let_go()
        _HELD_SIGNALS.call()


@contextlib.contextmanager
def interrupted_as_ever() -> Iterator[None]:
    """Lets handlers of signals run at once within the block, after those of signals that came
    before."""
    if not _is_main() or not _HELD_SIGNALS.is_holding:
        yield
        return
    _HELD_SIGNALS.let_go()
    try:
        _HELD_SIGNALS.call()
        yield
    finally:
        _HELD_SIGNALS.hold()


def give_way() -> None:
    """Runs the handlers of the signals that have been held back until now."""
    if _HELD_SIGNALS.pending and _is_main():
        _HELD_SIGNALS.call()
