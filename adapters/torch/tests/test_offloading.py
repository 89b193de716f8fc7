"""Plans that offload: gradients bit for bit however late a copy is made, memory to the
byte, when what is asked for, and what is refused."""

import copy
import gc
import pickle
import random
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from acplan import AcplanError, Plan, PlanMismatchWarning, PlannedModule, apply, remove
from acplan import PlannedOperator as Op
from acplan import trace, verify
from acplan.applying import applied
from acplan.host_link import Link, Plain
from torch import nn

from offloading import Links, late_links, with_offload
from segments_of_traces import segments_by_chance
from sharding_cases import operators_of
from skipping import Unit, plan_by_chance, recorded_step, units_by_chance
from test_never_ends import Chance, Net, STEPS, _forward_backward, _net, _x
from test_segments import _is_unit
from test_skipping import _ARCHITECTURES, _by_chance, _loss, _model, _outcome, _step
from zoo import EXAMPLES

_MODELS = (
    "gpt2", "t5", "vit", "resnet", "unet", "custom", "writing", "shared", "swin",
    "albert", "electra", "mistral", "opt",
)  # fmt: skip


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def links() -> Iterator[Links]:
    yield from late_links()


def _plan_of(data: dict[str, Any], seed: int) -> Plan:
    """Of units, or of segments."""
    chance = random.Random(seed)
    if seed % 2:
        with_runs, names = segments_by_chance(data, chance)
        usable = [name for name in names if _is_unit(with_runs, name)]
        if usable:
            return with_offload(plan_by_chance(with_runs, usable, chance), chance)
    plan = plan_by_chance(data, units_by_chance(data, chance), chance)
    return with_offload(plan, chance)


@pytest.mark.parametrize("name", _MODELS)
def test_gradients_are_equal_with_any_legal_plan(name: str, links: Links) -> None:
    model, inputs = _model(name)
    autocast = _MODELS.index(name) % 3 == 2
    if name in _ARCHITECTURES:
        _step(model, inputs, autocast)  # What is made in the first step is there then.
        model.zero_grad()
    expected = _step(copy.deepcopy(model), inputs, autocast)
    data = recorded_step(copy.deepcopy(model), lambda of: _loss(of, inputs, autocast))
    for seed in range(2):
        plan = _plan_of(data, seed)
        # A plan that is not followed raises.
        found = _step(apply(copy.deepcopy(model), plan, strict=True), inputs, autocast)
        assert len(found) == len(expected)
        assert all(map(torch.equal, found, expected)), seed
    assert links.asked > 0 and links.pool_bytes > links.used_bytes == 0


@pytest.mark.parametrize(
    ("name", "autocast"),
    [(name, None) for name in ("unet", "writing", "shared", "resnet", "t5", "custom")]
    + [(name, torch.bfloat16) for name in ("gpt2", "resnet")],
)
def test_predicted_is_measured_at_every_operator(
    name: str, autocast: torch.dtype | None
) -> None:
    model, inputs = EXAMPLES[name]().on_meta()
    traced = trace(model, autocast=autocast, **inputs)
    differs = False
    for seed in range(3):
        plan = _plan_of(traced.data, seed)
        result = verify(model, plan, of=traced, autocast=autocast, **inputs)
        assert result.first_difference() is None, result
        saving = with_offload(plan, random.Random(0), 0)
        without = verify(model, saving, of=traced, autocast=autocast, **inputs)
        assert [s.name for s in without.measured] == [s.name for s in result.measured]
        differs |= result.measured != without.measured
    assert differs


# --- Steps that were not planned


def _offloading_by_chance(net: nn.Module, seed: int) -> Plan:
    chance = random.Random(seed)
    while True:
        plan = with_offload(_by_chance(net, chance.randrange(100)), chance, 0.8)
        if any(module.offloads for module in plan.modules):
            return plan


@pytest.mark.filterwarnings("ignore::acplan.PlanMismatchWarning")
@pytest.mark.parametrize("name", STEPS)
def test_steps_that_were_not_planned(name: str, links: Links) -> None:
    expected = _outcome(_net(), STEPS[name])
    for seed in range(2):
        found = _outcome(apply(_net(), _offloading_by_chance(_net(), seed)), STEPS[name])
        assert len(found) == len(expected) and all(map(torch.equal, found, expected))
    gc.collect()
    assert links.asked > 0 and links.used_bytes == 0


