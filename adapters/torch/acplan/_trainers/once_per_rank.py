"""Results that one rank makes for all ranks."""

from collections.abc import Callable
from typing import TypeVar

import torch.distributed as dist

from acplan._base.errors import AcplanError

Value = TypeVar("Value")


def made_once(make: Callable[[], Value], leader: int | None = None) -> Value:
    """Returns the result of `make` on the first rank, on every rank of torch.distributed; if
    there is one process, the result of `make`. Its AcplanError is raised on every rank. With
    `leader`, which each rank names, each rank gets the result of its leader."""
    if not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
        return make()
    if leader is not None:
        return _made_by(make, leader)
    values: list[Value | AcplanError | None] = [None]
    if dist.get_rank() == 0:
        try:
            values[0] = make()
        except BaseException as error:  # Ctrl-C, too
            # The others wait for an answer, which is this error; here it is raised unchanged.
            dist.broadcast_object_list([_as_acplan_error(error)])
            raise
    dist.broadcast_object_list(values)
    if isinstance(values[0], AcplanError):
        raise values[0]
    assert values[0] is not None
    return values[0]


def _made_by(make: Callable[[], Value], leader: int) -> Value:
    own: Value | AcplanError | None = None
    failure: BaseException | None = None
    if dist.get_rank() == leader:
        try:
            own = make()
        except BaseException as error:  # Ctrl-C, too
            own, failure = _as_acplan_error(error), error
    values: list[Value | AcplanError | None] = [None] * dist.get_world_size()
    dist.all_gather_object(values, own)
    if failure is not None:
        raise failure
    for value in values:
        if isinstance(value, AcplanError):
            raise value
    result = values[leader]
    assert result is not None and not isinstance(result, AcplanError)
    return result


def _as_acplan_error(error: BaseException) -> AcplanError:
    if isinstance(error, AcplanError):
        return error
    return AcplanError(f"on the first rank: {type(error).__name__}: {error}")
