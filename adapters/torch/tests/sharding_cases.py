"""Training steps under fully_shard with and without a plan, on two processes."""

import dataclasses
import functools
import itertools
import json
import pathlib
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

from acplan import (
    AcplanError,
    Plan,
    PlanMismatchWarning,
    PlannedModule,
    PlannedOperator,
    apply,
    remove,
)
from rank import leave
from segments_of_traces import longest_runs, name_of, with_segment
from skipping import Unit, recorded_step

BLOCKS = 3
_BFLOAT16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(16)
        self.mlp = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.dropout(self.mlp(self.norm(x)))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.head = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Names(TorchDispatchMode):
    """The names of the operators that run."""

    def __init__(self) -> None:
        super().__init__()
        self.operators: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func is not torch.ops.aten.detach.default:
            self.operators.append(str(func))
        return func(*args, **(kwargs or {}))


def operators_of(module: nn.Module, *args: Any) -> list[str]:
    with Names() as names:
        module(*args)
    return names.operators


def policy(
    module: nn.Module, x: torch.Tensor, saved: Sequence[str]
) -> tuple[PlannedOperator, ...]:
    return tuple(
        PlannedOperator(name, any(part in name for part in saved))
        for name in operators_of(module, x)
    )


def offloading(operators: Sequence[PlannedOperator]) -> tuple[PlannedOperator, ...]:
    return tuple(dataclasses.replace(op, offload=op.save) for op in operators)


def plans(dtype: torch.dtype) -> dict[str, Plan]:
    block, x = Block().to(dtype), torch.randn(4, 16, dtype=dtype)
    of_block, of_mlp = policy(block, x, ["addmm"]), policy(block.mlp, x, ["addmm"])
    names = [f"Net.blocks.{k}" for k in range(BLOCKS)]
    of_net = recorded_step(Net().to(dtype), lambda net: net(x).float().square().mean())
    units = [Unit(of_net, name) for name in names]
    return {
        "none": Plan(()),
        "blocks": Plan(tuple(PlannedModule(name) for name in names)),
        "policies": Plan(tuple(PlannedModule(name, of_block) for name in names)),
        "offloading": Plan(tuple(PlannedModule(name, offloading(of_block)) for name in names)),
        "mixed": Plan(
            (
                PlannedModule(names[0]),
                PlannedModule(names[1], of_block),
                PlannedModule(f"{names[2]}.mlp", of_mlp),
            )
        ),
        # Dropout begins with an empty tensor like the second product.
        "skipping": Plan(
            tuple(u.planned_module({u.names.index("aten.addmm.default")}) for u in units)
        ),
    }


Shard = Callable[[nn.Module], None]


def _blocks(net: nn.Module, shard: Shard) -> None:
    for block in net.blocks:
        shard(block)


def _parts(net: nn.Module, shard: Shard) -> None:
    for name, module in net.named_modules():
        if name.endswith(("mlp", "norm")):
            shard(module)
    _blocks(net, shard)


def _nothing(net: nn.Module, shard: Shard) -> None:
    pass


LAYOUTS = {"root": _nothing, "blocks": _blocks, "parts": _parts}


@dataclasses.dataclass(frozen=True)
class Case:
    layout: str
    plan: str
    is_applied_first: bool
    is_mixed_precision: bool

    def __str__(self) -> str:
        order = "plan first" if self.is_applied_first else "plan last"
        precision = "bfloat16" if self.is_mixed_precision else "float32"
        return f"{self.layout}, {self.plan}, {order}, {precision}"


CASES = [
    Case(*values)
    for values in itertools.product(
        LAYOUTS, ("blocks", "policies", "mixed"), (True, False), (False, True)
    )
] + [
    Case(layout, plan, True, precise)
    for layout in LAYOUTS
    for plan in ("skipping", "offloading")
    for precise in (False, True)
]


def _model(case: Case, mesh: DeviceMesh, plan: Plan, strict: bool = True) -> nn.Module:
    torch.manual_seed(0)
    net: nn.Module = Net()
    options: dict[str, Any] = {"mesh": mesh}
    if case.is_mixed_precision:
        options["mp_policy"] = _BFLOAT16
    if case.is_applied_first:
        net = apply(net, plan, strict=strict)
    LAYOUTS[case.layout](net, lambda module: fully_shard(module, **options))
    fully_shard(net, **options)
    if not case.is_applied_first:
        net = apply(net, plan, strict=strict)
    return net


