"""The joint graph of a compiled model as data that acplan plans, and a plan as the nodes that
PyTorch is to save.

Memory is that of buffers: each is one allocation, views included, found by running the graph on
fake tensors. A node allocates or computes; views are left out, as a node that reads a view
reads its buffer. If a plan keeps a buffer, the tensor that first had it is saved, and backward
makes the views again from that tensor.

Stages are PyTorch's: forward nodes are those that it calls required in forward; backward begins
with the first node that reads a tangent; nodes before that one that are not required in forward
run in either. Nodes that backward computes from forward's values alone, such as the factors of
a derivative, run right before they are first read (_graphs/backward_order.py).
"""

import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch.fx import GraphModule, Node
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import CheckpointPolicy

from acplan._base.errors import AcplanError
from acplan._device.devices import Device
from acplan._graphs.backward_order import BackwardOrder
from acplan._graphs.graph_buffers import BACKWARD, EITHER, FORWARD, GraphBuffers
from acplan._graphs.node_costs import GraphCosts
from acplan._graphs.node_rules import is_tangent, may_run_again, must_recompute
from acplan._graphs.node_values import Values, fills_its_memory, is_symbolic, run_graph

_HINTS = "sizes that vary between calls are those of the first call"


class JointGraph:
    """The graph as acplan plans it. It reads the graph when it is made, and does not change it.

    node_info: PyTorch's classify_nodes of the graph.
    is_fused:  true if run-times are those of Inductor's kernels.
    """

    def __init__(
        self,
        module: GraphModule,
        node_info: Any,
        num_fwd_outputs: int,
        device: Device,
        *,
        is_fused: bool,
    ) -> None:
        self._nodes = [n for n in module.graph.nodes if n.op != "output"]
        self._by_name = {node.name: node for node in self._nodes}
        values = run_graph(module)
        self._buffers = GraphBuffers(self._nodes, values)
        self._stages = _stages(self._nodes, node_info)
        self._outputs = _outputs_of(module, num_fwd_outputs)
        views = {n for n in self._nodes if not self._buffers.made_by(n)}
        self._costs = GraphCosts(device, values, views, is_fused)
        self._may_rerun = _what_may_run_again(self._nodes, self._buffers)
        self._allow_keeping(values)
        # A new set of PyTorch's; all nodes that backward runs in a version without it.
        needs = getattr(node_info, "tangents_closure", node_info.required_bw_nodes)
        self._listed = _in_order(
            [n for n in self._nodes if n.op == "call_function" and not self._is_left_out(n)],
            self._stages,
            set(needs),
            [n for n in self._outputs.backward if n is not None],
        )

    @property
    def is_symbolic(self) -> bool:
        """True if a size is one that only a run knows."""
        return any(
            is_symbolic(size)
            for node in self._nodes
            for value in tree_leaves(node.meta.get("val"))
            for size in (value.shape if isinstance(value, torch.Tensor) else [value])
        )

    @property
    def order(self) -> BackwardOrder:
        """The order in which backward is to run."""
        return BackwardOrder(
            {node.name: k for k, node in enumerate(self._nodes)},
            tuple(n.name for n in self._listed if self._stages[n] == BACKWARD),
        )

    def data(self, name: str, held_bytes: int = 0) -> dict[str, Any]:
        """Returns the data of the file `acplan.graph` (docs/file_formats.md)."""
        notes = {"notes": [_HINTS]} if self.is_symbolic else {}
        return notes | {
            "format": "acplan.graph",
            "version": 1,
            "model": {"name": name},
            "held_bytes": held_bytes,
            "buffers": self._buffers.entries,
            "nodes": [self._node_data(node) for node in self._listed],
            "forward_outputs": self._buffers.returned(self._outputs.forward),
            "backward_outputs": self._buffers.returned(self._outputs.backward),
        }

    def input_bytes(self, nodes: Iterable[Node] | None = None) -> int:
        """Returns the bytes of these inputs, each memory once; by default of all except
        tangents."""
        if nodes is None:
            nodes = [n for n in self._nodes if n.op == "placeholder" and not is_tangent(n)]
        return self._buffers.bytes_of(self._buffers.read(nodes))

    def returned_bytes(self) -> int:
        """Returns the bytes that forward makes and returns to the model."""
        returned = self._buffers.returned(self._outputs.forward)
        return self._buffers.bytes_of(
            b for b in returned if self._buffers.makers[b] is not None
        )

    @property
    def signature(self) -> list[list[str]]:
        """All nodes, views too, and the results of the two passes."""
        returned = [*self._outputs.forward, None, *self._outputs.backward]
        nodes = [[n.name, str(n.target)] for n in self._nodes]
        return [*nodes, ["" if n is None else n.name for n in returned]]

    def keepable(self) -> list[str]:
        """Returns the names of all buffers that forward may save."""
        return [
            buffer["name"]
            for buffer, maker in zip(self._buffers.entries, self._buffers.makers)
            if maker is not None
            and self._stages[maker] != BACKWARD
            and buffer.get("keep", True)
        ]

    def buffers_of(self, name: str) -> list[int]:
        """Returns the buffers of a node's value, by their places in the file."""
        node = self._by_name.get(name)
        return [] if node is None else self._buffers.read([node])

    def comes_with_backward(self, name: str) -> bool:
        return name in self._by_name and is_tangent(self._by_name[name])

    def names_of(self, saved: Iterable[Node]) -> list[str]:
        """Returns the names of the buffers that are kept if these nodes are saved, except
        inputs."""
        numbers = sorted(set(self._buffers.read(saved)))
        return [
            self._buffers.entries[b]["name"]
            for b in numbers
            if self._buffers.makers[b] is not None
        ]

    def saved_nodes(self, kept_names: Iterable[str]) -> list[Node]:
        """Returns the nodes that PyTorch is to save for a plan that keeps these buffers: their
        tensors, and the inputs and sizes that backward needs besides.

        Raises AcplanError if a node would have to run again that may not.
        """
        number_of = {buffer["name"]: k for k, buffer in enumerate(self._buffers.entries)}
        unknown = [name for name in kept_names if name not in number_of]
        if unknown:
            raise AcplanError(f"the graph has no buffer {unknown[0]!r}")
        kept_numbers = {number_of[name] for name in kept_names}
        kept_numbers |= set(self._buffers.returned(self._outputs.forward))
        saved: set[Node] = set()
        visited: set[Node] = set()
        pending = [n for n in self._outputs.backward if n is not None]
        pending += [n for n in self._nodes if self._stages[n] == BACKWARD]
        while pending:
            node = pending.pop()
            if node in visited:
                continue
            visited.add(node)
            if self._is_saved(node, kept_numbers):
                saved.add(node)
            else:
                pending += node.all_input_nodes
        return [node for node in self._nodes if node in saved]

    def _is_saved(self, node: Node, kept_numbers: set[int]) -> bool:
        """Returns whether backward gets the node from forward."""
        if self._stages[node] == BACKWARD:
            return False
        if node.op == "placeholder":
            return True
        noted = node.meta.get("val")
        if isinstance(noted, torch.SymInt):
            return True
        made_buffers = self._buffers.made_by(node)
        roots = [b for b in self._buffers.read([node]) if self._buffers.is_root(node, b)]
        if roots and all(b in kept_numbers for b in roots) and isinstance(noted, torch.Tensor):
            return True
        if made_buffers and not self._may_rerun[node]:
            raise AcplanError(f"{node.name} would have to run again, but must not")
        return False

    def _is_left_out(self, node: Node) -> bool:
        """Returns whether the node is a view, or computes no tensor and does not run for its
        own sake."""
        if node.op != "call_function" or self._buffers.made_by(node):
            return False
        if node.target is operator.getitem:
            return True
        schema = getattr(node.target, "_schema", None)
        if schema is not None and schema.is_mutable:
            return False
        if not self._buffers.read(node.all_input_nodes):
            return True
        return bool(self._buffers.read([node])) or self._stages[node] == EITHER

    def _allow_keeping(self, values: Values) -> None:
        """Marks the buffers that are never kept, and those that never move."""
        written_buffers = _written_buffers(self._nodes, self._buffers)
        for number, entry in enumerate(self._buffers.entries):
            maker, root = self._buffers.makers[number], self._buffers.roots[number]
            if maker is None:
                continue
            if root is None or (self._may_rerun[maker] and must_recompute(root)):
                entry["keep"] = False
            elif number in written_buffers or not fills_its_memory(values[root]):
                entry["move"] = False

    def _node_data(self, node: Node) -> dict[str, Any]:
        makes = self._buffers.made_by(node)
        data = {
            "name": node.name,
            "op": str(node.target),
            "stage": self._stages[node],
            "ms": self._costs.ms(node) if makes else 0.0,
            "reads": self._buffers.read(node.all_input_nodes),
            "makes": makes,
        }
        if not self._may_rerun[node]:
            data["again"] = False
        return data


