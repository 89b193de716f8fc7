"""Runs of modules as units: losses and gradients bit for bit, whatever is called, and
memory to the byte."""

import copy
import functools
import gc
import pickle
import random
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import acplan
from acplan import (
    AcplanError,
    Plan,
    PlanMismatchWarning,
    PlannedModule,
    Trace,
    apply,
    remove,
    trace,
    verify,
)
from acplan._apply.apply import applied
from acplan._device import kernel_times
from acplan._verify.simulated import simulate
from acplan._verify.verify import verifying
from models import _larger
from segments_of_traces import longest_runs, name_of, segments_by_chance, with_segment
from skipping import Unit, plan_by_chance, recorded_step, shares
from test_skipping import _loss, _model, _step
from zoo import EXAMPLES

_MODELS = ("gpt2", "bert", "t5", "llama", "resnet", "vit", "swin", "unet", "mistral", "opt")


pytestmark = pytest.mark.usefixtures("one_thread")


def _plans(data: dict[str, Any], seeds: int) -> Iterator[tuple[dict[str, Any], Plan]]:
    """Yields plans of segments: first as a whole, then with random legal policies that skip."""
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
    data = recorded_step(copy.deepcopy(model), lambda net: _loss(net, inputs, autocast))
    for _, plan in _plans(data, 3):
        actual = _step(apply(copy.deepcopy(model), plan, strict=True), inputs, autocast)
        assert len(actual) == len(expected)
        assert all(map(torch.equal, actual, expected)), plan


@pytest.mark.parametrize(
    ("name", "autocast"),
    [(name, None) for name in ("gpt2", "bert", "t5", "llama", "resnet", "unet", "swin")]
    + [("gpt2", torch.bfloat16), ("resnet", torch.bfloat16)],
)
def test_predicted_is_measured_at_every_operator(
    name: str, autocast: torch.dtype | None
) -> None:
    model, inputs = EXAMPLES[name]().on_meta()
    options: dict[str, Any] = {"optimizer": "sgd", "autocast": autocast, **inputs}
    traced = trace(model, **options)
    with verifying(model, model_trace=traced, **options) as verified:
        for data, plan in _plans(traced.data, 2):
            result = verified(plan)
            assert result.first_difference() is None, f"{plan}: {result}"
            # This trace has the segments among its modules.
            assert result.predicted == simulate(Trace(data), plan)


def test_plans_of_acplan_have_runs_and_are_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    # All operators of so small a model would take as long as a launch, and wait for the host.
    monkeypatch.setattr(kernel_times, "LAUNCH_SECONDS", 0.0)
    model, inputs = _larger("gpt2", 8)().on_meta()
    traced = trace(model, **inputs)
    plan = acplan.plan(traced, "75%", segments=2, decisions="save,recompute", without_host=True)
    names = [module.fqn.rpartition(".")[2] for module in plan.modules]
    assert any("-" in name for name in names), names
    result = verify(model, plan, trace=traced, **inputs)
    assert result.first_difference() is None, result
    assert plan.peak_bytes == result.measured_bytes


# --- Whatever is called


class State:
    """A value that PyTorch does not know how to take apart."""

    def __init__(self, x: torch.Tensor) -> None:
        self.x = x


class Released(State):
    """A state of which there is no copy, as it would be released twice."""

    def __del__(self) -> None:
        del self.x


class Block(nn.Module):
    def __init__(self, writes: bool) -> None:
        super().__init__()
        self.up = nn.Linear(6, 12)
        self.norm = nn.BatchNorm1d(12)
        self.down = nn.Linear(12, 6)
        self.writes = writes
        self.last: Any = None

    def forward(self, x: Any, mask: torch.Tensor | None = None) -> Any:
        if isinstance(x, State):
            x = x.x
        y = nn.functional.gelu(self.norm(self.up(x)).mul_(2))
        if self.writes:
            y = nn.functional.dropout(y, 0.3, inplace=True)
        y = self.down(y + torch.rand_like(y))
        y = nn.functional.dropout(y, 0.2)
        self.last = y
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
    """Returns a program that calls blocks in order most of the time, and does something else in
    between."""

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
                x = _call_by_chance(chance, share, block, x, mask)
        return x.sum() + other.sum() + losses

    return program


