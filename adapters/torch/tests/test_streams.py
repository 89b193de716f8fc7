"""The streams of a rank's operators, and what they wait for."""

import functools
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

import acplan
from acplan import AcplanError, PlanStreams
from acplan._base.process_groups import NAMESPACES
from acplan._device.stream_waits import StreamWaits
from parallel_models import CASES

_BY_NAME = {case.name: case for case in CASES}


class _Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.nn.functional.gelu(self.up(x)))


def _make(width: int = 256) -> nn.Module:
    with torch.device("meta"):
        return nn.Sequential(*(_Block(width) for _ in range(4)))


def _shard(model: nn.Module, mesh: Any) -> None:
    for block in model.children():
        fully_shard(block, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])


@functools.cache
def _sharded_trace() -> acplan.Trace:
    arguments: dict[str, Any] = {"mesh": {"dp": 16}, "parallelize": _shard}
    return acplan.trace(_make, torch.zeros(64, 256), progress=False, device="h100", **arguments)


def _operators(trace: acplan.Trace, name: str) -> list[dict[str, Any]]:
    return [o | {"id": k} for k, o in enumerate(trace.data["operators"]) if name in o["name"]]


def test_fsdp_communicates_on_its_streams() -> None:
    trace = _sharded_trace()
    gathers = _operators(trace, "_allgather_base_")
    copies = _operators(trace, "all_gather_copy_in")
    assert len(gathers) == len(copies) > 4
    assert {o["stream"] for o in gathers} != {o["stream"] for o in copies}
    for copy, gather in zip(copies, gathers):
        assert copy["id"] in gather["waits"]
    for gather in gathers:
        waiting = [o for o in trace.data["operators"] if gather["id"] in o.get("waits", ())]
        assert any(o.get("stream", 0) == 0 for o in waiting)
    assert all(o["stream"] for o in _operators(trace, "_reduce_scatter_base_"))


def test_collectives_of_a_group_run_one_after_the_other() -> None:
    trace = _sharded_trace()
    operators = trace.data["operators"]
    collectives = [k for k, o in enumerate(operators) if o["name"].split(".")[0] in NAMESPACES]
    for before, after in zip(collectives, collectives[1:]):
        is_same = operators[before]["stream"] == operators[after]["stream"]
        assert is_same or before in operators[after]["waits"]


def test_the_update_waits_for_the_gradients() -> None:
    operators = _sharded_trace().data["operators"]
    last = max(k for k, o in enumerate(operators) if "_reduce_scatter" in o["name"])
    stream = operators[last]["stream"]
    backward_end = _sharded_trace().data["backward_end"]
    waits = [
        wait
        for o in operators[last:backward_end]
        if not o.get("stream")
        for wait in o.get("waits", ())
    ]
    assert any(wait >= last and operators[wait]["stream"] == stream for wait in waits)


@pytest.mark.parametrize("name", ["tp, sequence, loss", "fsdp x tp"])
def test_readers_wait_for_results_of_functional_collectives(name: str) -> None:
    case = _BY_NAME[name]
    if case.loss_is_split:
        from torch.distributed.tensor.parallel import loss_parallel

        with loss_parallel():
            trace = _trace_of(case)
    else:
        trace = _trace_of(case)
    operators = trace.data["operators"]
    functional = _operators(trace, "_c10d_functional")
    assert functional
    for collective in functional:
        assert collective["stream"]
        readers = [
            o
            for o in operators[collective["id"] + 1 :]
            if set(collective["creates"]) & set(o["reads"]) and not o.get("view")
        ]
        for reader in readers:
            assert any(wait >= collective["id"] for wait in reader["waits"])


def _trace_of(case: Any) -> acplan.Trace:
    tokens = torch.zeros(4, case.length, dtype=torch.long)
    return acplan.trace(case.make_on_meta, tokens, progress=False, **case.arguments)


def test_a_plan_costs_less_than_it_recomputes_while_the_step_waits() -> None:
    trace = _sharded_trace()
    own_plan = acplan.plan(trace, "min", without_host=True)
    streams = own_plan.streams
    assert streams is not None and streams.least_step_ms is not None
    added_ms = streams.step_ms - streams.baseline_ms
    assert 0 <= added_ms < own_plan.recompute_ms
    assert streams.baseline_ms <= streams.least_step_ms <= streams.step_ms
    assert streams.exposed_ms < streams.baseline_exposed_ms
    assert own_plan.overhead == pytest.approx(added_ms / streams.baseline_ms)
    assert "exposed" in str(own_plan)


def test_a_model_on_one_device_has_one_stream() -> None:
    with torch.device("meta"):
        model = nn.Sequential(_Block(64), _Block(64))
    trace = acplan.trace(model, torch.zeros(8, 64), progress=False)
    assert not any("stream" in o or "waits" in o for o in trace.data["operators"])
    assert acplan.plan(trace, "min").streams is None


def test_waits() -> None:
    waits = StreamWaits()
    assert waits.add(0, []) == []  # operator 0
    waits.wait(1, waits.mark(0))
    assert waits.add_collective(1, "a", [], []) == [0]  # 1
    assert waits.add(0, []) == []  # 2
    # Collectives of one group follow each other on any streams; those of others do not.
    assert waits.add_collective(2, "a", [], [7]) == [1]  # 3
    assert waits.add_collective(3, "b", [], []) == []  # 4
    # A reader of a result waits for it, again and again.
    assert waits.add(0, [7]) == [3]  # 5
    assert waits.add(0, [7]) == [3]  # 6
    waits.wait_for_result(0, 7)
    waits.wait_for_result(0, 8)
    assert waits.add(0, []) == [3]  # 7
    # A stream that waits for another one waits for what that waits for, too.
    waits.wait(1, waits.mark(2))
    waits.wait(0, waits.mark(1))
    assert waits.add(0, []) == [1, 3]  # 8


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (3, "plan: streams: expected an object, found 3"),
        ({"baseline_ms": 1}, "plan: streams: expected a key 'baseline_exposed_ms'"),
        ({"baseline_ms": "1"}, "plan: streams: baseline_ms: expected a number, found '1'"),
    ],
)
def test_wrong_streams_of_a_plan(data: Any, message: str) -> None:
    with pytest.raises(AcplanError) as error:
        PlanStreams.from_optional(data)
    assert str(error.value) == message
    assert PlanStreams.from_optional(None) is None
