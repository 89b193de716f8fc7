"""The values of fake tensors on the CPU, if they are known."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._mode_utils import no_dispatch

from acplan._base.operators import written_by

DISCRETE = frozenset(
    [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
)
# The most elements of a tensor with a value. A larger tensor decides nothing that a smaller one
# has not decided before, and for fractions the limit is even lower.
MOST_DISCRETE = 1 << 22
MOST_FRACTIONS = 1 << 15
_REAL = (torch.Tensor, torch.nn.Parameter)


def value_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """Returns the value of a tensor, on the CPU, or None if it is not known."""
    if not isinstance(tensor, FakeTensor):
        is_known = type(tensor) in _REAL and is_small(tensor) and tensor.device.type == "cpu"
        return tensor if is_known else None
    value = tensor.__dict__.get("_acplan_value")
    if value is None or value.untyped_storage().__dict__.get("is_unknown"):
        return None
    # A tensor's `data` can be set unnoticed.
    return value if value.shape == tensor.shape else None


def give_value(fake: torch.Tensor, value: torch.Tensor) -> None:
    """Gives a fake tensor a copy of a real tensor's value if that is small, else none. A tensor
    on the meta device has no value, and a parameter changes."""
    fake.__dict__.pop("_acplan_value", None)
    if isinstance(value, torch.nn.Parameter):
        return
    if value.device.type == "meta" or isinstance(value, FakeTensor):
        return
    if value.is_sparse or value.is_quantized or value.is_nested:
        return
    if is_small(value):
        with no_dispatch():
            set_value(fake, value.detach().cpu().clone())


def is_small(tensor: torch.Tensor) -> bool:
    most = MOST_DISCRETE if tensor.dtype in DISCRETE else MOST_FRACTIONS
    return tensor.layout == torch.strided and tensor.numel() <= most


def set_value(fake: torch.Tensor, value: torch.Tensor | None) -> None:
    """Sets the value of a fake tensor; None: the value is unknown."""
    fake.__dict__["_acplan_value"] = value


def forget_written(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    for tensor in written_by(func, args, kwargs):
        value = tensor.__dict__.get("_acplan_value")
        if value is not None:
            # All views of that memory become unknown, too.
            value.untyped_storage().is_unknown = True
