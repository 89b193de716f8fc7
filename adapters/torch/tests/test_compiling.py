"""Plans under torch.compile."""

import copy
import shutil
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from functorch.compile import make_boxed_func
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.partitioners import min_cut_rematerialization_partition

from acplan import (
    AcplanError,
    Plan,
    PlanMismatchWarning,
    PlannedModule,
    PlannedOperator,
    apply,
)
from segments_of_traces import longest_runs, name_of, with_segment
from sharding_cases import BLOCKS, Net, policy
from skipping import Unit, recorded_step

_VERSION = tuple(int(part) for part in torch.__version__.split(".")[:2])


class Graphs:
    """A backend that counts the operators of forward and backward graphs."""

    def __init__(self) -> None:
        self.forward: Counter[str] = Counter()
        self.backward: Counter[str] = Counter()
        self.backend = aot_autograd(
            fw_compiler=self._counting(self.forward),
            bw_compiler=self._counting(self.backward),
            partition_fn=min_cut_rematerialization_partition,
        )

    @staticmethod
    def _counting(counts: Counter[str]) -> Callable[..., Any]:
        def compiler(graph: torch.fx.GraphModule, inputs: Any) -> Any:
            counts.update(str(node.target) for node in graph.graph.nodes)
            return make_boxed_func(graph.forward)

        return compiler


@pytest.fixture(autouse=True)
def nothing_is_compiled() -> None:
    torch._dynamo.reset()


def _net() -> Net:
    torch.manual_seed(0)
    # Random numbers of a compiled graph are others than those of PyTorch.
    return Net().eval()


def _step(net: nn.Module) -> list[torch.Tensor]:
    torch.manual_seed(1)
    loss = net(torch.randn(4, 16)).square().mean()
    loss.backward()
    return [loss.detach(), *(p.grad for p in net.parameters() if p.grad is not None)]


def _plans() -> dict[str, Plan]:
    block, x = _net().blocks[0], torch.randn(4, 16)
    saving_products = policy(block, x, ["addmm"])
    saving_gelu = policy(block, x, ["gelu"])
    names = [f"Net.blocks.{k}" for k in range(BLOCKS)]
    return {
        "none": Plan(()),
        "blocks": Plan(tuple(map(PlannedModule, names))),
        "policies": Plan(tuple(PlannedModule(n, saving_products) for n in names)),
        "differing": Plan(
            (
                PlannedModule(names[1], saving_products),
                PlannedModule(names[2], saving_gelu),
            )
        ),
    }


# Indexed by plan: whether matrix products run again, and how many GELUs do.
RERUNS = {"blocks": (True, 3), "policies": (False, 3), "differing": (True, 1)}


@pytest.mark.parametrize("by_block", [False, True])
@pytest.mark.parametrize("name", RERUNS)
def test_units_run_again_as_the_plan_says(name: str, by_block: bool) -> None:
    plans, net = _plans(), _net()
    graphs = Graphs()
    planned_net = apply(copy.deepcopy(net), plans[name])
    if by_block:
        for block in planned_net.blocks:
            block.compile(backend=graphs.backend, fullgraph=True)
        actual = _step(planned_net)
    else:
        actual = _step(torch.compile(planned_net, backend=graphs.backend, fullgraph=True))
    for a, b in zip(_step(net), actual, strict=True):
        torch.testing.assert_close(a, b)
    # Blocks may share a graph where their policies are alike.
    graph_count = graphs.forward["aten.gelu.default"]
    assert graph_count == BLOCKS or (by_block and name != "differing")
    assert (
        graphs.backward["aten.addmm.default"] > 0,
        graphs.backward["aten.gelu.default"] + BLOCKS - graph_count,
    ) == RERUNS[name]


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
def test_inductor_computes_the_same() -> None:
    net = _net()
    planned_net = apply(copy.deepcopy(net), _plans()["differing"])
    actual = _step(torch.compile(planned_net, backend="inductor", fullgraph=True))
    for a, b in zip(_step(net), actual, strict=True):
        torch.testing.assert_close(a, b)


def test_what_the_compiler_leaves_out_need_not_be_there() -> None:
    operators = list(policy(_net().blocks[0], torch.randn(4, 16), ["addmm"]))
    operators.insert(0, PlannedOperator("aten.cos.default", False))
    operators.insert(4, PlannedOperator("aten.view.default", False))
    plan = Plan((PlannedModule("Net.blocks.0", tuple(operators)),))
    _step(torch.compile(apply(_net(), plan), backend="aot_eager", fullgraph=True))


