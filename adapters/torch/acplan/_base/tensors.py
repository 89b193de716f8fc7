"""Tensors in values, and their kinds."""

from collections.abc import Iterable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from acplan._base.stand_ins import StandIn

# CUDA's caching allocator hands out memory in blocks of this size.
BLOCK_BYTES = 512

LAYOUTS_BY_ROWS = (torch.sparse_csr, torch.sparse_bsr)
SPARSE_LAYOUTS = frozenset(
    [torch.sparse_coo, *LAYOUTS_BY_ROWS, torch.sparse_csc, torch.sparse_bsc]
)

# Most arguments of operators that are not tensors have one of these types. Tracing tests every
# argument, many times.
_NO_TENSORS = {int, float, bool, str, type(None), torch.dtype, torch.device}


def block_bytes(size: int) -> int:
    """Returns a size in bytes, rounded up to whole blocks of the allocator."""
    return -(-size // BLOCK_BYTES) * BLOCK_BYTES


def is_sparse(tensor: torch.Tensor) -> bool:
    return tensor.layout in SPARSE_LAYOUTS


def tensors_of(*values: Any) -> list[torch.Tensor]:
    """Returns the tensors among the arguments or results of an operator, in order: alone, or in
    lists, tuples and dictionaries. It is quicker than a pytree, which knows more containers."""
    # The most frequent case first: an operator returns one tensor.
    if len(values) == 1 and isinstance(values[0], torch.Tensor):
        return [values[0]]
    tensors: list[torch.Tensor] = []
    _add_tensors(values, tensors)
    return tensors


def _add_tensors(values: Iterable[Any], tensors: list[torch.Tensor]) -> None:
    for value in values:
        if type(value) in _NO_TENSORS:
            continue
        if isinstance(value, torch.Tensor):
            tensors.append(value)
        elif isinstance(value, (list, tuple)):
            _add_tensors(value, tensors)
        elif isinstance(value, dict) and value:
            _add_tensors(value.values(), tensors)


def tensors_in(values: Any) -> list[torch.Tensor]:
    """Returns the tensors in a pytree that own memory: all except stand-ins."""
    return [
        leaf
        for leaf in tree_leaves(values)
        if issubclass(type(leaf), torch.Tensor) and not isinstance(leaf, StandIn)
    ]
