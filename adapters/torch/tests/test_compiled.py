"""acplan as the partitioner of torch.compile."""

import contextlib
import pickle
import shutil
import threading
import warnings
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch._functorch import partitioners
from torch._inductor.utils import fresh_inductor_cache
from torch.utils.checkpoint import checkpoint

import acplan
from acplan import AcplanError, CompiledPlan
from acplan._compile import compile, step_plan
from acplan._compile.held_memory import optimizer_bytes
from acplan._device.kernel_times import LAUNCH_SECONDS
from acplan._graphs.pytorch_partitioner import choosing
from acplan._graphs.remat import evaluate_graph

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")


class Block(nn.Module):
    def __init__(self, dropout: float, is_checkpointed: bool = False) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(32)
        self.up, self.down = nn.Linear(32, 128), nn.Linear(128, 32)
        self.dropout = dropout
        self.is_checkpointed = is_checkpointed

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.is_checkpointed:
            return checkpoint(self._run, x, use_reentrant=False)
        return self._run(x)

    def _run(self, x: torch.Tensor) -> torch.Tensor:
        y = self.down(F.gelu(self.up(self.norm(x)), approximate="tanh"))
        return x + F.dropout(y, self.dropout, self.training)


class Mlp(nn.Module):
    def __init__(self, dropout: float = 0.0, is_checkpointed: bool = False) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(dropout, is_checkpointed) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x.square().mean()


