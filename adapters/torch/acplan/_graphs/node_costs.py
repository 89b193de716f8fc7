"""Run-times of the nodes of a compiler's graph, by those of kernels.

Inductor writes the kernels of pointwise operators and reductions itself, and computes a
recomputed value inside the kernel that reads it: that costs nothing, unless the reader is a
kernel of its own (a matrix product, a convolution, attention, any operator that Inductor calls
unchanged), which needs its operands in memory. A reduction costs the time to read its input.
"""

import functools
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import Any

import torch
from torch.fx import Node
from torch.utils.flop_counter import flop_registry

from acplan._base.tensors import tensors_in
from acplan._device.devices import Device, OperatorRun
from acplan._graphs.node_values import Values, distinct_storages


class GraphCosts:
    """The milliseconds of nodes on a device; with `is_fused` as Inductor would run them, else
    each operator by itself."""

    def __init__(
        self, device: Device, values: Values, views: AbstractSet[Node], is_fused: bool
    ) -> None:
        self._device = device
        self._values = values
        self._views = views
        self._is_fused = is_fused

    def ms(self, node: Node) -> float:
        """Returns the milliseconds of a node that makes tensors and is no view."""
        alone = self._alone_ms(node)
        if not self._is_fused or is_kernel_of_its_own(node.target):
            return alone
        if self._is_read_by_a_kernel(node):
            return alone
        if self._is_reduction(node):
            return self._bytes_ms([self._values[source] for source in node.all_input_nodes])
        return 0.0

    def _alone_ms(self, node: Node) -> float:
        result = self._values[node]
        read = [self._values[source] for source in node.all_input_nodes]
        if not isinstance(node.target, torch._ops.OpOverload):
            return self._bytes_ms([*read, result])
        args = torch.fx.map_arg(node.args, self._values.__getitem__)
        kwargs = torch.fx.map_arg(node.kwargs, self._values.__getitem__)
        tensors = tensors_in(read)
        try:
            run = OperatorRun(node.target, args, dict(kwargs), result)
            return self._device.runtime_ms(run, tensors, tensors_in(result))
        except (ValueError, TypeError, RuntimeError, AssertionError):
            return self._bytes_ms([*read, result])  # no FLOPs are known for such arguments

    def _bytes_ms(self, values: Sequence[Any]) -> float:
        byte_count = sum(
            int(t.untyped_storage().nbytes()) for _, t in distinct_storages(values)
        )
        return self._device.traffic_ms(byte_count)

    def _is_reduction(self, node: Node) -> bool:
        if _has_tag(node.target, "pointwise"):
            return False
        largest = max((t.numel() for t in tensors_in(self._values[node])), default=0)
        read = (self._values[source] for source in node.all_input_nodes)
        sizes = [t.numel() for value in read for t in tensors_in(value)]
        # An operator that gathers reads a few rows of a large table, and reduces nothing.
        is_gather = _name(node.target) in _GATHERS
        return not is_gather and largest < max(sizes, default=0)

    def _is_read_by_a_kernel(self, node: Node) -> bool:
        """Returns whether a reader of the node, or of a view of it, is a kernel of its own."""
        pending, visited = [node], {node}
        while pending:
            for user in pending.pop().users:
                if user.op != "call_function" or user in visited:
                    continue
                visited.add(user)
                if user in self._views:
                    pending.append(user)
                elif is_kernel_of_its_own(user.target):
                    return True
        return False


_GATHERS = ("aten::embedding", "aten::gather", "aten::index", "aten::index_select")


def _name(target: Any) -> str:
    schema = getattr(target, "_schema", None)
    return "" if schema is None else str(schema.name)


def _has_tag(target: Any, name: str) -> bool:
    tag = getattr(torch.Tag, name, None)
    return tag is not None and tag in getattr(target, "tags", ())


@functools.cache
def is_kernel_of_its_own(target: Any) -> bool:
    """Returns whether Inductor calls the operator unchanged, instead of writing a kernel with
    which others may be fused."""
    if not isinstance(target, torch._ops.OpOverload):
        return isinstance(target, torch._ops.HigherOrderOperator)
    if target._overloadpacket in flop_registry:
        return True
    lowerings, fallbacks = _lowerings()
    packet = target._overloadpacket
    if target in fallbacks or packet in fallbacks:
        return True
    return target not in lowerings and packet not in lowerings


@functools.cache
def _lowerings() -> tuple[Any, Any]:
    from torch._inductor import inductor_prims, lowering

    # These are made where random numbers are replaced, and are lowered when a graph is.
    prims = {value for value in vars(inductor_prims).values() if callable(value)}
    return {*lowering.lowerings, *prims}, set(lowering.fallbacks)