def _call_by_chance(
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
        last = chance.choice(net.blocks).last
        return (x if last is None else x + last.detach()), other, losses
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


def _equal(actual: list[torch.Tensor], expected: list[torch.Tensor]) -> bool:
    return len(actual) == len(expected) and all(map(torch.equal, actual, expected))


def _policies() -> list[tuple[str, Plan]]:
    """Returns plans for blocks called in order."""
    data = recorded_step(_net(), lambda net: net(_X).square().mean())
    (run,) = longest_runs(data)[:1]
    names = [data["modules"][k]["fqn"] for k in run]
    assert names == [f"Net.blocks.{k}" for k in range(4)]
    plans = []
    for part in (run, run[1:], run[:2]):
        changed, name = with_segment(data, part), name_of(data, part)
        plans.append((f"{name} whole", Plan((PlannedModule(name),))))
        by_chance = [
            (f"{name} {seed}", plan)
            for seed in range(40)
            for plan in [plan_by_chance(changed, [name], random.Random(seed))]
            if next(shares(plan))[0] and next(shares(plan))[2]
        ]
        assert len(by_chance) >= 3
        plans += by_chance[:3]
    return plans


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


# --- What is said

_MASK = torch.full((1,), 0.5)


def _running(net: Net, program: Callable[[Net, torch.Tensor], torch.Tensor]) -> Net:
    net.program = program
    return net


def _but_the_last(net: Net, x: torch.Tensor) -> torch.Tensor:
    for block in net.blocks[:3]:
        x = block(x, mask=_MASK)["out"][0]
    return x


def _without_one(net: Net, x: torch.Tensor) -> torch.Tensor:
    for block in (*net.blocks[:2], net.blocks[3]):
        x = block(x, mask=_MASK)["out"][0]
    return x


def _twice_at_once(net: Net, x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    for block in net.blocks:
        x, y = block(x, mask=_MASK)["out"][0], block(y, mask=_MASK)["out"][0]
    return x + y


def _computing(net: Net, x: torch.Tensor) -> torch.Tensor:
    for block in net.blocks:
        x = block(x * 0.5, mask=_MASK)["out"][0]
    return x


def _writing(net: Net, x: torch.Tensor) -> torch.Tensor:
    for block in net.blocks:
        x = block(x, mask=_MASK)["out"][0]
        x *= 0.5
    return x


def _backwards(net: Net, x: torch.Tensor) -> torch.Tensor:
    for block in net.blocks:
        x = block(x.detach(), mask=_MASK)["out"][0]
        x.sum().backward()
    return net.first(x.detach())


def _in_half_precision(net: Net, x: torch.Tensor) -> torch.Tensor:
    for place, block in enumerate(net.blocks):
        with torch.autocast("cpu", torch.bfloat16, enabled=place == 2):
            x = block(x.float(), mask=_MASK)["out"][0]
    return x.float()


def _in_an_object(net: Net, x: torch.Tensor, kind: type[State] = Released) -> torch.Tensor:
    for block in net.blocks:
        x = block(kind(x), mask=_MASK)["out"][0]
    return x


def test_an_object_with_tensors_of_the_run_is_made_anew() -> None:
    program = functools.partial(_in_an_object, kind=State)
    expected = _values(_running(_net(), program))
    for label, plan in _policies()[:4]:
        actual = _values(_running(apply(_net(), plan, strict=True), program))
        assert _equal(actual, expected), label


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (_but_the_last, "backward begins after 2, but 3 was expected"),
        (_without_one, "3 is called, but 2 was expected"),
        (_twice_at_once, "0 is called, but 1 was expected"),
        (_computing, "1 receives a tensor that is computed between the modules"),
        (_writing, "1 receives a tensor that was written to since"),
        (_backwards, "backward begins after 0, but 1 was expected"),
        (_in_half_precision, "2 is called under another autocast than the module before it"),
        (_in_an_object, "1 receives an object that holds tensors of the run"),
    ],
)
def test_it_is_said_where_a_run_is_another_one(program: Any, message: str) -> None:
    expected = _values(_running(_net(), program))
    for label, plan in _policies()[:4]:
        net = _running(apply(_net(), plan), program)
        message = f"Net.blocks.0-3: {message.rpartition(': ')[2]}"
        with pytest.warns(PlanMismatchWarning, match=message) as caught_warnings:
            actual = _values(net)
        assert _equal(actual, expected), label
        assert len([w for w in caught_warnings if w.category is PlanMismatchWarning]) == 1
        strict = _running(apply(_net(), plan, strict=True), program)
        with pytest.raises(AcplanError, match=message):
            _values(strict)


