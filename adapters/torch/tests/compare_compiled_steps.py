"""Steps of several compiled graphs: planned together, planned one graph after another, and
as PyTorch's memory budgets have it, at the same peak.

    ACPLAN=... PYTHONPATH=. python tests/compare_compiled_steps.py

writes docs/measured/compiled_graphs.csv and compiled_training.csv. With names of cases after
it, it prints only those; with `training` before names of small models, the losses of these.
"""

import dataclasses
import logging
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
import transformers
from torch import nn
from torch._functorch import config

import acplan
from acplan._compile import compile as compiling
from acplan._compile.compile import partitioner
from acplan._compile.joint_step import JointStep, joint_step, of_model
from acplan._compile.step_memory import run_graphs
from acplan._compile.step_plan import Compilation, plan_of
from acplan._compile.step_recorder import Graphs, RecordedGraph
from acplan._graphs.remat import plan_graph
from tables import Table

BUDGETS = (0.8, 0.6, 0.4, 0.2)
_GIB = 2**30


class WithBreak(nn.Module):
    """A model whose graph breaks in front of one of its layers."""

    def __init__(self, model: nn.Module, layer: nn.Module) -> None:
        super().__init__()
        self.model = model
        layer.register_forward_pre_hook(self._break)

    @torch._dynamo.disable
    def _break(self, *_: Any) -> None:
        pass

    def forward(self, **inputs: Any) -> Any:
        return self.model(**inputs)


def _gpt2(layers: int = 12, **kwargs: Any) -> nn.Module:
    config = transformers.GPT2Config(
        n_layer=layers, use_cache=False,
        resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, **kwargs,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config)


def _broken_gpt2() -> nn.Module:
    model = _gpt2()
    return WithBreak(model, model.transformer.h[6])