def _train(net: nn.Module, rank: int) -> tuple[list[torch.Tensor], Counter[str]]:
    """Losses and gradients of two steps; what the last backward runs."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    torch.manual_seed(rank)
    values = []
    for _ in range(2):
        loss = net(torch.randn(4, 16)).float().square().mean()
        with Names() as backward:
            loss.backward()
        values.append(loss.detach())
        values += [p.grad.to_local().clone() for p in net.parameters()]
        optimizer.step()
        optimizer.zero_grad()
    return values, Counter(backward.operators)


def _check(case: Case, mesh: DeviceMesh, rank: int) -> None:
    plan_of = plans(torch.bfloat16 if case.is_mixed_precision else torch.float32)
    expected, without_plan = _train(_model(case, mesh, plan_of["none"]), rank)
    actual, with_plan = _train(_model(case, mesh, plan_of[case.plan]), rank)
    assert len(expected) == len(actual) and expected
    for a, b in zip(expected, actual):
        assert torch.equal(a, b)
    reruns = with_plan - without_plan
    matrix_products = {"blocks": 2 * BLOCKS, "policies": 0, "offloading": 0, "mixed": 2}
    matrix_products["skipping"] = BLOCKS
    assert reruns["aten.addmm.default"] == matrix_products[case.plan], reruns
    assert reruns["aten.gelu.default"] == BLOCKS, reruns


def _check_runs(mesh: DeviceMesh, rank: int) -> None:
    """Checks blocks as one unit, or each block as one if each wrapper is sharded."""
    for layout, is_first, is_mixed in itertools.product(LAYOUTS, (True, False), (False, True)):
        dtype = torch.bfloat16 if is_mixed else torch.float32
        step = recorded_step(Net().to(dtype), functools.partial(_loss, dtype=dtype))
        run = longest_runs(step)[0]
        unit = Unit(with_segment(step, run), name_of(step, run))
        saved = {k for k, name in enumerate(unit.names) if "addmm" in name}
        case = Case(layout, "", is_first, is_mixed)
        is_apart = is_first and layout != "root"
        expected, without_plan = _train(_model(case, mesh, Plan(())), rank)
        for planned_module in (PlannedModule(unit.fqn), unit.planned_module(saved)):
            net = _model(case, mesh, Plan((planned_module,)), strict=not is_apart)
            with warnings.catch_warnings(record=True) as caught_warnings:
                warnings.simplefilter("always")
                actual, with_plan = _train(net, rank)
            assert all(map(torch.equal, actual, expected)), (case, planned_module)
            reruns = with_plan - without_plan
            assert reruns["aten.gelu.default"] == BLOCKS, (case, reruns)
            is_whole = is_apart or not planned_module.operators
            assert (reruns["aten.addmm.default"] > 0) == is_whole, (case, reruns)
            assert (
                any("is sharded by itself" in str(w.message) for w in caught_warnings)
                == is_apart
            )


def _loss(net: nn.Module, dtype: torch.dtype) -> torch.Tensor:
    return net(torch.randn(4, 16, dtype=dtype)).float().square().mean()


def _check_refusal(mesh: DeviceMesh) -> None:
    """Checks that a plan must have all operators that the module runs, and only these, with
    every layout."""
    module_operators = list(plans(torch.float32)["policies"].modules[0].operators)
    for layout in LAYOUTS:
        for operators in (
            module_operators[:-1],
            module_operators + module_operators[-1:],
            module_operators[1:],
        ):
            plan = Plan((PlannedModule("Net.blocks.0", tuple(operators)),))
            case = Case(layout, "", is_applied_first=False, is_mixed_precision=False)
            net = _model(case, mesh, plan)
            try:
                net(torch.randn(4, 16))
            except AcplanError:
                continue
            raise AssertionError(f"{layout}: not refused")


class Attending(nn.Module):
    """Attention, of which each device has other kernels, and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(16, 48)
        self.block = Block()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4).unbind()
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.block(x + mixed.transpose(1, 2).flatten(2))


class AttendingNet(Net):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Attending() for _ in range(BLOCKS))


def _epoch(net: nn.Module, rank: int) -> list[torch.Tensor]:
    """Trains on seven batches of two, the last one of one, and evaluates in between. Gradients
    of two batches are added up."""
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    numbers = torch.Generator().manual_seed(rank)
    torch.manual_seed(rank)
    values = []
    for index in range(7):
        x = torch.randn(1 if index == 6 else 2, 5, 16, generator=numbers)
        loss = net.train()(x).float().square().mean()
        loss.backward()
        values.append(loss.detach())
        if index % 2 or index == 6:
            values += [p.grad.to_local().clone() for p in net.parameters()]
            optimizer.step()
            optimizer.zero_grad()
            with torch.no_grad():
                values.append(net.eval()(x))
    return values


def _attending(plan: Plan, is_first: bool, options: dict[str, Any]) -> nn.Module:
    """Returns the sharded net with a plan, which is applied before sharding if it is first."""
    torch.manual_seed(0)
    net: nn.Module = AttendingNet()
    if is_first:
        net = apply(net, plan)
    _blocks(net, lambda module: fully_shard(module, **options))
    fully_shard(net, **options)
    return net if is_first else apply(net, plan)


