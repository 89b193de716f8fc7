"""Units that recompute everything run without a mode, and are what they are with one."""

import gc
import random
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters
from torch.utils._python_dispatch import TorchDispatchMode

import acplan
import stateful_modules
from acplan._apply import checkpoint
from acplan._apply.quiet_call import QuietForward
from acplan._apply.unit_state import StateOfUnit
from sharding_cases import operators_of

pytestmark = pytest.mark.usefixtures("one_thread")

_WIDTH = 8
Act = Callable[["_Block", torch.Tensor, int], torch.Tensor]


class _Block(nn.Module):
    def __init__(self, act: Act | None = None) -> None:
        super().__init__()
        self.lin = nn.Linear(_WIDTH, _WIDTH)
        self.drop = nn.Dropout(0.2)
        self.register_buffer("scale", torch.ones(_WIDTH))
        self.act = act

    def forward(self, x: torch.Tensor, step: int) -> torch.Tensor:
        y = self.drop(self.lin(x).sin()) * self.scale.clone()
        return y if self.act is None else self.act(self, y, step)


class _Net(nn.Module):
    def __init__(self, *acts: Act | None) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([_Block(act) for act in acts])

    def forward(self, x: torch.Tensor, step: int) -> torch.Tensor:
        for block in self.blocks:
            x = block(x, step)
        return x


def _with_plan(net: _Net) -> nn.Module:
    names = (f"_Net.blocks.{k}" for k in range(len(net.blocks)))
    return acplan.apply(net, acplan.Plan(tuple(map(acplan.PlannedModule, names))))


def _steps(net: nn.Module, count: int = 5) -> Iterator[list[torch.Tensor]]:
    """Yields the loss, the gradients and the buffers of each step."""
    for step in range(count):
        torch.manual_seed(step)
        x = torch.randn(3, _WIDTH, requires_grad=True)
        loss = net(x, step).square().sum()
        loss.backward()
        tensors = [p.grad for p in net.parameters()] + [*net.buffers(), x.grad, loss]
        yield [tensor.detach().clone() for tensor in tensors if tensor is not None]
        net.zero_grad()


