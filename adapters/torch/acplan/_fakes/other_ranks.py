"""The other ranks of a parallel model, which do not exist on fake tensors.

An all-gather or an all-to-all begins, and its inputs stay in memory until the program waits for
its result: the process group holds them. On fake tensors nothing runs, so they are held here.
"""

import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.distributed._functional_collectives import AsyncCollectiveTensor

from acplan._base.operators import HANDS_OUT
from acplan._base.tensors import tensors_of
from acplan._fakes.routing import Routing

_FUNCTIONAL = "_c10d_functional"
# A reduction sends a copy of its input, or makes one.
_SENDS = ("all_gather", "all_to_all")


class OtherRanks:
    """The inputs of collectives, indexed by the memory of their results, and the `routing` of
    tokens, if the step is that of a rank."""

    def __init__(self) -> None:
        self.routing: Routing | None = None
        self._inputs: dict[int, list[torch.Tensor]] = {}

    def begin(
        self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any
    ) -> None:
        """Holds the inputs of an operator if its process group would."""
        if getattr(func, "namespace", "") != _FUNCTIONAL or not func._opname.startswith(_SENDS):
            return
        inputs = tensors_of(args, kwargs)
        for result in tensors_of(out):
            storage = result.untyped_storage()
            key = storage._cdata
            self._inputs[key] = [t for t in inputs if t.untyped_storage()._cdata != key]
            weakref.finalize(storage, self._inputs.pop, key, None).atexit = False

    def wait(self, func: Any, tensor: torch.Tensor) -> torch.Tensor:
        """Returns what the operators around waiting return in training, and lets go of inputs.
        The results of PyTorch's fakes are tensors of their own, for which nothing waits."""
        if func is HANDS_OUT:
            return AsyncCollectiveTensor(tensor)
        self._inputs.pop(tensor.untyped_storage()._cdata, None)
        return tensor
