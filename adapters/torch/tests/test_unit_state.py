"""Units read the state that forward read, and change it once."""

import copy
import gc
import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm

import acplan
import stateful_modules
from acplan import AcplanError, Plan, PlannedModule
from stateful_modules import ACTIONS, Block, Model, Part, are_equal, outcome

pytestmark = pytest.mark.usefixtures("one_thread")


def test_random_modules_have_equal_steps() -> None:
    for seed in range(60):
        for kind, result in stateful_modules.result_of(seed, False).items():
            # A plan may be refused: state that a module outside of all units has overwritten is
            # gone.
            outcomes = ("equal", "no valid step", "refused: AcplanError")
            assert result.startswith(outcomes), (seed, kind, result)


# In 5128 statistics are updated by an operator that is saved, and read after that.
@pytest.mark.parametrize("seed", [*range(3000, 3008), 5128])
def test_plans_of_random_modules_have_equal_steps(seed: int) -> None:
    for kind, result in stateful_modules.result_of(seed, True).items():
        assert result in ("equal", "no valid step"), (seed, kind, result)


@pytest.mark.parametrize("action", ACTIONS, ids=lambda action: action.__name__)
def test_each_kind_of_state_is_as_in_forward(action: Callable[..., Any]) -> None:
    # Autograd refuses a weight that is written to after it has been saved.
    is_once = action is stateful_modules.normalises_weight

    def make() -> Model:
        torch.manual_seed(1)
        model = Model(1)
        state = stateful_modules.State(stateful_modules.Clock())
        actions = [stateful_modules.computes, action, stateful_modules.computes]
        model.blocks = nn.ModuleList([Block([Part(actions, state)]) for _ in range(2)])
        model.order = [0] if is_once else [0, 1, 0]
        return model

    whole = tuple(acplan.PlannedModule(f"Model.blocks.{k}") for k in range(2))
    for microbatches, is_joint in ((1, False), (1 if is_once else 2, True)):
        expected = outcome(make(), microbatches, is_joint)
        planned_model = acplan.apply(make(), acplan.Plan(whole))
        values = outcome(planned_model, microbatches, is_joint)
        assert all(map(are_equal, expected, values))


