"""Plans that offload: gradients bit for bit however late a copy is made, memory to the
byte, when what is asked for, and what is refused."""

import copy
import dataclasses
import gc
import pathlib
import pickle
import random
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import nn

from acplan import (
    AcplanError,
    Plan,
    PlanMismatchWarning,
    PlannedModule,
    apply,
    plan,
    remove,
    trace,
    verify,
)
from acplan import PlannedOperator as Op
from acplan._apply import offload
from acplan._base.host_link import Buffer, Copy, Link, Queues
from acplan._verify.simulated import simulate
from models import _larger
from offloading import Links, arguments_of, other_links, with_offload
from random_steps import legal_plan, outcome, require_equal_outcomes
from segments_of_traces import segments_by_chance
from sharding_cases import operators_of
from skipping import plan_by_chance, recorded_step, units_by_chance
from test_never_ends import STEPS, Net, _forward_backward, _net, _x
from test_segments import _is_unit
from test_skipping import _ARCHITECTURES, _loss, _model, _step
from zoo import EXAMPLES

_MODELS = (
    "gpt2", "vit", "resnet", "unet", "custom", "writing", "shared", "llama", "electra",
    "mistral", "opt",
)  # fmt: skip


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def links() -> Iterator[Links]:
    yield from other_links()


def _plan_of(data: dict[str, Any], seed: int) -> Plan:
    """Returns a plan of units, or of segments."""
    chance = random.Random(seed)
    if seed % 2:
        with_runs, names = segments_by_chance(data, chance)
        usable = [name for name in names if _is_unit(with_runs, name)]
        if usable:
            plan = plan_by_chance(with_runs, usable, chance)
            return with_offload(plan, chance, arguments=arguments_of(with_runs))
    plan = plan_by_chance(data, units_by_chance(data, chance), chance)
    whole = tuple(
        PlannedModule(unit.fqn) if chance.random() < 0.3 else unit for unit in plan.modules
    )
    return with_offload(Plan(whole), chance, arguments=arguments_of(data))


@pytest.mark.parametrize("name", _MODELS)
def test_gradients_are_equal_with_any_legal_plan(name: str, links: Links) -> None:
    model, inputs = _model(name)
    autocast = _MODELS.index(name) % 3 == 2
    if name in _ARCHITECTURES:
        _step(model, inputs, autocast)  # makes what later steps find
        model.zero_grad()
    expected = _step(copy.deepcopy(model), inputs, autocast)
    data = recorded_step(copy.deepcopy(model), lambda net: _loss(net, inputs, autocast))
    for seed in range(2):
        plan = _plan_of(data, seed)
        links.kind = ("late", "streams")[seed]
        # A plan that is not followed raises.
        actual = _step(apply(copy.deepcopy(model), plan, strict=True), inputs, autocast)
        assert len(actual) == len(expected)
        assert all(map(torch.equal, actual, expected)), seed
    assert links.request_count > 0 and links.pool_bytes > links.used_bytes == 0


@pytest.mark.parametrize(
    ("name", "autocast"),
    [(name, None) for name in ("unet", "writing", "shared")] + [("resnet", torch.bfloat16)],
)
def test_predicted_is_measured_at_every_operator(
    name: str, autocast: torch.dtype | None
) -> None:
    model, inputs = EXAMPLES[name]().on_meta()
    traced = trace(model, autocast=autocast, **inputs)
    differ = False
    for seed in range(2):
        plan = _plan_of(traced.data, seed)
        result = verify(model, plan, trace=traced, autocast=autocast, **inputs)
        assert result.first_difference() is None, result
        saving = simulate(traced, with_offload(plan, random.Random(0), 0))
        assert [s.name for s in saving] == [s.name for s in result.measured]
        differ |= saving != result.measured
    assert differ


def test_plans_of_acplan_are_exact_on_the_device_and_the_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    created_links: list[Link] = []
    sizes: list[int] = []

    class Counting(Link):
        def __init__(self, queues: Queues) -> None:
            super().__init__(queues)
            created_links.append(self)

        def send(self, source: torch.Tensor, buffer: Buffer) -> Copy:
            sizes.append(len(source))
            return super().send(source, buffer)

    monkeypatch.setattr(offload, "Link", Counting)
    model, inputs = _larger("gpt2", 3)().on_meta()
    traced = trace(model, **inputs)
    options = {"decisions": "save,recompute,skip", "segments": "auto"}
    without_offload = plan(traced, "77%", **options)
    with_offload = plan(traced, "77%", offload="400GB/s", host_memory="1GiB", **options)
    assert with_offload.stall_ms is not None and without_offload.stall_ms is None
    assert with_offload.recompute_ms + with_offload.stall_ms < without_offload.recompute_ms
    result = verify(model, with_offload, trace=traced, **inputs)
    assert result.first_difference() is None, result
    assert with_offload.peak_bytes == result.measured_bytes
    figures = with_offload.data["offload"]
    assert [link.most_used_bytes for link in created_links] == [figures["host_bytes"]]
    # In the steps before the one that counts, too, if there are any.
    steps = len(sizes) // figures["storages"]
    assert steps > 0 and len(sizes) == steps * figures["storages"]
    assert sum(sizes) == steps * figures["sent_bytes"]


