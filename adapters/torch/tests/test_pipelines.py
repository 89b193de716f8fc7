"""Ranks of pipelines, traced as PyTorch's schedules run them."""

import functools
import pathlib
import tempfile
import types
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight
from torch.distributed.pipelining.schedules import _ComputationType, _PipelineScheduleRuntime
from torch.utils._python_dispatch import TorchDispatchMode

import acplan
from acplan import AcplanError, Plan, PlannedModule
from parallel_actions import actions_in_v
from parallel_models import WIDTH, Block
from parallel_pipelines import OWN, PipelineCase, Stage, mean_loss, pipeline_cases

pytestmark = pytest.mark.skipif(
    not hasattr(PipelineStage, "_recv_meta"), reason="pipelines of this PyTorch are not traced"
)


def _case(schedule: str, ranks: int = 2, microbatches: int = 2) -> PipelineCase:
    """Returns the case of a schedule's name, or of a format of a user's actions."""
    is_own = schedule.startswith("compute")
    return PipelineCase(
        schedule,
        {"pp": ranks},
        [],
        schedule=OWN if is_own else schedule,
        microbatches=microbatches,
        actions=schedule if is_own else "",
    )


def _arguments(case: PipelineCase, rank: int) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    args, kwargs = case.inputs(rank, case.tokens_of(0))
    make = functools.partial(case.make_on_meta_of, rank)
    return make, args, {**case.options_of(rank), **kwargs, "workspaces": False}


def _stages_in_order(trace: acplan.Trace) -> list[int]:
    """Returns, for each forward pass of a stage's first block, the place of its stage."""
    names = [module["fqn"].split(".") for module in trace.data["modules"]]
    calls = sorted(trace.data["calls"], key=lambda call: call["start"])
    paths = [names[call["module"]] for call in calls]
    return [int(path[1]) for path in paths if path[2:] == ["blocks", "0"]]


def _most_in_flight(trace: acplan.Trace, stage: int) -> int:
    """Returns the most microbatches of a stage whose blocks autograd keeps something of."""
    name = f"ModuleList.{stage}.blocks.0"
    modules = [module["fqn"] for module in trace.data["modules"]]
    calls = trace.data["calls"]
    events = []
    for place, call in enumerate(calls):
        if modules[call["module"]] != name:
            continue
        calls_inside = {place}
        for k in range(place + 1, len(calls)):
            if calls[k]["parent"] in calls_inside:
                calls_inside.add(k)
        ends = [s["released"] for s in trace.data["saved"] if s["call"] in calls_inside]
        events += [(call["start"], 1), (max(end for end in ends if end is not None), -1)]
    most = now = 0
    for _, change in sorted(events):
        now += change
        most = max(most, now)
    return most


@pytest.mark.parametrize(
    ("schedule", "rank", "most"),
    [("1F1B", 0, 3), ("1F1B", 2, 1), ("GPipe", 1, 4)],
)
def test_microbatches_in_flight_are_those_of_the_schedule(
    schedule: str, rank: int, most: int
) -> None:
    make, args, options = _arguments(_case(schedule, ranks=3, microbatches=4), rank)
    trace = acplan.trace(make, *args, **options)
    assert _most_in_flight(trace, 0) == most
    assert trace.data["pipeline"]["stages"] == [rank]
    assert sum("recv" in o["name"] for o in trace.data["operators"]) == 4 * (2 - (rank != 1))


@pytest.mark.parametrize("form", ["compute_only", "compute_comms"])
def test_actions_of_a_file_run_in_its_order(form: str) -> None:
    case = _case(form, microbatches=4)
    make, args, options = _arguments(case, 0)
    trace = acplan.trace(make, *args, **options)
    assert trace.data["pipeline"]["stages"] == [0, 3]
    # 0F0, 0F1, 0F2, 3F0, ..., 0B0, 0F3: more than 1F1B, fewer than GPipe.
    assert _most_in_flight(trace, 0) == 3
    row = map(str, actions_in_v(2, 4)[0])
    forward = [int(action[0] == "3") for action in row if action[1:2] == "F"]
    assert _stages_in_order(trace) == forward