def _check_epoch(mesh: DeviceMesh, rank: int) -> None:
    """Checks a plan that names operators as CUDA runs them, with blocks that are sharded."""
    names = [
        "aten._scaled_dot_product_flash_attention.default" if "attention" in n else n
        for n in operators_of(Attending(), torch.randn(2, 5, 16))
    ]
    operators = tuple(
        PlannedOperator(name, "addmm" in name or "attention" in name) for name in names
    )
    plan = Plan(tuple(PlannedModule(f"AttendingNet.blocks.{k}", operators) for k in range(3)))
    for is_first, has_mixed_precision in itertools.product((True, False), repeat=2):
        options: dict[str, Any] = {"mesh": mesh}
        if has_mixed_precision:
            options["mp_policy"] = _BFLOAT16

        expected = _epoch(_attending(Plan(()), is_first, options), rank)
        planned_net = _attending(plan, is_first, options)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            actual = _epoch(planned_net, rank)
        assert len(actual) == len(expected) > 20
        assert all(map(torch.equal, actual, expected)), (is_first, has_mixed_precision)
        kinds = [w.category for w in caught]
        # The first unit of a process warns for all.
        assert kinds.count(PlanMismatchWarning) <= 1, kinds
        _check_removal(planned_net, plan, rank)


def _check_removal(net: nn.Module, plan: Plan, rank: int) -> None:
    """Checks steps after the plan is removed and after it is applied again."""
    keys = set(AttendingNet().state_dict())
    assert set(net.state_dict()) == keys
    before = {name: v.to_local().clone() for name, v in net.state_dict().items()}
    expected = _epoch(net, rank)
    for step in (remove, lambda net: apply(net, plan)):
        state = {
            name: DTensor.from_local(before[name], value.device_mesh, value.placements)
            for name, value in net.state_dict().items()
        }
        net.load_state_dict(state)
        assert step(net) is net and set(net.state_dict()) == keys
        actual = _epoch(net, rank)
        assert len(expected) == len(actual) and all(map(torch.equal, expected, actual))


def _check_replicas(rank: int) -> None:
    """Checks that the host's copies belong to one replica."""
    gradients = []
    for name in ("none", "offloading"):
        torch.manual_seed(0)
        net = apply(Net(), plans(torch.float32)[name], strict=True)
        replica = DistributedDataParallel(net)
        torch.manual_seed(rank)
        for _ in range(2):
            replica(torch.randn(4, 16)).square().mean().backward()
        gradients.append([p.grad for p in net.parameters()])
    assert all(map(torch.equal, *gradients))


def _check_compiled(mesh: DeviceMesh, rank: int) -> None:
    """Checks the order of torchtitan: plan, compile every block, shard every block."""
    plan_of = plans(torch.float32)
    for name in ("blocks", "policies", "mixed", "skipping"):
        torch._dynamo.reset()
        steps = []
        for plan in (plan_of["none"], plan_of[name]):
            torch.manual_seed(0)
            # Random numbers of a compiled graph are others than those of PyTorch.
            net = apply(Net().eval(), plan, strict=True)
            if plan is plan_of[name]:
                for block in net.blocks:
                    block.compile(backend="aot_eager", fullgraph=True)
            _blocks(net, lambda module: fully_shard(module, mesh=mesh))
            fully_shard(net, mesh=mesh)
            steps.append(_train(net, rank))
        (expected, without_plan), (actual, with_plan) = steps
        for a, b in zip(expected, actual, strict=True):
            torch.testing.assert_close(a, b)
        reruns = (with_plan - without_plan)["aten.gelu.default"]
        assert reruns == BLOCKS, f"{name}: {reruns}"


def run(rank: int, folder: str) -> None:
    """Writes what went wrong, by case."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2
    )
    mesh = init_device_mesh("cpu", (2,))
    results = {}
    checks: dict[str, Callable[[], None]] = {
        str(case): lambda case=case: _check(case, mesh, rank)  # type: ignore[misc]
        for case in CASES
    }
    checks["refusal"] = lambda: _check_refusal(mesh)
    checks["runs"] = lambda: _check_runs(mesh, rank)
    checks["epoch"] = lambda: _check_epoch(mesh, rank)
    checks["replicas"] = lambda: _check_replicas(rank)
    checks["compiled"] = lambda: _check_compiled(mesh, rank)
    for name, check in checks.items():
        try:
            check()
            results[name] = ""
        except Exception:
            results[name] = traceback.format_exc()
    pathlib.Path(folder, f"{rank}.json").write_text(json.dumps(results))
    dist.destroy_process_group()
    leave()
