"""Modules of which a gradient within forward is a part (_step/inner_passes.py).

A checkpoint would make such a module run again for that gradient, while it is still being
called. So the tensors that autograd saves in it are kept until the call ends; only then are
they left to the checkpoint.
"""

import weakref
from collections.abc import Callable
from typing import Any

import torch

from acplan._apply.unit_call import copy_marks, top_hooks


class _Held:
    """The value that autograd holds for a saved tensor."""

    __slots__ = ("packed", "tensor", "__weakref__")

    def __init__(self, packed: Any, tensor: torch.Tensor) -> None:
        self.packed = packed
        self.tensor: torch.Tensor | None = tensor


def hold(module: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Runs a module in a checkpoint, in forward and again, and holds what it saves until it
    ends."""
    hooks = None if torch.compiler.is_compiling() else top_hooks()
    if hooks is None:
        return module(*args, **kwargs)
    save, unsave = hooks
    refs: list[weakref.ref[_Held]] = []

    def pack(tensor: torch.Tensor) -> _Held:
        # Without its graph, which holds the value that is returned here.
        one = _Held(save(tensor), tensor.detach())
        refs.append(weakref.ref(one))
        return one

    def unpack(one: _Held) -> torch.Tensor:
        tensor: torch.Tensor = unsave(one.packed) if one.tensor is None else one.tensor
        return tensor

    copy_marks(save, pack)
    setattr(pack, _BENEATH, hooks)
    torch._C._autograd._push_saved_tensors_default_hooks(pack, unpack)
    try:
        return module(*args, **kwargs)
    finally:
        torch._C._autograd._pop_saved_tensors_default_hooks()
        for ref in refs:
            if (entry := ref()) is not None:
                entry.tensor = None


def let_go(module: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Runs a module inside one that holds, without holding what it saves."""
    hooks = None if torch.compiler.is_compiling() else top_hooks()
    if hooks is None or not hasattr(hooks[0], _BENEATH):
        return module(*args, **kwargs)
    while hasattr(hooks[0], _BENEATH):
        hooks = getattr(hooks[0], _BENEATH)
    torch._C._autograd._push_saved_tensors_default_hooks(*hooks)
    try:
        return module(*args, **kwargs)
    finally:
        torch._C._autograd._pop_saved_tensors_default_hooks()


_BENEATH = "acplan_beneath"
