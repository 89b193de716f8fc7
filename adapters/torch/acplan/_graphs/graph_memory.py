"""The memory that the two graphs of a compiled step hold, found by running them.

Nothing of the plan is known here except the graphs that PyTorch made of it: they run node by
node on fake tensors, each value is dropped after its last use, and the memory of the remaining
values is added up.
"""

from collections import Counter
from typing import Any

from torch.fx import GraphModule, Node
from torch.utils._pytree import tree_leaves

from acplan._base.host_copies import OFFLOAD
from acplan._base.tensors import tensors_in
from acplan._files.verification import VerifiedOperator
from acplan._graphs.node_values import FakeRun, allocated_bytes, distinct_storages


class Memory:
    """The bytes of the memory of values, each counted once; copies in the host's memory do not
    count."""

    def __init__(self, device_type: str | None, held_bytes: int) -> None:
        self._device_type = device_type
        self._holders: Counter[int] = Counter()
        self._bytes: dict[int, int] = {}
        self._on_host: set[int] = set()
        self.live_bytes = held_bytes

    def put_on_host(self, value: Any) -> None:
        self._on_host |= {storage for storage, _ in distinct_storages(value)}

    def hold(self, value: Any) -> None:
        for storage, tensor in distinct_storages(value):
            if not self._holders[storage]:
                is_here = storage not in self._on_host
                size = allocated_bytes(tensor, self._device_type) if is_here else 0
                self._bytes[storage] = size
                self.live_bytes += self._bytes[storage]
            self._holders[storage] += 1

    def drop(self, value: Any) -> None:
        for storage, _ in distinct_storages(value):
            self._holders[storage] -= 1
            if not self._holders[storage]:
                self.live_bytes -= self._bytes.pop(storage)


class Pass:
    """One graph at work. `values` live as long as this object, so that no memory has the
    address of other memory that was dropped before."""

    def __init__(self, module: GraphModule, run: FakeRun, memory: Memory) -> None:
        self._graph = module.graph
        self._run = run
        self._memory = memory
        self._last_used_by = _last_uses(module)
        self.values: dict[Node, Any] = {}
        self.operators: list[VerifiedOperator] = []

    def run(self, held_values: dict[str, Any], *, keeps_inputs: bool) -> None:
        """Runs the graph. `held_values`: inputs by name that are held already; the others are
        made. Inputs are kept, or dropped after their last use."""
        inputs = self._graph.find_nodes(op="placeholder")
        for node in inputs:
            if node.name in held_values:
                self.values[node] = held_values[node.name]
            else:
                self.values[node] = self._run.placeholder(node)
                self._memory.hold(self.values[node])
            if not node.users and not keeps_inputs:
                self._memory.drop(self.values[node])
        for node in self._graph.nodes:
            if node.op == "get_attr":
                self.values[node] = self._run.attribute(node)
            elif node.op == "call_function":
                self._call(node, set() if not keeps_inputs else {*inputs})

    def _call(self, node: Node, kept_nodes: set[Node]) -> None:
        value = self._run.call(node, self.values.__getitem__)
        self.values[node] = value
        if node.target is OFFLOAD:
            self._memory.put_on_host(value)
        self._memory.hold(value)
        self.operators.append(VerifiedOperator(node.name, self._memory.live_bytes))
        for source in self._last_used_by.get(node, ()):
            if source not in kept_nodes and source.op != "get_attr":
                self._memory.drop(self.values[source])
        if not node.users:
            self._memory.drop(value)


def _last_uses(module: GraphModule) -> dict[Node, list[Node]]:
    """Returns, for each node, the nodes that nothing uses after it."""
    visited: set[Node] = set()
    last: dict[Node, list[Node]] = {}
    for node in reversed(module.graph.nodes):
        for source in node.all_input_nodes:
            if source not in visited:
                visited.add(source)
                last.setdefault(node, []).append(source)
    return last


def run_step(
    forward: GraphModule,
    backward: GraphModule,
    num_fwd_outputs: int,
    held_bytes: int = 0,
) -> tuple[list[VerifiedOperator], list[VerifiedOperator]]:
    """Returns the nodes of the forward and of the backward graph as they run, with the bytes in
    use while they run. Inputs, constants, forward's results for the model and gradients stay;
    values that forward saves are dropped after their last use in backward."""
    memory = Memory(device_type_of_graphs(forward, backward), held_bytes)
    run = FakeRun(forward, backward)
    for module in (forward, backward):
        for node in module.graph.find_nodes(op="get_attr"):
            memory.hold(run.attribute(node))
    first = Pass(forward, run, memory)
    first.run({}, keeps_inputs=True)
    (output,) = forward.graph.find_nodes(op="output")
    returned = tree_leaves(output.args)
    staying = {n for n in returned[:num_fwd_outputs] if isinstance(n, Node)}
    saved: dict[str, Any] = {}
    for node in returned[num_fwd_outputs:]:
        saved[node.name] = first.values[node]
        if node in staying or node.op != "call_function":
            memory.hold(first.values[node])
    second = Pass(backward, run, memory)
    second.run(saved, keeps_inputs=False)
    return first.operators, second.operators


def device_type_of_graphs(*modules: GraphModule) -> str | None:
    """Returns the accelerator on which memory counts, or None if all memory counts."""
    types = {
        tensor.device.type
        for module in modules
        for node in module.graph.nodes
        for tensor in tensors_in(node.meta.get("val"))
    }
    accelerators = types - {"cpu", "meta"}
    return min(accelerators) if accelerators else None
