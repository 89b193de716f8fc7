"""Operators that communicate, and their process groups."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

# The namespaces of collectives.
NAMESPACES = ("c10d", "_c10d_functional")


def is_collective(func: Any) -> bool:
    """Returns whether an operator communicates by itself, unlike acplan.ring_attention, in
    which others do."""
    return func.namespace in NAMESPACES and "wait" not in func._opname


def group_of(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dist.ProcessGroup | None:
    """Returns the group that an operator names or is given."""
    return next(_groups_in((*args, *kwargs.values())), None)


def _groups_in(values: tuple[Any, ...]) -> Iterator[dist.ProcessGroup]:
    resolve: Any = vars(c10d)["_resolve_process_group"]
    for value in values:
        try:
            if isinstance(value, torch.ScriptObject):
                group = dist.ProcessGroup.unbox(value)
            elif isinstance(value, str):
                group = resolve(value)
            else:
                continue
            dist.get_process_group_ranks(group)
        except (RuntimeError, ValueError, KeyError, TypeError):
            continue  # a reduction, or its name
        yield group
