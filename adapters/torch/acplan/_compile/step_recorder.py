"""A training step of a compiled model as the graphs that it runs, in order, and the memory that
passes from one to the next, found by a step on fake tensors.

PyTorch compiles the model as it would, up to the point where a graph is partitioned. Then it
runs the partitioned graphs, node by node on fake tensors, while everything between them (the
model's own code, autograd, the engine of backward) is that of a real step. Each storage that
goes into or comes out of a graph has a number; two graphs share memory if they name the same
number.
"""

import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch._guards import detect_fake_mode
from torch.fx import Graph, GraphModule, Node
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves

from acplan._base.errors import AcplanError
from acplan._base.tensors import tensors_in
from acplan._graphs.joint_graph import JointGraph
from acplan._graphs.node_values import FakeRun, allocated_bytes, distinct_storages
from acplan._graphs.pytorch_partitioner import Chooser

_TAG = "acplan_graph"

Graphs = tuple[GraphModule, GraphModule]
MakeJoint = Callable[[GraphModule, Any, int], JointGraph]


def hash_of(joint: JointGraph, data: Mapping[str, Any]) -> str:
    """Returns a hash that identifies a joint graph: its nodes, and everything on which a plan
    depends."""
    facts = {key: data[key] for key in _PLANNED_BY} | {"signature": joint.signature}
    text = json.dumps(facts, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


_PLANNED_BY = ("buffers", "nodes", "forward_outputs", "backward_outputs")


@dataclasses.dataclass(repr=False, eq=False)
class RecordedGraph:
    """A graph that PyTorch compiled, and the function that makes two graphs of it."""

    key: str
    joint: JointGraph
    data: dict[str, Any]
    num_fwd_outputs: int
    module: GraphModule
    # Partitions by PyTorch, with a choice of what is saved.
    partition: Callable[[Chooser], Graphs]

    def saving(self, names: Iterable[str]) -> Graphs:
        """Returns forward and backward that keep these buffers."""
        saved = {node.name for node in self.joint.saved_nodes(names)}

        def choose(joint_graph: Graph, _: Any) -> list[Node]:
            return [node for node in joint_graph.nodes if node.name in saved]

        forward, backward = self.partition(choose)
        return forward, self.joint.order.applied(backward)

    def __deepcopy__(self, memo: dict[int, Any]) -> "RecordedGraph":
        return self  # PyTorch copies the modules that are tagged with it


@dataclasses.dataclass(repr=False, eq=False)
class Run:
    """A call of a graph. Its storages are indexed by the number of the graph's buffer for them:
    inputs of forward, forward's results for the model, inputs that arrive with the backward
    pass, and results of backward. `handed_out`: all storages that forward hands out, for the
    model or for backward."""

    graph: RecordedGraph
    inputs: dict[int, int]
    outputs: dict[int, int]
    handed_out: frozenset[int]
    tangents: dict[int, int] = dataclasses.field(default_factory=dict)
    gradients: dict[int, int] = dataclasses.field(default_factory=dict)
    is_done: bool = False  # backward ran


class Storages:
    """The numbers of storages, and their bytes. A number is never given twice, as the remains
    of a storage that is gone keep its address."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self._weak: list[StorageWeakRef] = []
        self.bytes_on: list[tuple[int, str]] = []

    def number(self, tensor: torch.Tensor) -> int:
        weak = StorageWeakRef(tensor.untyped_storage())
        known_number = self._numbers.get(weak.cdata)
        if known_number is None:
            known_number = self._numbers[weak.cdata] = len(self._weak)
            self._weak.append(weak)
            device = tensor.device.type
            self.bytes_on.append((allocated_bytes(tensor, device), device))
        return known_number

    def numbers(self, value: Any) -> list[int]:
        return [self.number(tensor) for _, tensor in distinct_storages(value)]

    def is_there(self, number: int) -> bool:
        return not self._weak[number].expired()


class StepRecorder:
    """Partitions and runs the graphs of a step, and notes their arguments and results.

    make_joint: makes a graph's data from PyTorch's account of its nodes.
    """

    def __init__(self, make_joint: MakeJoint) -> None:
        self.storages = Storages()
        self.runs: list[Run] = []
        self.backward_runs: list[Run] = []
        self.is_backward = False  # the model's forward has ended
        self._is_in_order = True
        self._make_joint = make_joint

    def require_order(self) -> None:
        """Raises AcplanError if the step is not all of forward, then all of backward, as the
        joint graph of a step is."""
        if not self._is_in_order:
            raise AcplanError(
                "graphs run forward in backward, as under torch.utils.checkpoint, or "
                "backward in forward"
            )

    def partition(
        self,
        partition_with: Callable[[Chooser], Graphs],
        module: GraphModule,
        num_fwd_outputs: int,
    ) -> Graphs:
        """Notes a graph, and lets PyTorch partition it so that only nodes run again that
        must."""
        graphs: list[RecordedGraph] = []

        def choose(joint_graph: Graph, node_info: Any) -> list[Node]:
            with _disable_current_modes():
                joint = self._make_joint(module, node_info, num_fwd_outputs)
                data = joint.data("")
                key = hash_of(joint, data)
            graphs.append(
                RecordedGraph(key, joint, data, num_fwd_outputs, module, partition_with)
            )
            return joint.saved_nodes(joint.keepable())

        forward, backward = partition_with(choose)
        for part, is_backward in ((forward, False), (backward, True)):
            part.meta[_TAG] = (graphs[-1], is_backward)
        return forward, backward

    def compile(self, module: GraphModule, inputs: Any, **_: Any) -> Callable[..., Any]:
        """Returns a function that replaces the compiler's result for one graph."""
        graph, is_backward = module.meta.get(_TAG, (None, False))

        def run(args: list[Any]) -> list[Any]:
            values = [*args]
            args.clear()
            outputs = run_module(module, values)
            if graph is not None and is_backward:
                self._note_backward(graph, module, values, outputs)
            elif graph is not None:
                self._note_forward(graph, module, values, outputs)
            return outputs

        run._boxed_call = True  # type: ignore[attr-defined]
        return run

    def _note_forward(
        self, graph: RecordedGraph, module: GraphModule, values: list[Any], out: list[Any]
    ) -> None:
        self._is_in_order &= not self.is_backward
        inputs = self._by_buffer(graph, _placeholders(module), values)
        count = graph.num_fwd_outputs
        outputs = self._by_buffer(graph, _returned(module)[:count], out[:count])
        handed_out = frozenset(self.storages.numbers(out))
        self.runs.append(Run(graph, inputs, outputs, handed_out))

    def _note_backward(
        self, graph: RecordedGraph, module: GraphModule, values: list[Any], out: list[Any]
    ) -> None:
        self._is_in_order &= self.is_backward
        nodes = _placeholders(module)
        is_late = [graph.joint.comes_with_backward(node.name) for node in nodes]
        saved = [v for v, late in zip(values, is_late, strict=True) if not late]
        run = self._run_of(graph, {*self.storages.numbers(saved)})
        late = [(n, v) for n, v, is_one in zip(nodes, values, is_late) if is_one]
        run.tangents = self._by_buffer(graph, [n for n, _ in late], [v for _, v in late])
        run.gradients = self._by_buffer(graph, _returned(module), out)
        run.is_done = True
        self.backward_runs.append(run)

    def _run_of(self, graph: RecordedGraph, saved: set[int]) -> Run:
        """Returns the last run of forward whose storages include these."""
        for run in reversed(self.runs):
            storages = run.handed_out | {*run.inputs.values()}
            if run.graph is graph and not run.is_done and saved <= storages:
                return run
        raise AcplanError("a graph's pass runs without its forward")

    def _by_buffer(
        self, graph: RecordedGraph, nodes: Sequence[Node | None], values: Sequence[Any]
    ) -> dict[int, int]:
        numbers: dict[int, int] = {}
        for node, value in zip(nodes, values, strict=True):
            if node is None or not isinstance(value, torch.Tensor):
                continue
            for buffer in graph.joint.buffers_of(node.name):
                numbers[buffer] = self.storages.number(value)
        return numbers


def run_module(module: GraphModule, arguments: list[Any]) -> list[Any]:
    """Runs a graph node by node on these fake tensors. Each value is dropped after its last
    use."""
    run = FakeRun(module, mode=detect_fake_mode(arguments))
    values: dict[Node, Any] = {}
    inputs = iter(arguments)
    last_user: dict[Node, Node] = {}
    for node in reversed(module.graph.nodes):
        for source in node.all_input_nodes:
            last_user.setdefault(source, node)
    last_uses: dict[Node, list[Node]] = {}
    for source, user in last_user.items():
        last_uses.setdefault(user, []).append(source)
    for node in module.graph.nodes:
        if node.op == "placeholder":
            values[node] = next(inputs)
        elif node.op == "get_attr":
            values[node] = run.attribute(node)
        elif node.op == "call_function":
            values[node] = run.call(node, values.__getitem__)
        else:
            return [
                values[leaf] if isinstance(leaf, Node) else leaf
                for leaf in tree_leaves(node.args)
            ]
        for source in last_uses.get(node, ()):
            del values[source]
    raise AssertionError("a graph without outputs")


def _placeholders(module: GraphModule) -> list[Node]:
    return [*module.graph.find_nodes(op="placeholder")]


def _returned(module: GraphModule) -> list[Node | None]:
    (output,) = module.graph.find_nodes(op="output")
    return [leaf if isinstance(leaf, Node) else None for leaf in tree_leaves(output.args)]


def held_by(value: Any) -> list[torch.Tensor]:
    """Returns the tensors that an object holds, through containers and attributes."""
    tensors: list[torch.Tensor] = []
    pending, visited = [value], set()
    while pending:
        one = pending.pop()
        if id(one) in visited:
            continue
        visited.add(id(one))
        if isinstance(one, torch.Tensor):
            tensors += tensors_in(one)
        elif isinstance(one, Mapping):
            pending += one.values()
        elif isinstance(one, (list, tuple, set, frozenset)):
            pending += one
        elif not isinstance(one, (torch.nn.Module, type)) and hasattr(one, "__dict__"):
            pending += vars(one).values()
    return tensors


def numbers_of(storages: Storages, tensors: Iterable[torch.Tensor | None]) -> set[int]:
    return {storages.number(t) for t in tensors if t is not None}