class Attention(nn.Module):
    """Weights used twice, heads that share a memory, and a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 32)
        self.qkv = nn.Linear(32, 96)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for _ in range(2):
            q, k, v = self.qkv(x).unflatten(-1, (3, 4, 8)).unbind(-3)
            heads = (value.transpose(1, 2) for value in (q, k, v))
            y = F.scaled_dot_product_attention(*heads, is_causal=True)
            x = x + y.transpose(1, 2).flatten(-2)
        logits = x @ self.embedding.weight.T
        return F.cross_entropy(logits.flatten(0, 1), tokens.flatten())


class Images(nn.Module):
    """Running statistics, which forward writes to, and results in several parts."""

    def __init__(self) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(
            nn.Sequential(nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3)) for _ in range(3)
        )

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        for convolution in self.convolutions:
            x = convolution(x).relu().clamp(max=3)
        pooled, places = F.max_pool2d(x, 2, return_indices=True)
        return pooled.square().mean(), places


Case = tuple[Callable[[], nn.Module], Callable[[], torch.Tensor]]
CASES: dict[str, Case] = {
    "mlp": (Mlp, lambda: torch.randn(64, 32)),
    "attention": (Attention, lambda: torch.randint(0, 50, (4, 64))),
    "images": (Images, lambda: torch.randn(4, 3, 16, 16)),
    "dropout": (lambda: Mlp(0.25), lambda: torch.randn(64, 32)),
}


@pytest.fixture(autouse=True)
def nothing_is_compiled() -> None:
    torch._dynamo.reset()


def _case(name: str) -> tuple[nn.Module, torch.Tensor]:
    make, inputs = CASES[name]
    torch.manual_seed(0)
    return make().train(), inputs()


def _step(model: Any, x: torch.Tensor) -> list[torch.Tensor]:
    torch.manual_seed(1)
    out = model(x)
    loss = out[0] if isinstance(out, tuple) else out
    loss.backward()
    values = [loss.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]
    return [value.clone() for value in values]


def _compiled(
    model: nn.Module, x: torch.Tensor, budget: int | str, **options: Any
) -> tuple[CompiledPlan, list[torch.Tensor]]:
    """Returns the plan of the one graph, and the results of a step with it."""
    options = {"backend": "aot_eager", "strict": True, "fullgraph": True} | options
    compiled = acplan.compile(model, budget, **options)
    values = _step(compiled, x)
    (plan,) = acplan.compiled_plans(compiled)
    return plan, values


@pytest.mark.parametrize("name", CASES)
def test_memory_is_as_predicted_at_every_node_and_gradients_stay(name: str) -> None:
    model, x = _case(name)
    whole, expected = _compiled(model, x, "100%")
    least = None
    for budget in ("85%", "min"):
        torch._dynamo.reset()
        model, x = _case(name)
        plan, actual = _compiled(model, x, budget, strict=False)
        verification = plan.verify()
        assert verification.first_difference() is None, str(verification)
        assert verification.measured_bytes == plan.peak_bytes
        assert plan.peak_bytes <= whole.peak_bytes
        for a, b in zip(expected, actual, strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=0)
        least = plan
    assert least is not None
    assert whole.verify().first_difference() is None
    assert least.peak_bytes < whole.peak_bytes


@pytest.mark.parametrize("name", ["mlp", "attention", "images"])
def test_gradients_are_those_of_the_model_as_it_is(name: str) -> None:
    model, x = _case(name)
    expected = _step(model, x)
    model, x = _case(name)
    _, actual = _compiled(model, x, "min")
    for a, b in zip(expected, actual, strict=True):
        torch.testing.assert_close(a, b)


def test_what_runs_again_is_in_both_graphs() -> None:
    model, x = _case("mlp")
    plan, _ = _compiled(model, x, "min")
    names = [
        {n.name for n in g.graph.nodes if n.op == "call_function"}
        for g in (plan.forward, plan.backward)
    ]
    listed = {n["name"] for n in plan.graph["nodes"] if n["makes"]}
    assert names[0] & names[1] & listed == set(plan.data["recomputed"]) != set()
    ms = {node["name"]: node["ms"] for node in plan.graph["nodes"]}
    rerun_ms = sum(ms[name] for name in plan.data["recomputed"])
    assert rerun_ms == pytest.approx(plan.recompute_ms)
    torch._dynamo.reset()
    whole, _ = _compiled(model, x, "100%")
    assert whole.recompute_ms == 0
    assert set(plan.saved) < set(whole.saved) | set(plan.saved)


def test_the_plan_is_what_the_program_says_of_its_choice() -> None:
    model, x = _case("dropout")
    plan, _ = _compiled(model, x, "min")
    evaluation = evaluate_graph(plan.graph, plan.saved)
    assert evaluation["memory"] == plan.data["memory"]
    assert evaluation["recompute_ms"] == pytest.approx(plan.recompute_ms)


class _Dropped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.dropout(self.linear(x).sin(), 0.5).sin().exp().mean()


@needs_compiler
def test_inductor_draws_the_masks_of_dropout_once() -> None:
    """PyTorch's own choice draws them again at its budgets of .5 and 0."""
    steps: list[list[torch.Tensor]] = []
    x = torch.randn(64, 16)
    for budget in ("100%", "min"):
        torch._dynamo.reset()
        torch.manual_seed(0)
        model = _Dropped()
        with fresh_inductor_cache():  # A graph that is in it is not partitioned.
            plan, values = _compiled(model, x, budget, backend="inductor")
        assert plan.verify().first_difference() is None
        steps.append(values)
    assert plan.data["recomputed"]
    assert any(not node.get("again", True) for node in plan.graph["nodes"])
    for a, b in zip(*steps, strict=True):
        torch.testing.assert_close(a, b)


@needs_compiler
def test_inductor_of_a_pytorch_without_an_option_for_partitioners() -> None:
    model, x = _case("dropout")
    with mock.patch.object(step_plan, "PartitionerBase", object), fresh_inductor_cache():
        plan, actual = _compiled(model, x, "min", backend="inductor", mode="default")
        torch._dynamo.reset()
        model, x = _case("dropout")
        whole, expected = _compiled(model, x, "100%", backend="inductor")
    assert plan.verify().first_difference() is None
    assert plan.peak_bytes < whole.peak_bytes
    for a, b in zip(expected, actual, strict=True):
        torch.testing.assert_close(a, b)


def test_steps_of_a_pytorch_that_compiles_no_fakes() -> None:
    def model(blocks: bool, **kwargs: Any) -> Any:
        torch._dynamo.reset()
        net = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8), nn.GELU())
        parts = [net[0], net[2]] if blocks else None
        return acplan.compile(net, "100%", backend="aot_eager", blocks=parts, **kwargs)

    x = torch.randn(4, 8, requires_grad=True)
    with mock.patch.object(compile, "compiles_fakes", lambda: False):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            model(False, strict=True)(x).sum().backward()
        with pytest.warns(UserWarning, match="cannot compile a step on fake tensors"):
            model(True)(x).sum().backward()
        with pytest.raises(AcplanError, match="expected 2.11 or newer"):
            model(True, strict=True)(x)


