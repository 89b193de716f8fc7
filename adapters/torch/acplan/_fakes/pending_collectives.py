"""The inputs of collectives that have not been waited for.

A functional collective begins, and its inputs stay in memory until the program waits for its
result: the process group holds them. On fake tensors nothing runs, so they are held here.
"""

import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from acplan._base.operators import WAITS
from acplan._base.tensors import tensors_of

_FUNCTIONAL = "_c10d_functional"


class PendingCollectives:
    """The inputs of collectives, indexed by the memory of the results that will be waited for."""

    def __init__(self) -> None:
        self._inputs: dict[int, list[torch.Tensor]] = {}

    def begin(
        self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any
    ) -> None:
        """Holds the inputs of an operator if it is a functional collective."""
        if getattr(func, "namespace", "") != _FUNCTIONAL or func is WAITS:
            return
        inputs = tensors_of(args, kwargs)
        for result in tensors_of(out):
            storage = result.untyped_storage()
            key = storage._cdata
            self._inputs[key] = [t for t in inputs if t.untyped_storage()._cdata != key]
            weakref.finalize(storage, self._inputs.pop, key, None).atexit = False

    def wait(self, tensor: torch.Tensor) -> None:
        """Lets go of the inputs of the collective that has made a tensor."""
        self._inputs.pop(tensor.untyped_storage()._cdata, None)
