"""Fake tensors that return their values if Python reads those of real ones."""

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    FakeTensor,
)
from torch.utils._mode_utils import no_dispatch

from acplan._base.patching import set_attribute
from acplan._base.torchscript import by_operators
from acplan._fakes.followed_numbers import followed
from acplan._fakes.plain_fakes import plain_fakes
from acplan._fakes.random_states import random_state_kept
from acplan._fakes.tensor_values import (
    set_value,
    value_of,
)
from acplan._fakes.unknown_arrays import array_of_unknown, list_of_unknown


@contextlib.contextmanager
def as_in_training() -> Iterator[None]:
    """Lets Python run as in training within the block: libraries that ask whether they are
    traced learn that they are not, tensors with values return them as real ones do, and code
    that torch.jit has compiled runs as if it had not been."""
    # `quiet`: PyTorch logs an operator that it cannot fake with a traceback, and raises as
    # well.
    data = property(torch.Tensor.data.__get__, _set_data)  # type: ignore[attr-defined]
    setter = set_attribute(FakeTensor, "data", data, create=True)
    quiet = set_attribute(fake_tensor.log, "disabled", True)
    checks = set_attribute(torch._subclasses, "FakeTensor", _AskedFakeTensor)
    lists = set_attribute(FakeTensor, "tolist", _to_list)
    arrays = set_attribute(FakeTensor, "numpy", _to_numpy, create=True)
    array = set_attribute(FakeTensor, "__array__", _to_array, create=True)
    text = set_attribute(FakeTensor, "__format__", _formatted)
    padding = set_attribute(torch._VF, "_pad_packed_sequence", _pad_packed_sequence)
    lengths = set_attribute(torch, "ctc_loss", _ctc_loss)
    plain = plain_fakes(value_of)
    replaced = (quiet, checks, lists, arrays, array, text, padding, setter)
    with contextlib.ExitStack() as undo:
        for one in (*replaced, random_state_kept(), plain, lengths, by_operators()):
            undo.enter_context(one)
        yield


class _Asked(type):
    """The class of the FakeTensor that libraries see. transformers asks `isinstance(x,
    torch._subclasses.FakeTensor)` before it reads values, and the answer is false. PyTorch
    itself, which asks the same, gets the true answer."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return _asks_as_torch() and isinstance(instance, FakeTensor)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return _asks_as_torch() and issubclass(subclass, FakeTensor)


class _AskedFakeTensor(metaclass=_Asked):
    pass


def _asks_as_torch() -> bool:
    # The frame that asked is two above this one.
    name = str(sys._getframe(2).f_globals.get("__name__", ""))
    return name == "torch" or name.startswith("torch.")


# Functions that are called with each tensor that Python's own code, rather than an operator,
# reads.
readers: list[Callable[[torch.Tensor], None]] = []


def _tell_readers(tensor: torch.Tensor) -> None:
    for reader in readers:
        reader(tensor)


def _to_list(tensor: torch.Tensor) -> Any:
    if tensor.device.type != "cpu":
        tensor = tensor.cpu()
    _tell_readers(tensor)
    if value_of(tensor) is None and followed() is not None:
        return list_of_unknown(tensor)
    with no_dispatch():
        return _require_value(tensor, "tolist").tolist()


def _to_numpy(tensor: FakeTensor, *args: Any, **kwargs: Any) -> Any:
    if tensor.device.type != "cpu":
        raise TypeError(
            f"can't convert {tensor.device} device type tensor to numpy. Use "
            "Tensor.cpu() to copy the tensor to host memory first."
        )
    _tell_readers(tensor)
    if value_of(tensor) is None and followed() is not None:
        return array_of_unknown(tensor)
    with no_dispatch():
        return _require_value(tensor, "numpy").numpy()


def _to_array(tensor: FakeTensor, dtype: Any = None, *_: Any, **__: Any) -> Any:
    array = _to_numpy(tensor)
    return array if dtype is None else array.astype(dtype, copy=False)


def _pad_packed_sequence(
    data: torch.Tensor,
    batch_sizes: torch.Tensor,
    batch_first: bool,
    padding_value: float,
    total_length: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Pads a packed sequence with the operators of PyTorch's own function, which writes lengths
    to memory that a fake tensor does not have: rows of steps with equally many sequences are
    copied at once."""
    if not isinstance(data, FakeTensor):
        padded: tuple[torch.Tensor, torch.Tensor] = _PAD_PACKED(
            data, batch_sizes, batch_first, padding_value, total_length
        )
        return padded
    with no_dispatch():
        sizes: list[int] = batch_sizes.tolist()
    steps = max(total_length, len(sizes))
    out = torch.full(
        (steps, sizes[0], *data.shape[1:]),
        padding_value,
        dtype=data.dtype,
        layout=data.layout,
        device=data.device,
    )
    lengths = torch.empty(sizes[0], dtype=torch.int64, layout=torch.strided)
    ends = [k for k, size in enumerate(sizes) if [*sizes, 0][k + 1] != size]
    row = first = 0
    for end in ends:
        count, size = end + 1 - first, sizes[end]
        part = data.narrow(0, row, count * size)
        place = out.narrow(0, first, count).narrow(1, 0, size)
        place.copy_(part.view(count, size, *data.shape[1:]))
        row, first = row + count * size, end + 1
    with no_dispatch():
        values = torch.tensor([sum(size > k for size in sizes) for k in range(sizes[0])])
        set_value(lengths, values)
    return (out.transpose(0, 1) if batch_first else out), lengths


_PAD_PACKED = torch._VF._pad_packed_sequence


def _ctc_loss(
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: Any,
    target_lengths: Any,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Computes the loss with lengths on the device, even if they are elsewhere: PyTorch's
    kernel reads numbers on the host and then makes a tensor of them, but has no form of that
    for fake tensors."""
    lengths = [
        torch.as_tensor(some, device=log_probs.device)
        for some in (input_lengths, target_lengths)
    ]
    loss: torch.Tensor = _CTC_LOSS(log_probs, targets, *lengths, *args, **kwargs)
    return loss


_CTC_LOSS: Any = torch.ctc_loss


def _set_data(tensor: FakeTensor, data: torch.Tensor) -> None:
    torch.Tensor.data.__set__(tensor, data)  # type: ignore[attr-defined]
    tensor.__dict__.pop("_acplan_value", None)
    value = value_of(data)
    if value is not None and isinstance(data, FakeTensor):
        set_value(tensor, value)


def _formatted(tensor: FakeTensor, form: str) -> str:
    """Returns a tensor's text in a message: a single number is shown, and copied to the host
    for that."""
    if tensor.dim() == 0 and (value_of(tensor) is not None or followed() is not None):
        return format(tensor.item(), form)
    return object.__format__(tensor, form)


def _require_value(tensor: torch.Tensor, what: str) -> torch.Tensor:
    value = value_of(tensor)
    if value is None:
        raise DataDependentOutputException(what)  # type: ignore[arg-type]
    return value
