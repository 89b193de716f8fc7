"""Attributes that are replaced, for all threads or for one: what is there afterwards."""

import threading
import types
from collections.abc import Callable
from typing import Any

import pytest
from torch import nn

from acplan._base.patching import replaced_here, set_attribute


class Base:
    shared = "of the base"

    @staticmethod
    def plain() -> str:
        return "plain"

    @classmethod
    def of_class(cls) -> str:
        return cls.__name__

    @property
    def read(self) -> str:
        return "read"


class Derived(Base):
    pass


OWNERS: dict[str, tuple[Callable[[], Any], str]] = {
    "its own": (lambda: Base, "shared"),
    "inherited": (lambda: Derived, "shared"),
    "a static method": (lambda: Base, "plain"),
    "a class method": (lambda: Base, "of_class"),
    "a property": (lambda: Base, "read"),
    "of an object": (Base, "shared"),
    "of a module": (lambda: types.ModuleType("module"), "__name__"),
    "a method of nn.Module": (lambda: nn.Linear(2, 2), "forward"),
    "of a module that is nn.Module": (lambda: nn.Linear(2, 2), "in_features"),
}


@pytest.mark.parametrize("case", OWNERS)
def test_all_is_as_it_was(case: str) -> None:
    make, name = OWNERS[case]
    owner = make()
    before = dict(vars(owner))
    with set_attribute(owner, name, "other"):
        assert vars(owner)[name] == "other"
    assert dict(vars(owner)) == before
    with pytest.raises(KeyError), set_attribute(owner, name, "other"):
        raise KeyError
    assert dict(vars(owner)) == before


def test_there_must_be_one_or_it_is_to_be_created() -> None:
    owner = Derived()
    with pytest.raises(AttributeError, match="missing"), set_attribute(owner, "missing", 1):
        raise AssertionError("the block ran")
    with set_attribute(owner, "missing", 1, create=True):
        assert owner.missing == 1  # type: ignore[attr-defined]
    assert not hasattr(owner, "missing")


@pytest.mark.parametrize("name", ["function", "CONSTANT"])
def test_other_threads_see_what_was_there(name: str) -> None:
    module: Any = types.ModuleType("module")
    module.function = lambda: "original"
    module.CONSTANT = "original"

    def value() -> Any:
        return module.function() if name == "function" else module.CONSTANT

    values: list[Any] = []
    other = (lambda: "other") if name == "function" else "other"
    with replaced_here(module, name, other):
        thread = threading.Thread(target=lambda: values.append(value()))
        thread.start()
        thread.join()
        values.append(value())
    assert values == ["original", "other"] and value() == "original"
