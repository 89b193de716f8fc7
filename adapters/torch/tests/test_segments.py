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


# --- Whatever is called


class State:
    """What PyTorch does not know how to take apart."""

    def __init__(self, x: torch.Tensor) -> None:
        self.x = x


class Block(nn.Module):
    def __init__(self, writes: bool) -> None:
        super().__init__()
        self.up = nn.Linear(6, 12)
        self.norm = nn.BatchNorm1d(12)
        self.down = nn.Linear(12, 6)
        self.writes = writes
        self.seen: Any = None

    def forward(self, x: Any, mask: torch.Tensor | None = None) -> Any:
        if isinstance(x, State):
            x = x.x
        y = nn.functional.gelu(self.norm(self.up(x)).mul_(2))
        if self.writes:
            y = nn.functional.dropout(y, 0.3, inplace=True)
        y = self.down(y + torch.rand_like(y))
        y = nn.functional.dropout(y, 0.2)
        self.seen = y
        if mask is not None:
            y = y * mask
        return {"out": (x + y, y.sin()), "size": 6}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.blocks = nn.ModuleList(Block(k % 2 == 0) for k in range(4))
        self.program: Callable[[Net, torch.Tensor], torch.Tensor] = in_order

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.program(self, self.first(x))


def in_order(net: Net, x: torch.Tensor) -> torch.Tensor:
    mask, others = torch.full((1,), 0.5), []
    for block in net.blocks:
        x, other = block(x, mask=mask)["out"]
        others.append(other)
    return x + sum(others)


def by_chance(seed: int) -> Callable[[Net, torch.Tensor], torch.Tensor]:
    """Calls blocks in order most of the time, and does something else in between."""

    def program(net: Net, x: torch.Tensor) -> torch.Tensor:
        chance = random.Random(seed)
        share = chance.choice([0.1, 0.3, 0.6])
        mask, other, losses = torch.full((1,), 0.5), x, x.new_zeros(())
        for _ in range(chance.randint(1, 2)):
            for block in net.blocks:
                if chance.random() < share:
                    block = chance.choice(net.blocks)
                for _ in range(2):
                    if chance.random() < share:
                        x, other, losses = _something(chance, x, other, losses, net)
                x = _called(chance, share, block, x, mask)
        return x.sum() + other.sum() + losses

    return program


def _called(
    chance: random.Random, share: float, block: nn.Module, x: Any, mask: torch.Tensor
) -> torch.Tensor:
    if chance.random() >= share:
        return block(x, mask=mask)["out"][0]
    how = chance.randrange(8)
    if how == 0:
        with torch.no_grad():
            y = block(x)["out"][0]
        return x + y
    if how == 1:
        with torch.autocast("cpu", torch.bfloat16):
            return block(x)["out"][0].float()
    if how == 2:
        return block(State(x))["out"][0]
    if how == 3:
        return block(x, mask)["out"][1]
    if how == 4:
        return block(x=x, mask=torch.rand(1))["out"][1].clone()
    if how == 5:
        return block.forward(x)["out"][0]
    if how == 6:
        with pytest.raises(TypeError):
            block(x, mask="nothing")
        return x
    out = block(x)["out"]
    return out[0] + out[1]


def _something(
    chance: random.Random,
    x: torch.Tensor,
    other: torch.Tensor,
    losses: torch.Tensor,
    net: Net,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    how = chance.randrange(10)
    if how == 0:
        return x * 2, x, losses
    if how == 1 and x.grad_fn is not None and "Add" in str(x.grad_fn):
        return x.mul_(0.5), other, losses
    if how == 2:
        return x + torch.rand(6), other, losses
    if how == 3:
        return other, x, losses
    if how == 4:
        return x.view(-1).view(x.shape), other, losses
    if how == 5:
        return x, other, losses + x.exp().mean()
    if how == 6:
        return x.detach().requires_grad_(), other, losses
    if how == 7:
        seen = chance.choice(net.blocks).seen
        return (x if seen is None else x + seen.detach()), other, losses
    if how == 8:
        torch.rand(3)
        return x, other.clone(), losses
    return x, other + x[:1], losses


def _net() -> Net:
    torch.manual_seed(0)
    return Net()


_X = torch.linspace(-1, 1, 30).view(5, 6)


def _values(net: nn.Module, x: torch.Tensor = _X) -> list[torch.Tensor]:
    torch.manual_seed(1)
    loss = net(x).square().mean()
    loss.backward()
    values = [loss.detach(), torch.rand(3), *net.buffers()]
    return values + [p.grad for p in net.parameters() if p.grad is not None]


def _equal(found: list[torch.Tensor], expected: list[torch.Tensor]) -> bool:
    return len(found) == len(expected) and all(map(torch.equal, found, expected))


def _policies() -> list[tuple[str, Plan]]:
    """For blocks called in order."""
    data = recorded_step(_net(), lambda net: net(_X).square().mean())
    (run,) = longest_runs(data)[:1]
    names = [data["modules"][k]["fqn"] for k in run]
    assert names == [f"Net.blocks.{k}" for k in range(4)]
    found = []
    for part in (run, run[1:], run[:2]):
        changed, name = with_segment(data, part), name_of(data, part)
        found.append((f"{name} whole", Plan((PlannedModule(name),))))
        for seed in range(3):
            plan = plan_by_chance(changed, [name], random.Random(seed))
            assert next(shares(plan))[0] and next(shares(plan))[2]
            found.append((f"{name} {seed}", plan))
    return found


def test_called_in_order() -> None:
    expected = _values(_net())
    for label, plan in _policies():
        net = apply(_net(), plan, strict=True)
        assert _equal(_values(net), expected), label
        net.zero_grad()
        assert not _equal(_values(net), expected)  # Statistics are others.


@pytest.mark.filterwarnings("ignore::acplan.PlanMismatchWarning")
@pytest.mark.parametrize("begin", range(0, 240, 40))
def test_whatever_is_called(begin: int) -> None:
    policies = _policies()
    ended = 0
    for seed in range(begin, begin + 40):
        net = _net()
        net.program = by_chance(seed)
        try:
            expected = _values(net)
        except RuntimeError as error:  # Autograd refuses what the program does.
            assert "modified by an inplace operation" in str(error)
            ended += 1
            continue
        for label, plan in random.Random(seed).sample(policies, 4):
            net = apply(_net(), plan)
            net.program = by_chance(seed)
            assert _equal(_values(net), expected), (seed, label)
    assert ended < 20
