"""A progress bar for what takes long."""

import contextlib
import importlib
from collections.abc import Callable, Iterator
from typing import Any

Tick = Callable[[], object]
Phase = Callable[[str, int | None], Tick]


@contextlib.contextmanager
def progress_bar(is_shown: bool) -> Iterator[Phase]:
    """A function that starts a phase, of so many operators where that is known, and
    returns what to call after each. Without tqdm nothing is shown."""
    tqdm: Any = _tqdm() if is_shown else None
    bar: Any = None

    def close() -> None:
        if bar is not None:
            bar.close()

    def start(name: str, total: int | None = None) -> Tick:
        nonlocal bar
        close()
        bar = tqdm(desc=name, total=total, unit="op", leave=False)
        update: Tick = bar.update
        return update

    try:
        yield start if tqdm else _silent
    finally:
        close()


def _silent(name: str, total: int | None = None) -> Tick:
    return int


def _tqdm() -> Any:
    try:
        return importlib.import_module("tqdm.auto").tqdm
    except ImportError:
        return None
