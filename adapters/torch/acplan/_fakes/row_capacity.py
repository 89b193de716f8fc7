"""Selects by values as many rows as there may be.

The number of tokens that an expert gets, or of boxes that remain, differs from batch to batch.
A plan that is to hold for all batches is made of a step with the most rows: an operator that
selects rows by values then selects `capacity` times as many as with this batch (the last one is
repeated), at most all rows.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch

from acplan._base.errors import AcplanError
from acplan._files.trace_file import Capacity

_aten = torch.ops.aten
_BY_MASKS = (
    _aten.index.Tensor, _aten.index_put.default, _aten.index_put_.default,
    _aten._index_put_impl_.default, _aten._unsafe_index.Tensor,
    _aten._unsafe_index_put.default,
)  # fmt: skip
_MASKS = (torch.bool, torch.uint8)


def require_capacity(capacity: Any) -> None:
    """Raises AcplanError if it is not a capacity."""
    is_number = isinstance(capacity, (int, float)) and not isinstance(capacity, bool)
    if capacity == "all" or (is_number and 1 <= capacity < math.inf):
        return
    raise AcplanError(
        'capacity: expected "all" or a number of at least 1, the multiple of the rows that '
        f"values select with this batch, found {capacity!r}"
    )


def with_most_rows(func: Any, args: Sequence[Any], capacity: Capacity) -> list[Any]:
    """Returns the arguments of an operator on the CPU, with places in place of masks."""
    if func not in _BY_MASKS or not any(map(_is_mask, args[1])):
        return [*args]
    places: list[Any] = []
    for index in args[1]:
        if _is_mask(index):
            rows = _padded(index.nonzero(), index.numel(), capacity)
            places += rows.unbind(1)
        else:
            places.append(index)
    return [args[0], places, *args[2:]]


def most_rows_of(func: Any, args: Sequence[Any], selected: Any, capacity: Capacity) -> Any:
    """Returns the rows that an operator has selected, as many as there may be."""
    if func is _aten.nonzero.default:
        return _padded(selected, args[0].numel(), capacity)
    if func is _aten.masked_select.default:
        most = math.prod(torch.broadcast_shapes(args[0].shape, args[1].shape))
        return _padded(selected, most, capacity)
    if str(func) == "torchvision.nms.default":
        return _padded(selected, args[0].shape[0], capacity)
    return selected


def _is_mask(index: Any) -> bool:
    return isinstance(index, torch.Tensor) and index.dtype in _MASKS


def _padded(rows: torch.Tensor, most: int, capacity: Capacity) -> torch.Tensor:
    count = rows.shape[0]
    padded_count = most if capacity == "all" else min(most, math.ceil(count * float(capacity)))
    if padded_count <= count:
        return rows
    last = rows[-1:] if count else rows.new_zeros(1, *rows.shape[1:])
    return torch.cat([rows, last.expand(padded_count - count, *rows.shape[1:])])
