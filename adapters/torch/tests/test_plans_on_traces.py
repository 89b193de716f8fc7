"""A plan on a trace is what it says, once applied, and no rule of thumb beats it.

compare_recipes.py has the rules of thumb of larger models.
"""

from collections.abc import Iterator

import pytest
import torch

from acplan import AcplanError
from compare_recipes import compare
from measured import Subject, same_ms, subject
from recipes import recipes
from zoo import EXAMPLES


@pytest.fixture
def at(request: pytest.FixtureRequest) -> Iterator[Subject]:
    with subject(EXAMPLES[request.param](), None) as value:
        yield value


@pytest.mark.parametrize("at", ["llama", "unet", "custom", "writing"], indirect=True)
def test_plans_are_measured_as_predicted(at: Subject) -> None:
    least = at.least.budget_bytes
    most = at.traced.peak_bytes
    times = []
    for share in (0.0, 0.3, 0.9, 1.0):
        budget = least + round(share * (most - least))
        plan = at.plan(budget)
        assert plan.data["memory_model"] == "trace"
        measured = at.measured(plan)
        assert measured.is_as_predicted, f"{share}: {measured}"
        assert measured.peak_bytes == plan.peak_bytes <= budget
        assert same_ms(measured.recompute_ms, plan.recompute_ms)
        assert plan.bound_ms <= plan.recompute_ms
        times.append(plan.recompute_ms)
    assert times == sorted(times, reverse=True) and times[-1] == 0
    with pytest.raises(AcplanError, match="the smallest feasible budget"):
        at.plan(least - 1)


@pytest.mark.parametrize("at", ["custom", "writing"], indirect=True)
def test_recipes_are_never_better(at: Subject) -> None:
    compared = 0
    # For larger models one plan with less memory is tried, for others some.
    near = 0.1 if len(at.traced.data["operators"]) < 300 else 0.5
    for label, recipe in recipes(at.example, at.traced):
        comparison = compare(at, at.measured(recipe), near)
        assert comparison.is_never_worse, f"{label}: {comparison}"
        assert comparison.least.recompute_ms <= comparison.theirs.recompute_ms * (1 + 1e-9)
        assert comparison.least.peak_bytes <= comparison.theirs.peak_bytes
        compared += 1
    assert compared >= 3


def test_a_module_whose_calls_differ_is_a_unit_as_a_whole() -> None:
    """Under autocast the first call of a shared block casts its weights, the others not."""
    with subject(EXAMPLES["shared"](), torch.bfloat16) as at:
        label, recipe = next(iter(recipes(at.example, at.traced)))
        comparison = compare(at, at.measured(recipe), near=0.1)
        assert comparison.is_never_worse, f"{label}: {comparison}"
        plan = at.plan(comparison.theirs.peak_bytes)
        assert [module.get("ops") for module in plan.data["modules"]] == [None]
        assert at.measured(plan).is_as_predicted
