"""Generators of random numbers."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from acplan._base.tensors import tensors_of

_CPU = torch.device("cpu")


def default_generator(device: torch.device) -> torch.Generator | None:
    if device == _CPU or device.type == "cpu":
        return torch.default_generator
    of_type = getattr(getattr(torch, device.type, None), "default_generators", ())
    index = device.index or 0
    generator = of_type[index] if index < len(of_type) else None
    # On fake tensors there may be no device, and nothing is drawn: a generator of another kind
    # of device is not this device's.
    return generator if generator is not None and generator.device.type == device.type else None


def generator_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.Generator | None:
    """Returns the generator from which an operator draws."""
    generator = kwargs.get("generator")
    if generator is not None and isinstance(generator, torch.Generator):
        return generator
    tensor = args[0] if args else None
    if not isinstance(tensor, torch.Tensor):
        tensor = next(iter(tensors_of((args, kwargs))), None)
    if tensor is not None:
        return default_generator(tensor.device)
    return default_generator(torch.device(kwargs.get("device") or "cpu"))
