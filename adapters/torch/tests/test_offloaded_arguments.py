"""Arguments of units that wait in the host's memory: when they go and come, what else holds
them, and what is refused."""

import dataclasses
import gc
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from acplan import (
    AcplanError,
    Plan,
    PlanMismatchWarning,
    PlannedModule,
    Trace,
    apply,
    frontier,
    plan,
    trace,
    verify,
)
from offloading import Links, other_links

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def links() -> Iterator[Links]:
    yield from other_links()


class _Unit(nn.Module):
    def __init__(self, log: list[str], place: int) -> None:
        super().__init__()
        self.up = nn.Linear(8, 8)
        # Not the list, which a recomputation leaves as it was.
        self.tell, self.place = log.append, place
        self.given_memory: list[StorageWeakRef] = []

    def forward(self, x: torch.Tensor, y: torch.Tensor | None = None) -> torch.Tensor:
        self.tell(f"unit {self.place}")
        self.given_memory.append(StorageWeakRef(x.untyped_storage()))
        y = x if y is None else y
        return x + nn.functional.dropout(self.up(y).sin(), 0.2)


class _Net(nn.Module):
    def __init__(self, log: list[str], count: int = 3) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.units = nn.ModuleList(_Unit(log, place) for place in range(count))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for unit in self.units:
            x = unit(x)
        return x


class _Views(_Net):
    """Units that are given parts of memory, and the same memory twice."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for unit in self.units:
            wide = torch.cat([x, x.cos()], -1)
            x = unit(wide[:, ::2], wide[:, 1::2].flip(0)) + unit(wide[:, :8], wide[:, 8:])
        return x


class _Written(_Net):
    """Writes to what a unit was given, after the unit or after the next one."""

    after = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first_input = x = x * 1
        for place, unit in enumerate(self.units):
            x = unit(x)
            if place == self.after:
                first_input.data.add_(0)  # not counted as a write
                first_input.detach().add_(1)
        return x


def _plan(model: str, places: tuple[int, ...] = (0,)) -> Plan:
    return Plan(
        tuple(PlannedModule(f"{model}.units.{k}", offloaded_arguments=places) for k in range(3))
    )


def _gradients(model: nn.Module) -> list[torch.Tensor]:
    results = []
    for step in range(2):
        torch.manual_seed(step)
        x = torch.linspace(0, 1, 16).view(2, 8).requires_grad_()
        loss = model(x).square().sum()
        loss.backward()
        results += [loss.detach(), x.grad, *(p.grad.clone() for p in model.parameters())]
    return results


def test_what_is_asked_for_when(links: Links) -> None:
    model = apply(_Net(links.log), _plan("_Net"), strict=True)
    loss = model(torch.ones(2, 8)).sum()
    links.log.append("backward")
    loss.backward()
    assert links.log == [
        "send 64", "unit 0",
        "send 64", "unit 1", "send 64 ends",
        "send 64", "unit 2", "send 64 ends",
        "backward",
        "send 64 ends", "fetch 64", "fetch 64", "fetch 64 ends", "unit 2",
        "fetch 64", "fetch 64 ends", "unit 1",
        "fetch 64 ends", "unit 0",
    ]  # fmt: skip


def _are_equal(actual: list[torch.Tensor], expected: list[torch.Tensor]) -> bool:
    return len(actual) == len(expected) and all(map(torch.equal, actual, expected))


@pytest.mark.parametrize("kind", ["late", "early", "streams"])
@pytest.mark.parametrize("net", [_Net, _Views])
def test_gradients_are_equal(net: type[_Net], kind: str, links: Links) -> None:
    links.kind = kind
    expected = _gradients(net([]))
    model = apply(net([]), _plan(net.__name__, (0, 1)[: 1 + (net is _Views)]), strict=True)
    assert _are_equal(_gradients(model), expected)
    # Memory that a unit is given twice moves once.
    if kind != "streams":
        assert sum(line in ("send 64", "send 128") for line in links.log) == (
            6 if net is _Net else 18
        )
    gc.collect()
    assert links.used_bytes == 0 < links.pool_bytes


def test_the_devices_memory_is_released(links: Links) -> None:
    for is_offloaded in (False, True):
        net = _Net([])
        units = [*net.units]
        model = apply(net, _plan("_Net", (0,) if is_offloaded else ()), strict=True)
        loss = model(torch.ones(2, 8) * 1).sum()
        # The last unit's argument goes when backward begins.
        is_gone = [unit.given_memory[0].expired() for unit in units]
        assert is_gone == ([True, True, False] if is_offloaded else [False] * 3)
        loss.backward()
        assert all(unit.given_memory[0].expired() for unit in units)


def test_memory_that_others_hold_stays(links: Links) -> None:
    net = _Net([])
    units = [*net.units]
    model = apply(net, _plan("_Net"), strict=True)
    x = torch.ones(2, 8)
    seen_inputs = []
    units[1].register_forward_pre_hook(lambda _, args: seen_inputs.append(args[0]))
    loss = model(x).sum()
    assert [unit.given_memory[0].expired() for unit in units[:2]] == [False, False]
    loss.backward()
    assert torch.equal(x, torch.ones(2, 8)) and seen_inputs


def test_what_is_written_to_too_early_is_an_error(links: Links) -> None:
    expected = _gradients(_Net([]))
    for after in (0, 1, 2):
        model = _Written([])
        model.after = after
        model_with_plan = apply(model, _plan("_Written"), strict=True)
        if after < 1:
            with pytest.raises(AcplanError, match="written to in place before the unit"):
                _gradients(model_with_plan)
        elif after > 1:
            # The host has had it since the end of unit 1.
            assert _are_equal(_gradients(model_with_plan), expected)


def test_a_second_backward(links: Links) -> None:
    results = []
    for own_plan in (Plan(()), _plan("_Net")):
        torch.manual_seed(0)
        model = apply(_Net([]), own_plan)
        x = torch.ones(2, 8, requires_grad=True)
        loss = model(x).square().sum()
        first = torch.autograd.grad(loss, x, retain_graph=True)[0]
        results.append([first, torch.autograd.grad(loss, x)[0]])
    assert all(map(torch.equal, *results))
    gc.collect()
    assert links.used_bytes == 0


class _ByKeyword(_Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for unit in self.units:
            x = unit(x=x)
        return x


@dataclasses.dataclass
class _State:
    """An object of the model's own, as one that carries hidden states."""

    hidden: torch.Tensor
    others: list[torch.Tensor]


