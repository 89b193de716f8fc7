"""The memory that the graphs of a step hold, found by running them one after another.

Nothing of the plan is known here except the graphs that PyTorch made of it, and the storages
that pass from one to another (_compile/step_recorder.py): they run node by node on fake
tensors, and the memory of the remaining values is added up. How long storages between graphs
live is described in _compile/joint_step.py.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from torch.fx import GraphModule, Node
from torch.utils._pytree import tree_leaves

from acplan._compile.fake_step import RecordedStep
from acplan._compile.joint_step import global_name
from acplan._compile.step_recorder import Run
from acplan._files.verification import VerifiedOperator
from acplan._graphs.graph_memory import Memory, Pass, device_type_of_graphs
from acplan._graphs.joint_graph import JointGraph
from acplan._graphs.node_values import FakeRun

Modules = Mapping[str, tuple[GraphModule, GraphModule]]
"""Of graphs, by their keys, forward and backward."""


def run_graphs(step: RecordedStep, modules: Modules, held_bytes: int) -> list[VerifiedOperator]:
    """Returns the nodes of all graphs as they run, with the bytes in use while they run."""
    return _StepOfGraphs(step, modules, held_bytes).run()


class _StepOfGraphs:
    def __init__(self, step: RecordedStep, modules: Modules, held_bytes: int) -> None:
        self._step = step
        self._modules = modules
        every = [module for pair in modules.values() for module in pair]
        self._memory = Memory(device_type_of_graphs(*every), held_bytes)
        self._run = FakeRun(*every)
        self._values: dict[int, Any] = {}  # by storage
        self._saved: dict[int, dict[str, Any]] = {}  # by the place of a run
        # They are held, so that no other memory gets the number of theirs.
        self._passes: list[Pass] = []
        self._operators: list[VerifiedOperator] = []

    def run(self) -> list[VerifiedOperator]:
        handed_out = _handed_out(self._step)
        self._hold_inputs(handed_out)
        for place, run in enumerate(self._step.forward):
            self._run_forward(place, run)
        inputs = {s for run in self._step.forward for s in run.inputs.values()}
        for storage in (handed_out & inputs) - self._step.returned:
            self._memory.drop(self._values[storage])
        self._hold_tangents()
        places = {id(run): k for k, run in enumerate(self._step.forward)}
        for run in self._step.backward:
            self._run_backward(places[id(run)], run)
        return self._operators

    def _hold_inputs(self, handed_out: set[int]) -> None:
        """Holds the storages that live during the whole step, except those in `handed_out`."""
        visited_keys: set[str] = set()
        for run in self._step.forward:
            forward, backward = self._modules[run.graph.key]
            for node in forward.graph.find_nodes(op="placeholder"):
                storage = _storage_of(run.graph.joint, node, run.inputs)
                if storage is None or storage in handed_out or storage in self._values:
                    continue
                self._values[storage] = self._run.placeholder(node)
                self._memory.hold(self._values[storage])
            if run.graph.key not in visited_keys:
                visited_keys.add(run.graph.key)
                for module in (forward, backward):
                    for node in module.graph.find_nodes(op="get_attr"):
                        self._memory.hold(self._run.attribute(node))

    def _run_forward(self, place: int, run: Run) -> None:
        module, _ = self._modules[run.graph.key]
        held_values = self._held_values(run, module, run.inputs)
        graph_pass = self._pass(place, run, module, held_values, keeps_inputs=True)
        returned = _returned(module)
        count = run.graph.num_fwd_outputs
        saved = [node for node in returned[count:] if isinstance(node, Node)]
        self._saved[place] = {node.name: graph_pass.values[node] for node in saved}
        for node in saved:
            self._memory.hold(graph_pass.values[node])
        for node in dict.fromkeys(returned[:count]):
            self._hand_on(run, node, graph_pass)
        self._let_go(graph_pass, returned, "call_function")

    def _hand_on(self, run: Run, node: Any, graph_pass: Pass) -> None:
        if not isinstance(node, Node):
            return
        storage = _storage_of(run.graph.joint, node, run.outputs)
        if storage is None or storage in self._values:
            return
        self._values[storage] = graph_pass.values[node]
        self._memory.hold(graph_pass.values[node])

    def _let_go(self, graph_pass: Pass, returned: list[Any], *ops: str) -> None:
        """Releases a pass's hold on its outputs, which their readers hold by now."""
        for node in {n for n in returned if isinstance(n, Node)}:
            if node.op in ops:
                self._memory.drop(graph_pass.values[node])

    def _hold_tangents(self) -> None:
        """Holds the tangents that no graph makes."""
        gradients = {s for run in self._step.backward for s in run.gradients.values()}
        for run in self._step.backward:
            _, module = self._modules[run.graph.key]
            for node in module.graph.find_nodes(op="placeholder"):
                storage = _storage_of(run.graph.joint, node, run.tangents)
                if storage is None or storage in gradients or not node.users:
                    continue
                if storage not in self._values:
                    self._values[storage] = self._run.placeholder(node)
                self._memory.hold(self._values[storage])

    def _run_backward(self, place: int, run: Run) -> None:
        _, module = self._modules[run.graph.key]
        held_values = self._held_values(run, module, run.tangents) | self._saved.pop(place)
        graph_pass = self._pass(place, run, module, held_values, keeps_inputs=False)
        returned = _returned(module)
        takers = self._takers()
        for node in dict.fromkeys(returned):
            if not isinstance(node, Node):
                continue
            storage = _storage_of(run.graph.joint, node, run.gradients)
            if storage is None or storage in self._values:
                continue
            self._values[storage] = graph_pass.values[node]
            for _ in range(takers[storage] + (storage in self._step.gradients)):
                self._memory.hold(graph_pass.values[node])
        self._let_go(graph_pass, returned, "call_function", "placeholder")

    def _takers(self) -> Counter[int]:
        """Returns how many backward passes read each storage that comes from another pass."""
        counts: Counter[int] = Counter()
        for run in self._step.backward:
            _, module = self._modules[run.graph.key]
            for node in module.graph.find_nodes(op="placeholder"):
                storage = _storage_of(run.graph.joint, node, run.tangents)
                if storage is not None and node.users:
                    counts[storage] += 1
        return counts

    def _held_values(
        self, run: Run, module: GraphModule, storages: Mapping[int, int]
    ) -> dict[str, Any]:
        held_values = {}
        for node in module.graph.find_nodes(op="placeholder"):
            storage = _storage_of(run.graph.joint, node, storages)
            if storage is not None and storage in self._values:
                held_values[node.name] = self._run.shaped(node, self._values[storage])
        return held_values

    def _pass(
        self,
        place: int,
        run: Run,
        module: GraphModule,
        held_values: dict[str, Any],
        *,
        keeps_inputs: bool,
    ) -> Pass:
        graph_pass = Pass(module, self._run, self._memory)
        self._passes.append(graph_pass)
        graph_pass.run(held_values, keeps_inputs=keeps_inputs)
        listed = {node["name"] for node in run.graph.data["nodes"]}
        self._operators += [
            VerifiedOperator(global_name(place, operator.name), operator.live_bytes)
            for operator in graph_pass.operators
            if operator.name in listed
        ]
        return graph_pass


def _handed_out(step: RecordedStep) -> set[int]:
    """Returns the storages that a graph makes and hands out."""
    outputs: set[int] = set()
    inputs: set[int] = set()
    for run in step.forward:
        inputs |= {*run.inputs.values()} - outputs
        outputs |= {*run.outputs.values()} - inputs
    return outputs


def _storage_of(joint: JointGraph, node: Node, storages: Mapping[int, int]) -> int | None:
    buffers = [b for b in joint.buffers_of(node.name) if b in storages]
    return storages[buffers[0]] if buffers else None


def _returned(module: GraphModule) -> list[Any]:
    (output,) = module.graph.find_nodes(op="output")
    return list(tree_leaves(output.args))