def _in_order(
    nodes: Sequence[Node],
    stages: Mapping[Node, str],
    needs_tangent: set[Node],
    outputs: Sequence[Node],
) -> list[Node]:
    """Returns the nodes in their order: a backward node that needs no tangent runs right before
    it is first read, by another node or as an output of backward."""
    place = {node: k for k, node in enumerate(nodes)}
    backward = [n for n in nodes if stages[n] == BACKWARD]
    listed = [n for n in nodes if stages[n] != BACKWARD]
    late = {n for n in backward if n not in needs_tangent}

    def take_late_for(readers: Sequence[Node]) -> list[Node]:
        late_nodes: set[Node] = set()
        to_visit, visited = [*readers], {*readers}
        while to_visit:
            node = to_visit.pop()
            if node in late:
                late_nodes.add(node)
            for source in node.all_input_nodes:
                if source not in visited and stages[source] == BACKWARD:
                    visited.add(source)
                    to_visit.append(source)
        late.difference_update(late_nodes)
        return sorted(late_nodes, key=place.__getitem__)

    for node in backward:
        if node not in late:
            listed += take_late_for([node])
            listed.append(node)
    return listed + take_late_for(outputs)


class _Outputs(NamedTuple):
    """The nodes that each pass returns."""

    forward: list[Node | None]
    backward: list[Node | None]


