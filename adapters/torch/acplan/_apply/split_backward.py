"""Backward passes in parts, as pipelines with little idle time run them: one for the gradients
of a stage's inputs, which keeps the graph, and later ones for those of its weights.

PyTorch's checkpoint runs its module again in each pass. Here the first pass that keeps its
graph makes the unit run again, and its results stay, as saved tensors do, until autograd
releases them.
"""

import contextlib
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch

from acplan._apply.unit_call import CAN_TELL_HOOKS, Hooks, copy_marks, top_hooks
from acplan._base.passes import is_graph_kept
from acplan._base.stand_ins import StandIn

_REMADE = "acplan_remade"


class _Rerun(threading.local):
    is_under_way = False


# A unit runs again in this thread.
_RERUN = _Rerun()

# Nothing else splits backward passes.
_SPLITS = "torch.distributed.pipelining"


def may_split() -> bool:
    """Returns whether the backward pass of what runs now may come in parts: a schedule of a
    pipeline runs it, or it runs again for one."""
    if not CAN_TELL_HOOKS or _SPLITS not in sys.modules:
        return False
    return _RERUN.is_under_way or any(map(_is_of_pipelines, _frames()))


def _is_of_pipelines(frame: types.FrameType) -> bool:
    return str(frame.f_globals.get("__name__")).startswith(_SPLITS)


def _frames() -> Iterator[types.FrameType]:
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def kept_between_parts(hooks: Hooks) -> Hooks:
    """Returns the hooks of a checkpoint with which later parts of a backward pass get what the
    first one has made again."""
    save, unsave = hooks
    holders: list[weakref.ref[Any]] = []

    def pack(tensor: torch.Tensor) -> Any:
        holder = save(tensor)
        holders.append(weakref.ref(holder))
        return holder

    def unpack(holder: Any) -> torch.Tensor:
        # The recomputation of a unit inside of this one asks for an argument, and once.
        is_argument = _RERUN.is_under_way
        remade: torch.Tensor | None = vars(holder).get(_REMADE)
        if remade is not None:
            # For a stand-in the unit runs again, and skips nothing.
            if is_argument or isinstance(remade, StandIn):
                delattr(holder, _REMADE)
            return remade
        is_part = is_graph_kept() and not torch.is_grad_enabled()
        with _rerunning():
            tensor: torch.Tensor = unsave(holder)
        if is_part:
            for other in (ref() for ref in holders):
                if other is not None and other is not holder:
                    setattr(other, _REMADE, unsave(other))
            if not (is_argument or isinstance(tensor, StandIn)):
                setattr(holder, _REMADE, tensor)
        return tensor

    copy_marks(save, pack)
    copy_marks(unsave, unpack)
    return pack, unpack


@contextlib.contextmanager
def _rerunning() -> Iterator[None]:
    """Marks the block as the recomputation of a unit in this thread."""
    before, _RERUN.is_under_way = _RERUN.is_under_way, True
    try:
        yield
    finally:
        _RERUN.is_under_way = before


def in_parts(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the function of a checkpoint, which pushes such hooks in its first call, that of
    forward."""
    is_first = True

    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal is_first
        hooks = top_hooks() if is_first and torch.is_grad_enabled() else None
        is_first = False
        if hooks is None:
            return function(*args, **kwargs)
        torch._C._autograd._push_saved_tensors_default_hooks(*kept_between_parts(hooks))
        try:
            return function(*args, **kwargs)
        finally:
            torch._C._autograd._pop_saved_tensors_default_hooks()

    return call
