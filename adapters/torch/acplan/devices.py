"""What devices can do, and the roofline run-time of an operator."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

from acplan.errors import AcplanError

_TERA = 1e12


@dataclasses.dataclass(frozen=True)
class Device:
    """Peak FLOP/s by data type, dense (without sparsity), and bytes a second."""

    name: str
    bandwidth: float
    float32: float
    bfloat16: float
    float16: float
    float8: float
    source: str

    def peak_flops(self, dtype: torch.dtype) -> float:
        if dtype == torch.bfloat16:
            return self.bfloat16
        if dtype == torch.float16:
            return self.float16
        if dtype.itemsize == 1 and dtype.is_floating_point:
            return self.float8
        return self.float32

    def runtime_ms(
        self,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        out: Any,
        read: Sequence[torch.Tensor],
        written: Sequence[torch.Tensor],
    ) -> float:
        """The roofline: the larger of what its FLOPs and its bytes take."""
        moved = sum(t.numel() * t.element_size() for t in (*read, *written))
        seconds = moved / self.bandwidth
        count = flop_registry.get(func._overloadpacket)
        if count is not None:
            flops = count(*args, **kwargs, out_val=out)
            floating = (t.dtype for t in read if t.is_floating_point())
            dtype = next(floating, torch.float32)
            seconds = max(seconds, flops / self.peak_flops(dtype))
        return seconds * 1e3


def _device(
    name: str, bandwidth: float, tflops: Sequence[float], source: str
) -> tuple[str, Device]:
    float32, bfloat16, float16, float8 = (t * _TERA for t in tflops)
    return name, Device(
        name, bandwidth * _TERA, float32, bfloat16, float16, float8, source
    )


# float32 is without TF32 (which PyTorch leaves off for matrix products).
DEVICES: Mapping[str, Device] = dict(
    [
        _device("a100", 1.555, (19.5, 312, 312, 312), "NVIDIA A100 datasheet, 40 GB"),
        _device("a100-80gb", 2.039, (19.5, 312, 312, 312), "NVIDIA A100 datasheet, SXM"),
        _device("h100", 3.35, (67, 989.4, 989.4, 1978.9), "NVIDIA H100 datasheet, SXM"),
        _device("h200", 4.8, (67, 989.4, 989.4, 1978.9), "NVIDIA H200 datasheet, SXM"),
        _device("b200", 8.0, (80, 2250, 2250, 4500), "NVIDIA HGX B200 datasheet"),
        _device("mi300x", 5.3, (163.4, 1307.4, 1307.4, 2614.9), "AMD MI300X datasheet"),
        _device("rtx4090", 1.008, (82.6, 165.2, 165.2, 330.3), "NVIDIA Ada whitepaper"),
    ]
)


def find_device(name: str | Device) -> Device:
    if isinstance(name, Device):
        return name
    try:
        return DEVICES[name.lower()]
    except KeyError:
        raise AcplanError(
            f"device: expected one of {', '.join(DEVICES)}, found {name!r}"
        ) from None
