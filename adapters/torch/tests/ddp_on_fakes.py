"""DistributedDataParallel on fake CUDA tensors: PyTorch's own reducer, with a process group
whose collectives end at once and change nothing."""

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import _create_work_from_future
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from acplan._base.tensors import tensors_in

RANKS = 2


class _Group(dist.ProcessGroup):
    def getBackendName(self) -> str:
        return "fake"

    def allreduce(self, tensors: Any, options: Any = None) -> dist.Work:
        return _ended_work(tensors)

    def broadcast(self, tensors: Any, options: Any = None) -> dist.Work:
        return _ended_work(tensors)


def _ended_work(value: Any) -> dist.Work:
    future: Future[Any] = Future()
    future.set_result(value)
    return _create_work_from_future(future)


class _RealOnHost(TorchDispatchMode):
    """Makes the reducer's CPU tensors of indices and flags real, as C++ reads them."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.aten.is_pinned.default:
            return True
        if func is torch.ops.aten.copy_.default and len({t.device.type for t in args[:2]}) == 2:
            return args[0]
        tensors = tensors_in((args, kwargs))
        is_real = torch.device(kwargs.get("device") or "cpu").type == "cpu"
        if func in _MAKES and is_real:
            kwargs = {**kwargs, "pin_memory": False}
        else:
            is_real &= bool(tensors) and all(type(t) is torch.Tensor for t in tensors)
        with _disable_current_modes() if is_real else contextlib.nullcontext():
            return func(*args, **kwargs)


_MAKES = (torch.ops.aten.empty.memory_format, torch.ops.aten.zeros.default)


class _Unlogged:
    """Stands in for DDP's logger, which asks for the time on the device."""

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: None


@contextlib.contextmanager
def in_ddp(model: nn.Module, **arguments: Any) -> Iterator[nn.Module]:
    """Yields the model in a DistributedDataParallel. Within the block, active modes must be
    those of fake tensors. The comparison of shapes among ranks, which reads tensors on the
    device, is left out."""
    module = "torch.nn.parallel.distributed"
    with (
        _RealOnHost(),
        mock.patch(f"{module}._verify_param_shape_across_processes"),
    ):
        wrapped = DistributedDataParallel(model, process_group=_Group(0, RANKS), **arguments)
        logger, wrapped.logger = wrapped.logger, _Unlogged()
        yield wrapped
        del logger
