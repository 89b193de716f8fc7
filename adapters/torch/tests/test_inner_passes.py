"""Backward passes within the forward pass, and several of them a step."""

import dataclasses
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.nn.functional import mse_loss, softplus

import acplan
from acplan import AcplanError, Plan, PlanMismatchWarning, PlannedModule

Tensors = tuple[torch.Tensor, ...]


def _gradient(output: torch.Tensor, source: torch.Tensor, graph: bool = True) -> torch.Tensor:
    return torch.autograd.grad(output, source, create_graph=graph)[0]


def _mlp(count: int = 3) -> nn.Sequential:
    return nn.Sequential(
        *(
            nn.Sequential(nn.Linear(16, 32), nn.Softplus(), nn.Linear(32, 16), nn.Tanh())
            for _ in range(count)
        )
    )


class _Forces(nn.Module):
    """The gradient of an energy, beside an encoder that it does not go through."""

    def __init__(self, graph: bool = True) -> None:
        super().__init__()
        self.encoder, self.energy, self._graph = _mlp(), _mlp(2), graph

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        places = x.detach().requires_grad_()
        forces = _gradient(self.energy(places).pow(2).sum(), places, self._graph)
        return (self.encoder(x) * (1 + forces)).pow(2).mean()


class _Descent(nn.Module):
    """A layer that descends an energy, with a part that is no part of it."""

    def __init__(self, steps: int = 2) -> None:
        super().__init__()
        self.norm, self.energy, self.rest = nn.LayerNorm(16), _mlp(1), _mlp(1)
        self._steps = steps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        for _ in range(self._steps):
            y = y - _gradient(self.energy(y).pow(2).sum(), y)
        return y + self.rest(x)


