"""Ranks of parallel models: traced without the other ranks, and planned."""

import contextlib
import dataclasses
import functools
import math
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FullyShardedDataParallel,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)
from torch.distributed.tensor.parallel import loss_parallel
from torch.testing._internal.distributed.fake_pg import FakeStore

import acplan
from acplan._base.host_links import link_of_gpu
from acplan._base.tensors import block_bytes
from acplan._device.host_copy_times import UPDATED_ON_CPU
from acplan._device.kernel_times import LAUNCH_SECONDS
from acplan._step.training_step import TrainingStep, training_step
from parallel_attention import context_cases
from parallel_experts import expert_cases, sharded_beside_experts
from parallel_models import CASES, PINNED, Case, loss_of, sharded, tensor_parallel
from run_events import difference, predicted_requests, real_requests

_BY_NAME = {case.name: case for case in (*CASES, *context_cases(2), *expert_cases(2))}
_TOKENS = torch.zeros(4, 16, dtype=torch.long)


def tokens_of(case: Case) -> torch.Tensor:
    return torch.zeros(4, case.length, dtype=torch.long)


@functools.cache
def _trace(name: str) -> acplan.Trace:
    case = _BY_NAME[name]
    with loss_parallel() if case.loss_is_split else contextlib.nullcontext():
        tokens = tokens_of(case)
        return acplan.trace(case.make_on_meta, tokens, progress=False, **case.arguments)


def step_with(
    case: Case, trace: acplan.Trace, plan: acplan.Plan | None, tokens: torch.Tensor
) -> TrainingStep:
    """Returns the step of a case's rank, with a plan where training applies it."""
    training = training_step(case.make_on_meta, (tokens,), dict(case.arguments))
    assert training.parallel is not None
    if plan is None:
        return training
    functions = training.parallel.with_plan(
        lambda model: acplan.apply(model, plan, strict=True),
        trace.data["parallel"]["plan_first"],
    )
    return dataclasses.replace(training, parallelize=functions)


@pytest.mark.parametrize(
    "name",
    [
        "bfloat16",
        "fsdp x tp",
        "tp, sequence, loss",
        "synchronised last",
        "on the host, hsdp, bfloat16",
        "cp, all-to-all",
        "fsdp x ep, uneven counts",
    ],
)
def test_memory_with_a_plan_is_that_of_the_sharded_model(name: str) -> None:
    case, trace = _BY_NAME[name], _trace(name)
    with loss_parallel() if case.loss_is_split else contextlib.nullcontext():
        plan = acplan.plan(trace, "min")
        assert plan.modules and plan.peak_bytes < trace.peak_bytes
        verification = acplan.verify(
            case.make_on_meta, plan, tokens_of(case), trace=trace, **case.arguments
        )
    assert verification.first_difference() is None
    assert not dist.is_initialized()


def _gathers(names: list[str]) -> int:
    return names.count("c10d._allgather_base_.default")


@pytest.mark.parametrize("options", [{}, PINNED], ids=["on the device", "on the host"])
def test_a_layer_around_sharded_experts_gathers_their_parameters_once(
    options: dict[str, Any],
) -> None:
    (case,) = [case for case in expert_cases(4) if case.name == "fsdp x ep"]
    shard = functools.partial(sharded_beside_experts, **options)
    case = dataclasses.replace(case, functions=[*case.functions[:-1], shard])
    tokens = tokens_of(case)
    trace = acplan.trace(case.make_on_meta, tokens, progress=False, **case.arguments)
    gathers = _gathers([operator["name"] for operator in trace.data["operators"]])
    names = ["ExpertNet.blocks.0", "ExpertNet.blocks.1.mlp"]
    units = acplan.Plan(tuple(map(acplan.PlannedModule, names)))
    (planned_unit,) = acplan.plan(trace, "min", ac_units=["ExpertNet.blocks.0"]).modules
    hooks = [operator.name for operator in planned_unit.operators if operator.once]
    assert "_allgather_base_" in " ".join(hooks)
    for plan in (units, acplan.Plan((planned_unit,))):
        verification = acplan.verify(
            case.make_on_meta, plan, tokens, trace=trace, **case.arguments
        )
        assert verification.first_difference() is None
        assert _gathers([o.name for o in verification.measured]) == gathers