class _OfState(nn.Module):
    """Reads what is inside of an object, a dictionary and a list, twice the same memory."""

    def __init__(self, unit: nn.Module) -> None:
        super().__init__()
        self.unit = unit

    def forward(self, number: int, *, state: _State, more: dict[str, Any]) -> torch.Tensor:
        first, second = state.others
        # The caller's own objects, each of which a call may change.
        state.others.append(first)
        result: torch.Tensor = self.unit(state.hidden * number, first + second + more["y"][0])
        return result


class _Nested(_Net):
    def __init__(self, log: list[str], count: int = 3) -> None:
        super().__init__(log, count)
        self.units = nn.ModuleList(map(_OfState, self.units))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for unit in self.units:
            wide = torch.cat([x, x.cos()], -1)
            state = _State(x * 1, [wide[:, :8], wide[:, 8:]])
            x = unit(1, state=state, more={"y": (x.sin(),)})
        return x


@pytest.mark.parametrize("kind", ["late", "early", "streams"])
@pytest.mark.parametrize(
    ("net", "places", "send_count"), [(_ByKeyword, (0,), 6), (_Nested, (0, 1, 2), 18)]
)
def test_tensors_given_otherwise(
    net: type[_Net], places: tuple[int, ...], send_count: int, kind: str, links: Links
) -> None:
    links.kind = kind
    expected = _gradients(net([]))
    model = apply(net([]), _plan(net.__name__, places), strict=True)
    assert _are_equal(_gradients(model), expected)
    if kind != "streams":
        assert sum(line in ("send 64", "send 128") for line in links.log) == send_count
    gc.collect()
    assert links.used_bytes == 0 < links.pool_bytes