@pytest.mark.parametrize("schedule", ["1F1B", "ZBVZeroBubble", "compute_comms"])
def test_memory_with_a_plan_is_that_of_the_stage(schedule: str) -> None:
    """In the second schedule, backward passes come in two parts, and units are nested. The
    third one is a user's own list of actions."""
    make, args, options = _arguments(_case(schedule), 1)
    trace = acplan.trace(make, *args, **options)
    assert not trace.notes
    names = ["0.blocks.0", "0.blocks.0.mlp", "0.blocks.1.attention"]
    plan = Plan(tuple(PlannedModule(f"ModuleList.{name}") for name in names))
    verification = acplan.verify(make, plan, *args, trace=trace, **options)
    assert verification.first_difference() is None
    assert len(verification.measured) > len(trace.data["operators"])


def test_a_sharded_stage_is_planned() -> None:
    """A pass of 1F1B before the last forward pass gathers parameters, too."""
    case = next(c for c in pipeline_cases(4) if c.name == "1F1B x fsdp")
    args, kwargs = case.inputs(1, case.tokens_of(0))
    make = functools.partial(case.make_on_meta_of, 1)
    trace = acplan.trace(make, *args, **case.options_of(2), **kwargs, workspaces=False)
    assert acplan.plan(trace, "min").modules


@pytest.mark.parametrize("name", ["1F1B x fsdp", "1F1B x tp", "1F1B x nested fsdp"])
def test_memory_with_a_plan_is_that_of_a_stage_on_several_ranks(name: str) -> None:
    (case,) = (case for case in pipeline_cases(4) if case.name == name)
    args, kwargs = case.inputs(1, case.tokens_of(0))
    make: Any = functools.partial(case.make_on_meta_of, 1)
    options = {**case.options_of(2), **kwargs, "workspaces": False}
    trace = acplan.trace(make, *args, **options)
    names = ["0.mlp", "1.attention"] if "nested" in name else ["0", "1.mlp"]
    plan = Plan(tuple(PlannedModule(f"ModuleList.0.blocks.{name}") for name in names))
    verification = acplan.verify(make, plan, *args, trace=trace, **options)
    assert verification.first_difference() is None


class _Counting(TorchDispatchMode):
    count = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.count += str(func) == "aten.gelu.default"
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("names", "most"), [(("0", "1"), 2), (("0.mlp",), 1), (("0", "0.mlp", "0.norm1"), 2)]
)
def test_a_unit_runs_again_once_for_a_backward_pass_in_parts(
    names: tuple[str, ...], most: int
) -> None:
    def gradients(plan: Plan | None) -> tuple[list[torch.Tensor], int]:
        torch.manual_seed(0)
        model: nn.Module = nn.Sequential(Block(), Block())
        if plan is not None:
            model = acplan.apply(model, plan)
        x = torch.randn(2, 16, WIDTH, requires_grad=True)
        # Only what a schedule runs may have a backward pass in parts.
        stage: Any = types.SimpleNamespace(submod=model)
        y = PipelineStage.forward_maybe_with_nosync(stage, x)
        with _Counting() as counting:
            _, groups = stage_backward_input([y], [torch.ones_like(y)], [x], model.parameters())
            stage_backward_weight(model.parameters(), groups)
        return [t.grad for t in (x, *model.parameters()) if t.grad is not None], counting.count

    expected, _ = gradients(None)
    plan = Plan(tuple(PlannedModule(f"Sequential.{name}") for name in names))
    actual, count = gradients(plan)
    assert len(expected) == len(actual) and all(map(torch.equal, expected, actual))
    # The MLP in a unit in a unit runs for both.
    assert count == most


