"""Generators of random numbers."""

import torch

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
