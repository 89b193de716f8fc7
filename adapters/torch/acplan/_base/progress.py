"""A progress bar for work that takes long."""

import contextlib
import importlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

Tick = Callable[[], object]
Phase = Callable[[str, int | None], Tick]


# Work that is done sooner shows nothing, unless a bar was asked for.
_DELAY_S = 2


@contextlib.contextmanager
def progress_bar(is_shown: bool | None, unit: str = "op") -> Iterator[Phase]:
    """Yields a function that starts a phase, of a given number of units if that is known, and
    returns the function to call after each unit. Without tqdm nothing is shown. `is_shown`:
    None shows a bar if somebody watches, on a terminal or in a notebook."""
    delay_s = _DELAY_S if is_shown is None else 0
    if is_shown is None:
        is_shown = "ipykernel" in sys.modules or sys.stderr.isatty()
    tqdm: Any = _tqdm() if is_shown else None
    bar: Any = None

    def close() -> None:
        if bar is not None:
            bar.close()

    def start(name: str, total: int | None = None) -> Tick:
        nonlocal bar
        close()
        bar = tqdm(desc=name, total=total, unit=unit, leave=False, delay=delay_s)
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
