"""The joint graph of a compiled model as data that acplan plans, and a plan as the nodes
that PyTorch is to save.

Memory is that of buffers: what one allocation holds, views included, found by running the
graph on fake tensors. A node is what allocates or computes; views are left out, as whoever
reads one reads its buffer. What a plan keeps of a buffer is the tensor that first had it,
from which backward makes the views again.

Stages are PyTorch's: forward is what it calls required in forward; backward begins with
the first node that reads a tangent; what stands before that and is not required in forward
runs in either. What backward makes of forward's values alone, such as the factors of a
derivative, it makes right before it first reads it (_graphs/backward_order.py).
"""

import operator
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import CheckpointPolicy

from acplan._base.errors import AcplanError
from acplan._base.tensors import tensors_in
from acplan._device.devices import Device
from acplan._graphs.backward_order import BackwardOrder
from acplan._graphs.node_costs import GraphCosts
from acplan._graphs.node_rules import is_tangent, may_run_again, must_recompute
from acplan._graphs.node_values import (
    allocated_bytes,
    device_type_of,
    distinct_storages,
    is_symbolic,
    run_graph,
    storage_of,
)

_HINTS = "sizes that change from call to call are those that PyTorch saw first"
FORWARD, EITHER, BACKWARD = "forward", "either", "backward"


