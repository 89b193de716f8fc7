"""Functions and modules that torch.jit has compiled, in traces and in units."""

import types
from collections.abc import Callable

import pytest
import torch
from torch import nn

import acplan
from acplan import AcplanError, Plan, PlannedModule

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*torch.jit.*"),
    pytest.mark.filterwarnings("ignore::acplan.PlanMismatchWarning"),
]

_X = torch.randn(64, 16, generator=torch.Generator().manual_seed(1))
_optimizes: Callable[[], bool] = torch._C._get_graph_executor_optimize


@pytest.fixture(autouse=True)
def _optimizing() -> object:
    yield
    torch._C._set_graph_executor_optimize(True)


def _activation(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.silu(torch.tanh(x) + bias) * 2 * torch.sigmoid(x)


def _compiled() -> "Function":
    """Scripts a function that no test has called before."""
    anew = types.FunctionType(_activation.__code__, globals(), "_activation")
    anew.__annotations__ = _activation.__annotations__
    function: Function = torch.jit.script(anew)
    return function


Function = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class _Block(nn.Module):
    """Has the function in its midst, or at its end, where the recomputation ends in it."""

    def __init__(self, function: Function, is_last: bool) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 16)
        self.bias, self.drop = nn.Parameter(torch.randn(16)), nn.Dropout(0.1)
        self.function, self.is_last = function, is_last

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.is_last:
            return self.function(self.second(self.drop(torch.relu(self.first(x)))), self.bias)
        hidden = self.function(torch.relu(self.first(x)), self.bias)
        return x + self.drop(self.second(hidden))


def _blocks(function: Function, is_last: bool = False) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(_Block(function, is_last) for _ in range(3)))


def _run(model: nn.Module, iterations: int = 4) -> list[torch.Tensor]:
    values = []
    for k in range(iterations):
        torch.manual_seed(k)
        model.zero_grad()
        loss = model(_X).square().mean()
        loss.backward()
        values += [loss.detach(), *(p.grad.clone() for p in model.parameters())]
    return values


@pytest.mark.parametrize("is_last", [False, True])
@pytest.mark.parametrize("kind", ["whole", "least", "run"])
@pytest.mark.parametrize("calls_before", [0, 1, 2, 5])
@pytest.mark.parametrize("units", ["0", "1", "01", "012"])
def test_gradients_are_right_however_often_it_was_called(
    units: str, calls_before: int, kind: str, is_last: bool
) -> None:
    expected = _run(_blocks(_activation, is_last))
    function = _compiled()
    fqns = [f"Sequential.{k}" for k in units]
    if kind == "run" and len(units) > 1:
        fqns = [f"Sequential.{units[0]}-{units[-1]}"]
    plan = Plan(tuple(map(PlannedModule, fqns)))
    if kind == "least":
        traced = acplan.trace(_blocks(function, is_last), _X, workspaces=False)
        plan = acplan.plan(traced, "min", ac_units=fqns)
    for _ in range(calls_before):
        x = _X.clone().requires_grad_()
        function(x, torch.ones(16)).sum().backward()
    actual = _run(acplan.apply(_blocks(function, is_last), plan))
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-6)


def test_it_may_optimize_again_without_the_plan() -> None:
    model = acplan.apply(_blocks(_compiled()), Plan((PlannedModule("Sequential.0"),)))
    assert _optimizes()
    _run(model, 1)
    assert not _optimizes()
    acplan.remove(model)
    assert _optimizes()


class _Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(16, 16) / 4)
        self.register_buffer("mean", torch.zeros(16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.einsum("bi,ij->bj", x, self.weight)
        self.mean.lerp_(x.detach().mean(0), 0.1)
        return torch.tanh(x - self.mean) * torch.sigmoid(x)


class _Around(nn.Module):
    """Ends in the module where it does not drop."""

    def __init__(self, inner: nn.Module, drops: bool = True) -> None:
        super().__init__()
        self.linear, self.inner, self.drop = nn.Linear(16, 16), inner, nn.Dropout(0.1)
        self.drops = drops

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.inner(torch.relu(self.linear(x)))
        return x + self.drop(hidden) if self.drops else hidden


def _scripted(drops: bool, compiles: bool = True) -> nn.Module:
    torch.manual_seed(0)
    kind = type("_Anew", (_Layer,), {})  # which nothing has run yet
    layers = (kind() for _ in range(3))
    modules = (torch.jit.script(m) if compiles else m for m in layers)
    return nn.Sequential(*(_Around(m, drops) for m in modules))


@pytest.mark.parametrize("drops", [False, True])
def test_modules_are_traced_and_run_again_in_units(drops: bool) -> None:
    expected = _run(_scripted(drops, compiles=False))
    model = _scripted(drops)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    traced = acplan.trace(model, _X, workspaces=False)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert any("3 modules compiled by torch.jit" in note for note in traced.notes)
    assert _optimizes()
    plain = acplan.trace(_scripted(drops, compiles=False), _X, workspaces=False)
    assert traced.peak_bytes == plain.peak_bytes
    plan = acplan.plan(traced, "min")
    assert {unit.fqn for unit in plan.modules} >= {"Sequential.0", "Sequential.1"}
    assert acplan.verify(_scripted(drops), plan, _X, trace=traced).first_difference() is None
    planned_model = acplan.apply(_scripted(drops), plan)
    torch.testing.assert_close(_run(planned_model), expected, rtol=1e-5, atol=1e-6)
    buffers = zip(planned_model.buffers(), model.buffers())
    _run(model)
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in buffers)


def test_recorded_modules_are_traced() -> None:
    torch.manual_seed(0)
    inner = torch.jit.trace(nn.Sequential(nn.Linear(16, 16), nn.Tanh()), _X)
    model = nn.Sequential(_Around(inner), nn.Linear(16, 4))
    names = [o["name"] for o in acplan.trace(model, _X).data["operators"]]
    assert "aten.tanh.default" in names and "aten.tanh_backward.default" in names


class _Counting(nn.Module):
    """Its code sets an attribute."""

    count: int

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.count = nn.Linear(16, 16), 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.dim() == 2:
            self.count += 1
        return torch.tanh(self.linear(x)) * self.count


def test_code_that_sets_attributes_is_in_no_unit() -> None:
    model = nn.Sequential(*(_Around(torch.jit.script(_Counting())) for _ in range(3)))
    traced = acplan.trace(model, _X, workspaces=False)
    assert any("cannot be units" in note and "sets attributes" in note for note in traced.notes)
    assert not acplan.plan(traced, "min").modules
    for fqn in ("Sequential.0", "Sequential.0.inner", "Sequential.0-1"):
        with pytest.raises(AcplanError, match=f"{fqn} is compiled by torch.jit, or contains"):
            acplan.apply(model, Plan((PlannedModule(fqn),)))