def test_without_gradients_nothing_is_said() -> None:
    plan = _policies()[1][1]
    net = apply(_net(), plan, strict=True).eval()
    with torch.no_grad():
        assert not _running(net, _without_one)(_X).requires_grad
        torch.manual_seed(3)
        actual = _running(net, in_order)(_X)
        plain = _net().eval()
        torch.manual_seed(3)
        assert torch.equal(actual, plain(_X))
    with torch.inference_mode():
        net(_X)


def test_another_result_is_handed_on() -> None:
    """The same operators, of which the plan thinks that others are needed."""

    def other(net: Net, x: torch.Tensor) -> torch.Tensor:
        others = []
        for block in net.blocks:
            other, x = block(x, mask=torch.full((1,), 0.5))["out"]
            others.append(other)
        return x + sum(others)

    expected = _values(_running(_net(), other))
    plans = [plan for label, plan in _policies() if "0-3 " in label and "whole" not in label]
    count = 0
    for plan in plans:
        with warnings.catch_warnings(record=True) as caught_warnings:
            warnings.simplefilter("always")
            assert _equal(_values(_running(apply(_net(), plan), other)), expected)
        count += "reads the result of a skipped operator" in " ".join(
            str(w.message) for w in caught_warnings
        )
    assert count > 0


class Listing(nn.Module):
    """Blocks that put into a list what they have seen."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))
        for block in self.blocks:
            block.forward = functools.partial(self.call, block)  # type: ignore

    @staticmethod
    def call(block: nn.Linear, tensors: list[torch.Tensor], x: torch.Tensor) -> Any:
        y = F.linear(x, block.weight, block.bias).tanh() + len(tensors)
        tensors.append(y.detach())
        return y

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tensors: list[torch.Tensor] = [x * 3]
        y = x
        for block in self.blocks:
            y = block(tensors, y)
            tensors.append(x)
        return y + sum(tensors)


@pytest.mark.filterwarnings("ignore::acplan.PlanMismatchWarning")
def test_lists_are_as_they_were() -> None:
    torch.manual_seed(0)
    net = Listing()
    expected = _values(net)
    net.zero_grad()
    assert _equal(_values(apply(net, _plan_of("Listing.blocks.0-2"))), expected)


def test_a_run_is_called_twice() -> None:
    def twice(net: Net, x: torch.Tensor) -> torch.Tensor:
        return in_order(net, in_order(net, x))

    expected = _values(_running(_net(), twice))
    for label, plan in _policies():
        assert _equal(_values(_running(apply(_net(), plan, strict=True), twice)), expected), (
            label
        )


def test_backward_can_be_run_twice() -> None:
    def values(net: nn.Module) -> list[torch.Tensor]:
        torch.manual_seed(1)
        loss = net(_X).square().mean()
        loss.backward(retain_graph=True)
        loss.backward()
        return [p.grad for p in net.parameters() if p.grad is not None]

    expected = values(_net())
    for label, plan in _policies():
        assert _equal(values(apply(_net(), plan, strict=True)), expected), label


@pytest.mark.filterwarnings("ignore::acplan.PlanMismatchWarning")
def _note_result(references: list[Any], *call: Any) -> None:
    references.append(weakref.ref(call[2]))


def test_nothing_is_held_that_is_not_needed() -> None:
    """Without the garbage collector: a frame is not held by what it holds."""
    for program in (in_order, _computing, _writing):
        for label, plan in _policies():
            net = _running(apply(_net(), plan), program)
            first = weakref.ref(net.first)
            references = []
            net.first.register_forward_hook(functools.partial(_note_result, references))
            gc.disable()
            try:
                x = _X.clone().requires_grad_()
                _values(net, x)
                assert first() is not None and references[0]() is None, (program, label)
                out = net(x)
                assert references[1]() is not None or program is not in_order
                del out
                for block in _blocks(net):
                    block.last = None
                assert references[1]() is None, (program, label)
            finally:
                gc.enable()


def _blocks(net: nn.Module) -> Iterator[Block]:
    return (module for module in net.modules() if isinstance(module, Block))


# --- With other things around


def test_names_and_copies() -> None:
    plan = _policies()[2][1]
    net, plain = apply(_net(), plan, strict=True), _net()
    assert list(net.state_dict()) == list(plain.state_dict())
    net.load_state_dict(plain.state_dict())
    plain.load_state_dict(net.state_dict())
    expected = _values(_net())
    for copied_net in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert _equal(_values(copied_net), expected)
    # A copy that is called in between is another model.
    other = copy.deepcopy(net)

    def side_by_side(one: Net, x: torch.Tensor) -> torch.Tensor:
        y = x.detach()
        for block, other_block in zip(one.blocks, other.blocks):
            x = block(x, mask=_MASK)["out"][0]
            y = other_block(y, mask=_MASK)["out"][0]
        return x

    net.program = plain.program = side_by_side
    _values(net)
    assert type(remove(net).blocks[0]) is Block
    with applied(net, plan) as planned_net:
        assert type(planned_net.blocks[0]) is not Block
    assert type(net.blocks[0]) is Block
    net.program = in_order
    assert len(_values(net)) == len(expected)


def _plan_of(*fqns: str) -> Plan:
    return Plan(tuple(map(PlannedModule, fqns)))


@pytest.mark.parametrize(
    ("fqns", "message"),
    [
        (("Net.blocks.0-2", "Net.blocks.2-3"), "0-2 and Net.blocks.2-3: expected units"),
        (("Net.blocks.0-2", "Net.blocks.1"), "0-2 and Net.blocks.1: expected units"),
        (("Net.blocks.1", "Net.blocks.0-2"), "1 and Net.blocks.0-2: expected units"),
        (("Net.blocks.2-1",), "expected two children of Net.blocks, the first before"),
        (("Net.blocks.1-1",), "expected two children of Net.blocks, the first before"),
        (("Net.blocks.0-7",), "the model has no module 'Net.blocks.0-7'"),
        (("Net.nothing.0-1",), "the model has no module"),
        (("Other.0-1",), "is not in this Net"),
    ],
)
def test_what_is_no_run_is_refused(fqns: tuple[str, ...], message: str) -> None:
    net = _net()
    with pytest.raises(AcplanError, match=message):
        apply(net, _plan_of(*fqns))
    assert type(net.blocks[0]) is Block


def test_a_module_twice_is_refused() -> None:
    layer = nn.Linear(2, 2)
    with pytest.raises(AcplanError, match="expected different modules"):
        apply(nn.Sequential(layer, nn.ReLU(), layer), _plan_of("Sequential.0-2"))
    odd = nn.Sequential()
    for name in ("a", "a-b", "b", "b-b"):
        odd.add_module(name, nn.Linear(2, 2))
    with pytest.raises(AcplanError, match="a and b-b or a-b and b"):
        apply(odd, _plan_of("Sequential.a-b-b"))
    assert type(apply(odd, _plan_of("Sequential.a-b")).b) is nn.Linear


@pytest.mark.parametrize(
    "fqns",
    [
        ("Net", "Net.blocks.0-3"),
        ("Net.blocks.0-3", "Net.blocks.1.up", "Net.blocks.2.norm-down"),
        ("Net.first", "Net.blocks.0-1", "Net.blocks.2-3"),
        ("Net", "Net.blocks.0-1", "Net.blocks.1.up"),
    ],
)
def test_units_inside_and_around(fqns: tuple[str, ...]) -> None:
    expected = _values(_net())
    assert _equal(_values(apply(_net(), _plan_of(*fqns))), expected)


def test_units_with_policies_around_a_run_with_one() -> None:
    data = recorded_step(_net(), lambda net: net(_X).square().mean())
    expected = _values(_net())
    for seed in range(8):
        chance = random.Random(seed)
        outer = plan_by_chance(data, ["Net"], chance)
        inner = plan_by_chance(
            with_segment(data, _places(data, 1, 2)), ["Net.blocks.1-2"], chance
        )
        plan = Plan((*outer.modules, *inner.modules))
        assert _equal(_values(apply(_net(), plan)), expected), seed


def _places(data: dict[str, Any], *blocks: int) -> list[int]:
    names = [f"Net.blocks.{k}" for k in blocks]
    return [k for k, module in enumerate(data["modules"]) if module["fqn"] in names]


def test_it_saves_memory() -> None:
    """As much as one module around all."""
    sizes: list[int] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        sizes.append(tensor.numel())
        return tensor

    for plan in (_plan_of(), _plan_of("Net.blocks.0-3")):
        net = apply(_net(), plan, strict=True)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            net(_X)
        sizes.append(-1)
    without_plan = sum(sizes[: sizes.index(-1)])
    with_plan = sum(sizes[sizes.index(-1) :])
    assert 0 < with_plan < without_plan / 4
