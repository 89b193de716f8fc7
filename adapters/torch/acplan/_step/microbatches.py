"""The context in which the forward and the backward pass of a microbatch run."""

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh

from acplan._base.errors import AcplanError

NOTE_ON_EARLIER = (
    "the trace is of the last microbatch; if microbatch_context lets earlier ones do less, "
    "such as reduce no gradients, least devices count too much for them"
)


@dataclasses.dataclass(frozen=True)
class Microbatch:
    """A microbatch of an iteration: the model, its inputs, its mesh if it is parallel, and
    whether the update follows the microbatch."""

    model: torch.nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    mesh: DeviceMesh | None
    is_last: bool

    def context(
        self, function: "MicrobatchContext"
    ) -> contextlib.AbstractContextManager[object]:
        """Returns the context that the user's function has for this microbatch."""
        result = function(self)
        if result is None:
            return contextlib.nullcontext()
        if not hasattr(result, "__enter__"):
            raise AcplanError(
                "microbatch_context: expected it to return a context manager or None, found "
                f"{type(result).__name__}"
            )
        return result


MicrobatchContext = Callable[[Microbatch], contextlib.AbstractContextManager[Any] | None]
