"""Results that one rank makes for all ranks."""

from collections.abc import Callable
from typing import TypeVar

import torch.distributed as dist

from acplan._base.errors import AcplanError

Made = TypeVar("Made")


def made_once(make: Callable[[], Made]) -> Made:
    """Returns the result of `make` on the first rank, on every rank of torch.distributed; if
    there is one process, the result of `make`. Its AcplanError is raised on every rank."""
    if not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
        return make()
    made: list[Made | AcplanError | None] = [None]
    if dist.get_rank() == 0:
        try:
            made[0] = make()
        except BaseException as error:  # Ctrl-C, too
            # The others wait for an answer, which is this error; here it is raised unchanged.
            dist.broadcast_object_list([_told(error)])
            raise
    dist.broadcast_object_list(made)
    if isinstance(made[0], AcplanError):
        raise made[0]
    assert made[0] is not None
    return made[0]


def _told(error: BaseException) -> AcplanError:
    if isinstance(error, AcplanError):
        return error
    return AcplanError(f"on the first rank: {type(error).__name__}: {error}")