def test_the_memory_of_tensors_given_otherwise_is_released(links: Links) -> None:
    net = _ByKeyword([])
    units = [*net.units]
    loss = apply(net, _plan("_ByKeyword"), strict=True)(torch.ones(2, 8) * 1).sum()
    is_gone = [unit.given_memory[0].expired() for unit in units]
    assert is_gone == [True, True, False]
    loss.backward()


def test_a_place_that_a_call_does_not_have(links: Links) -> None:
    expected = _gradients(_ByKeyword([]))
    with pytest.warns(PlanMismatchWarning, match="given 1 tensors, and argument 1 is planned"):
        actual = _gradients(apply(_ByKeyword([]), _plan("_ByKeyword", (1,))))
    assert _are_equal(actual, expected) and links.request_count == 0
    with pytest.raises(AcplanError, match="argument 1 is planned"):
        apply(_ByKeyword([]), _plan("_ByKeyword", (1,)), strict=True)(torch.ones(2, 8))


_OPTIONS: Any = {"decisions": "save,recompute,skip", "segments": "none"}


def _require_least_on_host(model: nn.Module) -> tuple[Trace, int]:
    """Requires that arguments move in the plan of the least budget, which is lower by that and
    exact. Returns the trace, and the least budget on the device."""
    model, inputs = model.to("meta"), torch.ones(4096, 8, device="meta")
    traced = trace(model, inputs)
    least_bytes = plan(traced, "min", **_OPTIONS).peak_bytes
    on_host = plan(traced, "min", offload="25GB/s", **_OPTIONS)
    assert on_host.peak_bytes < least_bytes
    assert any(unit.offloaded_arguments for unit in on_host.modules)
    result = verify(model, on_host, inputs, trace=traced)
    assert result.first_difference() is None, result
    assert on_host.peak_bytes == result.measured_bytes
    return traced, least_bytes


@pytest.mark.parametrize("net", [_ByKeyword, _Nested])
def test_bytes_of_tensors_given_otherwise(net: type[_Net]) -> None:
    class Summed(net):  # type: ignore[misc, valid-type]  # a class by parameter
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x).square().sum()

    _require_least_on_host(Summed([], 12))


@pytest.mark.parametrize("net", [_ByKeyword, _Nested])
def test_a_run_sends_what_its_first_module_is_given(net: type[_Net], links: Links) -> None:
    expected = _gradients(net([]))
    places = (0,) if net is _ByKeyword else (0, 1, 2)
    unit = PlannedModule(f"{net.__name__}.units.0-1", offloaded_arguments=places)
    actual = _gradients(apply(net([]), Plan((unit,))))
    assert _are_equal(actual, expected)
    assert links.request_count > 0


def test_a_run_of_modules_sends_its_first_argument(links: Links) -> None:
    expected = _gradients(_Net([]))
    unit = PlannedModule("_Net.units.0-1", offloaded_arguments=(0,))
    actual = _gradients(apply(_Net([]), Plan((unit,)), strict=True))
    assert _are_equal(actual, expected)
    assert links.request_count == 4


def test_what_is_refused() -> None:
    with pytest.raises(AcplanError, match="expected ascending places"):
        PlannedModule("_Net.units.0", offloaded_arguments=(1, 0))
    inner = PlannedModule("_Net.units.0.up", offloaded_arguments=(0,))
    with pytest.raises(AcplanError, match="inside _Net.units.0"):
        apply(_Net([]), Plan((PlannedModule("_Net.units.0"), inner)))


class _Long(_Net):
    """Long blocks, whose inputs are much of what checkpoints keep."""

    def __init__(self) -> None:
        super().__init__([])
        self.units = nn.ModuleList(
            nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)) for _ in range(8)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).square().sum()


def test_the_least_budget_falls_and_is_exact() -> None:
    traced, least_bytes = _require_least_on_host(_Long())
    limited = plan(traced, "min", offload="25GB/s", host_memory="256KiB", **_OPTIONS)
    assert limited.data["offload"]["host_bytes"] <= 262144
    points = frontier(traced, points=3, offload="25GB/s", **_OPTIONS)
    assert points.rows[0]["peak_bytes"] <= least_bytes
    assert all(row["status"] in ("optimal", "feasible") for row in points.rows)
