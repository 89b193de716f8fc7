"""The GPU of this process as a limit of plans: `budget="device"`."""

import os
from collections.abc import Mapping
from typing import Any

import torch

from acplan._base.errors import AcplanError

DEVICE = "device"

# The largest CUDA context of docs/device_memory.md: kernels that are loaded later belong to it.
_CONTEXT_BYTES = round(0.66 * 2**30)


def process_allocator_text() -> str:
    """Returns the setting of PyTorch's allocator in this process, "native" if there is none."""
    return (
        os.environ.get("PYTORCH_ALLOC_CONF")
        or os.environ.get("PYTORCH_CUDA_ALLOC_CONF")
        or "native"
    )


def with_visible_device(budget: Any, options: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Returns a budget and the options of acplan.plan. If the budget is "device", it becomes
    the memory that PyTorch can have of this process's GPU, on the allocator of this process.
    Raises AcplanError if there is no GPU."""
    if budget != DEVICE:
        return budget, {**options}
    if options.get("device_memory") is not None:
        raise AcplanError('budget: expected "device" or device_memory, found both')
    if not torch.cuda.is_available():
        raise AcplanError(
            'budget: "device" takes the memory of the GPU of this process, and PyTorch finds '
            'no GPU; give a size such as budget="20GiB", or name the GPU that will train, '
            'as in device_memory="h100"'
        )
    limits = {"device_memory": _usable_bytes(), "allocator": process_allocator_text()}
    return None, {**limits, **{k: v for k, v in options.items() if v is not None}}


def _usable_bytes() -> int:
    """Returns the bytes that PyTorch has of its GPU or can still have."""
    free_bytes, total_bytes = torch.cuda.mem_get_info()
    own_bytes: int = torch.cuda.memory_reserved()
    return max(0, min(free_bytes + own_bytes, total_bytes - _CONTEXT_BYTES))
