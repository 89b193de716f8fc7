"""Compares traces with steps on real tensors, architecture by architecture.

compare_real_steps.py prints the whole table, for every kind of batch; here each
architecture has one, another from one to the next.
"""

import functools
import itertools
from collections.abc import Iterator

import pytest
import torch
from torch import nn

from architectures import Architecture, architectures
from compare_real_steps import cases, facts
from real_steps import Case, compare, real_pass

pytestmark = pytest.mark.usefixtures("one_thread")


_architectures = functools.cache(architectures)


def _one_each() -> Iterator[tuple[str, str]]:
    """Yields every architecture with a kind of batch, by turns."""
    turns: dict[int, Iterator[int]] = {}
    for name, architecture in _architectures().items():
        labels = [label for label, _ in cases(architecture)]
        labels = [label for label in labels if not architecture.exception(label)]
        turn = turns.setdefault(len(labels), itertools.count())
        if labels:
            yield name, labels[next(turn) % len(labels)]


def _case(architecture: Architecture, label: str) -> Case:
    return dict(cases(architecture))[label]


@pytest.mark.parametrize(("name", "label"), list(_one_each()))
def test_a_trace_runs_what_the_real_step_does(name: str, label: str) -> None:
    architecture = _architectures()[name]
    result = compare(architecture.make, _case(architecture, label))
    assert result.difference() == ""


def test_a_step_of_another_kind_is_told_apart() -> None:
    architecture = _architectures()["llama"]
    padded = compare(architecture.make, _case(architecture, "padded right"))
    plain = real_pass(architecture.make(), _case(architecture, "no mask"))
    assert padded.real != plain
    masks = [
        operator.arguments for operator in padded.real if "marks.attention" in operator.name
    ]
    assert masks and all("bool[3, 1, 24, 24]" in mask for mask in masks)


def test_at_least_sixty_architectures_are_compared() -> None:
    assert len(_architectures()) >= 60
    assert {"no mask", "ones", "padded right", "padded left", "packed"} <= {
        label for architecture in _architectures().values() for label in architecture.variants
    }
    assert all(name in _architectures() for name, _ in facts())


def test_an_exception_says_why() -> None:
    for architecture in _architectures().values():
        for step, reason in architecture.exceptions.items():
            assert len(reason) > 20, step


class _Cached(nn.Module):
    """Keeps a table for each length in a cache of a function and in a global one."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.activation = nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        places = _places(x.shape[1]) + _kept_places(x.shape[1])
        hidden: torch.Tensor = self.activation(self.layer(x))
        return hidden * places[:, None].to(x.device)


@functools.lru_cache(maxsize=4)
def _places(length: int) -> torch.Tensor:
    return torch.arange(length)


_PLACES: dict[int, torch.Tensor] = {}


def _kept_places(length: int) -> torch.Tensor:
    if length not in _PLACES:
        _PLACES[length] = torch.arange(length)
    return _PLACES[length]


def test_what_a_model_caches_is_real_after_a_trace() -> None:
    model = _Cached()
    x = torch.ones(2, 3, 4)
    result = compare(lambda: model, Case({"x": x}))
    assert result.difference() == ""
    torch.testing.assert_close(
        model(x), model.layer(x).relu() * torch.tensor([0, 2, 4])[:, None]
    )