def test_a_kept_graph_of_no_pipeline_runs_again_in_each_pass() -> None:
    block = acplan.apply(nn.Sequential(Block()), Plan((PlannedModule("Sequential.0"),)))
    loss = block(torch.randn(2, 16, WIDTH, requires_grad=True)).sum()
    with _Counting() as counting:
        loss.backward(retain_graph=True)
        loss.backward()
    assert counting.count == 2


def _schedule(inputs: Any = None, other: bool = False, loss: Any = mean_loss) -> Any:
    def make(model: nn.Module, mesh: Any) -> Any:
        stage = Stage(1, 2, 52) if other else model
        device = torch.device(mesh.device_type)
        group = mesh["pp"].get_group()
        stage = PipelineStage(stage, 1, 2, device, input_args=inputs, group=group)
        return ScheduleGPipe(stage, 2, loss_fn=loss)

    return make


_INPUT = torch.empty(2, 16, WIDTH, device="meta")


def _own_schedule(rows: str = "", form: Any = "compute_only") -> Any:
    def make(model: nn.Module, mesh: Any) -> Any:
        device, group = torch.device(mesh.device_type), mesh["pp"].get_group()
        stage = PipelineStage(model, 1, 2, device, input_args=_INPUT, group=group)
        schedule = _PipelineScheduleRuntime([stage], 2, loss_fn=mean_loss)
        if rows:
            with tempfile.TemporaryDirectory() as folder:
                path = pathlib.Path(folder, "actions.csv")
                path.write_text(rows)
                schedule._load_csv(str(path), form)
        return schedule

    return make


_ROWS = ("0F0,0F1,0B0,0B1", "1F0,1B0,1F1,1B1")


@pytest.mark.parametrize(
    ("schedule", "options", "message"),
    [
        (_schedule(), {}, "stage 1: expected input_args in PipelineStage, found none"),
        (_schedule(_INPUT, other=True), {}, "stage 1: expected a module of the model"),
        (_schedule(_INPUT, loss=None), {}, "expected one with a loss_fn"),
        (lambda *_: None, {}, "expected a function that returns a schedule .* found NoneType"),
        (
            _schedule(_INPUT),
            {"loss_fn": mean_loss},
            "loss_fn: cannot be combined with schedule",
        ),
        (_schedule(_INPUT), {"accumulate": 2}, "accumulate: cannot be combined with schedule"),
        (3, {}, "schedule: expected a function"),
        (_own_schedule(), {}, "expected a _PipelineScheduleRuntime with actions, found none"),
        (_own_schedule("\n".join(_ROWS[::-1])), {}, r"stages of rank 1, \[1\], found .* \[0\]"),
        (
            _own_schedule("\n".join(_ROWS), "compute_comms"),
            {},
            "schedule: Computing action=1F0 before receiving input",
        ),
    ],
)
def test_errors_are_told_in_a_line(schedule: Any, options: Any, message: str) -> None:
    def make() -> nn.Module:
        with torch.device("meta"):
            return Stage(1, 2, 52)

    target = torch.zeros(4, 16, dtype=torch.long)
    with pytest.raises(AcplanError, match=message):
        acplan.trace(make, mesh={"pp": 2}, rank=1, schedule=schedule, target=target, **options)


def test_a_custom_function_that_hides_forward_passes_is_refused() -> None:
    case = _case("compute_only")
    make, args, options = _arguments(case, 1)

    def nothing(action: Any, context: Any) -> None:
        pass

    def schedule(model: nn.Module, mesh: Any) -> Any:
        result = case.schedule_on(model, mesh)
        for kind in "FBIW":
            result.register_custom_function(_ComputationType(kind), nothing)
        result.pipeline_order_with_comms[1] = [
            action for action in result.pipeline_order_with_comms[1] if action.is_compute_op
        ]
        return result

    with pytest.raises(AcplanError, match="found 4 without: custom functions do not"):
        acplan.trace(make, *args, **{**options, "schedule": schedule})
