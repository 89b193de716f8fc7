"""Arguments of units: a recomputation gets them as they were when the unit was called, whatever
has become of them, and what it writes to them is written once. Also calls that end by
exceptions."""

import collections
import dataclasses
import typing
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import acplan
from acplan import Plan, PlannedModule

WIDTH = 8
X = torch.arange(4.0 * WIDTH).reshape(4, WIDTH) / 32


class Layer(nn.Module):
    """Does with what it is given what a function says."""

    def __init__(self, does: Callable[..., Any]) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 32), nn.Linear(32, WIDTH)
        self.does = does

    def compute(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.tanh(self.up(x)))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.does(self.compute, *args, **kwargs)


class Net(nn.Module):
    def __init__(self, does: Callable[..., Any], calls: Callable[..., Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(WIDTH, WIDTH)
        self.layers = nn.ModuleList(Layer(does) for _ in range(3))
        self.calls = calls

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.calls(self.layers, self.first(x)).square().mean()


class Pair(typing.NamedTuple):
    results: list[torch.Tensor]
    factor: int


@dataclasses.dataclass
class State:
    x: torch.Tensor
    count: int = 0
    history: list[torch.Tensor] = dataclasses.field(default_factory=list)


class Slots:
    __slots__ = ("count", "x")


class Growing(list):  # type: ignore[type-arg]
    def __len__(self) -> int:
        raise NotImplementedError

    def __bool__(self) -> bool:
        raise NotImplementedError


def _list(kind: Callable[..., Any]) -> Any:
    def calls(layers: Any, x: torch.Tensor) -> torch.Tensor:
        results = kind([x])
        for layer in layers:
            results.append(layer(results))
        return results[-1]

    return (lambda compute, results: compute(sum(list.__iter__(results)))), calls


def _dictionary(kind: Callable[..., Any]) -> Any:
    def calls(layers: Any, x: torch.Tensor) -> torch.Tensor:
        results = kind(first=x)
        for place, layer in enumerate(layers):
            x = layer(more={"in": [results]})
            results[f"of {place}"] = x
            results["first"] = results["first"] * 2
        return x

    return (lambda compute, more: compute(sum(more["in"][0].values()))), calls


def _pair() -> Any:
    def calls(layers: Any, x: torch.Tensor) -> torch.Tensor:
        results = [x]
        for place, layer in enumerate(layers):
            results.append(layer(Pair(results, place + 1)))
        return results[-1]

    return (lambda compute, pair: compute(sum(pair.results)) * pair.factor), calls


def _state(kind: Callable[[], Any]) -> Any:
    def does(compute: Any, state: Any) -> None:
        state.count += 1
        state.x = compute(state.x) * state.count

    def calls(layers: Any, x: torch.Tensor) -> torch.Tensor:
        state = kind()
        state.x, state.count = x, 0
        for layer in layers:
            layer(state)
            state.count *= 2
        assert state.count == 14  # each layer has counted once
        return state.x

    return does, calls


def _stack() -> Any:
    def does(compute: Any, stack: Any, marks: Any) -> None:
        x = stack.pop()
        marks.add(len(marks))
        stack.append(compute(x) * len(marks))

    def calls(layers: Any, x: torch.Tensor) -> torch.Tensor:
        stack, marks = collections.deque([x, x], maxlen=4), {None}
        for layer in layers:
            layer(stack, marks=marks)
        assert len(stack) == 2 and len(marks) == 4
        return stack[0] + stack[1]

    return does, calls


KINDS = {
    "list": lambda: _list(list),
    "list without len": lambda: _list(Growing),
    "dict": lambda: _dictionary(dict),
    "ordered dict": lambda: _dictionary(collections.OrderedDict),
    "named tuple": _pair,
    "dataclass": lambda: _state(lambda: State(X)),
    "slots": lambda: _state(Slots),
    "deque and set": _stack,
}
PLANS = {
    "whole": Plan(tuple(PlannedModule(f"Net.layers.{place}") for place in range(3))),
    "a run": Plan((PlannedModule("Net.layers.0-2"),)),
}


def _gradients(model: nn.Module) -> list[torch.Tensor]:
    loss = model(X)
    loss.backward()
    return [loss.detach(), *(p.grad for p in model.parameters())]


@pytest.mark.filterwarnings("ignore::acplan.PlanMismatchWarning")
@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("kind", KINDS)
def test_it_is_what_it_was(kind: str, plan: str) -> None:
    does, calls = KINDS[kind]()
    expected = _gradients(Net(does, calls))
    actual = _gradients(acplan.apply(Net(does, calls), PLANS[plan]))
    assert all(map(torch.equal, actual, expected))


@pytest.mark.parametrize("kind", ["list", "dataclass"])
def test_its_memory_is_that_of_the_trace(kind: str) -> None:
    model, x = Net(*KINDS[kind]()), torch.randn(512, WIDTH)
    options: dict[str, Any] = {"optimizer": torch.optim.SGD, "workspaces": False}
    traced = acplan.trace(model, x, **options)
    plan = acplan.plan(traced, "min")
    assert plan.modules and plan.peak_bytes < plan.baseline_peak_bytes
    check = acplan.verify(model, plan, x, trace=traced, **options)
    assert check.first_difference() is None


class Early(Exception):
    pass


class Base(BaseException):
    pass


def _raising(kind: type[BaseException]) -> Any:
    """Returns functions of which one hands its result on in an exception."""

    def does(compute: Any, x: torch.Tensor) -> None:
        raise kind(compute(x))

    def calls(layers: Any, x: torch.Tensor) -> torch.Tensor:
        for layer in layers:
            try:
                layer(x)
            except kind as error:
                x = error.args[0]
        return x

    return does, calls


def _caught() -> Any:
    """Returns functions that catch errors: the end of a recomputation is none."""

    def does(compute: Any, x: torch.Tensor) -> torch.Tensor:
        try:
            return compute(compute(x).exp())
        except Exception:
            return compute(x * 2)

    def calls(layers: Any, x: torch.Tensor) -> torch.Tensor:
        for layer in layers:
            x = layer(x)
        return x

    return does, calls


def _retried() -> Any:
    def does(compute: Any, x: torch.Tensor) -> torch.Tensor:
        return compute(x)

    def calls(layers: Any, x: torch.Tensor) -> torch.Tensor:
        for layer in layers:
            try:
                x = layer(x, lengths=None)
            except TypeError:
                x = layer(x)
        return x

    return does, calls


ENDS = {
    "an error": lambda: _raising(Early),
    "StopIteration": lambda: _raising(StopIteration),
    "no error": lambda: _raising(Base),
    "caught within": _caught,
    "called again": _retried,
}


@pytest.mark.filterwarnings("ignore::acplan.PlanMismatchWarning")
@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("end", ENDS)
def test_calls_that_end_by_exceptions(end: str, plan: str) -> None:
    does, calls = ENDS[end]()
    expected = _gradients(Net(does, calls))
    actual = _gradients(acplan.apply(Net(does, calls), PLANS[plan]))
    assert all(map(torch.equal, actual, expected))


@pytest.mark.parametrize("end", ["called again", "no error"])
def test_steps_with_such_calls_are_planned(end: str) -> None:
    model, x = Net(*ENDS[end]()), torch.randn(512, WIDTH)
    options: dict[str, Any] = {"optimizer": torch.optim.SGD, "workspaces": False}
    traced = acplan.trace(model, x, **options)
    plan = acplan.plan(traced, "min")
    assert plan.modules
    check = acplan.verify(model, plan, x, trace=traced, **options)
    assert check.first_difference() is None