@pytest.mark.parametrize("change", ["casts", "calls twice", "resharded to 2"])
def test_a_layer_is_no_unit_if_the_hooks_of_its_experts_do_more_than_gather(
    change: str,
) -> None:
    def shard(model: nn.Module, mesh: Any) -> None:
        policy = MixedPrecisionPolicy(output_dtype=torch.bfloat16)
        for block in model.get_submodule("blocks").children():
            attention = block.get_submodule("attention")
            linear = attention.get_submodule("o")
            if change == "calls twice":
                attention.v = linear
            fully_shard(
                linear,
                mesh=mesh["dp"],
                mp_policy=policy if change == "casts" else MixedPrecisionPolicy(),
                reshard_after_forward=2 if change == "resharded to 2" else True,
            )
            fully_shard(block, mesh=mesh["dp"])
        fully_shard(model, mesh=mesh["dp"])

    case = _BY_NAME["fsdp"]
    arguments = {**case.arguments, "mesh": {"dp": 4}, "parallelize": shard}
    trace = acplan.trace(case.make_on_meta, _TOKENS, progress=False, **arguments)
    names = {module["fqn"]: k for k, module in enumerate(trace.data["modules"])}
    calls = [call for call in trace.data["calls"] if call["module"] == names["Net.blocks.0"]]
    assert [call.get("no_grad") for call in calls] == [True]


@pytest.mark.parametrize("name", ["hsdp, bfloat16", "on the host"])
def test_requests_to_the_allocator_are_those_of_the_sharded_model(name: str) -> None:
    """Each stream has its own blocks: copies and collectives of FSDP run beside the step."""
    case = _BY_NAME[name]
    trace = acplan.trace(
        case.make_on_meta, _TOKENS, workspaces=False, progress=False, **case.arguments
    )
    plan = acplan.plan(trace, "min")
    for one in (None, plan):
        real = real_requests(step_with(case, trace, one, _TOKENS))
        assert {request.stream for request in real} == {0, 1, 3}
        assert not difference(real, predicted_requests(trace, one))


@contextlib.contextmanager
def _parallel_already(case: Case, policy: OffloadPolicy) -> Iterator[nn.Module]:
    """Yields a model that its user has made parallel, in a fake group."""
    shape, names = tuple(case.mesh.values()), tuple(case.mesh)
    size = math.prod(shape)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=size)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
    model = case.make()
    tensor_parallel()(model, mesh)
    sharded("replicate", "dp", offload_policy=policy)(model, mesh)
    try:
        yield model
    finally:
        dist.destroy_process_group()


def test_a_model_that_is_parallel_already_is_traced_as_it_is() -> None:
    case, trace = _BY_NAME["hsdp x tp"], _trace("hsdp x tp")
    with _parallel_already(case, OffloadPolicy()) as model:
        loss_of(model, _TOKENS).backward()
        model.zero_grad()
        options: Any = {"forward_fn": loss_of, "progress": False}
        own = acplan.trace(model, _TOKENS, **options)
        assert own.data | {"parallel": 0} == trace.data | {"parallel": 0}
        assert own.data["parallel"] == {"mesh": case.mesh, "rank": 0}
        plan = acplan.plan(own, "min")
        verification = acplan.verify(model, plan, _TOKENS, trace=own, forward_fn=loss_of)
        assert plan.modules and verification.first_difference() is None
        loss_of(model, _TOKENS).backward()


def test_a_model_on_the_host_that_is_parallel_already_stays_there() -> None:
    policy = CPUOffloadPolicy(pin_memory=False)
    functions = [tensor_parallel(), sharded("replicate", "dp", offload_policy=policy)]
    case = dataclasses.replace(_BY_NAME["hsdp x tp"], functions=functions)
    expected = acplan.trace(case.make_on_meta, _TOKENS, progress=False, **case.arguments)
    with _parallel_already(case, policy) as model:
        own = acplan.trace(model, _TOKENS, forward_fn=loss_of, progress=False)
        assert own.data | {"parallel": 0} == expected.data | {"parallel": 0}
        loss_of(model, _TOKENS).backward()


def _copies(trace: acplan.Trace) -> list[tuple[str, int, int, float]]:
    """Returns the copies to the host and back: where to, the stream, bytes and time."""
    storages = trace.data["storages"]
    copies = []
    for operator in trace.data["operators"]:
        on_host = [storages[s].get("host_bytes", 0) for s in operator["reads"]]
        results = [storages[s] for s in operator["outputs"]]
        if operator["name"] != "aten._to_copy.default" or len(on_host) != 1:
            continue
        (result,) = results
        stream, time = operator.get("stream", 0), operator["runtime_ms"]
        if on_host[0] and result["bytes"]:
            copies.append(("device", stream, result["bytes"], time))
        elif not on_host[0] and result.get("host_bytes"):
            copies.append(("host", stream, result["host_bytes"], time))
    return copies


