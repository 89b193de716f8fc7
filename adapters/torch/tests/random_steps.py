"""Random modules, with plans that skip, in steps that were planned and in others."""

import copy
import functools
import random
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from acplan import Plan, apply
from skipping import plan_by_chance, recorded_step, units_by_chance
from test_never_ends import BLOCKS, STEPS, Chance, _net, _x


def legal_plan(net: nn.Module, seed: int) -> Plan:
    """Returns a plan of both blocks, or of modules by chance."""
    torch.manual_seed(1)
    data = recorded_step(copy.deepcopy(net), lambda model: model(_x()).float().square().mean())
    chance = random.Random(seed)
    fqns = BLOCKS if seed % 2 else units_by_chance(data, chance)
    return plan_by_chance(data, fqns, chance)


def outcome(net: nn.Module, step: Callable[[nn.Module], Any]) -> list[torch.Tensor]:
    """Returns the results of a step, the gradients, and the random numbers after it."""
    torch.manual_seed(1)
    values = step(net)
    values = [*values] if isinstance(values, (list, tuple)) else [values]
    values += [torch.rand(3), *(p.grad for p in net.parameters() if p.grad is not None)]
    return [value.detach().clone() for value in values]


def require_equal_outcomes(
    chance: random.Random, change: Callable[[Plan], Plan] = lambda plan: plan
) -> Plan:
    """Plans a module by chance, and takes a step with it, and maybe with another module
    to which the plan is applied. Returns the plan before the `change`."""
    seed, other_seed = chance.randrange(1 << 20), chance.randrange(1 << 20)
    plan = legal_plan(_net(functools.partial(Chance, seed)), chance.randrange(100))
    changed = change(plan)
    for block in {seed, chance.choice([seed, other_seed])}:
        make = functools.partial(_net, functools.partial(Chance, block))
        step = STEPS[chance.choice(["a batch of one", "accumulation", "backward twice"])]
        expected = outcome(make(), step)
        paths = dict(make().named_modules())
        fitting = [m for m in changed.modules if m.fqn.removeprefix("Net.") in paths]
        actual = outcome(apply(make(), Plan(tuple(fitting))), step)
        assert len(actual) == len(expected)
        assert all(map(torch.equal, actual, expected)), (seed, block)
    return plan
