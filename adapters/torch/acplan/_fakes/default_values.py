"""Values that inputs on the meta device are taken to have."""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils._mode_utils import no_dispatch

from acplan._fakes.tensor_values import (
    DISCRETE,
    is_small,
    set_value,
    value_of,
)


def _default_value(name: str, tensor: torch.Tensor) -> torch.Tensor | None:
    """Returns the value that an input on the meta device is taken to have, by its name: nothing
    is padded, nothing is packed. Masks are true everywhere, positions count from 0, labels and
    types are 0, and other integers, such as tokens, are 3, which no library takes for padding
    or an end."""
    if tensor.dtype not in DISCRETE or not is_small(tensor):
        return None
    with no_dispatch():
        if "mask" in name or tensor.dtype == torch.bool:
            return torch.ones(tensor.shape, dtype=tensor.dtype)
        if "position" in name and tensor.dim() > 0 and not name.startswith(_PLACES):
            return torch.arange(tensor.shape[-1], dtype=tensor.dtype).expand(tensor.shape)
        is_zero = name.startswith(_PLACES) or "label" in name or "type" in name
        return torch.full(tensor.shape, 0 if is_zero else 3, dtype=tensor.dtype)


_PLACES = ("start_position", "end_position")


def give_defaults(forward: Callable[..., Any], inputs: Any, fakes: Any) -> list[str]:
    """Gives the fakes of a model's inputs on the meta device their default values. Returns
    notes on that. `inputs` and `fakes` are pairs of arguments and keyword arguments."""
    names = []
    for (name, value), (_, fake) in zip(
        _named_tensors(forward, inputs), _named_tensors(forward, fakes)
    ):
        # One tensor may be several inputs, such as tokens and labels: the first counts.
        if value.device.type != "meta" or value_of(fake) is not None:
            continue
        default = _default_value(name, fake)
        if default is not None:
            set_value(fake, default)
            names.append(name)
    if not names:
        return []
    return [
        f"on the meta device {', '.join(dict.fromkeys(names))} have no values: the trace "
        "assumes no padding and no packed sequences; give real tensors if there are any"
    ]


def _named_tensors(
    forward: Callable[..., Any], inputs: tuple[Sequence[Any], Mapping[str, Any]]
) -> list[tuple[str, torch.Tensor]]:
    """Returns tensors with the names by which a model, or a mapping among its inputs, takes
    them."""
    args, kwargs = inputs
    try:
        signature = inspect.signature(forward)
        arguments: Any = signature.bind_partial(*args, **kwargs).arguments
    except (TypeError, ValueError):
        arguments = {**kwargs, "": args}
    return list(_leaves("", arguments))


def _leaves(name: str, values: Any) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(values, torch.Tensor):
        yield name, values
    elif isinstance(values, Mapping):
        for key, value in values.items():
            yield from _leaves(str(key), value)
    elif isinstance(values, (list, tuple)):
        for value in values:
            yield from _leaves(name, value)