class _Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.descent, self.mlp = _Descent(1), _mlp(1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.mlp(x + self.descent(x))


class _Layers(nn.Module):
    def __init__(self, layer: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.first = nn.Linear(16, 16)
        self.layers = nn.Sequential(*(layer() for _ in range(3)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(self.first(x)).pow(2).mean()


def _penalty(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    x = x.detach().requires_grad_()
    y = model(x)
    return softplus(-y).mean() + _gradient(y.sum(), x).pow(2).mean()


def _third_derivative(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    x = x.detach().requires_grad_()
    derivative = y = model(x)
    for _ in range(3):
        derivative = _gradient(derivative.sum(), x)
    return (derivative + y).pow(2).mean()


def _meta(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    weights: dict[str, torch.Tensor] = dict(model.named_parameters())
    loss = mse_loss(functional_call(model, weights, (x,)), y)
    steps = torch.autograd.grad(loss, list(weights.values()), create_graph=True)
    stepped = {name: w - 0.1 * s for (name, w), s in zip(weights.items(), steps)}
    return mse_loss(functional_call(model, stepped, (x,)), y)


def _clone(module: nn.Module, parameter_of: dict[torch.Tensor, torch.Tensor]) -> nn.Module:
    """Clones a module as learn2learn does: by its attributes, and with other parameters."""
    clone = module.__new__(type(module))
    clone.__dict__ = module.__dict__.copy()
    parameters = {
        name: parameter_of[p] for name, p in module._parameters.items() if p is not None
    }
    clone.__dict__["_parameters"] = parameters
    clone.__dict__["_modules"] = {
        n: _clone(m, parameter_of) for n, m in module._modules.items() if m
    }
    return clone


def _clones(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    weights = [*model.parameters()]
    steps = torch.autograd.grad(mse_loss(model(x), y), weights, create_graph=True)
    parameter_of = {w: w - 0.1 * s for w, s in zip(weights, steps)}
    return mse_loss(_clone(model, parameter_of)(x), y)


def _two_passes(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    model(x).pow(2).mean().backward()
    return model(y).abs().mean()


def _game(model: nn.ModuleDict, z: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
    makes, judges = model["makes"], model["judges"]
    judges.requires_grad_(True)
    images = makes(z)
    (softplus(judges(images.detach())) + softplus(-judges(real))).mean().backward()
    judges.requires_grad_(False)
    return softplus(-judges(images)).mean()


@dataclasses.dataclass(frozen=True)
class _Case:
    make: Callable[[], nn.Module]
    # The peak with the least budget, relative to the one without a plan, is at most this.
    least: float
    inputs: int = 1
    options: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def arguments(self) -> Tensors:
        torch.manual_seed(1)
        return tuple(torch.randn(256, 16) for _ in range(self.inputs))

    def gradients(self, model: nn.Module) -> list[torch.Tensor | None]:
        model.requires_grad_(True)
        forward_fn = self.options.get("forward_fn")
        loss = forward_fn(model, *self.arguments) if forward_fn else model(*self.arguments)
        loss.backward()
        return [loss.detach(), *(p.grad for p in model.parameters())]


def _seeded_model(make: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return make()


_CASES = {
    "forces": _Case(_Forces, 0.95),
    "forces without a graph": _Case(lambda: _Forces(graph=False), 0.75),
    "layers that descend": _Case(lambda: _Layers(_Descent), 0.6),
    "blocks with such layers": _Case(lambda: _Layers(_Block), 0.6),
    "penalty": _Case(_mlp, 1.0, options={"forward_fn": _penalty}),
    "third derivative": _Case(_mlp, 1.0, options={"forward_fn": _third_derivative}),
    "meta-learning": _Case(_mlp, 1.0, 2, {"forward_fn": _meta}),
    "clones": _Case(_mlp, 1.0, 2, {"forward_fn": _clones}),
    "two passes": _Case(_mlp, 0.8, 2, {"forward_fn": _two_passes}),
    "two players": _Case(
        lambda: nn.ModuleDict({"makes": _mlp(2), "judges": _mlp(2)}),
        0.7,
        2,
        {"forward_fn": _game},
    ),
    "LBFGS": _Case(
        lambda: _Layers(lambda: _mlp(1)),
        0.8,
        options={"optimizer": lambda ps: torch.optim.LBFGS(ps, history_size=2)},
    ),
}


@pytest.mark.parametrize("name", _CASES)
def test_a_step_is_planned_and_runs_as_predicted(name: str, one_thread: None) -> None:
    case = _CASES[name]
    trace = acplan.trace(
        _seeded_model(case.make), *case.arguments, workspaces=False, **case.options
    )
    expected = case.gradients(_seeded_model(case.make))
    least = acplan.plan(trace, "min")
    assert least.peak_bytes <= case.least * trace.peak_bytes
    middle = (least.peak_bytes + trace.peak_bytes) // 2
    for plan in (least, acplan.plan(trace, middle)):
        verified = acplan.verify(
            _seeded_model(case.make), plan, *case.arguments, trace=trace, **case.options
        )
        assert verified.first_difference() is None
        planned_model = acplan.apply(_seeded_model(case.make), plan, strict=True)
        torch.testing.assert_close(case.gradients(planned_model), expected, rtol=0, atol=0)


def test_a_note_says_which_line_keeps_modules_from_being_units() -> None:
    trace = acplan.trace(_mlp(), torch.randn(4, 16), forward_fn=_penalty)
    assert len(trace.notes) == 1
    assert "test_inner_passes.py:" in trace.notes[0]
    assert "15 modules cannot be units" in trace.notes[0]


def test_optimizers_whose_step_runs_the_model_leave_room_for_gradients() -> None:
    trace = acplan.trace(nn.Linear(4, 4), torch.randn(2, 4), optimizer=torch.optim.LBFGS)
    assert trace.notes == [
        "LBFGS runs the model several times per step, and the trace is of the first time; "
        "later it also holds a copy of the gradients, 80 bytes: add them to the reserve"
    ]


@pytest.mark.parametrize(
    "forward_fn, message",
    [
        (lambda m, x: m(x).sum().backward(), "expected a scalar tensor, found .*NoneType"),
        (lambda m, x: m(x).sum().detach(), "forward_fn: expected a loss that has a gradient"),
        (
            lambda m, x: _spent(m(x).tanh().sum()),
            "a backward pass has already freed tensors that the loss needs",
        ),
    ],
)
def test_the_last_backward_pass_is_left_to_acplan(forward_fn: Any, message: str) -> None:
    with pytest.raises(AcplanError, match=f"{message}.*return its loss before loss.backward"):
        acplan.trace(nn.Linear(4, 4), torch.randn(2, 4), forward_fn=forward_fn)


def _spent(loss: torch.Tensor) -> torch.Tensor:
    loss.backward()
    return loss


def test_several_optimizers_are_refused_with_the_way_out() -> None:
    model = nn.Linear(4, 4)
    optimizers: Any = [torch.optim.SGD(model.parameters()), torch.optim.SGD(model.parameters())]
    with pytest.raises(
        AcplanError, match="found list; if there are several optimizers, trace the step of"
    ):
        acplan.trace(model, torch.randn(2, 4), optimizer=optimizers)


class _Waves(nn.Module):
    """A module whose first operator a plan skips, unless the input needs a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.linear = nn.Parameter(torch.ones(16)), nn.Linear(16, 16)
        self.descends = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x.sin().cos().exp() * self.scale)
        if self.descends:
            y = y - _gradient(y.sigmoid().sum(), y)
        return torch.sigmoid(y) * y.tanh()


def _waves() -> nn.Sequential:
    return nn.Sequential(*(_Waves() for _ in range(3)))


def _plans_that_skip() -> list[Plan]:
    trace = acplan.trace(_seeded_model(_waves), torch.randn(256, 16), workspaces=False)
    least = acplan.plan(trace, "min").peak_bytes
    shares = (0.3, 0.6)
    budgets = [int(least + s * (trace.peak_bytes - least)) for s in shares]
    plans = [acplan.plan(trace, budget, without_host=True) for budget in budgets]
    assert all(any(o.skip for m in plan.modules for o in m.operators) for plan in plans)
    return plans


def _values(
    model: nn.Module, loss_of: Callable[..., torch.Tensor]
) -> list[torch.Tensor | None]:
    torch.manual_seed(2)
    x = torch.randn(8, 16, requires_grad=True)
    loss_of(model, x).backward()
    return [x.grad, *(p.grad for p in model.parameters())]


def _loss_after_gradients(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    loss = model(x).pow(2).mean()
    by_input = torch.autograd.grad(loss, x, retain_graph=True)[0]
    loss.backward(retain_graph=True)
    return loss + by_input.sum()


def _by_parameters(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    loss = model(x).pow(2).mean()
    gradients = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
    return loss + sum(gradient.pow(2).sum() for gradient in gradients)


@pytest.mark.parametrize(
    "loss_of", [_penalty, _third_derivative, _loss_after_gradients, _by_parameters]
)
def test_more_gradients_than_in_the_trace_are_right(loss_of: Any, one_thread: None) -> None:
    expected = _values(_seeded_model(_waves), loss_of)
    for plan in _plans_that_skip():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PlanMismatchWarning)
            actual = _values(acplan.apply(_seeded_model(_waves), plan), loss_of)
        torch.testing.assert_close(actual, expected, rtol=0, atol=0)


def test_what_is_skipped_and_asked_for_is_told(one_thread: None) -> None:
    with pytest.warns(PlanMismatchWarning, match="backward asks for more than in the trace"):
        for plan in _plans_that_skip():
            _values(acplan.apply(_seeded_model(_waves), plan), _loss_after_gradients)


@pytest.mark.parametrize("units", [["0", "1", "2"], ["0-1", "2"]])
def test_a_gradient_within_a_unit_that_is_not_planned_is_right(
    units: list[str], one_thread: None
) -> None:
    def descending(model: nn.Module) -> nn.Module:
        for module in model.modules():
            if isinstance(module, _Waves):
                module.descends = True
        return model

    def loss_of(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return model(x).pow(2).mean()

    expected = _values(descending(_seeded_model(_waves)), loss_of)
    by_hand = Plan(tuple(PlannedModule(f"Sequential.{unit}") for unit in units))
    for plan in (*_plans_that_skip(), by_hand):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PlanMismatchWarning)
            actual = _values(descending(acplan.apply(_seeded_model(_waves), plan)), loss_of)
        torch.testing.assert_close(actual, expected, rtol=0, atol=0)


def test_a_plan_of_such_a_module_is_saved_and_taken_back(tmp_path: Any) -> None:
    case = _CASES["layers that descend"]
    trace = acplan.trace(_seeded_model(case.make), *case.arguments, workspaces=False)
    path = tmp_path / "plan.json"
    acplan.plan(trace, "min").save(path)
    model = _seeded_model(case.make)
    keys, modules = [*model.state_dict()], [*model.modules()]
    planned_model = acplan.apply(model, path)
    assert [*planned_model.state_dict()] == keys
    assert (
        acplan.verify(
            _seeded_model(case.make), Plan.load(path), *case.arguments, trace=trace
        ).error
        == 0
    )
    assert [*acplan.remove(planned_model).modules()] == modules
