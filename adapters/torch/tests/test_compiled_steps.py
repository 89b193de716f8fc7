"""Steps of several compiled graphs that are planned together."""

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

import acplan
from acplan._compile.compile import partitioner
from acplan._compile.fake_step import compiles_fakes
from acplan._compile.joint_step import joint_step
from acplan._compile.step_memory import run_graphs
from acplan._compile.step_plan import Compilation, StepPlan
from acplan._compile.step_recorder import RecordedGraph
from acplan._graphs.remat import evaluate_graph, plan_graph

pytestmark = pytest.mark.skipif(not compiles_fakes(), reason="needs PyTorch 2.11")


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.nn.functional.gelu(self.up(self.norm(x)))
        return x + self.down(hidden)


class Net(nn.Module):
    """`breaks`: in front of which blocks the graph breaks, at most two."""

    def __init__(self, blocks: int = 4, breaks: tuple[int, ...] = ()) -> None:
        super().__init__()
        self.first = nn.Linear(16, 16)
        self.blocks = nn.ModuleList(Block(16) for _ in range(blocks))
        self.places = (0, *breaks, blocks)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self._part(0, self.first(x))
        # PyTorch compiles nothing of a loop in which the graph breaks.
        if len(self.places) > 2:
            torch._dynamo.graph_break()
            x = self._part(1, x)
        if len(self.places) > 3:
            torch._dynamo.graph_break()
            x = self._part(2, x)
        return x.square().mean()

    def _part(self, k: int, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks[self.places[k] : self.places[k + 1]]:
            x = block(x)
        return x


@pytest.fixture(autouse=True)
def nothing_is_compiled() -> None:
    torch._dynamo.reset()


def _net(*breaks: int) -> Net:
    torch.manual_seed(0)
    return Net(breaks=breaks)


def _x(rows: int = 512) -> torch.Tensor:
    torch.manual_seed(1)
    return torch.randn(rows, 16)


def _step(model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    loss = model(x)
    loss.backward()
    values = [loss.detach(), *(p.grad for p in model.parameters())]
    model.zero_grad()
    return values


def _compiled(model: Net, budget: Any, by_block: bool, **kwargs: Any) -> Any:
    options = {"backend": "aot_eager", "strict": True} | kwargs
    if by_block:
        options["blocks"] = model.blocks
    return acplan.compile(model, budget, **options)


def _plan_of(compiled: Any) -> StepPlan:
    (plan,) = acplan.compiled_plans(compiled)
    assert isinstance(plan, StepPlan)
    return plan


@pytest.mark.parametrize("by_block", [False, True])
@pytest.mark.parametrize("share", [1.0, 0.75, 0.6])
def test_the_graphs_of_a_step_keep_its_budget(by_block: bool, share: float) -> None:
    model = _net() if by_block else _net(2)
    x = _x()
    compiled = _compiled(model, f"{100 * share:g}%", by_block)
    actual = _step(compiled, x)
    plan = _plan_of(compiled)
    assert plan.status == "optimal"
    assert plan.peak_bytes <= plan.data["budget_bytes"]
    assert plan.data["budget_bytes"] <= share * plan.data["baseline_peak_bytes"] + 1
    assert (plan.recompute_ms > 0) == (share < 1)
    assert len(plan.runs) == (4 if by_block else 2)
    # Blocks share one graph, and what it saves.
    assert len(plan.shares) == (1 if by_block else 2)
    (verification,) = acplan.verify_compiled(compiled)
    assert verification.first_difference() is None
    assert max(s.live_bytes for s in verification.measured) == plan.peak_bytes
    for a, b in zip(_step(_net() if by_block else _net(2), x), actual, strict=True):
        torch.testing.assert_close(a, b)


def test_runs_of_a_graph_are_tied() -> None:
    model = _net()
    compiled = _compiled(model, "70%", True)
    _step(compiled, _x())
    plan = _plan_of(compiled)
    runs = [
        {name.partition(".")[2] for name in plan.saved if name.startswith(f"{k}.")}
        for k in range(4)
    ]
    # The result of a block is not its own to decide.
    (graph,) = {run.graph for run in plan.step.forward if plan.step}
    own = {*graph.joint.keepable()} - {
        graph.data["buffers"][b]["name"] for b in graph.data["forward_outputs"]
    }
    assert runs[0] & own
    assert all(run & own == runs[0] & own for run in runs)
    # A plan without ties shows that they cost something.
    free = copy.deepcopy(plan.graph)
    for node in free["nodes"]:
        node.pop("tied_to", None)
    untied = plan_graph(free, plan.data["budget_bytes"])
    assert untied["status"] == "optimal"
    assert untied["recompute_ms"] < plan.recompute_ms
    # No choice of one block, made for all, costs less within the budget: each is tried.
    names = sorted(own)[:10]
    best = plan.recompute_ms
    for choice in range(1 << len(names)):
        names_kept = {n for i, n in enumerate(names) if choice >> i & 1} | {*own} - {*names}
        evaluation = _kept_in_all(plan, names_kept)
        assert evaluation["peak_bytes"] > plan.data["budget_bytes"] or (
            evaluation["recompute_ms"] >= best - 1e-12
        )


def _kept_in_all(plan: StepPlan, names: set[str]) -> dict[str, Any]:
    forced = [
        name
        for node in plan.graph["nodes"]
        if node["name"].endswith(" is made")
        for name in [plan.graph["buffers"][node["makes"][0]]["name"]]
    ]
    stays = {plan.graph["buffers"][b]["name"] for b in plan.graph["forward_outputs"]}
    prefixed = {f"{k}.{name}" for k in range(len(plan.runs)) for name in names}
    return evaluate_graph(plan.graph, sorted((prefixed | {*forced}) - stays))


def test_together_is_no_worse_than_one_after_another() -> None:
    model = _net(1, 3)
    planner = partitioner("100%", model=model, fused=False)
    step = Compilation(model, backend="aot_eager").record(planner._joint_graph, (_x(),), {})
    assert len(step.forward) == 3
    joint = joint_step(step, "net")
    everything = plan_graph(joint.data, "100%")["peak_bytes"]
    factors = []
    for share in (0.6, 0.5, 0.4):
        alone = partitioner(int(share * everything), model=model, fused=False)
        graphs = {run.graph.key: run.graph for run in step.forward}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            modules = {k: _planned_alone(alone, g) for k, g in graphs.items()}
        steps = run_graphs(step, modules, 0)
        counts: dict[str, int] = {}
        for one in steps:
            counts[one.name] = counts.get(one.name, 0) + 1
        ms = {node["name"]: node["ms"] for node in joint.data["nodes"]}
        rerun_ms = sum(ms[name] * (count - 1) for name, count in counts.items())
        peak = max(one.live_bytes for one in steps)
        together = plan_graph(joint.data, peak)
        assert together["status"] == "optimal"
        assert together["recompute_ms"] <= rerun_ms + 1e-12
        factors.append(rerun_ms / max(together["recompute_ms"], 1e-12))
    assert max(factors) > 1.01


def _planned_alone(planner: acplan.Partitioner, graph: RecordedGraph) -> Any:
    plans: list[Any] = []

    def choose(_: Any, node_info: Any) -> Any:
        plans.append(planner._plan_graph(graph.module, node_info, graph.num_fwd_outputs))
        return plans[-1].saved

    forward, backward = graph.partition(choose)
    return forward, plans[-1].order.applied(backward)


class Part(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(16, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight


class Mixed(nn.Module):
    """Only its parts are compiled; between them is code that keeps tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(Part() for _ in range(2))
        self.own = nn.Linear(16, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.own(self.parts[0](x)).exp()
        return self.parts[1](x.sum(-1, keepdim=True).expand(-1, 16)).square().mean()


def test_what_the_models_own_code_keeps_is_held() -> None:
    model, x = Mixed(), _x()
    compiled = acplan.compile(
        model, "100%", blocks=model.parts, backend="aot_eager", strict=True
    )
    _step(compiled, x)
    plan = _plan_of(compiled)
    own = sum(-(-p.nbytes // 512) * 512 for p in model.own.parameters())
    # Its weights and their gradients, and what exp and square keep of their results.
    kept_bytes = 512 * 64 * 4
    assert plan.graph["held_bytes"] == 2 * own + kept_bytes
    assert plan.verify().first_difference() is None


def test_what_passes_between_graphs_is_one_buffer() -> None:
    compiled = _compiled(_net(2), "100%", False)
    _step(compiled, _x())
    plan = _plan_of(compiled)
    nodes = [n for n in plan.graph["nodes"] if n["name"].endswith(" is made")]
    # The residual stream, and the loss.
    assert len(nodes) == 2
    stream = nodes[0]["makes"][0]
    readers = [n["name"] for n in plan.graph["nodes"] if stream in n["reads"]]
    assert any(name.startswith("1.") for name in readers)
    assert not nodes[0]["again"]
    # Parameters are there once, and nothing comes from nowhere.
    size = sum(-(-p.nbytes // 512) * 512 for p in Net().parameters())
    inputs = {b for n in plan.graph["nodes"] for b in n["reads"]} - {
        b for n in plan.graph["nodes"] for b in n["makes"]
    }
    sizes = [plan.graph["buffers"][b] for b in inputs]
    tangents = [b for b in sizes if b.get("from") == "backward"]
    x_bytes = 512 * 16 * 4
    input_bytes = sum(b["bytes"] for b in sizes) - sum(b["bytes"] for b in tangents)
    assert len(tangents) == 1
    assert input_bytes + plan.graph["held_bytes"] == size + x_bytes + _unread_bytes(plan)


def _unread_bytes(plan: StepPlan) -> int:
    """Inputs that nothing reads but views."""
    read = {b for n in plan.graph["nodes"] for b in (*n["reads"], *n["makes"])}
    buffers = enumerate(plan.graph["buffers"])
    return -sum(b["bytes"] for k, b in buffers if k not in read)


def test_a_graph_of_another_step_is_planned_for_itself() -> None:
    model = _net(2)
    compiled = _compiled(model, "80%", False, strict=False, dynamic=False)
    _step(compiled, _x())
    with pytest.warns(UserWarning, match="a graph is not part of the planned step"):
        actual = _step(compiled, _x(256))
    plans = acplan.compiled_plans(compiled)
    assert [type(plan).__name__ for plan in plans] == ["StepPlan", *["CompiledPlan"] * 2]
    for a, b in zip(_step(model, _x(256)), actual, strict=True):
        torch.testing.assert_close(a, b)
    assert all(v.first_difference() is None for v in acplan.verify_compiled(compiled))


def test_strict_refuses_a_graph_of_another_step() -> None:
    compiled = _compiled(_net(2), "80%", False, dynamic=False)
    _step(compiled, _x())
    with pytest.raises(Exception, match="a graph is not part of the planned step"):
        _step(compiled, _x(256))


class Asking(nn.Module):
    """Its own code asks for a value that only a real step has."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Net(blocks=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.net.blocks[0](x)
        if self._is_large(x):
            x = 2 * x
        return self.net.blocks[1](x).square().mean()

    @torch._dynamo.disable
    def _is_large(self, x: torch.Tensor) -> bool:
        return bool(x.sum().item() > 1e9)


def test_a_step_that_depends_on_values_is_planned_graph_by_graph() -> None:
    torch.manual_seed(0)
    model = Asking()
    compiled = acplan.compile(model, "100%", backend="aot_eager")
    with pytest.warns(UserWarning, match="planned one after another, not together: "):
        loss = compiled(_x())
    loss.backward()
    plans = acplan.compiled_plans(compiled)
    assert len(plans) == 2
    assert all(isinstance(plan, acplan.CompiledPlan) for plan in plans)
    torch.testing.assert_close(loss, model(_x()))


def test_strict_refuses_a_step_that_depends_on_values() -> None:
    compiled = acplan.compile(Asking(), "100%", backend="aot_eager", strict=True)
    with pytest.raises(acplan.AcplanError, match="depend on values"):
        compiled(_x())


def test_a_budget_that_nothing_fits() -> None:
    compiled = _compiled(_net(2), 1000, False)
    with pytest.raises(acplan.AcplanError, match="no plan .* fits 1,000 bytes; one needs"):
        compiled(_x())
    compiled = _compiled(_net(2), 1000, False, strict=False)
    with pytest.warns(UserWarning, match="the graph is planned for that budget"):
        compiled(_x()).backward()
    assert _plan_of(compiled).status == "optimal"


class Stateful(nn.Module):
    """Statistics, a counter, a tensor kept, numbers drawn: all of it between graphs."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 16)
        self.norm = nn.BatchNorm1d(16)
        self.calls = 0
        self.tensors: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.first(x))
        self._note(x)
        return self.second(torch.nn.functional.dropout(x, 0.5)).square().mean()

    @torch._dynamo.disable
    def _note(self, x: torch.Tensor) -> None:
        self.calls += 1
        self.last = x.detach()
        self.tensors.append(self.last)


def test_the_model_is_left_as_it_was() -> None:
    model = Stateful()
    compiled = acplan.compile(model, "100%", backend="aot_eager", strict=True)
    planner = vars(compiled)["_acplan_partitioner"]
    before, x = copy.deepcopy(model.state_dict()), _x()
    state = torch.get_rng_state()
    compilation = Compilation(model, backend="aot_eager")
    planner.plan_step(compilation, (x,), {})
    assert planner.step_plan is not None
    assert torch.equal(torch.get_rng_state(), state)
    assert (model.calls, model.tensors) == (0, [])
    assert not hasattr(model, "last")
    for name, value in model.state_dict().items():
        assert type(value) is torch.Tensor
        assert torch.equal(value, before[name])
    assert all(p.grad is None and type(p) is nn.Parameter for p in model.parameters())


def test_caches_tell_plans_of_steps_apart() -> None:
    ids = set()
    for budget in ("100%", "60%"):
        torch._dynamo.reset()
        compiled = _compiled(_net(2), budget, False)
        planner = vars(compiled)["_acplan_partitioner"]
        ids.add(planner.uuid())
        compiled(_x())
        ids.add(planner.uuid())
    assert len(ids) == 4


def test_a_call_without_gradients_plans_nothing() -> None:
    compiled = _compiled(_net(2), "80%", False)
    with torch.no_grad():
        compiled(_x())
    assert acplan.compiled_plans(compiled) == ()
    _step(compiled, _x())
    assert _plan_of(compiled).status == "optimal"


def test_inductor_trains_by_the_plan() -> None:
    model, reference, x = _net(2), _net(2), _x()
    compiled = _compiled(model, "70%", False, backend="inductor")
    for _ in range(3):
        for a, b in zip(_step(compiled, x), _step(reference, x), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    (verification,) = acplan.verify_compiled(compiled)
    assert verification.first_difference() is None


@pytest.mark.parametrize(
    ("blocks", "message"),
    [
        (lambda _: (), "blocks: expected modules of the model, found none"),
        (lambda _: [nn.Linear(2, 2)], "expected modules of the model, found a Linear"),
        (lambda model: [model], "expected modules of the model, found a Net"),
        (lambda _: ["blocks.0"], "expected modules of the model, found a str"),
        (lambda _: 3, "blocks: expected modules of the model, found an int"),
    ],
)
def test_refuses_blocks(blocks: Callable[[nn.Module], Any], message: str) -> None:
    model = _net()
    with pytest.raises(acplan.AcplanError, match=message):
        acplan.compile(model, "80%", blocks=blocks(model))


class DistributedDataParallel(nn.Module):
    """A wrapper that has the name of PyTorch's."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.module(x)
        return output


def test_a_step_of_several_ranks_is_not_run_alone() -> None:
    model = DistributedDataParallel(_net(2))
    compiled = acplan.compile(model, "100%", backend="aot_eager", strict=True)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*planned.*")
        _step(compiled, _x())
    kinds = [type(plan) for plan in acplan.compiled_plans(compiled)]
    assert kinds == [acplan.CompiledPlan] * 2


class Passing(nn.Module):
    """A model whose first graph hands its second one a tensor that no backward pass needs."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(16))
        self.weak_references: list[StorageWeakRef] = []
        self.was_there: list[bool] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.weight
        self._note(x)
        x = x.exp()
        self._look()
        return x.sin().sum()

    @torch._dynamo.disable
    def _note(self, x: torch.Tensor) -> None:
        self.weak_references.append(StorageWeakRef(x.untyped_storage()))

    @torch._dynamo.disable
    def _look(self) -> None:
        self.was_there.append(not self.weak_references[-1].expired())


def test_frames_hold_what_passes_until_forward_has_ended() -> None:
    model = Passing()
    compiled = _compiled(model, "100%", False)  # type: ignore[arg-type]
    for _ in range(2):
        loss = compiled(_x())
        assert model.was_there[-1]
        assert model.weak_references[-1].expired()
        loss.backward()
    plan = _plan_of(compiled)
    assert len(plan.runs) == 3
    assert "0.add" not in plan.saved
    (end,) = (n for n in plan.graph["nodes"] if n["name"] == "end of forward")
    names = [plan.graph["buffers"][b]["name"] for b in end["reads"]]
    assert "0.add" in names