@pytest.mark.parametrize(
    ("times", "message"),
    [(1, "addmm.default more often.*expects 1"), (3, "addmm.default 2 times.* 3;")],
)
def test_what_the_plan_saves_is_not_there(times: int, message: str) -> None:
    operators = (PlannedOperator("aten.addmm.default", True),) * times
    plan = Plan((PlannedModule("Net.blocks.0", operators),))
    compiled = torch.compile(apply(_net(), plan, strict=True), backend="aot_eager")
    with pytest.raises(Exception, match=message):
        _step(compiled)
    torch._dynamo.reset()
    compiled = torch.compile(apply(_net(), plan), backend="aot_eager")
    with pytest.warns(PlanMismatchWarning, match=message):
        actual = _step(compiled)
    for a, b in zip(_step(_net()), actual, strict=True):
        torch.testing.assert_close(a, b)


def test_units_that_are_compiled_inside_are_recomputed() -> None:
    plan = _plans()["policies"]

    def planned_net(strict: bool) -> nn.Module:
        net = _net()
        for block in net.blocks:
            block.compile(backend="aot_eager")
        return apply(net, plan, strict=strict)

    with pytest.raises(AcplanError, match="a part of the unit is compiled"):
        _step(planned_net(strict=True))
    with pytest.warns(PlanMismatchWarning, match="a part of the unit is compiled"):
        actual = _step(planned_net(strict=False))
    for a, b in zip(_step(_net()), actual, strict=True):
        torch.testing.assert_close(a, b)


class _Broken(nn.Module):
    """Compiled in two parts, and what is between them runs as it is written."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x).sin()
        torch._dynamo.graph_break()
        return y * between(y).cos()


@torch.compiler.disable(recursive=False)
def between(y: torch.Tensor) -> torch.Tensor:
    return y.exp() + 1


def test_the_compiler_does_not_look_into_a_checkpoint() -> None:
    """The compiler sees the same code in a unit with a plan and without. PyTorch 2.9 compiles
    it once more if it runs again under a policy."""
    compiled: list[int] = []

    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        compiled.append(len(graph.graph.nodes))
        return graph.forward

    def net() -> nn.Module:
        torch._dynamo.reset()
        compiled.clear()
        torch.manual_seed(0)
        block = _Broken()
        block.compile(backend=backend)
        return nn.Sequential(nn.Linear(16, 16), nn.Sequential(nn.Linear(16, 16), block))

    expected = _step(net())
    without_plan = [*compiled]
    for operators in ((), (PlannedOperator("aten.addmm.default", True),)):
        plan = Plan((PlannedModule("Sequential.1", operators),))
        with warnings.catch_warnings(action="ignore", category=PlanMismatchWarning):
            actual = _step(apply(net(), plan))
        assert compiled == without_plan * (2 if operators and _VERSION < (2, 10) else 1)
        for a, b in zip(expected, actual, strict=True):
            torch.testing.assert_close(a, b)


def test_compiled_models_are_refused() -> None:
    compiled = torch.compile(_net())
    with pytest.raises(AcplanError, match="before torch.compile"):
        apply(compiled, _plans()["policies"])


@pytest.mark.parametrize("how", ["model", "blocks", "a block before"])
@pytest.mark.parametrize("has_policy", [False, True])
def test_runs_of_modules_are_units_each(how: str, has_policy: bool) -> None:
    data = recorded_step(_net(), lambda net: net(torch.randn(4, 16)).square().mean())
    run = longest_runs(data)[0]
    unit = Unit(with_segment(data, run), name_of(data, run))
    saved = {k for k, name in enumerate(unit.names) if "addmm" in name}
    plan = Plan((unit.planned_module(saved) if has_policy else PlannedModule(unit.fqn),))

    def compiled(strict: bool) -> nn.Module:
        torch._dynamo.reset()
        net = _net()
        if how == "a block before":
            net.blocks[1].compile(backend="aot_eager")
        net = apply(net, plan, strict=strict)
        if how == "model":
            return torch.compile(net, backend="aot_eager")
        for block in net.blocks if how == "blocks" else ():
            block.compile(backend="aot_eager")
        return net

    expected = _step(_net())
    with pytest.warns(PlanMismatchWarning, match="under torch.compile|1 is compiled"):
        actual = _step(compiled(strict=False))
    for a, b in zip(expected, actual, strict=True):
        torch.testing.assert_close(a, b)
    with pytest.raises(Exception, match="under torch.compile|1 is compiled"):
        _step(compiled(strict=True))
