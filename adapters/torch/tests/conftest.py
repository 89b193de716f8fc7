"""Fixtures of several files of tests."""

import pathlib
from collections.abc import Callable, Iterator

import filelock
import pytest
import torch

MakeOnce = Callable[[str, Callable[[pathlib.Path], None]], pathlib.Path]


@pytest.fixture(scope="session")
def make_once(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> MakeOnce:
    """Returns a function that fills a folder the first time that a name is asked for, for all
    processes that run these tests."""
    base = tmp_path_factory.getbasetemp()
    shared = base if worker_id == "master" else base.parent

    def folder_of(name: str, fill: Callable[[pathlib.Path], None]) -> pathlib.Path:
        folder = shared / name
        with filelock.FileLock(shared / f"{name}.lock"):
            if not (mark := folder / "is_filled").exists():
                folder.mkdir(exist_ok=True)
                fill(folder)
                mark.touch()
        return folder

    return folder_of


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Kernels of the CPU add up in the same order each time."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