class Halves(nn.Module):
    """A GPT-2 whose graph breaks in the middle, in no loop."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        parts = self.model.transformer
        places = torch.arange(input_ids.shape[1], device=input_ids.device)
        x = parts.wte(input_ids) + parts.wpe(places)
        half = len(parts.h) // 2
        x = self._run(parts.h[:half], x)
        torch._dynamo.graph_break()
        x = parts.ln_f(self._run(parts.h[half:], x))
        logits = self.model.lm_head(x)[:, :-1].flatten(0, 1)
        return nn.functional.cross_entropy(logits, labels[:, 1:].flatten())

    @staticmethod
    def _run(blocks: Any, x: torch.Tensor) -> torch.Tensor:
        for block in blocks:
            out = block(x)
            x = out if isinstance(out, torch.Tensor) else out[0]
        return x


def _llama() -> nn.Module:
    llama = transformers.LlamaConfig(
        hidden_size=1024,
        intermediate_size=2816,
        num_hidden_layers=8,
        num_attention_heads=16,
        num_key_value_heads=4,
        vocab_size=32000,
        use_cache=False,
    )
    return transformers.LlamaForCausalLM(llama)


def _tokens(batch: int, length: int, vocabulary: int) -> dict[str, torch.Tensor]:
    tokens = torch.randint(0, vocabulary, (batch, length))
    return {"input_ids": tokens, "labels": tokens}


Case = tuple[Callable[[], nn.Module], Callable[[nn.Module], Any], dict[str, torch.Tensor]]
CASES: dict[str, Case] = {
    "GPT-2 small with labels, 8 x 1024": (
        _gpt2, lambda _: (), _tokens(8, 1024, 50257),
    ),
    "GPT-2 small, graph break in the middle, 8 x 1024": (
        lambda: Halves(_gpt2()), lambda _: (), _tokens(8, 1024, 50257),
    ),
    "GPT-2 small, graph break in the loop over blocks, 8 x 1024": (
        _broken_gpt2, lambda _: (), _tokens(8, 1024, 50257),
    ),
    "Llama, 8 layers, by block, 4 x 2048": (
        _llama, lambda m: tuple(m.model.layers), _tokens(4, 2048, 32000),
    ),
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Way:
    """The memory that the graphs of a step need, and the time of what they run twice."""

    peak_bytes: int
    recompute_ms: float


class MeasuredStep:
    def __init__(self, name: str) -> None:
        make, blocks, inputs = CASES[name]
        torch._dynamo.reset()
        self.model = make().train()
        planner = partitioner("100%", model=self.model, device="a100")
        compilation = Compilation(self.model, blocks(self.model))
        began = time.perf_counter()
        self.step = compilation.record(planner._joint_graph, (), inputs)
        self.seconds = time.perf_counter() - began
        joint = joint_step(self.step, name)
        beside_bytes = self._beside_bytes(planner, joint)
        self.joint = joint_step(self.step, name, beside_bytes)
        self.graphs = {run.graph.key: run.graph for run in self.step.forward}

    def _beside_bytes(self, planner: Any, joint: JointStep) -> int:
        model_memory = of_model(self.step, joint.inputs)
        return int(planner._memory.beside_step(model_memory)) + self.step.elsewhere_bytes

    def way_of(self, graphs: dict[str, Graphs]) -> Way:
        """Runs the graphs, and returns what they need."""
        steps = run_graphs(self.step, graphs, self.joint.data["held_bytes"])
        ms = {node["name"]: node["ms"] for node in self.joint.data["nodes"]}
        names: set[str] = set()
        rerun_ms = 0.0
        for step in steps:
            rerun_ms += ms[step.name] if step.name in names else 0.0
            names.add(step.name)
        return Way(max(step.live_bytes for step in steps), rerun_ms)

    def as_torch(self, budget: float) -> Way:
        graphs = {}
        with config.patch(activation_memory_budget=budget):
            for key, graph in self.graphs.items():
                graphs[key] = graph.partition(lambda *_: None)
        return self.way_of(graphs)

    def one_after_another(self, budget: int) -> Way:
        """Plans each graph by itself, as acplan's partitioner does if it does not know the
        step."""
        planner = partitioner(budget, model=self.model, device="a100")
        graphs: dict[str, Graphs] = {}
        for key, graph in self.graphs.items():
            with mock.patch.object(compiling, "_frame_name", lambda k=key: k):
                graphs[key] = self._planned_graphs(planner, graph)
        return self.way_of(graphs)

    @staticmethod
    def _planned_graphs(planner: Any, graph: RecordedGraph) -> Graphs:
        plans: list[Any] = []

        def choose(_: Any, node_info: Any) -> Any:
            plans.append(planner._plan_graph(graph.module, node_info, graph.num_fwd_outputs))
            return plans[-1].saved

        forward, backward = graph.partition(choose)
        return forward, plans[-1].order.applied(backward)

    def together(self, budget: int) -> tuple[Way, dict[str, Any], bool]:
        """Plans all graphs together. The last value says whether they run as predicted."""
        data = plan_graph(self.joint.data, budget, 60.0)
        plan = plan_of(self.step, self.joint, data)
        graphs = {k: self.graphs[k].saving(v) for k, v in plan.shares.items()}
        return self.way_of(graphs), data, plan.verify().first_difference() is None


def _rows(name: str) -> Iterator[list[str]]:
    measured = MeasuredStep(name)
    for budget in BUDGETS:
        theirs = measured.as_torch(budget)
        ours, data, is_as_predicted = measured.together(theirs.peak_bytes)
        alone = measured.one_after_another(theirs.peak_bytes)
        same_peak, *_ = measured.together(alone.peak_bytes)
        proven = "yes" if data["status"] == "optimal" else f"{100 * data['gap']:.1f}%"
        yield [
            name,
            f"{len(measured.step.forward)} / {len(measured.graphs)}",
            f"{budget:g}",
            f"{theirs.peak_bytes / _GIB:.3f}",
            f"{theirs.recompute_ms:.2f}",
            f"{ours.peak_bytes / _GIB:.3f}",
            f"{ours.recompute_ms:.2f}",
            f"{data['bound_ms']:.2f}",
            proven,
            "yes" if is_as_predicted else "no",
            f"{data['seconds']:.1f}",
            f"{alone.peak_bytes / _GIB:.3f}",
            f"{alone.recompute_ms:.2f}",
            f"{same_peak.recompute_ms:.2f}",
        ]


_COLUMNS = (
    "step", "runs / graphs", "budget", "PyTorch: peak GiB", "PyTorch: recomputed ms",
    "together: peak GiB", "together: recomputed ms", "bound ms", "proven",
    "ran as predicted", "seconds", "in sequence: peak GiB", "in sequence: recomputed ms",
    "together at that peak: recomputed ms",
)  # fmt: skip


# --- training

# With PyTorch's partitioner.
_THEIRS = {"aot_eager": "aot_eager_decomp_partition", "inductor": "inductor"}


def _trained(
    make: Callable[[], nn.Module], blocks: Any, backend: str, budget: str | None
) -> list[float]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = make().train()
    parts, theirs = blocks(model), _THEIRS[backend]
    if budget is not None:
        options = {"blocks": parts} if parts else {}
        compiled = acplan.compile(
            model, budget, backend=backend, optimizer="adamw", strict=True, **options
        )
    else:
        for block in parts:
            block.compile(backend=theirs)
        compiled = model if parts else torch.compile(model, backend=theirs)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    inputs = _tokens(2, 64, 500)
    losses = []
    for _ in range(10):
        output = compiled(**inputs)
        loss = output if isinstance(output, torch.Tensor) else output.loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    if budget is not None:
        (plan,) = acplan.compiled_plans(compiled)
        assert len(plan.runs) > 1
        assert plan.verify().first_difference() is None
    return losses


def _small_gpt2() -> nn.Module:
    return _gpt2(4, n_embd=64, n_head=4, vocab_size=500, bos_token_id=0, eos_token_id=0)


def _small_broken() -> nn.Module:
    model = _small_gpt2()
    return WithBreak(model, model.transformer.h[2])


def _small_llama() -> nn.Module:
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            hidden_size=64, intermediate_size=176, num_hidden_layers=4,
            num_attention_heads=4, num_key_value_heads=2, vocab_size=500, use_cache=False,
        )
    )  # fmt: skip


# With a share of what all saved needs, above the least budget.
_TRAINED = {
    "GPT-2 with labels": (_small_gpt2, lambda _: (), "70%"),
    "GPT-2, graph break in the middle": (
        lambda: Halves(_small_gpt2()), lambda _: (), "70%",
    ),
    "GPT-2, graph break in the loop": (_small_broken, lambda _: (), "70%"),
    "Llama, by block": (_small_llama, lambda m: tuple(m.model.layers), "80%"),
}  # fmt: skip


def _training(*names: str) -> None:
    columns = ["model", "backend", "budget", "first loss", "last loss", "largest difference"]
    table = Table("compiled_training", columns, is_partial=bool(names))
    for name in names or _TRAINED:
        make, blocks, share = _TRAINED[name]
        for backend in ("aot_eager", "inductor"):
            base = _trained(make, blocks, backend, None)
            for budget in ("min", share):
                losses = _trained(make, blocks, backend, budget)
                most = max(abs(a - b) / b for a, b in zip(losses, base, strict=True))
                figures = [f"{losses[0]:.4f}", f"{losses[-1]:.4f}", f"{most:.1e}"]
                table.add(name, backend, budget, *figures)


def _main(*names: str) -> None:
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    if names[:1] != ("training",):
        table = Table("compiled_graphs", _COLUMNS, is_partial=bool(names))
        for name in names or CASES:
            for row in _rows(name):
                table.add(*row)
    if not names or names[:1] == ("training",):
        _training(*names[1:])


if __name__ == "__main__":
    _main(*sys.argv[1:])