class _Quantizer(nn.Module):
    """Reads a codebook that it then moves, as vector quantisation does."""

    codes: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(64, 64)
        self.register_buffer("codes", torch.randn(32, 64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.inner(x).tanh()
        share = (x @ self.codes.t()).detach().softmax(1)
        nearest = share @ self.codes
        with torch.no_grad():
            self.codes.lerp_(share.t() @ x / share.sum(0)[:, None], 0.5)
        return x * nearest + (x - nearest).pow(2)


def _loss(out: torch.Tensor) -> torch.Tensor:
    return out.square().mean()


def test_a_plan_saves_what_reads_a_buffer_that_is_written_to() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(*(_Quantizer() for _ in range(3))), torch.randn(512, 64)
    trace = acplan.trace(model, x, loss_fn=_loss, optimizer="sgd", workspaces=False)
    plan = acplan.plan(trace, "min")
    assert plan.peak_bytes < 0.75 * trace.peak_bytes
    check = acplan.verify(
        model, plan, x, trace=trace, loss_fn=_loss, optimizer="sgd", values=True
    )
    assert check.first_difference() is None
    assert check.values is not None and check.values.is_equal and check.values.exact
    decisions = {
        operator.name: operator.decision for unit in plan.modules for operator in unit.operators
    }
    assert {"aten.lerp_.Scalar", "aten.lerp_.Tensor"}.isdisjoint(
        name for name, decision in decisions.items() if decision == "recompute"
    )


class _Counting(nn.Module):
    """Counts by an iterator, which nobody can put back."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.count = itertools.count()

    def __deepcopy__(self, memo: dict[int, Any]) -> "_Counting":
        clone = _Counting()
        clone.load_state_dict(self.state_dict())
        return clone

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.linear(x) * (1 + next(self.count))).sin()


def test_values_that_differ_are_told() -> None:
    model, x = nn.Sequential(nn.Linear(8, 8), _Counting()), torch.randn(4, 8)
    options: dict[str, Any] = {"loss_fn": _loss, "optimizer": "sgd"}
    plan = acplan.Plan((acplan.PlannedModule("Sequential.1"),))
    check = acplan.verify(copy.deepcopy(model), plan, x, values=True, **options)
    assert check.values is not None and not check.values.is_equal
    assert "VALUES DIFFER" in str(check) and "gradient of " in str(check)
    plain_check = acplan.verify(model, acplan.Plan(()), x, values=True, **options)
    assert plain_check.values is not None and plain_check.values.is_equal
    on_meta = copy.deepcopy(nn.Linear(8, 8)).to("meta")
    with pytest.raises(acplan.AcplanError, match="on the meta device"):
        acplan.verify(on_meta, acplan.Plan(()), x.to("meta"), values=True, **options)


def test_what_is_gone_is_refused() -> None:
    model = nn.Sequential(nn.Sequential(nn.Linear(4, 4), nn.Tanh()), nn.Linear(4, 4))
    plan = acplan.Plan((acplan.PlannedModule("Sequential.0"),))
    loss = acplan.apply(model, plan)(torch.randn(2, 4)).sin().sum()
    with torch.no_grad():
        model[0][0].bias.add_(1)  # type: ignore[union-attr,operator,index]
    text = r"Sequential.0: in backward aten.addmm.default reads Linear.bias, which has"
    with pytest.raises(acplan.AcplanError, match=text):
        loss.backward()


class _Looking(nn.Module):
    """Multiplies by a view of a buffer, and nothing that is saved reads the buffer."""

    codes: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("codes", torch.randn(8, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.mm(x, self.codes.t()).sin()


def test_a_saved_view_of_what_is_gone_is_refused() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), _Looking())
    decisions = (
        ("aten.t.default", True),
        ("aten.mm.default", False),
        ("aten.sin.default", False),
    )
    operators = tuple(acplan.PlannedOperator(*decision) for decision in decisions)
    plan = acplan.Plan((acplan.PlannedModule("Sequential.1", operators),))
    loss = acplan.apply(model, plan)(torch.randn(4, 8)).sum()
    with torch.no_grad():
        model[1].codes.mul_(2)  # type: ignore[union-attr, operator]
    with pytest.raises(acplan.AcplanError, match="_Looking.codes, which has been written to"):
        loss.backward()


def test_random_numbers_of_python_are_drawn_once() -> None:
    class Draws(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x * random.random()).exp()

    random.seed(1)
    expected = [random.random() for _ in range(2)]
    random.seed(1)
    x = torch.ones(1, requires_grad=True)
    model = nn.Sequential(Draws())
    plan = acplan.Plan((acplan.PlannedModule("Sequential.0"),))
    out = acplan.apply(model, plan)(x)
    random.random()  # by others, between forward and backward
    out.backward()
    assert torch.equal(x.grad, expected[0] * out.detach())  # type: ignore[arg-type]
    random.seed(1)
    assert [random.random() for _ in range(2)] == expected


class _OfNoModule:
    """An object that names no module that it is from, as those made by `exec` do."""

    __module__: Any = None
    factor = 2.0


_OBJECT = _OfNoModule()


class _ReadsObject(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.lin(x) * _OBJECT.factor


def test_globals_may_name_no_module() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(_ReadsObject(), _ReadsObject())
    x = torch.randn(2, 4)
    planned_model = acplan.apply(
        copy.deepcopy(model), acplan.Plan((acplan.PlannedModule("Sequential.0"),))
    )
    for each in (model, planned_model):
        each(x).sum().backward()
    for expected, actual in zip(model.parameters(), planned_model.parameters()):
        assert expected.grad is not None and actual.grad is not None
        assert torch.equal(expected.grad, actual.grad)


class _Last(nn.Module):
    """A module whose last operator has saved what is in `scale`, or a weight: the
    recomputation ends when autograd saves it again, before the operator runs."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.inner, self.last = nn.Linear(8, 8), nn.Linear(8, 8)
        self.register_buffer("scale", torch.full((8,), 3.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.inner(x).tanh()
        if self.kind == "weight":
            return self.last(x)
        y = x * self.scale
        if self.kind == "own write":
            self.scale.add_(1)
        return y


def _last(kind: str, is_planned: bool, write: bool) -> torch.Tensor:
    torch.manual_seed(3)
    model = nn.Sequential(_Last(kind))
    if is_planned:
        acplan.apply(model, Plan((PlannedModule("Sequential.0"),)))
    loss = model(torch.randn(4, 8)).sum()
    if write:
        tensor = model[0].last.weight if kind == "weight" else model[0].scale
        with torch.no_grad():
            tensor.mul_(2)
    loss.backward()
    grad: torch.Tensor = model[0].inner.weight.grad
    return grad


@pytest.mark.parametrize("kind", ["buffer", "weight"])
def test_what_autograd_saves_last_is_as_in_forward_too(kind: str) -> None:
    assert torch.equal(_last(kind, True, False), _last(kind, False, False))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        _last(kind, False, True)
    with pytest.raises(AcplanError, match="has been written to in place since forward"):
        _last(kind, True, True)


def test_what_autograd_saves_last_and_the_call_writes_to_is_as_it_was() -> None:
    expected = _last("buffer", False, False)
    for _ in range(20):
        # A copy that nobody fills would have the values of memory that is freed here.
        freed_memory = [torch.full((8 * n,), -1e24) for n in range(1, 60)]
        del freed_memory
        assert torch.equal(_last("own write", True, False), expected)


class _Normalised(nn.Module):
    """Moves the vectors of a spectral normalisation on in each call, and reads them."""

    def __init__(self) -> None:
        super().__init__()
        self.first = spectral_norm(nn.Conv1d(1, 3, 3, padding=1))
        self.last = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.last(self.first(x[:, None]).mean(1).sin())


class _Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.blocks = nn.ModuleList(_Normalised() for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return x.square().mean()


_Values = list[torch.Tensor]
_Passes = Callable[[_Net, Callable[[], torch.Tensor]], _Values]


def _twice(net: _Net, data: Callable[[], torch.Tensor]) -> _Values:
    loss = net(data())
    loss.backward(retain_graph=True)
    loss.backward()
    return []


def _called_between(net: _Net, data: Callable[[], torch.Tensor]) -> _Values:
    loss = net(data())
    loss.backward(retain_graph=True)
    other = net(data())
    loss.backward(retain_graph=True)
    other.backward()
    net(data())
    loss.backward()
    return []


def _in_parts(net: _Net, data: Callable[[], torch.Tensor]) -> _Values:
    loss = net(data())
    early, *late = net.parameters()
    gradients = torch.autograd.grad(loss, late, retain_graph=True)
    return [*gradients, *torch.autograd.grad(loss, early)]


def _input_first(net: _Net, data: Callable[[], torch.Tensor]) -> _Values:
    x = data().requires_grad_()
    loss = net(x)
    gradient = torch.autograd.grad(loss, x, create_graph=True)[0]
    (loss + gradient.square().sum()).backward()
    return [gradient]


def _two_calls(net: _Net, data: Callable[[], torch.Tensor]) -> _Values:
    early, late = net(data()), net(data())
    early.backward()
    late.backward()
    return []


def _without_gradients_between(net: _Net, data: Callable[[], torch.Tensor]) -> _Values:
    loss = net(data())
    with torch.no_grad():
        net(data())
    loss.backward()
    return []


def _values_after(net: _Net, passes: _Passes) -> _Values:
    generator = torch.Generator().manual_seed(1)
    values = passes(net, lambda: torch.randn(5, 8, generator=generator))
    gradients = [p.grad for p in net.parameters() if p.grad is not None]
    return [value.detach() for value in (*values, *gradients, *net.buffers())]


def _plans_of_net() -> list[Plan]:
    """Returns plans that let go of the vectors before forward moved them, because what reads
    them is saved or skipped."""
    trace = acplan.trace(_Net(), torch.randn(5, 8), loss_fn=lambda loss: loss)
    plans = [acplan.plan(trace, "min")]
    plans += [acplan.plan(trace, "min", decisions="save,recompute")]
    for plan in plans:
        names = [o.name for u in plan.modules for o in u.operators if o.save or o.skip]
        assert any("mv" in name for name in names)
    return plans


def _net() -> _Net:
    torch.manual_seed(0)
    return _Net()


def test_state_that_moved_on_is_as_in_forward_for_each_backward_pass() -> None:
    every = (_twice, _called_between, _in_parts, _input_first, _two_calls)
    for plan in _plans_of_net():
        for passes in (*every, _without_gradients_between):
            expected = _values_after(_net(), passes)
            values = _values_after(acplan.apply(_net(), plan), passes)
            assert len(values) == len(expected), passes
            assert all(map(torch.equal, expected, values)), passes


def test_a_write_between_two_backward_passes_is_refused() -> None:
    for plan in _plans_of_net():
        net = acplan.apply(_net(), plan)
        loss = net(torch.randn(5, 8))
        loss.backward(retain_graph=True)
        with torch.no_grad():
            for buffer in net.buffers():
                buffer.mul_(2)
        with pytest.raises(AcplanError, match="_SpectralNorm._., which has been written to"):
            loss.backward()


def test_what_a_kept_graph_does_not_need_is_let_go() -> None:
    """Where all can run again, a kept graph keeps nothing of what the plan saves."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Sequential(nn.Linear(8, 64), nn.GELU()))
    names = ("aten.t.default", "aten.addmm.default", "aten.gelu.default")
    operators = tuple(acplan.PlannedOperator(n, "addmm" in n) for n in names)
    acplan.apply(model, Plan((PlannedModule("Sequential.1", operators),)))
    loss = model(torch.randn(4, 8)).sum()
    count = _count_alive((4, 64))
    loss.backward(retain_graph=True)
    assert _count_alive((4, 64)) < count
    loss.backward()


def _count_alive(shape: tuple[int, ...]) -> int:
    gc.collect()
    things = [t for t in gc.get_objects() if type(t) is torch.Tensor and t.shape == shape]
    return len({t.untyped_storage()._cdata for t in things})