# --- Steps that were not planned


def _offloading_by_chance(net: nn.Module, seed: int) -> Plan:
    chance = random.Random(seed)
    while True:
        plan = with_offload(legal_plan(net, chance.randrange(100)), chance, 0.8, 1)
        if any(module.offloads for module in plan.modules):
            return plan


@pytest.mark.filterwarnings("ignore::acplan.PlanMismatchWarning")
@pytest.mark.parametrize("name", STEPS)
def test_steps_that_were_not_planned(name: str, links: Links) -> None:
    expected = outcome(_net(), STEPS[name])
    for seed in range(2):
        links.kind = ("streams", "late")[seed]
        actual = outcome(apply(_net(), _offloading_by_chance(_net(), seed)), STEPS[name])
        assert len(actual) == len(expected) and all(map(torch.equal, actual, expected))
    gc.collect()
    assert links.request_count > 0 and links.used_bytes == 0


@pytest.mark.filterwarnings("ignore::acplan.PlanMismatchWarning")
def test_random_modules_and_steps(links: Links) -> None:
    chance = random.Random(0)
    for links.kind in ["late", "streams"] * 5:
        require_equal_outcomes(chance, lambda plan: with_offload(plan, chance, arguments=1))
    assert links.request_count > 20


class _Writing(nn.Module):
    """A module that writes to what is saved, by operators that are saved, too."""

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
    saved = ("addmm", "view", "mul_", "relu_")
    for offloaded in (saved, ("addmm",), ("addmm", "relu_"), ("mul_",)):
        operators = tuple(
            Op(n, any(k in n for k in saved), offload=any(k in n for k in offloaded))
            for n in names
        )
        plan = Plan(tuple(PlannedModule(f"Net.blocks.{k}", operators) for k in range(2)))
        expected = outcome(_net(_Writing), _forward_backward)
        for links.kind in ("late", "early", "streams"):
            before = links.request_count
            actual = outcome(apply(_net(_Writing), plan, strict=True), _forward_backward)
            assert all(map(torch.equal, actual, expected)) and links.request_count > before


class _Written(Net):
    """Its units' results are written to."""

    def forward(self, x: torch.Tensor, **_: Any) -> torch.Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x).sub_(1)
        return x


@pytest.mark.parametrize("kind", ["late", "early", "streams"])
def test_results_of_units_may_be_written_to(kind: str, links: Links) -> None:
    """A saved result is lost if it is written to, unless the host has it already."""
    links.kind = kind
    names = operators_of(_Writing(), _x())

    def with_saved(saved: tuple[str, ...]) -> list[torch.Tensor]:
        torch.manual_seed(0)
        is_saved = [any(part in name for part in saved) for name in names]
        ops = tuple(Op(n, k, offload=k) for n, k in zip(names, is_saved) if saved)
        plan = tuple(PlannedModule(f"_Written.blocks.{k}", ops) for k in range(2))
        return outcome(apply(_Written(_Writing), Plan(plan)), _forward_backward)

    expected = with_saved(())
    assert links.request_count == 0
    actual = with_saved(("exp",))
    assert all(map(torch.equal, actual, expected)) and links.request_count > 0


# --- When


class _Wide(nn.Module):
    def __init__(self, log: list[str], place: int) -> None:
        super().__init__()
        self.up = nn.Linear(8, 8 * (place + 1))
        # Not the list, which a recomputation leaves as it was.
        self.tell, self.place = log.append, place

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.tell(f"unit {self.place}")
        return x + self.up(x).sin().mean(-1, keepdim=True)