def test_shards_come_from_the_host_and_gradients_go_there() -> None:
    trace, plain = _trace("on the host"), _trace("fsdp")
    link = link_of_gpu("a100")
    shards = len(trace.data["model_tensors"]["parameters"])
    # Blocks, with 12 parameters each, are gathered in both passes, the root in one.
    assert Counter((where, stream) for where, stream, _, _ in _copies(trace)) == {
        ("device", 1): shards + 24,
        ("host", 3): shards,
    }
    for where, _, size, time in _copies(trace):
        rate = link.to_host if where == "host" else link.to_device
        assert time == pytest.approx(1e3 * (LAUNCH_SECONDS + size / rate))
    on_host = [s for s in trace.data["storages"] if "host_bytes" in s]
    assert {s["category"] for s in on_host} >= {"parameter", "gradient", "optimizer"}
    assert not any(s["bytes"] for s in on_host)
    # The device has the same step without shards, gradients and states.
    state = sum(
        block_bytes(s["bytes"])
        for s in plain.data["storages"]
        if s["born"] < 0 and s["category"] in ("parameter", "optimizer")
    )
    assert plain.live_bytes[0] - trace.live_bytes[0] == state > 0
    (note,) = [note for note in trace.data["notes"] if "host's memory" in note]
    assert "fully_shard" in note


def test_a_fused_update_on_the_host_takes_the_time_of_a_measured_one() -> None:
    trace = _trace("on the host, fused update")
    parameters = trace.data["model_tensors"]["parameters"]
    (update,) = [o for o in trace.data["operators"] if "_fused_adamw_" in o["name"]]
    seconds = sum(p["bytes"] for p in parameters) / 4 / UPDATED_ON_CPU
    assert update["runtime_ms"] == pytest.approx(1e3 * (LAUNCH_SECONDS + seconds), rel=0.02)


def test_a_plan_s_results_may_be_on_the_host_beside_the_parameters() -> None:
    """Their copies share the link."""
    case = _BY_NAME["on the host"]
    trace = acplan.trace(
        case.make_on_meta, _TOKENS, workspaces=False, progress=False, **case.arguments
    )
    plan = acplan.plan(trace, "min", offload="pcie4")
    assert plan.data["offload"]["sent_bytes"] > 0
    verification = acplan.verify(
        case.make_on_meta, plan, _TOKENS, trace=trace, **case.arguments
    )
    assert verification.first_difference() is None


def test_the_host_waits_for_copies_of_memory_that_is_not_pinned() -> None:
    """Operators that it queues later wait for them on all streams."""
    pinned, other = _trace("on the host"), _trace("on the host, not pinned")
    waits = [
        [operator.get("waits", []) for operator in t.data["operators"]] for t in (pinned, other)
    ]
    assert pinned.live_bytes == other.live_bytes
    assert all({*few} <= {*many} or max(few) <= max(many) for few, many in zip(*waits))
    assert sum(map(len, waits[0])) < sum(map(len, waits[1]))
    # The update waits for the last copy in both.
    update = pinned.data["backward_end"]
    for trace in (pinned, other):
        last = max(k for k, o in enumerate(trace.data["operators"]) if o.get("stream") == 3)
        assert any(last in o.get("waits", []) for o in trace.data["operators"][last:update])


def test_fsdp1_is_refused() -> None:
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        model = FullyShardedDataParallel(nn.Linear(4, 4), device_id=torch.device("cpu"))
        with pytest.raises(acplan.AcplanError, match="FSDP1"):
            acplan.trace(model, torch.zeros(2, 4), progress=False)
    finally:
        dist.destroy_process_group()


def test_a_trace_has_the_rank_s_own_operators_and_bytes() -> None:
    traces = {0: _trace("uneven"), 6: _trace("the last rank")}
    whole = [p.numel() * 4 for p in _BY_NAME["fsdp"].make_on_meta().parameters()]
    bytes_of = {
        rank: sum(p["bytes"] for p in trace.data["model_tensors"]["parameters"])
        for rank, trace in traces.items()
    }
    assert sum(whole) // 7 < bytes_of[0] and bytes_of[6] < sum(whole) // 7
    names = {rank: [o["name"] for o in t.data["operators"]] for rank, t in traces.items()}
    assert names[0] == names[6]
    # Each of two blocks and the root, in forward, and each block again in backward.
    assert names[0].count("c10d._allgather_base_.default") == 5
    assert names[0].count("c10d._reduce_scatter_base_.default") == 3
    forward = names[0][: traces[0].data["forward_end"]]
    assert forward.count("c10d._allgather_base_.default") == 3


