"""A few models of the zoo, each planned at three budgets: compare_zoo.py has them all."""

import pytest
import torch
import transformers
from torch import nn

import acplan
import architectures_diffusers
import architectures_further_diffusers
from compare_zoo import _first_difference, result_of
from zoo_models import ZOO

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize(
    "name",
    [
        "bert",
        "mixtral",  # leaves out a write in place, and views of what it should write to
        "mamba2",
        "bart",
        "FluxTransformer2DModel",
    ],
)
def test_plans_are_as_promised(name: str) -> None:
    result = result_of(ZOO[name])
    assert result.wrong == "" and result.operators > 100
    shares = [plan.overhead for plan in result.plans]
    assert len(shares) == 3 and shares == sorted(shares) and shares[-1] > 0


class _Moving(nn.Module):
    """Gives a module its type in each forward pass, as routers of experts do."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.inner = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.first = self.first.to(x.dtype)
        return self.inner.to(x.device)(self.first(x))


def test_a_module_that_is_where_it_is_moved_to_is_traced() -> None:
    model = _Moving()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    names = [op["name"] for op in acplan.trace(model, torch.ones(2, 4)).data["operators"]]
    assert names.count("aten.addmm.default") == 2 and "aten._to_copy.default" not in names
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert all(type(p) is nn.Parameter for p in model.parameters())


def test_a_step_that_differs_is_told() -> None:
    values = {"the loss": torch.tensor(1.0), "the gradient of a": torch.tensor([0.0])}
    assert _first_difference(values, dict(values)) == ""
    assert _first_difference(values, {**values, "the loss": torch.tensor(1.0).double()})
    for other in (torch.tensor([-0.0]), torch.tensor([1e-30]), None):
        others = {**values, "the gradient of a": other}
        assert _first_difference(values, others) == "the gradient of a"


def test_at_least_sixty_of_transformers_and_twelve_of_diffusers() -> None:
    of_diffusers = {
        **architectures_diffusers.ARCHITECTURES,
        **architectures_further_diffusers.ARCHITECTURES,
    }
    kinds = {name.split(",")[0].split(" with")[0] for name in ZOO if name not in of_diffusers}
    assert len(kinds & {*transformers.CONFIG_MAPPING, "deberta_v2"}) >= 60
    assert len(of_diffusers) >= 12
