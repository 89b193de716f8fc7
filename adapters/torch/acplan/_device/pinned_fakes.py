"""Fake tensors in the host's pinned memory: a machine without a device has none, and PyTorch
has no fake of the operator that copies a tensor there."""

import contextlib
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from acplan._base.patching import set_attribute

# The addresses of storages of fake tensors that are pinned.
_pinned: set[int] = set()

_pin: Any = torch.Tensor.pin_memory
_is_pinned: Any = torch.Tensor.is_pinned


def is_pinned(tensor: torch.Tensor) -> bool:
    """Returns whether a fake tensor is in pinned memory."""
    return tensor.untyped_storage()._cdata in _pinned


@contextlib.contextmanager
def pinned_fakes() -> Iterator[None]:
    """Lets fake tensors be pinned within the block."""

    def pin_memory(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(tensor, FakeTensor):
            return _pin(tensor, *args, **kwargs)
        if is_pinned(tensor):
            return tensor
        pinned_tensor = torch.empty_like(tensor)
        storage = pinned_tensor.untyped_storage()
        _pinned.add(storage._cdata)
        weakref.finalize(storage, _pinned.discard, storage._cdata).atexit = False
        return pinned_tensor

    def answer(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(tensor, FakeTensor):
            return _is_pinned(tensor, *args, **kwargs)
        return is_pinned(tensor)

    with (
        set_attribute(torch.Tensor, "pin_memory", pin_memory),
        set_attribute(torch.Tensor, "is_pinned", answer),
    ):
        yield