def _losses(compiled: Any) -> list[float]:
    torch.manual_seed(2)
    optimizer = torch.optim.AdamW(compiled.parameters(), lr=1e-2)
    losses = []
    for _ in range(20):
        loss = compiled(torch.randn(64, 32))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("dropout", [0.0, 0.25])
def test_training_is_that_of_pytorchs_partitioner(dropout: float) -> None:
    def model() -> nn.Module:
        torch._dynamo.reset()
        torch.manual_seed(0)
        return Mlp(dropout).train()

    expected = _losses(torch.compile(model(), backend="aot_eager"))
    actual = _losses(acplan.compile(model(), "min", strict=True, backend="aot_eager"))
    assert actual == pytest.approx(expected)
    assert actual[-1] < actual[0]


def test_what_the_model_checkpoints_itself_runs_again() -> None:
    for dropout in (0.0, 0.25):  # whose masks PyTorch draws again as they were
        torch._dynamo.reset()
        torch.manual_seed(0)
        model, x = Mlp(dropout, is_checkpointed=True).train(), torch.randn(64, 32)
        plan, actual = _compiled(model, x, "100%")
        reruns = [n["op"] for n in plan.graph["nodes"] if n["name"] in plan.data["recomputed"]]
        assert reruns.count("aten.gelu.default") == 3
        assert reruns.count("aten.native_dropout.default") == (3 if dropout else 0)
        assert dropout or plan.verify().first_difference() is None
        torch._dynamo.reset()
        torch.manual_seed(0)
        model = Mlp(dropout, is_checkpointed=True).train()
        expected = _step(torch.compile(model, backend="aot_eager"), x)
        for a, b in zip(expected, actual, strict=True):
            torch.testing.assert_close(a, b)


def test_shapes_may_be_symbols() -> None:
    model, x = _case("mlp")
    compiled = acplan.compile(model, "min", backend="aot_eager", dynamic=True, strict=True)
    for size in (64, 48):
        x = torch.randn(size, 32)
        actual = _step(compiled, x)
        model.zero_grad()
        for a, b in zip(_step(model, x), actual, strict=True):
            torch.testing.assert_close(a, b)
        model.zero_grad()
    (plan,) = acplan.compiled_plans(compiled)
    assert plan.verify().first_difference() is None
    assert plan.graph["notes"]


def test_nothing_is_planned_without_a_backward_pass() -> None:
    model, x = _case("mlp")
    compiled = acplan.compile(model, 1000, backend="aot_eager", strict=True)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x))
    assert acplan.compiled_plans(compiled) == ()


def test_where_nothing_fits_the_least_budget_is_told() -> None:
    model, x = _case("mlp")
    least, _ = _compiled(model, x, "min")
    torch._dynamo.reset()
    with pytest.raises(Exception, match=f"fits 1,000 bytes; one needs {least.peak_bytes:,}"):
        _compiled(model, x, 1000)
    torch._dynamo.reset()
    with pytest.warns(
        UserWarning, match="one needs .* the graph is planned for that budget"
    ) as caught_warnings:
        plan, _ = _compiled(model, x, 1000, strict=False)
    assert len([w for w in caught_warnings if "planned for" in str(w.message)]) == 1
    assert plan.peak_bytes <= least.peak_bytes


@pytest.mark.parametrize("where", ["plan_graph", "JointGraph"])
def test_a_run_never_ends_for_want_of_a_plan(where: str) -> None:
    model, x = _case("mlp")
    broken = mock.patch.object(compile, where, side_effect=ValueError("broken\nby hand"))
    with (
        broken,
        pytest.warns(UserWarning, match="planning raised ValueError: broken$"),
    ):
        compiled = acplan.compile(model, "min", backend="aot_eager")
        actual = _step(compiled, x)
    assert acplan.compiled_plans(compiled) == ()
    model.zero_grad()
    for a, b in zip(_step(model, x), actual, strict=True):
        torch.testing.assert_close(a, b)
    torch._dynamo.reset()
    with broken, pytest.raises(Exception, match="broken"):
        _compiled(model, x, "min")


