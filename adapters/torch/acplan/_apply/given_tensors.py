"""The arguments of a call of a unit, some of which go to the host.

PyTorch's checkpoint saves the tensors that it is given by position as autograd saves tensors,
so that hooks can send them. It holds tensors that it is given by keyword, or inside of lists
and other objects, itself until the unit has run again. So tensors of these that go to the host
are put first, by position, and markers are where they were.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch

from acplan._apply.tape import memory_of
from acplan._base.call_arguments import Copies, copy_of, holds_nothing, tensors_given


@dataclasses.dataclass(frozen=True, slots=True)
class _Marker:
    """The place of a tensor among those that are put first."""

    index: int


@dataclasses.dataclass(frozen=True, slots=True)
class CallArguments:
    """The arguments of a call, and the tensors in them, none given by position, that are put
    first."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    first: tuple[torch.Tensor, ...] = ()

    def copies(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Returns the arguments for a checkpoint: copies, as they are now, and the tensors that
        are put first in front of them."""
        if not self.first:
            is_plain = holds_nothing(self.args, self.kwargs)
            arguments = (self.args, self.kwargs)
            return arguments if is_plain else copy_of(arguments)
        markers = {id(tensor): _Marker(index) for index, tensor in enumerate(self.first)}
        copies = Copies(lambda tensor: markers.get(id(tensor), tensor))
        args, kwargs = copies.copy_of((self.args, self.kwargs))
        return (*self.first, *args), kwargs


def put_back(
    args: tuple[Any, ...], kwargs: dict[str, Any], count: int
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Returns copies of the arguments that CallArguments.copies returned, with the first
    `count` tensors where they were."""
    tensors, args = args[:count], args[count:]

    def of_marker(thing: Any) -> Any:
        return tensors[thing.index] if isinstance(thing, _Marker) else thing

    copies: tuple[tuple[Any, ...], dict[str, Any]]
    copies = Copies(of_other=of_marker).copy_of((args, kwargs))
    return copies


def by_position(args: Sequence[Any]) -> list[torch.Tensor]:
    return [value for value in args if isinstance(value, torch.Tensor)]


def further_tensors(args: Sequence[Any], kwargs: dict[str, Any]) -> list[list[torch.Tensor]]:
    """Returns the tensors that a call is given otherwise than by position, those of the same
    memory together, without those whose memory it is given by position. Their order is that of
    `further_inputs` in a trace."""
    own_tensors = by_position(args)
    own_ids = {*map(id, own_tensors)}
    own_memory = {*map(memory_of, own_tensors)} - {None}
    groups: dict[int, list[torch.Tensor]] = {}
    for tensor in tensors_given(args, kwargs):
        memory = memory_of(tensor)
        if id(tensor) in own_ids or memory in own_memory:
            continue
        groups.setdefault(id(tensor) if memory is None else memory, []).append(tensor)
    return [*groups.values()]