class _Run(nn.Module):
    """Units in any order, each any number of times."""

    def __init__(self, log: list[str]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.units = nn.ModuleList(_Wide(log, place) for place in range(3))
        self.order = [0, 1, 2]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for place in self.order:
            x = self.units[place](x)
        return x


def _offloading_products(units: Sequence[int]) -> tuple[PlannedModule, ...]:
    """Returns units that offload their products: of two rows, unit 0 sends 64 bytes, 1 and 2
    two and three times that."""
    names = operators_of(_Wide([], 0), torch.ones(2, 8))
    operators = tuple(Op(n, "addmm" in n, offload="addmm" in n) for n in names)
    return tuple(PlannedModule(f"_Run.units.{k}", operators) for k in units)


def _run_planned(log: list[str]) -> nn.Module:
    return apply(_Run(log), Plan(_offloading_products((0, 1, 2))), strict=True)


def test_what_is_asked_for_when(links: Links) -> None:
    loss = _run_planned(links.log)(torch.ones(2, 8)).sum()
    links.log.append("backward")
    loss.backward()
    assert links.log == [
        "unit 0", "send 64",
        "unit 1", "send 128", "send 64 ends",
        "unit 2", "send 192", "send 128 ends",
        "backward",
        "send 192 ends", "fetch 192", "fetch 128", "fetch 192 ends", "unit 2",
        "fetch 64", "fetch 128 ends", "unit 1",
        "fetch 64 ends", "unit 0",
    ]  # fmt: skip


def test_units_that_send_nothing_count(links: Links) -> None:
    plan = Plan((*_offloading_products((0,)), PlannedModule("_Run.units.1")))
    loss = apply(_Run(links.log), plan, strict=True)(torch.ones(2, 8)).sum()
    assert links.log == ["unit 0", "send 64", "unit 1", "send 64 ends", "unit 2"]
    links.log.clear()
    loss.backward()
    assert links.log == ["fetch 64", "unit 1", "fetch 64 ends", "unit 0"]


@pytest.mark.parametrize("kind", ["late", "streams"])
@pytest.mark.parametrize(
    "orders",
    [
        [[0, 1, 2], [2, 1, 0], [0, 1, 2]],
        [[0], [1, 2], [0, 0, 0], [2]],
        [[0, 1, 2, 0, 1, 2], [1], [2, 0]],
    ],
)
def test_units_in_any_order(orders: list[list[int]], kind: str, links: Links) -> None:
    links.kind = kind

    def losses(model: nn.Module) -> list[torch.Tensor]:
        x = torch.ones(2, 8, requires_grad=True)
        values = []
        for order in orders:
            model.order = order
            values.append(model(x).sum())
            values[-1].backward()
        # Graphs of several steps, one of which nobody goes through.
        model.order = [0, 1, 2]
        several = [model(x * k).sum() for k in range(3)]
        several[0].backward()
        several.pop(1)
        several[1].backward()
        (of_x,) = torch.autograd.grad(model(x).square().sum(), x, create_graph=True)
        of_x.square().sum().backward()
        assert x.grad is not None
        return [*values, x.grad, *(p.grad for p in model.parameters())]

    expected = losses(_Run([]))
    actual = losses(_run_planned(links.log))
    assert all(map(torch.equal, actual, expected)) and len(actual) == len(expected)
    del actual, expected
    gc.collect()
    assert links.used_bytes == 0 < links.pool_bytes


class _Stop(Exception):
    pass


def test_an_exception_in_between(links: Links) -> None:
    def stop(*_: Any) -> None:
        raise _Stop

    model = _run_planned(links.log)
    for unit in (0, 1, 2):
        handle = model.units[unit].up.register_forward_hook(stop)
        with pytest.raises(_Stop):
            model(torch.ones(2, 8))
        handle.remove()
        loss = model(torch.ones(2, 8)).sum()
        handle = model.units[unit].up.register_forward_hook(stop)
        with pytest.raises(_Stop):
            loss.backward()
        handle.remove()
    model.zero_grad()
    links.log.clear()
    model(torch.ones(2, 8)).sum().backward()
    in_forward = [line for line in links.log if "send" in line and "ends" not in line]
    assert in_forward == ["send 64", "send 128", "send 192"]
    expected = _Run([])
    expected(torch.ones(2, 8)).sum().backward()
    for a, b in zip(model.parameters(), expected.parameters(), strict=True):
        assert torch.equal(a.grad, b.grad)
    del loss
    gc.collect()
    assert links.used_bytes == 0


def test_evaluation_sends_nothing(links: Links) -> None:
    model = _run_planned(links.log)
    with torch.no_grad():
        model(torch.ones(2, 8))
    with torch.inference_mode():
        model(torch.ones(2, 8))
    assert links.log == ["unit 0", "unit 1", "unit 2"] * 2


def test_buffers_are_used_again(links: Links) -> None:
    model = _run_planned(links.log)
    sizes = []
    for rows in (2, 2, 2, 4, 1, 2, 2):
        model(torch.ones(rows, 8)).sum().backward()
        sizes.append(links.pool_bytes)
    assert sizes[:4] == [384, 384, 384, 768] and sizes[-1] == sizes[-2]
    assert max(sizes) == links.list[0].most_used_bytes and links.used_bytes == 0


def test_copies_of_a_model(links: Links) -> None:
    plan = _offloading_by_chance(_net(), 0)
    expected = outcome(_net(), _forward_backward)
    model = apply(_net(), plan)
    for copied_model in (copy.deepcopy(model), apply(remove(copy.deepcopy(model)), plan)):
        actual = outcome(copied_model, _forward_backward)
        assert all(map(torch.equal, actual, expected))
    before = links.request_count
    actual = outcome(remove(model), _forward_backward)
    assert all(map(torch.equal, actual, expected)) and links.request_count == before > 0


def test_segments_can_be_pickled() -> None:
    ops = (Op("aten.addmm.default", True, offload=True),)
    model = apply(_Run([]), Plan((PlannedModule("_Run.units.0-1", ops),)))
    places = [model.units[k].checkpoint_fn for k in (0, 1)]
    copies = pickle.loads(pickle.dumps(places))
    assert copies[0].segment is copies[1].segment
    assert copies[0].segment.traffic is not None
    assert copies[0].segment.traffic is not places[0].segment.traffic


# --- What is refused


@pytest.mark.parametrize("outer", ["Net.blocks.0", "Net.blocks.0-1"])
def test_offload_inside_a_unit_is_refused(outer: str) -> None:
    offloaded = (Op("aten.addmm.default", True, offload=True),)
    inner = PlannedModule("Net.blocks.0.mlp", offloaded)
    message = f"Net.blocks.0.mlp is inside {outer}: expected offload only in units"
    with pytest.raises(AcplanError, match=message):
        apply(_net(), Plan((PlannedModule(outer), inner)))
    apply(_net(), Plan((PlannedModule(outer, offloaded), PlannedModule(inner.fqn))))


class _Calling(nn.Module):
    """Its first unit calls the second one."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.units = nn.ModuleList(_Wide([], 0) for _ in range(2))
        self.units[0].forward = lambda x: self.units[1](x)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.units[0](x)


def test_a_unit_called_in_another_one_keeps_all_on_the_device(links: Links) -> None:
    _, inner = _offloading_products((0, 1))
    inner = dataclasses.replace(inner, fqn="_Calling.units.1")
    plan = Plan((PlannedModule("_Calling.units.0"), inner))
    text = "called inside another unit: what the plan offloads stays on the device"
    x = torch.ones(2, 8)
    with pytest.raises(AcplanError, match=text):
        apply(_Calling(), plan, strict=True)(x)
    expected, model = _Calling(), apply(_Calling(), plan)
    expected(x).sum().backward()
    with pytest.warns(PlanMismatchWarning, match=text):
        model(x).sum().backward()
    for a, b in zip(model.units[1].parameters(), expected.units[1].parameters()):
        assert torch.equal(a.grad, b.grad)
    assert links.request_count == 0


def test_under_the_compiler_all_stays_on_the_device(links: Links) -> None:
    text = "under torch.compile, what the plan offloads"
    x = torch.ones(2, 8)
    torch._dynamo.reset()
    with pytest.raises(Exception, match=text):
        torch.compile(_run_planned([]), backend="aot_eager")(x)
    torch._dynamo.reset()
    expected = _Run([])
    expected(x).sum().backward()
    arguments = (PlannedModule("_Run.units.1", offloaded_arguments=(0,)),)
    for units in (_offloading_products((1,)), arguments):
        model = apply(_Run([]), Plan(units))
        torch._dynamo.reset()
        with pytest.warns(PlanMismatchWarning, match=text):
            torch.compile(model, backend="aot_eager")(x).sum().backward()
        for a, b in zip(model.parameters(), expected.parameters(), strict=True):
            torch.testing.assert_close(a.grad, b.grad)
    assert links.request_count == 0


def test_plan_files(tmp_path: pathlib.Path) -> None:
    operators = (
        Op("aten.mm.default", True, results=(0,), offload=True),
        Op("aten.cos.default", True),
        Op("aten.sin.default", True, offload=True),
    )
    plan = Plan((PlannedModule("Net.a", operators, offloaded_arguments=(0, 2)),))
    plan.save(tmp_path / "plan.json", model="Net")
    assert Plan.load(tmp_path / "plan.json").modules == plan.modules
    with pytest.raises(AcplanError, match="save, recompute, skip, offload, found 'send'"):
        Op.from_data({"name": "mm", "decision": "send"})
    with pytest.raises(AcplanError, match="mm is offloaded, but not saved"):
        Op("mm", False, offload=True)