def test_a_choice_that_pytorch_refuses_is_left_to_it() -> None:
    model, x = _case("mlp")
    wrong = mock.patch.object(compile.JointGraph, "saved_nodes", lambda self, names: [])
    with wrong, pytest.warns(UserWarning, match="PyTorch partitions a graph"):
        compiled = acplan.compile(model, "min", backend="aot_eager")
        actual = _step(compiled, x)
    model.zero_grad()
    for a, b in zip(_step(model, x), actual, strict=True):
        torch.testing.assert_close(a, b)


def test_pytorch_has_its_own_choice_back() -> None:
    own = partitioners.choose_saved_values_set
    calls: list[str] = []

    def other_thread() -> None:
        with contextlib.suppress(AttributeError):  # of a graph that is none
            partitioners.choose_saved_values_set(None, None)
        calls.append("PyTorch")

    with choosing(lambda graph, info: calls.append("chosen") or []):
        assert partitioners.choose_saved_values_set(None, None) == []
        thread = threading.Thread(target=other_thread)
        thread.start()
        thread.join()
        with choosing(lambda graph, info: ["inner"]):
            assert partitioners.choose_saved_values_set(None, None) == ["inner"]
        assert partitioners.choose_saved_values_set is not own
    assert calls == ["chosen", "PyTorch"]
    with pytest.raises(ValueError, match="by hand"), choosing(lambda graph, info: []):
        raise ValueError("by hand")
    assert partitioners.choose_saved_values_set is own


def test_a_partitioner_is_a_partition_fn() -> None:
    model, x = _case("mlp")
    partitioner = acplan.partitioner("min", strict=True)
    backend = aot_autograd(fw_compiler=lambda g, _: g, partition_fn=partitioner)
    actual = _step(torch.compile(model, backend=backend), x)
    model.zero_grad()
    for a, b in zip(_step(model, x), actual, strict=True):
        torch.testing.assert_close(a, b)
    (verification,) = acplan.verify_compiled(partitioner)
    assert verification.first_difference() is None


def test_caches_tell_budgets_apart() -> None:
    model, _ = _case("mlp")
    partitioners = [
        acplan.partitioner(1000),
        acplan.partitioner(2000),
        acplan.partitioner(1000, other_memory="1KiB"),
        acplan.partitioner(1000, model=model),
        acplan.partitioner(1000, device="h100"),
        acplan.partitioner(1000, strict=True),
    ]
    assert len({each.uuid() for each in partitioners}) == len(partitioners)
    assert acplan.partitioner(1000).uuid() == partitioners[0].uuid()
    assert pickle.loads(pickle.dumps(partitioners[0])) == partitioners[0].uuid()