@pytest.fixture
def quiet_calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts the calls without a mode, as in a process that has compiled nothing."""
    monkeypatch.setitem(counters["frames"], "total", 0)
    counts = [0]
    enter = QuietForward.__enter__

    def entered(self: QuietForward) -> None:
        counts[0] += 1
        enter(self)

    monkeypatch.setattr(QuietForward, "__enter__", entered)
    return counts


def _are_as_without(*acts: Act | None, reset: Callable[[], object] = lambda: None) -> None:
    torch.manual_seed(0)
    reset()
    expected = [*_steps(_Net(*acts))]
    torch.manual_seed(0)
    reset()
    for before, after in zip(expected, _steps(_with_plan(_Net(*acts))), strict=True):
        assert all(map(torch.equal, before, after))


def test_calls_after_the_first_have_no_mode(quiet_calls: list[int]) -> None:
    modes: list[int] = []

    def looks(block: _Block, x: torch.Tensor, step: int) -> torch.Tensor:
        modes.append(torch._C._len_torch_dispatch_stack())
        return x

    _are_as_without(looks, looks)
    assert quiet_calls == [8]
    # Nothing has changed since the first calls, so they run again without a mode, too.
    assert sum(modes) == 2


def _listed(net: _Net, fqn: str, *more: str) -> nn.Module:
    """Returns the net with a plan that lists what its first block recomputes, and `more`."""
    names = operators_of(net.blocks[0], torch.ones(3, _WIDTH), 0)
    operators = tuple(acplan.PlannedOperator(name, False) for name in (*names, *more))
    return acplan.apply(net, acplan.Plan((acplan.PlannedModule(fqn, operators),)))


def test_a_list_of_nothing_but_recomputation_is_quiet(quiet_calls: list[int]) -> None:
    torch.manual_seed(0)
    expected = [*_steps(_Net(None))]
    torch.manual_seed(0)
    for before, after in zip(
        expected, _steps(_listed(_Net(None), "_Net.blocks.0")), strict=True
    ):
        assert all(map(torch.equal, before, after))
    assert quiet_calls == [4]


def test_the_first_call_is_compared_with_the_list() -> None:
    net = _listed(_Net(None), "_Net.blocks.0", "aten.cos.default")
    with pytest.warns(
        acplan.PlanMismatchWarning, match="is missing, the plan expects aten.cos"
    ):
        [*_steps(net, 1)]


def _late_write(block: _Block, x: torch.Tensor, step: int) -> torch.Tensor:
    if step == 3:
        with torch.no_grad():
            block.scale.mul_(0.5)
    return x * block.scale.clone()


def test_a_late_write_is_seen_and_ends_the_quiet(quiet_calls: list[int]) -> None:
    _are_as_without(_late_write, None)
    assert quiet_calls == [3 + 4]


def test_a_late_write_by_a_library_is_seen() -> None:
    def moves(buffer: torch.Tensor, amount: float) -> None:
        buffer.add_(amount)

    with torch.library._scoped_library("acplan_tests", "FRAGMENT") as library:
        library.define("moves(Tensor(a!) buffer, float amount) -> ()")
        library.impl("moves", moves, "CompositeExplicitAutograd")

        def act(block: _Block, x: torch.Tensor, step: int) -> torch.Tensor:
            if step == 2:
                with torch.no_grad(), _Empty():
                    torch.ops.acplan_tests.moves(block.scale, 0.5)
            return x * block.scale.clone()

        _are_as_without(act)


class _Empty(TorchDispatchMode):
    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return func(*args, **(kwargs or {}))


def test_what_later_units_write_to_is_copied_for_quiet_ones() -> None:
    shared = torch.ones(_WIDTH)

    def reads(block: _Block, x: torch.Tensor, step: int) -> torch.Tensor:
        return x * shared.clone()

    def writes(block: _Block, x: torch.Tensor, step: int) -> torch.Tensor:
        if step == 3:
            shared.mul_(0.9)
        return x * shared.clone()

    _are_as_without(reads, writes, reset=lambda: shared.fill_(1))


def test_an_argument_that_is_written_to_late_is_read_as_it_was() -> None:
    class Adds(nn.Module):
        def forward(self, x: torch.Tensor, step: int) -> torch.Tensor:
            y = x.detach().exp() * x
            if step == 3:
                x.data.add_(1)  # Autograd does not count it.
            return y * x.detach().clone()

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block, self.scale = Adds(), nn.Parameter(torch.ones(_WIDTH))

        def forward(self, x: torch.Tensor, step: int) -> torch.Tensor:
            return self.block(x.mul(2) * self.scale, step)

    # Autograd saves the argument itself without a plan, so only a plan is right.
    with_plan = acplan.apply(Net(), acplan.Plan((acplan.PlannedModule("Net.block"),)))
    always = acplan.apply(Net(), acplan.Plan((acplan.PlannedModule("Net.block"),)))
    steps = [*_steps(with_plan)]
    with _Empty():
        expected = [*_steps(always)]
    for step, (before, after) in enumerate(zip(expected, steps, strict=True)):
        assert all(map(torch.equal, before, after)), step


def test_operators_of_the_profiler_pass() -> None:
    def act(block: _Block, x: torch.Tensor, step: int) -> torch.Tensor:
        with torch.profiler.record_function("act"):
            return x.relu_().mul(2)

    _are_as_without(act)


def test_what_others_write_to_is_refused() -> None:
    net = _with_plan(_Net(None))
    assert len([*_steps(net, 3)]) == 3
    loss = net(torch.ones(3, _WIDTH), 3).sum()
    with torch.no_grad():
        net.blocks[0].scale.mul_(2)
    with pytest.raises(acplan.AcplanError, match=r"_Block.scale, which has been written to"):
        loss.backward()


def test_a_generator_of_its_own_draws_the_same() -> None:
    generator = torch.Generator()

    def act(block: _Block, x: torch.Tensor, step: int) -> torch.Tensor:
        return x * torch.rand(x.shape, generator=generator)

    _are_as_without(act, act, reset=lambda: generator.manual_seed(3))


def test_normalisations_are_seen_in_both_modes() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = nn.Sequential(nn.Linear(_WIDTH, _WIDTH), nn.BatchNorm1d(_WIDTH))

        def forward(self, x: torch.Tensor, step: int) -> torch.Tensor:
            self.block[1].train(step % 3 != 0)
            return self.block(x)

    torch.manual_seed(0)
    plain = Net()
    torch.manual_seed(0)
    with_plan = acplan.apply(Net(), acplan.Plan((acplan.PlannedModule("Net.block"),)))
    for before, after in zip(_steps(plain), _steps(with_plan), strict=True):
        assert all(map(torch.equal, before, after))


@pytest.mark.parametrize("seed", range(12))
def test_modules_that_change_their_ways_are_as_without_a_plan(seed: int) -> None:
    chance = random.Random(seed)
    microbatches, is_joint = chance.choice([(1, False), (2, False), (2, True)])
    make = stateful_modules.make_with_late_actions
    kind = chance.choice([stateful_modules.Block, stateful_modules.Part])
    names = [name for name, m in make(seed).named_modules() if isinstance(m, kind)]
    plan = acplan.Plan(tuple(acplan.PlannedModule(f"Model.{name}") for name in names))
    try:
        expected = stateful_modules.outcome(make(seed), microbatches, is_joint, 5)
    except RuntimeError:
        return  # It writes in place to what autograd has saved.
    try:
        with_plan = acplan.apply(make(seed), plan)
        values = stateful_modules.outcome(with_plan, microbatches, is_joint, 5)
    except acplan.AcplanError as error:
        assert "has been written to in place since forward" in str(error)
        return
    assert all(map(stateful_modules.are_equal, expected, values))


def test_notes_are_shared_until_something_changes() -> None:
    block, state = _Block(), StateOfUnit()
    block.facts = {"gains": [1.0]}

    def notes() -> Any:
        return state.now(block)._notes

    notes()
    last = notes()
    assert notes() is last
    for change in (
        lambda: block.facts["gains"].append(2.0),
        lambda: setattr(block, "name", "one"),
        lambda: block.lin.register_forward_hook(lambda *_: None),
        lambda: block.drop.eval(),
        lambda: setattr(block, "lin", nn.Linear(_WIDTH, _WIDTH)),
        lambda: setattr(block, "scale", torch.ones(_WIDTH)),
        lambda: block.lin.register_parameter("bias", None),
    ):
        change()
        assert notes() is not last
        last = notes()
        assert notes() is last


def test_notes_hold_no_tensors() -> None:
    block, state = _Block(), StateOfUnit()
    for _ in range(3):
        state.now(block)
    weight = weakref.ref(block.lin.weight)
    block.lin.weight = nn.Parameter(torch.ones(_WIDTH, _WIDTH))
    gc.collect()
    assert weight() is None
    assert state.now(block)._notes.are_as_now() is False


def test_a_compiled_part_is_never_without_a_mode(quiet_calls: list[int]) -> None:
    net = _with_plan(_Net(None))
    net.blocks[0].lin.compile(backend="eager")
    assert len([*_steps(net, 3)]) == 3
    assert quiet_calls == [0]
    assert checkpoint.has_compiled_call(net.blocks[0].lin)
