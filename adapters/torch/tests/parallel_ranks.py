"""Real processes of parallel models beside the traces of their ranks.

Every process takes steps with a plan and without it, and compares losses and gradients; it also
compares the operators that it runs, the shapes of their results, and the bytes of its storages
while each one runs, with the trace of its rank and the program's simulation of the plan.
"""

import contextlib
import dataclasses
import datetime
import functools
import itertools
import json
import math
import pathlib
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.pipelining import schedules
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import loss_parallel
from torch.utils._python_dispatch import TorchDispatchMode

import acplan
from acplan._base.operators import CAST
from acplan._base.ring_attention import ring_attention, run_ring, watch_ring_attention
from acplan._base.sharded_modules import shards_on_host
from acplan._base.sharding import forget_shardings
from acplan._base.stand_ins import inner_tensors, is_run_inside
from acplan._base.tensors import block_bytes, tensors_of
from acplan._step.microbatches import Microbatch
from acplan._step.parallel import whole_gradients
from acplan._step.pipeline import Pipeline
from acplan._step.step import alone, step_on_fakes
from acplan._step.training_step import training_step
from acplan._verify.simulated import simulate
from parallel_attention import context_cases, kernels_on_cpu
from parallel_experts import expert_cases
from parallel_models import (
    MIXED,
    NOT_PINNED,
    Case,
    loss_of,
    sharded,
    synchronised_last,
    tensor_parallel,
)
from parallel_pipelines import IN_PARTS, PipelineCase, nested_shards, pipeline_cases
from rank import leave
from run_events import resizes_noted

_INVISIBLE = (
    "aten.detach.default",
    "prim.device.default",
    "_c10d_functional._wrap_tensor_autograd.default",
    "_c10d_functional.wait_tensor.default",
)
_OF_MESHES = ("mesh", "parallelize", "rank")
_PAUSE = 0.02
_TIMEOUT = datetime.timedelta(minutes=5)


