"""The states of random number generators, of PyTorch, NumPy and Python."""

import contextlib
import random
import sys
from collections.abc import Iterator

import torch
from torch.utils._mode_utils import no_dispatch

_SEED = 0


def start_of_step() -> None:
    """Seeds all generators, so that random numbers that decide what runs, such as which layers
    are dropped, are the same at every step that is recorded."""
    random.seed(_SEED)
    with no_dispatch():
        torch.default_generator.manual_seed(_SEED)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(_SEED)


@contextlib.contextmanager
def random_state_kept() -> Iterator[None]:
    """Restores the random states of PyTorch, NumPy and Python after the block."""
    state = random.getstate()
    numpy = sys.modules.get("numpy")
    of_numpy = numpy.random.get_state() if numpy else None
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        random.setstate(state)
        if numpy:
            numpy.random.set_state(of_numpy)
