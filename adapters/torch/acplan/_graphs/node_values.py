"""The values of the nodes of a compiler's graph, as fake tensors with the sizes for which its
symbols stand.

The tensors that a graph has noted do not suffice: passes merge and replace nodes, and a view of
a removed node is then a view of nothing. So the graph is run.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule, Node
from torch.utils._pytree import tree_map

from acplan._base.tensors import block_bytes, tensors_in

# The size that PyTorch guesses for sizes that depend on values.
_UNKNOWN_SIZE = 4096

Values = dict[Node, Any]


def storage_of(tensor: torch.Tensor) -> int:
    """Returns a number that identifies the tensor's memory as long as it lives."""
    return int(tensor.untyped_storage()._cdata)


def size_hint(value: Any) -> Any:
    """Returns the number for which a symbol stands, and other values unchanged."""
    if not isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return value
    kind = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}[type(value)]
    hint = value.node.hint
    if hint is not None and not isinstance(hint, (torch.SymInt, torch.SymFloat)):
        return kind(hint)
    return kind(_UNKNOWN_SIZE)


def is_symbolic(value: Any) -> bool:
    """Returns whether a number is one that only a run knows."""
    return isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool))


class FakeRun:
    """Runs nodes one by one. A node that cannot run on fake tensors, or only with values, makes
    the values that the graph has noted for it."""

    def __init__(self, *modules: GraphModule, mode: FakeTensorMode | None = None) -> None:
        self._modules = modules
        self._mode = mode or FakeTensorMode(allow_non_fake_inputs=True)
        # A result from its cache may have less memory than the cached one.
        self._mode.cache_enabled = False
        self._attributes: dict[str, Any] = {}

    def placeholder(self, node: Node) -> Any:
        return tree_map(self._empty_like, node.meta.get("val"))

    def shaped(self, node: Node, value: Any) -> Any:
        """Returns an input's value in the memory of this tensor."""
        noted = node.meta.get("val")
        if not isinstance(noted, torch.Tensor) or noted.layout != torch.strided:
            return value
        size = [size_hint(s) for s in noted.shape]
        stride = [size_hint(s) for s in noted.stride()]
        if [*value.shape] == size and [*value.stride()] == stride:
            return value
        with self._mode, torch.no_grad():
            tensor = torch.empty([0], dtype=noted.dtype, device=noted.device)
            offset = size_hint(noted.storage_offset())
            return tensor.set_(value.untyped_storage(), offset, size, stride)

    def attribute(self, node: Node) -> Any:
        """Returns a constant of the module; there is one however often it is named."""
        target = str(node.target)
        if target not in self._attributes:
            value = self._find(target)
            is_tensor = isinstance(value, torch.Tensor)
            self._attributes[target] = self._empty_like(value) if is_tensor else value
        return self._attributes[target]

    def _find(self, target: str) -> Any:
        for module in self._modules:
            value: Any = module
            for name in target.split("."):
                value = getattr(value, name, None)
            if value is not None:
                return value
        raise AttributeError(target)

    def call(self, node: Node, value_of: Callable[[Node], Any]) -> Any:
        args = torch.fx.map_arg(node.args, value_of)
        kwargs = torch.fx.map_arg(node.kwargs, value_of)
        try:
            with self._mode, torch.no_grad():
                return node.target(*args, **kwargs)  # type: ignore[operator]
        except Exception:  # raised by any operator's author
            return self._as_noted(node, value_of)

    def _as_noted(self, node: Node, value_of: Callable[[Node], Any]) -> Any:
        read: dict[int, torch.Tensor] = {}
        for source in node.all_input_nodes:
            noted, actual = (
                tensors_in(value) for value in (source.meta.get("val"), value_of(source))
            )
            if len(noted) == len(actual):
                read |= {storage_of(a): b for a, b in zip(noted, actual)}

        def like_noted(value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                base = read.get(storage_of(value))
                if base is not None:
                    return base.detach()
            return self._empty_like(value)

        return tree_map(like_noted, node.meta.get("val"))

    def _empty_like(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return size_hint(value)
        if value.layout != torch.strided:
            with self._mode:
                return torch.empty(
                    [size_hint(s) for s in value.shape],
                    dtype=value.dtype,
                    device=value.device,
                )
        with self._mode:
            return torch.empty_strided(
                [size_hint(size) for size in value.shape],
                [size_hint(stride) for stride in value.stride()],
                dtype=value.dtype,
                device=value.device,
            )


def run_graph(module: GraphModule) -> Values:
    """Returns the value of each node of the graph."""
    run = FakeRun(module)
    values: Values = {}
    for node in module.graph.nodes:
        if node.op == "placeholder":
            values[node] = run.placeholder(node)
        elif node.op == "get_attr":
            values[node] = run.attribute(node)
        elif node.op == "call_function":
            values[node] = run.call(node, values.__getitem__)
    return values


def distinct_storages(value: Any) -> Iterator[tuple[int, torch.Tensor]]:
    """Yields, for each memory of the value, its number and a tensor in it."""
    storages: set[int] = set()
    for tensor in tensors_in(value):
        storage = storage_of(tensor)
        if storage not in storages:
            storages.add(storage)
            yield storage, tensor


def allocated_bytes(tensor: torch.Tensor, device_type: str | None) -> int:
    """Returns the bytes of the tensor's memory, or 0 if it is not on a device of this type."""
    if device_type is not None and tensor.device.type != device_type:
        return 0
    return block_bytes(int(tensor.untyped_storage().nbytes()))


def fills_its_memory(value: Any) -> bool:
    """Returns whether a value is a plain tensor that has each byte of its memory once, so that
    a copy of it is a copy of its memory."""
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
        return False
    if value.is_conj() or value.is_neg() or not value.numel():
        return False
    size = value.numel() * value.element_size()
    if int(value.untyped_storage().nbytes()) != size:
        return False
    distance = 1
    for stride, count in sorted(zip(value.stride(), value.shape)):
        if count != 1 and stride != distance:
            return False
        distance *= count
    return True


def device_type_of(values: Values) -> str | None:
    """Returns the accelerator in use, on which memory counts, or None if all memory counts."""
    types = {t.device.type for value in values.values() for t in tensors_in(value)}
    accelerators = types - {"cpu", "meta"}
    return min(accelerators) if accelerators else None
