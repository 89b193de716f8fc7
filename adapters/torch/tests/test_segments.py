"""Runs of modules as units: losses and gradients bit for bit, whatever is called, and
memory to the byte."""

import copy
import gc
import pathlib
import pickle
import random
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from acplan import AcplanError, Plan, PlanMismatchWarning, PlannedModule
from acplan import PlannedOperator as Op
from acplan import Trace, apply, remove, trace
from acplan.applying import applied
from acplan.measuring import Verification, measure, simulate
from torch import nn
from torch.utils._pytree import register_pytree_node

from segments_of_traces import longest_runs, name_of, segments_by_chance, with_segment
from sharding_cases import Names
from skipping import Unit, plan_by_chance, recorded_step, shares
from test_skipping import _loss, _model, _step
from zoo import EXAMPLES

_MODELS = ("gpt2", "bert", "t5", "llama", "resnet", "vit", "swin", "unet", "mistral", "opt")


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def _plans(data: dict[str, Any], seeds: int) -> Iterator[tuple[dict[str, Any], Plan]]:
    """Segments as a whole, and with random legal policies that skip."""
    for seed in range(seeds):
        chance = random.Random(seed)
        with_runs, names = segments_by_chance(data, chance)
        usable = [name for name in names if _is_unit(with_runs, name)]
        assert usable
        if seed == 0:
            yield with_runs, Plan(tuple(map(PlannedModule, usable)))
        else:
            yield with_runs, plan_by_chance(with_runs, usable, chance)


def _is_unit(data: dict[str, Any], name: str) -> bool:
    try:
        return bool(Unit(data, name))
    except ValueError:
        return False


@pytest.mark.parametrize("name", _MODELS)
def test_gradients_are_equal(name: str) -> None:
    model, inputs = _model(name)
    autocast = _MODELS.index(name) % 3 == 2
    expected = _step(copy.deepcopy(model), inputs, autocast)
    data = recorded_step(copy.deepcopy(model), lambda of: _loss(of, inputs, autocast))
    for _, plan in _plans(data, 4):
        found = _step(apply(copy.deepcopy(model), plan, strict=True), inputs, autocast)
        assert len(found) == len(expected)
        assert all(map(torch.equal, found, expected)), plan


@pytest.mark.parametrize(
    ("name", "autocast"),
    [(name, None) for name in ("gpt2", "bert", "t5", "llama", "resnet", "unet", "swin")]
    + [("gpt2", torch.bfloat16), ("resnet", torch.bfloat16)],
)
def test_predicted_is_measured_at_every_operator(
    name: str, autocast: torch.dtype | None
) -> None:
    model, inputs = EXAMPLES[name]().on_meta()
    traced = trace(model, autocast=autocast, **inputs)
    for data, plan in _plans(traced.data, 4):
        result = Verification(
            simulate(Trace(data), plan), measure(model, plan, autocast=autocast, **inputs)
        )
        assert result.first_difference() is None, f"{plan}: {result}"