class JointGraph:
    """Reads the graph when it is made, and does not change it.

    node_info: what PyTorch's classify_nodes says of it.
    is_fused:  whether run-times are those of Inductor's kernels.
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
        self._place = {node: k for k, node in enumerate(self._nodes)}
        self._by_name = {node.name: node for node in self._nodes}
        self._values = run_graph(module)
        self._device_type = device_type_of(self._values)
        self._forward_outputs, self._backward_outputs = _outputs_of(module, num_fwd_outputs)
        self._stages = _stages(self._nodes, node_info)
        # A set of PyTorch's that is new; all that backward runs where it has none.
        needs = getattr(node_info, "tangents_closure", node_info.required_bw_nodes)
        self._needs_tangent = set(needs)
        self._buffers: list[dict[str, Any]] = []
        self._roots: list[Node | None] = []
        self._makers: list[Node | None] = []
        self._number_of: dict[int, int] = {}
        self._made_by: dict[Node, list[int]] = {}
        self._find_buffers()
        self._left_out = {n for n in self._nodes if self._is_left_out(n)}
        views = {n for n in self._nodes if n not in self._made_by}
        self._costs = GraphCosts(device, self._values, views, is_fused)
        self._again = self._what_may_run_again()
        self._allow_keeping()
        self._listed = self._in_order()

    @property
    def is_symbolic(self) -> bool:
        """Whether a size is one that only a run knows."""
        return any(
            is_symbolic(size)
            for node in self._nodes
            for value in tree_leaves(node.meta.get("val"))
            for size in (value.shape if isinstance(value, torch.Tensor) else [value])
        )

    @property
    def order(self) -> BackwardOrder:
        """In which backward is to run."""
        return BackwardOrder(
            {node.name: k for k, node in enumerate(self._nodes)},
            tuple(n.name for n in self._listed if self._stages[n] == BACKWARD),
        )

    def data(self, name: str, held_bytes: int = 0) -> dict[str, Any]:
        """The file `acplan.graph` (docs/file_formats.md)."""
        notes = {"notes": [_HINTS]} if self.is_symbolic else {}
        return notes | {
            "format": "acplan.graph",
            "version": 1,
            "model": {"name": name},
            "held_bytes": held_bytes,
            "buffers": self._buffers,
            "nodes": [self._node_data(node) for node in self._listed],
            "forward_outputs": self._returned(self._forward_outputs),
            "backward_outputs": self._returned(self._backward_outputs),
        }

    def input_bytes(self, nodes: Iterable[Node] | None = None) -> int:
        """What these inputs take, each memory once; by default all but tangents."""
        if nodes is None:
            nodes = [n for n in self._nodes if n.op == "placeholder" and not is_tangent(n)]
        return sum(self._buffers[b]["bytes"] for b in self._read(nodes))

    def returned_bytes(self) -> int:
        """What forward makes and returns to the model."""
        returned = self._returned(self._forward_outputs)
        return sum(self._buffers[b]["bytes"] for b in returned if self._makers[b] is not None)

    @property
    def signature(self) -> list[list[str]]:
        """All nodes, views too, and what the two passes return."""
        returned = [*self._forward_outputs, None, *self._backward_outputs]
        nodes = [[n.name, str(n.target)] for n in self._nodes]
        return [*nodes, ["" if n is None else n.name for n in returned]]

    def keepable(self) -> list[str]:
        """All that forward may save."""
        return [
            buffer["name"]
            for buffer, maker in zip(self._buffers, self._makers)
            if maker is not None
            and self._stages[maker] != BACKWARD
            and buffer.get("keep", True)
        ]

    def buffers_of(self, name: str) -> list[int]:
        """The buffers that a node's value is in, by their places in the file."""
        return self._read([self._by_name[name]]) if name in self._by_name else []

    def comes_with_backward(self, name: str) -> bool:
        return name in self._by_name and is_tangent(self._by_name[name])

    def names_of(self, saved: Iterable[Node]) -> list[str]:
        """The buffers that are kept where these nodes are saved; inputs are there."""
        kept = sorted(set(self._read(saved)))
        return [self._buffers[b]["name"] for b in kept if self._makers[b] is not None]

    def saved_nodes(self, kept: Iterable[str]) -> list[Node]:
        """What PyTorch is to save for a plan that keeps these buffers: their tensors, and
        the inputs and sizes that backward needs besides.

        Raises AcplanError where something would have to run again that may not.
        """
        number_of = {buffer["name"]: k for k, buffer in enumerate(self._buffers)}
        unknown = [name for name in kept if name not in number_of]
        if unknown:
            raise AcplanError(f"the graph has no buffer {unknown[0]!r}")
        there = {number_of[name] for name in kept}
        there |= set(self._returned(self._forward_outputs))
        saved: set[Node] = set()
        seen: set[Node] = set()
        left = [n for n in self._backward_outputs if n is not None]
        left += [n for n in self._nodes if self._stages[n] == BACKWARD]
        while left:
            node = left.pop()
            if node in seen:
                continue
            seen.add(node)
            if self._is_saved(node, there):
                saved.add(node)
            else:
                left += node.all_input_nodes
        return sorted(saved, key=self._place.__getitem__)

    def _is_saved(self, node: Node, there: set[int]) -> bool:
        """Whether backward gets the node from forward."""
        if self._stages[node] == BACKWARD:
            return False
        if node.op == "placeholder":
            return True
        noted = node.meta.get("val")
        if isinstance(noted, torch.SymInt):
            return True
        made = self._made_by.get(node, ())
        roots = [b for b in self._read([node]) if self._roots[b] is node]
        if roots and all(b in there for b in roots) and isinstance(noted, torch.Tensor):
            return True
        if made and not self._again[node]:
            raise AcplanError(f"{node.name} would have to run again, which it must not")
        return False

    # --- buffers

    def _find_buffers(self) -> None:
        for node in self._nodes:
            for storage, tensor in distinct_storages(self._values[node]):
                number = self._number_of.get(storage)
                if number is None:
                    number = self._add_buffer(node, storage, tensor)
                elif self._roots[number] is None and self._has_tensor(node):
                    self._roots[number] = node
                    self._buffers[number]["name"] = node.name

    def _add_buffer(self, node: Node, storage: int, tensor: torch.Tensor) -> int:
        number = self._number_of[storage] = len(self._buffers)
        is_input = node.op != "call_function"
        is_one = self._has_tensor(node)
        # Names of nodes are unique, and have no such sign.
        name = node.name if is_one else f"{node.name}#{number}"
        self._buffers.append(
            {"name": name, "bytes": allocated_bytes(tensor, self._device_type)}
        )
        if is_input and is_tangent(node):
            self._buffers[number]["from"] = BACKWARD
        self._roots.append(node if is_one else None)
        self._makers.append(None if is_input else node)
        if not is_input:
            self._made_by.setdefault(node, []).append(number)
        return number

    def _has_tensor(self, node: Node) -> bool:
        return isinstance(self._values[node], torch.Tensor)

    def _read(self, nodes: Iterable[Node]) -> list[int]:
        """The buffers of what the nodes make or hand on, each once."""
        found: dict[int, None] = {}
        for node in nodes:
            for tensor in tensors_in(self._values[node]):
                found[self._number_of[storage_of(tensor)]] = None
        return list(found)

    def _returned(self, outputs: Sequence[Node | None]) -> list[int]:
        return self._read([node for node in outputs if node is not None])

    def _is_left_out(self, node: Node) -> bool:
        """Views, and what computes no tensor and runs nowhere for itself."""
        if node.op != "call_function" or node in self._made_by:
            return False
        if node.target is operator.getitem:
            return True
        schema = getattr(node.target, "_schema", None)
        if schema is not None and schema.is_mutable:
            return False
        is_read = bool(self._read(node.all_input_nodes))
        if not is_read:
            return True
        makes_tensors = bool(tensors_in(self._values[node]))
        return makes_tensors or self._stages[node] == EITHER

    # --- what a plan may do

    def _what_may_run_again(self) -> dict[Node, bool]:
        written = self._written_inputs()
        again = {}
        for node in self._nodes:
            reads_written = written & set(self._read(node.all_input_nodes))
            must_save = any(
                user.target is operator.getitem
                and user.meta.get("recompute") == CheckpointPolicy.MUST_SAVE
                for user in node.users
            )
            again[node] = may_run_again(node) and not reads_written and not must_save
        return again

    def _written_inputs(self) -> set[int]:
        """Inputs that forward writes to, which are other ones in backward."""
        written: set[int] = set()
        for node in self._nodes:
            schema = getattr(node.target, "_schema", None)
            if schema is None or not schema.is_mutable:
                continue
            for argument, given in zip(schema.arguments, node.args):
                alias = argument.alias_info
                if alias is not None and alias.is_write and isinstance(given, Node):
                    written |= set(self._read([given]))
        return {b for b in written if self._makers[b] is None}

    def _allow_keeping(self) -> None:
        for number, buffer in enumerate(self._buffers):
            maker, root = self._makers[number], self._roots[number]
            if maker is None:
                continue
            if root is None or (self._again[maker] and must_recompute(root)):
                buffer["keep"] = False

    # --- nodes

    def _in_order(self) -> list[Node]:
        """The nodes as they run, what is made again left out."""
        found = [n for n in self._nodes if n.op == "call_function" and n not in self._left_out]
        backward = [n for n in found if self._stages[n] == BACKWARD]
        listed = [n for n in found if self._stages[n] != BACKWARD]
        late = {n for n in backward if n not in self._needs_tangent}
        for node in backward:
            if node not in late:
                listed += self._late_for([node], late)
                listed.append(node)
        return listed + self._late_for(
            [n for n in self._backward_outputs if n is not None], late
        )

    def _late_for(self, nodes: list[Node], late: set[Node]) -> list[Node]:
        """Those of `late` that the nodes need first, which are taken from it."""
        found: set[Node] = set()
        left, seen = [*nodes], {*nodes}
        while left:
            node = left.pop()
            if node in late:
                found.add(node)
            for source in node.all_input_nodes:
                if source not in seen and self._stages[source] == BACKWARD:
                    seen.add(source)
                    left.append(source)
        late -= found
        return sorted(found, key=self._place.__getitem__)

    def _node_data(self, node: Node) -> dict[str, Any]:
        made = self._made_by.get(node, [])
        data = {
            "name": node.name,
            "op": str(node.target),
            "stage": self._stages[node],
            "ms": self._costs.ms(node) if made else 0.0,
            "reads": self._read(node.all_input_nodes),
            "makes": made,
        }
        if not self._again[node]:
            data["again"] = False
        return data


def _outputs_of(module: GraphModule, count: int) -> tuple[list[Node | None], list[Node | None]]:
    (output,) = module.graph.find_nodes(op="output")
    leaves = [n if isinstance(n, Node) else None for n in tree_leaves(output.args)]
    return leaves[:count], leaves[count:]


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
