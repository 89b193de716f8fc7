"""torch.compile's own memory budget, `torch._functorch.config.activation_memory_budget`: the
value of it that recomputes least within a budget of bytes, and the effect of a value that a
configuration has.

The policies are PyTorch's: at each value its partitioner chooses what forward saves, and makes
the two graphs, which run here on fake tensors, node by node.
"""

import dataclasses
import difflib
import os
import pathlib
import re
from collections.abc import Iterable
from typing import Any

import torch
from torch._functorch import partitioners
from torch.fx import Graph, Node

from acplan._base.arguments import require_module
from acplan._base.errors import AcplanError
from acplan._compile.compile import device_of
from acplan._compile.fake_step import RecordedStep
from acplan._compile.held_memory import StepMemory
from acplan._compile.joint_step import joint_step, of_model
from acplan._compile.step_memory import run_graphs
from acplan._compile.step_plan import Compilation, options_of
from acplan._compile.step_recorder import Graphs, RecordedGraph
from acplan._device.devices import Device
from acplan._files.json_files import path_of
from acplan._graphs.joint_graph import JointGraph
from acplan._graphs.pytorch_partitioner import choosing
from acplan._graphs.remat import plan_graph
from acplan._program.budgets import Budget, size_bytes, size_text
from acplan._step.optimizers import OptimizerLike

_NOTHING_FITS = 3
# The steps of PyTorch's own picture of its budgets.
_VALUES = tuple(k / 20 for k in range(21))
_NAME = "activation_memory_budget"
_MOST_CONFIG_BYTES = 2**20
_NUMBER = r"([0-9]*\.?[0-9]+(?:[eE][-+]?[0-9]+)?)(?![\w.])"
_PATTERNS = (
    re.compile(rf"^[^#\n]*\b{_NAME}\s*=\s*{_NUMBER}", re.MULTILINE),
    re.compile(rf"^[^#\n]*MemoryBudgetAC\.Config\([^)]*\bmemory_budget\s*=\s*{_NUMBER}", re.M),
    re.compile(rf"^\s*memory_budget\s*=\s*{_NUMBER}", re.MULTILINE),
)
_TEXTS = {
    "torch": f"import torch._functorch.config\n\ntorch._functorch.config.{_NAME} = {{}}\n",
    "torchtitan": (
        "from torchtitan.distributed.activation_checkpoint import MemoryBudgetAC\n\n"
        "activation_checkpoint = MemoryBudgetAC.Config(memory_budget={})\n"
    ),
}


@dataclasses.dataclass(frozen=True)
class BudgetChoice:
    """The effect of a value of PyTorch's memory budget. `is_wrong`: random operators run a
    second time and draw other numbers, so that gradients are wrong."""

    value: float
    peak_bytes: int
    recompute_ms: float
    is_wrong: bool = False

    def __str__(self) -> str:
        wrong = ", draws random numbers twice: gradients are wrong" if self.is_wrong else ""
        return (
            f"{self.value:g}: peak {self.peak_bytes:,} bytes, recomputes "
            f"{self.recompute_ms:.3f} ms{wrong}"
        )


@dataclasses.dataclass(frozen=True)
class BudgetAudit:
    """A value of PyTorch's memory budget, the best value at the same peak, and the plan of
    acplan.compile there, if there is one."""

    choice: BudgetChoice
    best: BudgetChoice
    plan_ms: float | None

    def __str__(self) -> str:
        lines = [f"memory budget {self.choice}", f"best value    {self.best}"]
        if self.plan_ms is not None:
            lines.append(f"acplan        recomputes {self.plan_ms:.3f} ms at that peak")
        return "\n".join(lines)


@dataclasses.dataclass(frozen=True)
class MemoryBudgets:
    """The effects of all values of PyTorch's memory budget that were tried, in ascending
    order. `graph`: the step as a file `acplan.graph`."""

    choices: tuple[BudgetChoice, ...]
    graph: dict[str, Any] = dataclasses.field(repr=False)

    def best(self, budget: Budget) -> BudgetChoice:
        """Returns the value that recomputes least within bytes, a size such as "20GiB", or
        "min"; of equal ones the largest."""
        choices = [choice for choice in self.choices if not choice.is_wrong]
        if not choices:
            raise AcplanError("every value draws random numbers twice: gradients are wrong")
        least = min(choice.peak_bytes for choice in choices)
        limit = least if budget == "min" else size_bytes("budget", size_text("budget", budget))
        fitting = [choice for choice in choices if choice.peak_bytes <= limit]
        if not fitting:
            raise AcplanError(
                f"budget: no value of the memory budget fits {limit:,} bytes; one needs "
                f"{least:,}",
                exit_code=_NOTHING_FITS,
            )
        return min(fitting, key=lambda choice: (choice.recompute_ms, -choice.value))

    def text(self, budget: Budget, trainer: str = "torch") -> str:
        """Returns the lines that set the best value: those of PyTorch, or of torchtitan."""
        if trainer not in _TEXTS:
            raise AcplanError(f"trainer: expected torch or torchtitan, found {trainer!r}")
        choice = self.best(budget)
        return f"# {choice}\n" + _TEXTS[trainer].format(f"{choice.value:g}")

    def audit(self, config: str | os.PathLike[str] | float) -> BudgetAudit:
        """Judges a value, or the one that a configuration sets."""
        value = config if isinstance(config, (int, float)) else budget_value(config)
        choice = next((c for c in self.choices if c.value == value), None)
        if choice is None:
            raise AcplanError(
                f"{value:g} is not among the values that were tried; use values=[{value:g}]"
            )
        plan = plan_graph(self.graph, choice.peak_bytes, time_limit=10)
        return BudgetAudit(choice, self.best(choice.peak_bytes), plan.get("recompute_ms"))