def test_parameters_count_once_and_the_optimizer_too() -> None:
    model, x = _case("mlp")
    alone = acplan.partitioner("100%", strict=True)
    backend = aot_autograd(fw_compiler=lambda g, _: g, partition_fn=alone)
    _step(torch.compile(model, backend=backend), x)
    torch._dynamo.reset()
    plan, _ = _compiled(model, x, "100%")
    assert plan.graph["held_bytes"] == 0
    assert plan.peak_bytes == alone.plans[0].peak_bytes
    torch._dynamo.reset()
    blocks = sum(-(-p.nbytes // 512) * 512 for p in model.parameters())
    with_held_memory, _ = _compiled(model, x, "100%", optimizer="momentum", other_memory="1MiB")
    assert with_held_memory.graph["held_bytes"] == blocks + 2**20
    assert with_held_memory.peak_bytes == plan.peak_bytes + blocks + 2**20


def test_optimizers_are_asked_for_what_they_keep() -> None:
    model, x = _case("mlp")
    blocks = sum(-(-p.nbytes // 512) * 512 for p in model.parameters())
    assert optimizer_bytes(model, None) == 0
    assert optimizer_bytes(model, "momentum") == blocks
    steps = 512 * len(list(model.parameters()))  # AdamW counts its steps
    assert optimizer_bytes(model, "adamw") == 2 * blocks + steps
    optimizer = torch.optim.AdamW(model.parameters())
    assert optimizer_bytes(model, optimizer) == 2 * blocks + steps
    _step(model, x)
    optimizer.step()
    assert optimizer_bytes(model, optimizer) == 2 * blocks + steps


class _Broken(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Mlp().blocks[:2]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        torch._dynamo.graph_break()
        return self.second(y).square().mean()


def test_a_graph_is_told_what_others_hold() -> None:
    torch.manual_seed(0)
    model, x = _Broken(), torch.randn(64, 32)
    partitioner = acplan.partitioner("100%", model=model, fused=False, strict=True)
    compiled = torch.compile(model, backend=compile._aot_eager(partitioner))
    actual = _step(compiled, x)
    first, second = partitioner.plans
    sizes = [
        sum(-(-p.nbytes // 512) * 512 for p in part.parameters())
        for part in (model.first, model.second)
    ]
    # Parameters of the other block; in backward their gradients, too.
    assert first.graph["held_bytes"] == 2 * sizes[1]
    # The result of the first graph is an input of the second.
    assert second.graph["held_bytes"] == sizes[0] + first.data["saved_bytes"]
    model.zero_grad()
    for a, b in zip(_step(model, x), actual, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"backend": "cudagraphs"}, "expected backend 'inductor' or 'aot_eager', found"),
        ({"backend": "aot_eager", "mode": "default"}, "mode and options are those of"),
        ({"mode": "fastest"}, "mode: expected one of .*default.*, found 'fastest'"),
        ({"mode": "default", "options": {"x": 1}}, "give mode or options"),
        ({"options": {"custom-partitioner-fn": None}}, "options have a custom_part"),
        (
            {"other_memory": "a lot"},
            "other_memory: expected bytes or a size such as \"2GiB\", found 'a lot'",
        ),
        ({"device": "abacus"}, "device: expected one of"),
        ({"budget": 1.5}, "budget: expected bytes or a size"),
    ],
)
def test_wrong_arguments(arguments: dict[str, Any], message: str) -> None:
    arguments = {"budget": "min"} | arguments
    with pytest.raises(AcplanError, match=message):
        acplan.compile(nn.Linear(2, 2), **arguments)


def test_wrong_things_to_compile() -> None:
    with pytest.raises(AcplanError, match="compile: expected a module, found function"):
        acplan.compile(lambda x: x, "min")  # type: ignore[arg-type]
    with pytest.raises(AcplanError, match="expected what acplan.compile returns"):
        acplan.compiled_plans(nn.Linear(2, 2))
    with pytest.raises(AcplanError, match="optimizer: needs model"):
        acplan.partitioner("min", optimizer="adamw")


def test_costs_are_those_of_inductors_kernels() -> None:
    model, x = _case("mlp")
    ms = {}
    for fused in (True, False):
        torch._dynamo.reset()
        partitioner = acplan.partitioner("min", fused=fused, strict=True, device="a100")
        backend = aot_autograd(fw_compiler=lambda g, _: g, partition_fn=partitioner)
        _step(torch.compile(model, backend=backend), x)
        (plan,) = partitioner.plans
        nodes = [n for n in plan.graph["nodes"] if n["stage"] == "forward"]
        ms[fused] = {n["op"]: n["ms"] for n in nodes}
    bytes_ms = LAUNCH_SECONDS * 1e3 + acplan.DEVICES["a100"].traffic_ms(64 * 128 * 4 * 2)
    # A product reads GELU's output: that is read and written.
    gelu = next(op for op in ms[False] if "gelu" in op)
    assert ms[True][gelu] == ms[False][gelu] == pytest.approx(bytes_ms)
    product = "aten.addmm.default"
    assert ms[True][product] == ms[False][product] > 0
    # The sum is read by kernels that Inductor writes.
    assert ms[True]["aten.pow.Tensor_Scalar"] == 0 < ms[False]["aten.pow.Tensor_Scalar"]