def test_whole_parameters_come_and_go() -> None:
    trace = _trace("fsdp")
    never_freed = _trace("kept")
    block = sum(p.numel() * 4 for p in _BY_NAME["fsdp"].make_on_meta().blocks[0].parameters())
    # In backward the first block is whole beside the second one.
    assert never_freed.peak_bytes - trace.peak_bytes > block / 2


def test_products_with_gathered_weights_run_again() -> None:
    """Gathering writes weights anew before a block runs again, with the values they had."""
    plan = acplan.plan(_trace("fsdp"), "min")
    decisions = {
        (operator["name"], operator["decision"])
        for module in plan.data["modules"]
        for operator in module["ops"]
    }
    assert ("addmm", "recompute") in decisions


def test_no_unit_is_around_a_sharded_module() -> None:
    plan = acplan.plan(_trace("fsdp"), "min", ac_units=["Net"])
    assert not plan.modules


@pytest.mark.parametrize(
    "options, message",
    [
        ({"mesh": {"dp": 0}}, "mesh['dp']: expected a whole number, 1 or more, found 0"),
        ({"mesh": [4]}, "mesh: expected the sizes of its dimensions by name"),
        ({"parallelize": None}, "mesh: expected parallelize with it, found none"),
        ({"mesh": None}, "parallelize: expected mesh with it, found none"),
        ({"rank": 4}, "rank: expected less than 4, the size of the mesh, found 4"),
        ({"parallelize": [3]}, "parallelize: expected a function of the model and the mesh"),
        ({"values": "real"}, "values: expected a model on one device"),
        ({"expert_shares": [1, -1]}, "expert_shares: expected a list of the relative numbers"),
        ({"microbatch_context": 3}, "microbatch_context: expected a function of an acplan."),
        ({"microbatch_context": id}, "microbatch_context: expected it to return a context"),
    ],
)
def test_wrong_options_are_refused_in_one_line(
    options: dict[str, object], message: str
) -> None:
    case = _BY_NAME["fsdp"]
    arguments = {**case.arguments, **options}
    with pytest.raises(acplan.AcplanError) as refused:
        acplan.trace(case.make_on_meta, _TOKENS, progress=False, **arguments)
    assert str(refused.value).startswith(message)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "mesh", "message"),
    [
        ("fsdp x tp", {"dp": 2, "tp": 3}, "the 3 ranks of 'tp' do not divide 32, a dimension"),
        ("tp", {"tp": 8}, "a mesh that divides heads, experts and sequences"),
        ("fsdp x ep", {"edp": 1, "ep": 3}, "the 3 ranks of 'ep' do not divide 4, a dimension"),
    ],
)
def test_a_mesh_that_does_not_divide_is_named(
    name: str, mesh: dict[str, int], message: str
) -> None:
    case = _BY_NAME[name]
    arguments = {**case.arguments, "mesh": mesh}
    with pytest.raises(acplan.AcplanError, match=message) as refused:
        acplan.trace(case.make_on_meta, tokens_of(case), progress=False, **arguments)
    assert "\n" not in str(refused.value)


def test_ring_attention_is_one_operator_with_the_memory_and_the_time_of_all_in_it() -> None:
    trace = _trace("cp, all-to-all")
    places = [
        place
        for place, operator in enumerate(trace.data["operators"])
        if operator["name"] == "acplan.ring_attention.default"
    ]
    assert len(places) == 2 and places[1] < trace.data["forward_end"]
    assert trace.data["operators"][places[0]]["runtime_ms"] > 0
    # The parts of another rank come beside this rank's own: keys and values, 4 x 64 x 32.
    live = trace.live_bytes
    assert live[places[0]] - live[places[0] - 1] > 2 * 4 * 64 * 32 * 4


def test_tokens_go_to_experts_by_shares() -> None:
    """The first of two ranks, with half of the experts, gets three quarters of the tokens."""
    with_more = _trace("fsdp x ep, uneven counts")
    assert with_more.peak_bytes > _trace("fsdp x ep").peak_bytes
    assert any("expert_shares" in note for note in with_more.data["notes"])


def test_a_rank_is_not_divided_again() -> None:
    with pytest.raises(acplan.AcplanError, match="world_size: expected the trace of a whole"):
        acplan.plan(_trace("fsdp"), "min", world_size=4)


def test_a_model_that_sharding_would_change_is_refused() -> None:
    case = _BY_NAME["fsdp"]
    with pytest.raises(
        acplan.AcplanError, match="expected a function that returns a new model"
    ):
        acplan.trace(nn.Linear(2, 2), _TOKENS, **case.arguments)