def cases_of(world_size: int) -> list[Case]:
    """Returns the cases for so many processes."""
    dp, tp = {"dp": world_size}, {"tp": world_size}
    cases = [
        Case("fsdp", dp, [sharded("dp")]),
        Case("fsdp, uneven, tied", dp, [sharded("dp")], vocabulary=51, tied=True),
        Case("fsdp, kept", dp, [sharded("dp", reshard_after_forward=False)]),
        Case("fsdp, bfloat16", dp, [sharded("dp", mp_policy=MIXED)]),
        Case("fsdp, prefetched", dp, [sharded("dp", prefetched=1)]),
        *(
            Case(
                f"fsdp, {name}synchronised last",
                dp,
                [sharded("dp", **options)],
                {"accumulate": 3, "microbatch_context": synchronised_last},
            )
            for name, options in (("", {}), ("bfloat16, ", {"mp_policy": MIXED}))
        ),
        Case(
            "hsdp",
            {"replicate": 2, "dp": world_size // 2},
            [sharded("replicate", "dp")],
        ),
        Case("on the host", dp, [sharded("dp", **NOT_PINNED)]),
        Case(
            "on the host, kept, bfloat16",
            dp,
            [sharded("dp", reshard_after_forward=False, mp_policy=MIXED, **NOT_PINNED)],
        ),
        Case(
            "on the host, uneven, accumulated",
            dp,
            [sharded("dp", **NOT_PINNED)],
            {"accumulate": 2},
            vocabulary=51,
        ),
        Case(
            "on the host, hsdp",
            {"replicate": 2, "dp": world_size // 2},
            [sharded("replicate", "dp", **NOT_PINNED)],
        ),
        Case("tp, sequence", tp, [tensor_parallel()]),
        Case("tp, sequence, loss", tp, [tensor_parallel(loss=True)], loss_is_split=True),
        Case("fsdp x tp", {"dp": world_size // 2, "tp": 2}, [tensor_parallel(), sharded("dp")]),
        Case(
            "fsdp x tp, bfloat16",
            {"dp": world_size // 2, "tp": 2},
            [tensor_parallel(), sharded("dp", mp_policy=MIXED)],
        ),
    ]
    if world_size > 2:
        resharded = sharded("dp", reshard_after_forward=2)
        cases.insert(3, Case("fsdp, resharded to 2", dp, [resharded]))
    cases += context_cases(world_size) + expert_cases(world_size)
    return [*cases, *pipeline_cases(world_size)]


class Watched(TorchDispatchMode):
    """Notes the operators on plain tensors, the shapes of their results, and the bytes of all
    storages that have been seen, while each one runs. Threads of gloo let go of a buffer soon
    after the program has waited for it, and have so many seconds for that before each note."""

    def __init__(self, device: str, pause: float = 0) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._pause = pause
        self.operators: list[tuple[str, list[tuple[int, ...]]]] = []
        self.live_bytes: list[int] = []
        self._device = device
        self._now = 0
        self._bytes: dict[int, int] = {}
        self._is_away = False
        self._only_collectives = False
        self._is_sending = False

    @contextlib.contextmanager
    def looking_away(self) -> Iterator[None]:
        before, self._is_away = self._is_away, True
        yield
        self._is_away = before

    def hold(self, value: Any, is_on_host: bool = False) -> None:
        for tensor in tensors_of(value):
            while is_run_inside(type(tensor)):
                (tensor,) = inner_tensors(tensor)
            storage = tensor.untyped_storage()
            key = storage._cdata
            if key in self._bytes or tensor.device.type != self._device:
                continue
            self._bytes[key] = 0
            if not is_on_host:
                self.set_bytes(key, storage.nbytes())
            weakref.finalize(storage, self._free, key).atexit = False

    def set_bytes(self, key: int, size: int) -> None:
        self._now += block_bytes(size) - self._bytes[key]
        self._bytes[key] = block_bytes(size)

    def _free(self, key: int) -> None:
        self._now -= self._bytes.pop(key)

    @contextlib.contextmanager
    def as_on_devices(self) -> Iterator[None]:
        """Looks away, within the block, from what gloo runs while a reduction ends, and lets
        FSDP copy parameters and gradients between host and device, which are one here."""
        # Earlier versions have another name for it.
        is_new = hasattr(dist, "reduce_scatter_single")
        name = "reduce_scatter_single" if is_new else "reduce_scatter_tensor"
        plain = getattr(dist, name)

        def reduce(*args: Any, **kwargs: Any) -> Any:
            self._only_collectives = True
            try:
                return plain(*args, **kwargs)
            finally:
                self._only_collectives = False

        to: Any = torch.Tensor.to

        def copy(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            if "non_blocking" not in kwargs:
                return to(tensor, *args, **kwargs)
            # Memory is not pinned, so that copies to the host block.
            self._is_sending = not kwargs["non_blocking"]
            try:
                return CAST(tensor)
            finally:
                self._is_sending = False

        setattr(dist, name, reduce)
        # The class inherits the method: what is set here hides it. mypy allows no method to be
        # assigned.
        torch.Tensor.to = copy  # type: ignore[method-assign]
        try:
            yield
        finally:
            setattr(dist, name, plain)
            del torch.Tensor.to

    def note_resize(self, storage: torch.UntypedStorage, _: int) -> None:
        key = storage._cdata
        if key not in self._bytes:
            self._bytes[key] = 0
            weakref.finalize(storage, self._free, key).atexit = False
        self.set_bytes(key, storage.nbytes())

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if any(map(is_run_inside, types)):
            return NotImplemented
        if func is ring_attention() and not self._is_away:
            return self._run_ring(func, args, kwargs)
        out = func(*args, **(kwargs or {}))
        name = str(func)
        # FSDP marks other parts of its work on the CPU.
        if self._is_away or name in _INVISIBLE or name.startswith("profiler."):
            return out
        if self._only_collectives and not name.startswith("c10d."):
            return out
        # The trace has such a constant, and such a copy of counts, on the host.
        is_on_host = func is CAST and out.dtype == torch.long
        if not is_on_host and func is not torch.ops.aten.lift_fresh.default:
            self.hold(out, self._is_sending)
        self.operators.append((name, [tuple(t.shape) for t in tensors_of(out)]))
        if self._pause:
            time.sleep(self._pause)
        self.live_bytes.append(self._now)
        return out

    def _run_ring(self, func: Any, args: Any, kwargs: Any) -> Any:
        inner = Watched(self._device)
        inner.hold(args)
        before = inner._now
        with inner:
            out = run_ring(*args, **kwargs)
        most = max(inner.live_bytes) - before
        self.hold(out)
        results = sum(block_bytes(t.untyped_storage().nbytes()) for t in out)
        self.operators.append((str(func), [tuple(t.shape) for t in out]))
        self.live_bytes.append(self._now + max(0, most - results))
        return out


@dataclasses.dataclass(frozen=True)
class Rank:
    """A case as one process runs it."""

    case: Case
    number: int

    @functools.cached_property
    def mesh(self) -> DeviceMesh:
        sizes = tuple(self.case.mesh.values())
        return init_device_mesh("cpu", sizes, mesh_dim_names=tuple(self.case.mesh))

    def model(self, plan: acplan.Plan | None) -> nn.Module:
        torch.manual_seed(0)
        return self._parallel(self.case.make(), plan)

    def _parallel(self, model: nn.Module, plan: acplan.Plan | None) -> nn.Module:
        case, mesh = self.case, self.mesh
        # Training splits products and experts first, then applies the plan, then calls
        # fully_shard.
        is_split = "tp" in case.mesh or "ep" in case.mesh
        before = case.functions[:-1] or case.functions if is_split else []
        for function in before:
            function(model, mesh)
        if plan is not None:
            model = acplan.apply(model, plan, strict=True)
        for function in case.functions[len(before) :]:
            function(model, mesh)
        return model

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        # Lists of tensors are of one mesh.
        has_one_mesh = "ep" not in self.case.mesh
        return torch.optim.AdamW(model.parameters(), lr=0.01, foreach=has_one_mesh)

    def tokens(self) -> torch.Tensor:
        # Ranks of one row of "tp" have the same tokens, and those of "cp" parts of the same.
        mesh = self.case.mesh
        row = self.number // (mesh.get("tp", 1) * mesh.get("cp", 1))
        numbers = torch.Generator().manual_seed(row)
        return torch.randint(0, self.case.vocabulary, (4, self.case.length), generator=numbers)

    def values(self, plan: acplan.Plan | None) -> list[torch.Tensor]:
        """Returns the losses and gradients of three steps with dropout."""
        model = self.model(plan)
        optimizer = self.optimizer(model)
        torch.manual_seed(self.number)
        values: list[torch.Tensor] = []
        for _ in range(3):
            tokens = self.tokens()
            for k in range(self.microbatches):
                self.run(model, tokens, k, values)
            values += [_local(p.grad).clone() for p in model.parameters()]
            optimizer.step()
            optimizer.zero_grad()
        return values

    def watched(self, plan: acplan.Plan | None, pause: float = 0) -> Watched:
        """Returns the third step of this process, up to its update."""
        model = self.model(plan)
        optimizer = self.optimizer(model)
        tokens = self.tokens()
        last = self.microbatches - 1
        for _ in range(2):
            for k in range(last + 1):
                self.run(model, tokens, k)
            optimizer.step()
            optimizer.zero_grad()
        for k in range(last):
            self.run(model, tokens, k)
        watched = Watched("cpu", pause)
        tensors = [*model.buffers(), *whole_gradients(model), *self.buffers(model)]
        tensors += [tokens] if any(self.inputs()) else []
        watched.hold(tensors)
        tensors = [*model.parameters()]
        tensors += [p.grad for p in model.parameters() if p.grad is not None]
        for state in optimizer.state.values():
            tensors += [value for value in state.values() if value.dim()]
        watched.hold(tensors, is_on_host=bool(shards_on_host(model)))
        del tensors
        with watched.as_on_devices(), resizes_noted(watched.note_resize), watched:
            self.run(model, tokens, last)
        return watched

    @property
    def group(self) -> dist.ProcessGroup | None:
        """The group of the ranks that have one plan, or None for all."""
        return None

    def buffers(self, model: nn.Module) -> list[torch.Tensor]:
        """Returns the tensors beside the model that stay from step to step."""
        return []

    def inputs(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Returns the arguments of the trace."""
        return (self.tokens(),), {}

    @property
    def microbatches(self) -> int:
        return int(self.case.options.get("accumulate", 1))

    def run(
        self,
        model: nn.Module,
        tokens: torch.Tensor,
        number: int,
        losses: list[torch.Tensor] | None = None,
    ) -> None:
        """Runs a microbatch, and adds its loss to `losses`."""
        count = self.microbatches
        microbatch = Microbatch(model, (tokens,), {}, self.mesh, number == count - 1)
        context = self.case.options.get("microbatch_context", no_context)
        with microbatch.context(context):
            loss = loss_of(model, tokens)
            if count > 1:
                loss = loss / count
            loss.backward()
            if losses is not None:
                losses.append(loss.detach())
            del loss

    def on_fakes(self) -> list[tuple[str, list[tuple[int, ...]]]]:
        """Returns the operators of a rank without the others, up to the update."""
        args, kwargs = self.inputs()
        training = training_step(self.make_on_meta, args, {**self.options(), **kwargs})
        with alone(), step_on_fakes(training) as (step, _):
            watched = Watched("cuda")
            step.run_earlier()
            with watched, step.microbatch():
                step.run_passes()
            return watched.operators

    def options(self) -> dict[str, Any]:
        return {**self.case.arguments, "rank": self.number}

    @functools.cached_property
    def trace(self) -> acplan.Trace:
        args, kwargs = self.inputs()
        options = {"workspaces": False, "progress": False, **self.options(), **kwargs}
        return acplan.trace(self.make_on_meta, *args, **options)

    def make_on_meta(self) -> nn.Module:
        return self.case.make_on_meta()


@dataclasses.dataclass(frozen=True)
class StageRank(Rank):
    """A pipeline as one process runs it."""

    case: PipelineCase

    @property
    def place(self) -> int:
        return self.case.place_of(self.number)

    @property
    def group(self) -> dist.ProcessGroup | None:
        (name,) = (name for name in self.case.mesh if name != "pp")
        group: dist.ProcessGroup = self.mesh[name].get_group()
        return group

    @functools.cached_property
    def _schedules(self) -> dict[nn.Module, Any]:
        return {}

    def schedule(self, model: nn.Module) -> Any:
        if model not in self._schedules:
            self._schedules.clear()
            self._schedules[model] = self.case.schedule_on(model, self.mesh)
        return self._schedules[model]

    def model(self, plan: acplan.Plan | None) -> nn.Module:
        torch.manual_seed(0)
        return self._parallel(self.case.make_stages(self.place), plan)

    def tokens(self) -> torch.Tensor:
        return self.case.tokens_of(0)

    def inputs(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return self.case.inputs(self.place, self.tokens())

    def buffers(self, model: nn.Module) -> list[torch.Tensor]:
        return Pipeline(self.case.schedule_on, self.mesh, self.schedule(model)).buffers()

    def run(
        self,
        model: nn.Module,
        tokens: torch.Tensor,
        number: int,
        losses: list[torch.Tensor] | None = None,
    ) -> None:
        schedule = self.schedule(model)
        args, kwargs = self.case.inputs(self.place, tokens)
        if losses is not None and kwargs:
            of_step: list[torch.Tensor] = []
            kwargs["losses"] = of_step
        with let_go_when_sent():
            schedule.step(*args, **kwargs)
        if losses is not None and kwargs:
            losses += [loss.detach() for loss in of_step]

    def options(self) -> dict[str, Any]:
        return self.case.options_of(self.number)

    def make_on_meta(self) -> nn.Module:
        return self.case.make_on_meta_of(self.place)


class _Sent:
    """A send that gloo would hold for longer than the program waits for it."""

    def __init__(self, work: Any) -> None:
        self._work = work

    def wait(self) -> None:
        if self._work is not None:
            self._work.wait()
            self._work = None


@contextlib.contextmanager
def let_go_when_sent() -> Iterator[None]:
    """Lets sends of pipelines, within the block, release what they send once they have been
    waited for, as NCCL's do."""
    plain = schedules._batch_p2p

    def batch(*args: Any, **kwargs: Any) -> Any:
        return [_Sent(work) for work in plain(*args, **kwargs)]

    schedules._batch_p2p = batch
    try:
        yield
    finally:
        schedules._batch_p2p = plain


def no_context(_: Microbatch) -> None:
    pass


def _local(tensor: Any) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def plans_of(trace: acplan.Trace, **options: Any) -> list[acplan.Plan]:
    """Returns the plan of least memory, and one of less recomputation."""
    # A search for plans that wait less for the host ends by the clock, and processes would find
    # others.
    least = acplan.plan(trace, "min", without_host=True, **options)
    budget = (trace.peak_bytes + least.peak_bytes) // 2
    return [least, acplan.plan(trace, budget, without_host=True, **options)]


def plans_of_all(rank: Rank) -> list[acplan.Plan]:
    """Returns the plans of the first rank, or of the first one of the stage. Searches may end
    by the clock, so other ranks do not search."""
    world_size = dist.get_world_size()
    inner = world_size // rank.case.mesh["pp"] if isinstance(rank, StageRank) else world_size
    place = rank.number % inner
    all_plans: list[Any] = [None] * world_size
    mine = _own_plans(rank) if place == 0 else None
    dist.all_gather_object(all_plans, mine)
    forget_shardings()  # as the ranks have that traced
    plans: list[acplan.Plan] = all_plans[rank.number - place]
    return plans


def _own_plans(rank: Rank) -> list[acplan.Plan]:
    if isinstance(rank, StageRank):
        return _plans_of_stage(rank)
    plans = plans_of(rank.trace)
    if "ep" in rank.case.mesh:
        plans.append(whole_layers(rank.trace))
    return plans


def whole_layers(trace: acplan.Trace) -> acplan.Plan:
    """Returns the plan that recomputes all of each block."""
    names = [module["fqn"] for module in trace.data["modules"] if module["class"] == "Block"]
    return acplan.Plan(tuple(map(acplan.PlannedModule, names)))


def _plans_of_stage(rank: StageRank) -> list[acplan.Plan]:
    """Returns the plan of least memory, or the first block of each stage where none needs less
    than the step does; and all blocks. In place of blocks around a shard of its own, the plans
    have those shards."""
    unit = ".mlp" if nested_shards in rank.case.functions else ""
    blocks = [
        f"ModuleList.{stage}.blocks.{block}{unit}"
        for block in range(2)
        for stage in range(len(rank.case.stages_of(rank.place)))
    ]
    first, every = (
        acplan.Plan(tuple(map(acplan.PlannedModule, names)))
        for names in (blocks[: len(blocks) // 2], blocks)
    )
    least = acplan.plan(rank.trace, "min", without_host=True, time_limit=1)
    return [least if least.modules else first, every]


def check_values(rank: Rank) -> str:
    """Compares losses and gradients with plans and without. Returns how many were equal."""
    plans = plans_of_all(rank)
    expected = rank.values(None)
    for plan in plans:
        assert plan.modules
        actual = rank.values(plan)
        assert len(actual) == len(expected)
        assert all(map(torch.equal, actual, expected)), "values differ"
    return f"{len(expected) * len(plans)} values"


def check_operators(rank: Rank) -> str:
    """Compares operators and shapes with the trace of this rank."""
    real = rank.watched(None).operators
    _require_equal(_in_order(real), _in_order(rank.on_fakes()))
    trace = rank.trace
    operators = trace.data["operators"][: trace.data["backward_end"]]
    names = [o["name"] for o in operators if not o["name"].startswith("profiler.")]
    assert [name for name, _ in real] == names
    return f"{len(real)} operators"


def check_parallel_already(rank: Rank) -> str:
    """Traces the model of this process, in its real groups. The model trains on afterwards."""
    model = rank.model(None)
    options = {k: v for k, v in rank.options().items() if k not in _OF_MESHES}
    if isinstance(rank, StageRank):
        case, mesh = rank.case, rank.mesh
        options["schedule"] = lambda model, _: case.schedule_on(model, mesh)
    args, kwargs = rank.inputs()
    trace = acplan.trace(model, *args, workspaces=False, progress=False, **options, **kwargs)
    one, other = trace.data, rank.trace.data
    # Units may be around another model, and stages may have no mesh of their own.
    assert one.keys() | {"parallel"} == other.keys() | {"parallel"}
    names = [name for name in one if name != "parallel" and one[name] != other[name]]
    if isinstance(rank, StageRank) and rank.case.schedule in IN_PARTS:
        # Gradients of such passes are in sets, whose order the process decides.
        assert [o["name"] for o in one["operators"]] == [o["name"] for o in other["operators"]]
        names = [name for name in names if name not in ("operators", "model_tensors")]
    for name in names:
        _require_equal(one[name], other[name])
    rank.run(model, rank.tokens(), 0)
    return f"{len(one['operators'])} operators"


def check_bytes(rank: Rank) -> str:
    """Compares bytes with the trace of this rank and with simulations of plans."""
    trace = rank.trace
    count = 0
    pause = _PAUSE if "tp" in rank.case.mesh else 0
    for plan in (None, *plans_of_all(rank)):
        real = rank.watched(plan, pause)
        predicted = [
            (operator.name, operator.live_bytes)
            for operator in simulate(trace, plan or acplan.Plan(()))
            if not operator.name.startswith("profiler.")
        ]
        actual = [*zip((name for name, _ in real.operators), real.live_bytes)]
        _require_equal(actual, predicted[: len(actual)])
        count += len(actual)
    return f"{count} operators"


def _in_order(operators: list[Any]) -> list[Any]:
    """Returns the operators with gradients that are added one after the other in order of
    their shapes: the parameters of a backward pass in parts are in a set."""
    result: list[Any] = []
    for name, group in itertools.groupby(operators, key=lambda operator: operator[0]):
        same = list(group)
        result += sorted(same) if name == "aten.add_.Tensor" else same
    return result


def _require_equal(actual: list[Any], expected: list[Any]) -> None:
    for place, (a, b) in enumerate(zip(actual, expected)):
        assert a == b, f"operator {place} of {len(actual)}: {a}, expected {b}"
    assert len(actual) == len(expected), f"{len(actual)} operators, expected {len(expected)}"


def check_new_meshes(rank: Rank) -> str:
    """Trains on a mesh, and on an equal one that is made afterwards, with the first rank
    tracing in between: no rank may communicate on the mesh from before."""
    plan = whole_layers(rank.trace)
    for _ in range(2):
        new = dataclasses.replace(rank)
        if rank.number == 0:
            assert new.trace.data["operators"]
        new.run(new.model(plan), new.tokens(), 0)
    return "2 meshes"


def check_disagreement(rank: Rank) -> str:
    """Lets the last process have another plan: each one gets the same error, and none waits."""
    least, other, *_ = plans_of_all(rank)
    group = rank.group
    last = dist.get_world_size(group) - 1
    acplan.require_same_plan(least, group)
    acplan.require_same_plan(None, group)
    for another in (other, None):
        try:
            is_last = dist.get_rank(group) == last
            acplan.require_same_plan(another if is_last else least, group)
        except acplan.AcplanError as error:
            assert f"another one on rank {last} than on rank 0" in str(error)
        else:
            raise AssertionError("not refused")
    return "4 calls"


CHECKS: dict[str, Callable[[Rank], str]] = {
    "values": check_values,
    "operators": check_operators,
    "bytes": check_bytes,
    "parallel already": check_parallel_already,
    "another plan": check_disagreement,
    "new meshes": check_new_meshes,
}


def run(number: int, folder: str, world_size: int, names: list[str], checks: list[str]) -> None:
    """Writes, by case and check, what was compared. `names`: the cases; if empty, all. A check
    that fails ends the process, and by that all others, which would wait for it."""
    torch.set_num_threads(1)
    watch_ring_attention()
    warnings.simplefilter("ignore")
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/rendezvous",
        rank=number,
        world_size=world_size,
        timeout=_TIMEOUT,
    )
    results: dict[str, dict[str, str]] = {}
    for case in cases_of(world_size):
        if names and case.name not in names:
            continue
        assert math.prod(case.mesh.values()) == world_size
        of_case = results.setdefault(case.name, {})
        is_stage = isinstance(case, PipelineCase)
        rank = StageRank(case, number) if is_stage else Rank(case, number)
        for name in checks:
            if name == "another plan" and [*case.mesh] == ["pp"]:
                continue  # each stage has one rank
            if name == "new meshes" and is_stage:
                continue  # a block around a shard of its own is no unit there
            is_loss_split, on_cpu = case.loss_is_split, "cp" in case.mesh
            with (
                loss_parallel() if is_loss_split else contextlib.nullcontext(),
                kernels_on_cpu() if on_cpu else contextlib.nullcontext(),
            ):
                of_case[name] = CHECKS[name](rank)
            dist.barrier()
    pathlib.Path(folder, f"{number}.json").write_text(json.dumps(results))
    dist.destroy_process_group()
    leave()