def _outputs_of(module: GraphModule, count: int) -> _Outputs:
    (output,) = module.graph.find_nodes(op="output")
    leaves = [n if isinstance(n, Node) else None for n in tree_leaves(output.args)]
    return _Outputs(leaves[:count], leaves[count:])


def _what_may_run_again(nodes: Sequence[Node], buffers: GraphBuffers) -> dict[Node, bool]:
    # The inputs to which forward writes have other contents in backward.
    written_inputs = {b for b in _written_buffers(nodes, buffers) if buffers.makers[b] is None}
    may_rerun = {}
    for node in nodes:
        reads_written = written_inputs & set(buffers.read(node.all_input_nodes))
        must_save = any(
            user.target is operator.getitem
            and user.meta.get("recompute") == CheckpointPolicy.MUST_SAVE
            for user in node.users
        )
        may_rerun[node] = may_run_again(node) and not reads_written and not must_save
    return may_rerun


def _written_buffers(nodes: Sequence[Node], buffers: GraphBuffers) -> set[int]:
    """Returns the buffers to which nodes write in place."""
    buffers_written: set[int] = set()
    for node in nodes:
        schema = getattr(node.target, "_schema", None)
        if schema is None or not schema.is_mutable:
            continue
        for argument, value in zip(schema.arguments, node.args):
            alias = argument.alias_info
            if alias is not None and alias.is_write and isinstance(value, Node):
                buffers_written |= set(buffers.read([value]))
    return buffers_written


def _reads_a_tangent(node: Node) -> bool:
    return any(is_tangent(source) for source in node.all_input_nodes)


def _stages(nodes: Sequence[Node], node_info: Any) -> dict[Node, str]:
    needs_backward = set(node_info.required_bw_nodes)
    stages: dict[Node, str] = {}
    has_begun = False
    for node in nodes:
        has_begun = has_begun or _reads_a_tangent(node)
        if node.op != "call_function":
            stages[node] = BACKWARD if is_tangent(node) else FORWARD
        elif node_info.is_required_fw(node):
            stages[node] = FORWARD
        elif has_begun or node in needs_backward:
            stages[node] = BACKWARD
        else:
            stages[node] = EITHER
    return stages
