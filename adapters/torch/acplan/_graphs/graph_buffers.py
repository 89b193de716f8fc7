"""The buffers of a joint graph: each is one allocation, views included."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch.fx import Node

from acplan._base.tensors import tensors_in
from acplan._graphs.node_rules import is_tangent
from acplan._graphs.node_values import (
    Values,
    allocated_bytes,
    device_type_of,
    distinct_storages,
    storage_of,
)

FORWARD, EITHER, BACKWARD = "forward", "either", "backward"


class GraphBuffers:
    """The buffers of the nodes' values, numbered in the order in which nodes first have them.

    entries: for each buffer, its entry in the file `acplan.graph`.
    makers:  the node that allocates it, or None for an input.
    roots:   the first node whose value is one tensor in the buffer, or None; this node is saved
             if the buffer is kept.
    """

    def __init__(self, nodes: Sequence[Node], values: Values) -> None:
        self.entries: list[dict[str, Any]] = []
        self.makers: list[Node | None] = []
        self.roots: list[Node | None] = []
        self._values = values
        self._device_type = device_type_of(values)
        self._number_of: dict[int, int] = {}
        self._made_by: dict[Node, list[int]] = {}
        for node in nodes:
            self._add_buffers(node)

    def made_by(self, node: Node) -> list[int]:
        """Returns the buffers that a node allocates."""
        return self._made_by.get(node, [])

    def read(self, nodes: Iterable[Node]) -> list[int]:
        """Returns the buffers of the values that the nodes make or pass on, each once."""
        numbers: dict[int, None] = {}
        for node in nodes:
            for tensor in tensors_in(self._values[node]):
                numbers[self._number_of[storage_of(tensor)]] = None
        return list(numbers)

    def returned(self, outputs: Sequence[Node | None]) -> list[int]:
        """Returns the buffers of the values that a pass returns."""
        return self.read([node for node in outputs if node is not None])

    def bytes_of(self, numbers: Iterable[int]) -> int:
        return sum(self.entries[number]["bytes"] for number in numbers)

    def is_root(self, node: Node, number: int) -> bool:
        return self.roots[number] is node

    def _add_buffers(self, node: Node) -> None:
        for storage, tensor in distinct_storages(self._values[node]):
            number = self._number_of.get(storage)
            if number is None:
                self._add_buffer(node, storage, tensor)
            elif self.roots[number] is None and self._has_tensor(node):
                self.roots[number] = node
                self.entries[number]["name"] = node.name

    def _add_buffer(self, node: Node, storage: int, tensor: torch.Tensor) -> None:
        number = self._number_of[storage] = len(self.entries)
        is_input = node.op != "call_function"
        is_one = self._has_tensor(node)
        # Names of nodes are unique, and do not contain this sign.
        name = node.name if is_one else f"{node.name}#{number}"
        self.entries.append({"name": name, "bytes": allocated_bytes(tensor, self._device_type)})
        if is_input and is_tangent(node):
            self.entries[number]["from"] = BACKWARD
        self.roots.append(node if is_one else None)
        self.makers.append(None if is_input else node)
        if not is_input:
            self._made_by.setdefault(node, []).append(number)

    def _has_tensor(self, node: Node) -> bool:
        return isinstance(self._values[node], torch.Tensor)
