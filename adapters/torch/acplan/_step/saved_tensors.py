"""Hooks that record what autograd saves in a step, and from when to when."""

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.tensor import DTensor

from acplan._base.stand_ins import Shape, Turned, is_run_inside, shape_of
from acplan._base.tensors import is_sparse
from acplan._fakes.sparse_fakes import made_of, structure_of
from acplan._fakes.tensor_values import set_value, value_of
from acplan._step.records import Saved
from acplan._step.step_log import StepLog, on_death

_Remade = Callable[[Sequence[torch.Tensor]], torch.Tensor]


def recording_saved(log: StepLog) -> torch.autograd.graph.saved_tensors_hooks:
    """Returns hooks with which autograd keeps what it keeps, while the log records from when to
    when."""
    return _saved_hooks(log, keeps=True)


def dropping_saved(log: StepLog) -> torch.autograd.graph.saved_tensors_hooks:
    """Returns hooks with which autograd keeps nothing and gets stand-ins, so that a storage is
    freed when everything except autograd has released it."""
    return _saved_hooks(log, keeps=False)


class _SavedValue:
    """The value that autograd holds in place of a tensor that it saved. A tensor that consists
    of several is `remade` from others of their shapes."""

    __slots__ = ("tensor", "remade", "shapes", "saved", "__weakref__")

    def __init__(
        self,
        tensor: torch.Tensor | None,
        remade: _Remade | None,
        parts: Iterable[torch.Tensor],
        saved: list[Saved],
    ) -> None:
        self.tensor = tensor
        self.remade = remade
        self.shapes = [(shape_of(part), value_of(part)) for part in parts]
        self.saved = saved


def _saved_hooks(log: StepLog, keeps: bool) -> torch.autograd.graph.saved_tensors_hooks:
    def pack(tensor: torch.Tensor) -> _SavedValue:
        last = log.operators[-1].results if log.operators else []
        parts = log.plain([tensor])
        saved = [
            Saved(
                storage=log.storage_of(part),
                tensor=log.tensor_of(part, among=last) if part is tensor else -1,
                requires_grad=tensor.requires_grad,
                packed=log.now,
                call=log.open_call,
            )
            for part in parts
        ]
        log.saved += saved
        with log.quiet():
            remade = _remade(tensor) if _needs_stand_in(tensor) else None
        value = _SavedValue(_to_keep(log, tensor, keeps), remade, parts, saved)

        def on_release() -> None:
            for part in saved:
                part.released = log.now

        on_death(value, on_release)
        return value

    def unpack(value: _SavedValue) -> torch.Tensor:
        open_calls = log.open_calls if log.is_forward else None
        for saved in value.saved:
            log.inner_passes.asks(saved, log.now, open_calls)
        return _stand_in(log, value)

    return torch.autograd.graph.saved_tensors_hooks(pack, unpack)


def _to_keep(log: StepLog, tensor: torch.Tensor, keeps: bool) -> torch.Tensor | None:
    if not _needs_stand_in(tensor):
        return tensor
    if not keeps:
        return None
    if not tensor.requires_grad:
        return tensor
    # The tensor's own graph node would hold an operator's result, which holds the node.
    with log.quiet():
        return tensor.detach()


def _stand_in(log: StepLog, saved_value: _SavedValue) -> torch.Tensor:
    # The backward node that unpacks a checkpointed tensor releases it, but it releases the
    # original only after it has run. To see when, the node gets a tensor with a storage of its
    # own, which costs nothing as tensors are fake.
    if saved_value.tensor is not None and (
        not _needs_stand_in(saved_value.tensor)
        # If the pass makes a graph, the tensor that it saves in turn is the original.
        or (log.is_forward and torch.is_grad_enabled())
    ):
        for saved in saved_value.saved:
            saved.local_end = log.now
        return saved_value.tensor
    parts = [
        _part(log, shape, value, saved)
        for (shape, value), saved in zip(saved_value.shapes, saved_value.saved)
    ]
    if saved_value.remade is None:
        return parts[0]
    with log.quiet(), torch.no_grad():
        return saved_value.remade(parts)


def _part(log: StepLog, shape: Shape, value: torch.Tensor | None, saved: Saved) -> torch.Tensor:
    with log.quiet(), torch.no_grad():
        part = torch.empty_strided(
            shape.size, shape.stride, dtype=shape.dtype, device=shape.device
        )
    set_value(part, value)
    # Backward reads the tensor behind a conjugate, without a copy.
    if isinstance(shape, Turned):
        shape.turn(part)
    log.stand_in(part.untyped_storage(), saved)
    return part


def _needs_stand_in(tensor: torch.Tensor) -> bool:
    # Neither a parameter, which its module holds, nor a tensor on the CPU.
    is_parameter = tensor.is_leaf and tensor.requires_grad
    return tensor.device.type == "cuda" and not is_parameter


def _remade(tensor: torch.Tensor) -> _Remade | None:
    """Returns a function that makes a tensor like this one from others of the parts of which it
    consists, or None if it is a single piece of memory."""
    if is_sparse(tensor):
        return functools.partial(made_of, structure_of(tensor))
    # The operator that saves the result of a collective has waited for it.
    if not is_run_inside(type(tensor)) or isinstance(tensor, AsyncCollectiveTensor):
        return None
    if isinstance(tensor, DTensor):
        # PyTorch's own way back refuses strided shards, of which tensor parallelism and
        # fully_shard have some where a dimension is sharded twice.
        return functools.partial(_dtensor_of, tensor._spec, tensor.requires_grad)
    names, context = tensor.__tensor_flatten__()  # type: ignore[attr-defined]
    inner = {name: getattr(tensor, name) for name in names}
    # Jagged tensors are known to have one shape by their offsets, which therefore stay.
    fixed = {name: part for name, part in inner.items() if not _is_made_again(part)}
    size, stride = tensor.size(), tensor.stride()
    unflatten = type(tensor).__tensor_unflatten__  # type: ignore[attr-defined]

    def remake(parts: Sequence[torch.Tensor]) -> torch.Tensor:
        new = dict(zip(inner_names, parts, strict=True))
        tensor: torch.Tensor = unflatten(
            {name: fixed.get(name, new.get(name)) for name in names}, context, size, stride
        )
        return tensor

    inner_names = [name for name, part in inner.items() if isinstance(part, torch.Tensor)]
    return remake


def _is_made_again(part: object) -> bool:
    return isinstance(part, torch.Tensor) and part.is_floating_point()


def _dtensor_of(spec: Any, requires_grad: bool, parts: Sequence[torch.Tensor]) -> torch.Tensor:
    make: Any = DTensor
    result: torch.Tensor = make(parts[0], spec, requires_grad=requires_grad)
    return result
