"""Blocks that share weights, run twice or count may be units, as in PyTorch's checkpoint:
the least budget is never above that, what it is is known to the byte, and gradients and
buffers are those without a plan."""

from typing import Any

import pytest
import torch

import acplan
from compare_plain_checkpoints import complaint_of
from shared_and_repeated import MODELS

# One of each kind, under autocast every second one.
_NAMES = [name for k, name in enumerate(MODELS) if k % 4 in (0, 3)]


@pytest.mark.parametrize("name", _NAMES)
def test_the_least_budget_is_no_more_than_that_of_plain_checkpoints(name: str) -> None:
    make, inputs_of, case_options = MODELS[name]
    options: dict[str, Any] = {"optimizer": "sgd", "workspaces": False, **case_options}
    traced = acplan.trace(make(), **options, **inputs_of())
    plan = acplan.plan(traced, "min")
    assert plan.modules and plan.peak_bytes < 0.7 * traced.peak_bytes
    verification = acplan.verify(make(), plan, trace=traced, **options, **inputs_of())
    assert verification.first_difference() is None
    assert complaint_of(MODELS[name]) == ("", False)


def _step(model: torch.nn.Module, inputs: Any, options: Any) -> list[torch.Tensor]:
    torch.manual_seed(0)
    with torch.autocast("cpu", torch.bfloat16, enabled=bool(options)):
        loss = model(**inputs)
    loss.backward()
    return [loss, *(p.grad for p in model.parameters()), *model.buffers()]


@pytest.mark.parametrize("name", _NAMES)
def test_gradients_and_buffers_are_those_without_a_plan(name: str) -> None:
    make, inputs_of, options = MODELS[name]
    plain, planned_model = make(), make()
    planned_model.load_state_dict(plain.state_dict())
    traced = acplan.trace(plain, optimizer="sgd", **options, **inputs_of())
    planned_model = acplan.apply(planned_model, acplan.plan(traced, "min"))
    for _ in range(2):
        expected = _step(plain, inputs_of(), options)
        assert all(map(torch.equal, expected, _step(planned_model, inputs_of(), options)))
