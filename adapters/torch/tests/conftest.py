"""Fixtures of several files of tests."""

import pathlib
from collections.abc import Callable, Iterator

import filelock
import pytest
import torch

MakeOnce = Callable[[str, Callable[[pathlib.Path], None]], pathlib.Path]


_TESTS = pathlib.Path(__file__).parent


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="runs long_cases.txt alone")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out the long cases, each of which has a short one like it, or all others."""
    names = set((_TESTS / "long_cases.txt").read_text().splitlines())
    is_long = {item: f"{item.path.name}::{item.name}" in names for item in items}
    files = {item.path.name for item in items}
    # A single test that is named runs.
    if not config.option.long and any("::" in argument for argument in config.args):
        return
    collected = {f"{item.path.name}::{item.name}" for item in items}
    if missing := {n for n in names - collected if n.partition("::")[0] in files}:
        raise pytest.UsageError(f"long_cases.txt: no such tests: {', '.join(sorted(missing))}")
    items_left_out = [item for item in items if is_long[item] != config.option.long]
    config.hook.pytest_deselected(items=items_left_out)
    items[:] = [item for item in items if is_long[item] == config.option.long]


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