@pytest.mark.filterwarnings("ignore::acplan.PlanMismatchWarning")
def test_random_modules_and_steps(links: Links) -> None:
    chance = random.Random(0)
    for _ in range(10):
        of, other = chance.randrange(1 << 20), chance.randrange(1 << 20)
        made = _by_chance(_net(lambda: Chance(of)), chance.randrange(100))
        plan = with_offload(made, chance)
        for block in {of, chance.choice([of, other])}:
            make: Callable[[], nn.Module] = lambda block=block: Chance(block)  # type: ignore[misc]
            step = STEPS[chance.choice(["a batch of one", "accumulation", "backward twice"])]
            expected = _outcome(_net(make), step)
            paths = dict(_net(make).named_modules())
            fitting = [m for m in plan.modules if m.fqn.removeprefix("Net.") in paths]
            found = _outcome(apply(_net(make), Plan(tuple(fitting))), step)
            assert len(found) == len(expected)
            assert all(map(torch.equal, found, expected)), (of, block)
    assert links.asked > 20


class _Writing(nn.Module):
    """What is saved is written to, by operators that are saved, too."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x)
        y.mul_(2).relu_()
        return y.exp()


def test_what_is_written_to_is_sent_again(links: Links) -> None:
    """The host has what a late copy finds there, and what an early one does not."""
    names = operators_of(_Writing(), _x())
    kept = ("addmm", "view", "mul_", "relu_")
    for offloaded in (kept, ("addmm",), ("addmm", "relu_"), ("mul_",)):
        operators = tuple(
            Op(n, any(k in n for k in kept), offload=any(k in n for k in offloaded))
            for n in names
        )
        plan = Plan(tuple(PlannedModule(f"Net.blocks.{k}", operators) for k in range(2)))
        expected = _outcome(_net(_Writing), _forward_backward)
        for are_late in (True, False):
            before = links.asked
            links.are_late = are_late
            found = _outcome(apply(_net(_Writing), plan, strict=True), _forward_backward)
            assert all(map(torch.equal, found, expected)) and links.asked > before


class _Written(Net):
    """Its units' results are written to."""

    def forward(self, x: torch.Tensor, **_: Any) -> torch.Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x).sub_(1)
        return x


@pytest.mark.parametrize("are_late", [True, False])
def test_results_of_units_may_be_written_to(are_late: bool, links: Links) -> None:
    """What was saved is not what it was then, unless the host has it already."""
    links.are_late = are_late
    names = operators_of(_Writing(), _x())

    def outcome(saved: tuple[str, ...]) -> list[torch.Tensor]:
        torch.manual_seed(0)
        kept = [any(part in name for part in saved) for name in names]
        ops = tuple(Op(n, k, offload=k) for n, k in zip(names, kept) if saved)
        plan = tuple(PlannedModule(f"_Written.blocks.{k}", ops) for k in range(2))
        return _outcome(apply(_Written(_Writing), Plan(plan)), _forward_backward)

    expected = outcome(())
    assert links.asked == 0
    found = outcome(("exp",))
    assert all(map(torch.equal, found, expected)) and links.asked > 0


# --- When


class _Told(Plain):
    """Tells what it is asked for, and what is waited for."""

    def __init__(self, told: list[str]) -> None:
        self._told = told

    def copy(self, source: Any, target: Any, after: Any) -> Any:
        is_out = target.data_ptr() in {b.data_ptr() for b in self._buffers}
        super().copy(source, target, after)
        return _ToldCopy(self._told, "sent" if is_out else "fetched", source)

    _buffers: list[torch.Tensor]


class _ToldCopy:
    def __init__(self, told: list[str], kind: str, source: torch.Tensor) -> None:
        self._told, self._kind, self._size = told, kind, source.numel()
        told.append(f"{'send' if kind == 'sent' else 'fetch'} {self._size}")

    def wait(self, memory: torch.Tensor) -> None:
        self._told.append(f"{self._kind} {self._size}")