def budget_value(config: str | os.PathLike[str]) -> float:
    """Returns the memory budget that a file sets, in PyTorch's words or torchtitan's."""
    path = pathlib.Path(path_of(config, "config"))
    try:
        data = path.read_bytes()
        text = data[:_MOST_CONFIG_BYTES].decode()
    except (OSError, UnicodeDecodeError) as error:
        raise AcplanError(f"{path}: {getattr(error, 'strerror', None) or 'no text'}") from None
    numbers = {match[1] for pattern in _PATTERNS for match in pattern.finditer(text)}
    if len(numbers) > 1:
        raise AcplanError(f"{path}: expected one {_NAME}, found {', '.join(sorted(numbers))}")
    if not numbers:
        words = sorted(set(re.findall(r"\w+", text)))
        near = difflib.get_close_matches(_NAME, words, 1)
        what = f"found {near[0]}" if near else "found none"
        raise AcplanError(f"{path}: expected {_NAME} = a number from 0 to 1, {what}")
    value = float(numbers.pop())
    if value > 1:
        raise AcplanError(f"{path}: {_NAME}: expected a number from 0 to 1, found {value:g}")
    return value


def memory_budgets(
    model: torch.nn.Module,
    *args: Any,
    optimizer: OptimizerLike = None,
    device: str | Device | None = None,
    values: Iterable[float] = _VALUES,
    backend: str = "inductor",
    **kwargs: Any,
) -> MemoryBudgets:
    """Returns the effects of torch.compile's memory budget on a training step of the model,
    called with these arguments. The step runs on fake tensors.

    values: the values that are tried, by default 0, 0.05, ..., 1.
    optimizer, device, backend: as for acplan.compile.
    """
    require_module(model, "memory_budgets")
    target = device_of(device)
    budget_values = sorted({float(value) for value in values})
    if not budget_values or not 0 <= budget_values[0] <= budget_values[-1] <= 1:
        raise AcplanError("values: expected numbers from 0 to 1")

    def make_joint(module: Any, node_info: Any, num_fwd_outputs: int) -> JointGraph:
        return JointGraph(
            module, node_info, num_fwd_outputs, target, is_fused=backend == "inductor"
        )

    compilation = Compilation(model, (), backend, options_of(backend, None, None))
    step = compilation.record(make_joint, args, kwargs)
    if not step.forward:
        raise AcplanError("no graph with a backward pass is compiled")
    name = type(model).__name__
    inputs = joint_step(step, name).inputs
    memory = StepMemory(model, optimizer, 0)
    held_bytes = memory.beside_step(of_model(step, inputs)) + step.elsewhere_bytes
    graphs = {run.graph.key: run.graph for run in step.forward}
    saved = {key: _saved_at(graph, budget_values) for key, graph in graphs.items()}
    effects: dict[Any, tuple[int, float, bool]] = {}
    choices = []
    for value in budget_values:
        names = {key: tuple(saved[key][value]) for key in graphs}
        effect_key = tuple(names.values())
        if effect_key not in effects:
            modules = {key: _graphs_saving(graphs[key], names[key]) for key in graphs}
            effects[effect_key] = _effect(step, modules, held_bytes)
        choices.append(BudgetChoice(value, *effects[effect_key]))
    return MemoryBudgets(tuple(choices), joint_step(step, name, held_bytes).data)


def _saved_at(graph: RecordedGraph, values: list[float]) -> dict[float, list[str]]:
    """Returns the names of the nodes that PyTorch saves at each value."""
    saved: dict[float, list[str]] = {}

    def choose(joint_graph: Graph, node_info: Any) -> list[Node]:
        nodes: list[Node] = []
        for value in values:
            with choosing(lambda _, __: None):
                nodes = partitioners.choose_saved_values_set(joint_graph, node_info, value)
            saved[value] = [node.name for node in nodes]
        return nodes

    graph.partition(choose)
    return saved


def _graphs_saving(graph: RecordedGraph, names: tuple[str, ...]) -> Graphs:
    by_place = {name: place for place, name in enumerate(names)}

    def choose(joint_graph: Graph, _: Any) -> list[Node]:
        nodes = [node for node in joint_graph.nodes if node.name in by_place]
        return sorted(nodes, key=lambda node: by_place[node.name])

    return graph.partition(choose)


def _effect(
    step: RecordedStep, modules: dict[str, Graphs], held_bytes: int
) -> tuple[int, float, bool]:
    """Returns peak, recomputation, and whether something runs twice that must not."""
    peak_bytes = max(o.live_bytes for o in run_graphs(step, modules, held_bytes))
    recompute_ms, is_wrong = 0.0, False
    for run in step.forward:
        first, second = (
            {n.name for n in module.graph.nodes if n.op == "call_function"}
            for module in modules[run.graph.key]
        )
        for node in run.graph.data["nodes"]:
            if node["name"] in first & second:
                recompute_ms += node["ms"]
                is_wrong = is_wrong or not node.get("again", True)
    return peak_bytes, recompute_ms, is_wrong
