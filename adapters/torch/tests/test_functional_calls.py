"""`torch.func.functional_call` with other parameters: they are gone when backward runs a unit
again, so it does not. Nor do units within transforms of functions."""

import warnings

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.func import functional_call, grad, grad_and_value, hessian, jacrev, jvp, vmap

import acplan
from acplan import AcplanError, Plan, PlanMismatchWarning, PlannedModule

PLAN = Plan((PlannedModule("Sequential.0"), PlannedModule("Sequential.1")))


def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(2)))


def _x() -> torch.Tensor:
    return torch.arange(8.0).reshape(2, 4)


def _gradients(model: nn.Module) -> list[torch.Tensor]:
    """Returns the gradients of the parameters after a call with others that are made of
    them."""
    others = {name: 1.5 * value for name, value in model.named_parameters()}
    functional_call(model, others, (_x(),)).square().mean().backward()
    return [p.grad for p in model.parameters()]


def test_gradients_are_those_of_the_parameters_that_were_given() -> None:
    expected = _gradients(_model())
    model = acplan.apply(_model(), PLAN)
    with pytest.warns(
        PlanMismatchWarning, match="Sequential.0: it runs with parameters"
    ) as caught_warnings:
        actual = _gradients(model)
    assert len([w for w in caught_warnings if w.category is PlanMismatchWarning]) == 2  # units
    torch.testing.assert_close(actual, expected)


def test_a_strict_plan_refuses_them() -> None:
    model = acplan.apply(_model(), PLAN, strict=True)
    with pytest.raises(
        AcplanError, match="Sequential.0: it runs with parameters that are not its own"
    ):
        _gradients(model)


def test_its_own_parameters_are_no_others() -> None:
    model = acplan.apply(_model(), PLAN, strict=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        functional_call(model, dict(model.named_parameters()), (_x(),)).sum().backward()


def test_gradients_as_functions() -> None:
    def gradients_of(model: nn.Module) -> dict[str, torch.Tensor]:
        def loss(values: dict[str, torch.Tensor]) -> torch.Tensor:
            return functional_call(model, values, (_x(),)).square().mean()

        values = {name: 1.5 * p.detach() for name, p in model.named_parameters()}
        return grad_and_value(loss)(values)[0]

    expected = gradients_of(_model())
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # within transforms units never run again
        actual = gradients_of(acplan.apply(_model(), PLAN, strict=True))
    torch.testing.assert_close(list(actual.values()), list(expected.values()))


class _Mlp(nn.Module):
    """Its parameters are those of a module that is never called."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterList(torch.randn(16, 16) / 4 for _ in range(3))
        self.last = nn.Tanh()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for weight in self.weights:
            x = nn.functional.gelu(x @ weight)
        return self.last(x)


class _Hyper(nn.Module):
    """A layer that makes the weights of another one from what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.gate = nn.Sequential(_Mlp()), nn.Linear(16, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate = self.gate(x).mean()
        weights = {name: gate * w for name, w in self.inner.named_parameters()}
        return x + functional_call(self.inner, weights, (x,))


def test_modules_that_borrow_are_no_units_and_those_around_are() -> None:
    def model() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(*(_Hyper() for _ in range(3)))

    def run(model: nn.Module) -> list[torch.Tensor | None]:
        loss = model(x).square().mean()
        loss.backward()
        return [loss.detach(), *(p.grad for p in model.parameters())]

    x = torch.randn(32, 16, generator=torch.Generator().manual_seed(1))
    traced = acplan.trace(model(), x, workspaces=False)
    assert any("6 modules cannot be units" in note for note in traced.notes)
    plan = acplan.plan(traced, "min", segments="none")
    assert {unit.fqn for unit in plan.modules} >= {"Sequential.0", "Sequential.1"}
    assert not any("inner" in unit.fqn for unit in plan.modules)
    assert acplan.verify(model(), plan, x, trace=traced).first_difference() is None
    actual = run(acplan.apply(model(), plan, strict=True))
    torch.testing.assert_close(actual, run(model()), rtol=0, atol=0)


def _dual(model: nn.Module) -> object:
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(model(forward_ad.make_dual(_x(), torch.ones(2, 4))))


def _gradients_through_vmap(model: nn.Module) -> list[torch.Tensor]:
    model.zero_grad()
    vmap(model)(_x()[:, None]).square().mean().backward()
    return [p.grad for p in model.parameters()]


def _of_each(model: nn.Module) -> object:
    return vmap(grad(lambda x: model(x).sum()))(_x())


TRANSFORMS = {
    "vmap": lambda model: vmap(model)(_x()[:, None]),
    "jvp": lambda model: jvp(model, (_x(),), (torch.ones(2, 4),)),
    "jacrev": lambda model: jacrev(model)(_x()),
    "hessian": lambda model: hessian(lambda x: model(x).sum())(_x()),
    "dual numbers": _dual,
    "gradients of each": _of_each,
    "gradients through vmap": _gradients_through_vmap,
}


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_within_transforms_units_run_as_without_a_plan(transform: str) -> None:
    run = TRANSFORMS[transform]
    with warnings.catch_warnings():
        warnings.simplefilter("error", PlanMismatchWarning)
        actual = run(acplan.apply(_model(), PLAN, strict=True))
    torch.testing.assert_close(actual, run(_model()))
