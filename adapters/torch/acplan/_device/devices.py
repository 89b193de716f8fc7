"""The rates of devices, and the roofline run-time of an operator."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch.utils.flop_counter import flop_registry

from acplan._base.errors import AcplanError
from acplan._base.tensors import is_sparse

_TERA = 1e12


class OperatorRun(NamedTuple):
    """An operator that ran: its arguments, and its results."""

    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    out: Any


@dataclasses.dataclass(frozen=True)
class Device:
    """Peak FLOP/s by data type, dense (without sparsity), bytes a second, and the properties
    that PyTorch reads of a device to choose its kernels."""

    name: str
    product: str  # as torch.cuda.get_device_name returns it
    capability: tuple[int, int]  # compute capability, as ROCm reports it on AMD's devices
    multiprocessors: int
    memory: int  # bytes, nominal
    is_rocm: bool
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
        run: OperatorRun,
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
    ) -> float:
        """Returns the roofline: the larger of the times that the FLOPs and the bytes of an
        operator take. `inputs` and `outputs` are its tensors with memory."""
        moved_bytes = sum(t.numel() * t.element_size() for t in (*inputs, *outputs))
        seconds = moved_bytes / self.bandwidth
        flops = flops_of(*run)
        if flops:
            floating = (t.dtype for t in inputs if t.is_floating_point())
            dtype = next(floating, torch.float32)
            seconds = max(seconds, flops / self.peak_flops(dtype))
        return seconds * 1e3


def flops_of(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> int:
    """Returns the FLOPs of an operator, or 0 for an operator that is bound by memory."""
    packet = func._overloadpacket
    own = _FLOPS.get(str(packet))
    if any(isinstance(a, torch.Tensor) and is_sparse(a) for a in args):
        return 0  # the bytes of sparse tensors count
    if own is not None:
        return own(*args, **kwargs)
    count = flop_registry.get(packet)
    if count is None:
        return 0
    try:
        return int(count(*args, **kwargs, out_val=out))
    except AssertionError:
        return 0  # attention of grouped heads, which older versions do not count


def _grouped_mm_flops(a: torch.Tensor, b: torch.Tensor, *_: Any, **__: Any) -> int:
    if a.dim() == 3 and b.dim() == 2:
        return 2 * b.numel() * a.shape[1]
    return 2 * a.numel() * b.shape[-1]


def _rnn_flops(input: torch.Tensor, weights: Sequence[torch.Tensor], *_: Any, **__: Any) -> int:
    steps = input.numel() // input.shape[-1]
    return 2 * steps * sum(w.numel() for w in weights if w.dim() == 2)


def _rnn_backward_flops(*args: Any, **kwargs: Any) -> int:
    return 2 * _rnn_flops(*args, **kwargs)


def _convolution_backward_flops(
    gradient: torch.Tensor, input: torch.Tensor, weight: torch.Tensor, *args: Any, **__: Any
) -> int:
    """Counts each of the gradients of input and weight as the forward pass. PyTorch counts the
    one of the weight as if there were no groups."""
    is_transposed, mask = bool(args[4]), args[7]
    grid = input if is_transposed else gradient
    flops = 2 * weight.numel() * grid.shape[0] * math.prod(grid.shape[2:])
    return flops * sum(map(bool, mask[:2]))


# FLOPs of operators that PyTorch does not count, or counts wrongly.
_FLOPS: Mapping[str, Callable[..., int]] = {
    "aten._grouped_mm": _grouped_mm_flops,
    "aten._cudnn_rnn": _rnn_flops,
    "aten._cudnn_rnn_backward": _rnn_backward_flops,
    "aten.convolution_backward": _convolution_backward_flops,
    "aten.miopen_rnn": _rnn_flops,
    "aten.miopen_rnn_backward": _rnn_backward_flops,
}


def _device(
    name: str,
    product: str,
    chip: tuple[tuple[int, int], int],
    memory: tuple[int, float],
    tflops: Sequence[float],
    *,
    source: str,
    is_rocm: bool = False,
) -> tuple[str, Device]:
    """Returns a row of DEVICES.

    chip:   its compute capability, and how many multiprocessors it has.
    memory: gigabytes, and terabytes a second.
    tflops: in float32, bfloat16, float16 and float8.
    """
    float32, bfloat16, float16, float8 = (t * _TERA for t in tflops)
    return name, Device(
        name, product, *chip, memory[0] * 2**30, is_rocm, memory[1] * _TERA, float32, bfloat16,
        float16, float8, source,
    )  # fmt: skip


_HOPPER = (67, 989.4, 989.4, 1978.9)

# float32 is without TF32 (which PyTorch leaves off for matrix products), half precision with
# sums in float32. If a device has no unit for a type, the rate is that of the type it takes
# instead.
DEVICES: Mapping[str, Device] = dict(
    [
        _device(
            "a100", "NVIDIA A100-SXM4-40GB", ((8, 0), 108), (40, 1.555), (19.5, 312, 312, 312),
            source="NVIDIA A100 datasheet, 40 GB",
        ),
        _device(
            "a100-80gb", "NVIDIA A100-SXM4-80GB", ((8, 0), 108), (80, 2.039),
            (19.5, 312, 312, 312),
            source="NVIDIA A100 datasheet, SXM",
        ),
        _device(
            "h100", "NVIDIA H100 80GB HBM3", ((9, 0), 132), (80, 3.35), _HOPPER,
            source="NVIDIA H100 datasheet, SXM",
        ),
        _device(
            "h100-pcie", "NVIDIA H100 PCIe", ((9, 0), 114), (80, 2.0), (51, 756.5, 756.5, 1513),
            source="NVIDIA H100 datasheet, PCIe",
        ),
        _device(
            "h100-nvl", "NVIDIA H100 NVL", ((9, 0), 132), (94, 3.9), (60, 835.5, 835.5, 1671),
            source="NVIDIA H100 datasheet, NVL",
        ),
        _device(
            "h200", "NVIDIA H200", ((9, 0), 132), (141, 4.8), _HOPPER,
            source="NVIDIA H200 datasheet, SXM",
        ),
        _device(
            "gh200", "NVIDIA GH200 480GB", ((9, 0), 132), (96, 4.0), _HOPPER,
            source="NVIDIA GH200 datasheet, HBM3",
        ),
        _device(
            "b200", "NVIDIA B200", ((10, 0), 148), (180, 8.0), (80, 2250, 2250, 4500),
            source="NVIDIA HGX B200 datasheet",
        ),
        _device(
            "mi300x", "AMD Instinct MI300X", ((9, 4), 304), (192, 5.3),
            (163.4, 1307.4, 1307.4, 2614.9),
            source="AMD MI300X datasheet", is_rocm=True,
        ),
        _device(
            "rtx5090", "NVIDIA GeForce RTX 5090", ((12, 0), 170), (32, 1.792),
            (104.8, 209.5, 209.5, 419),
            source="NVIDIA RTX Blackwell whitepaper",
        ),
        _device(
            "rtx4090", "NVIDIA GeForce RTX 4090", ((8, 9), 128), (24, 1.008),
            (82.6, 165.2, 165.2, 330.3),
            source="NVIDIA Ada whitepaper",
        ),
        _device(
            "rtx3090", "NVIDIA GeForce RTX 3090", ((8, 6), 82), (24, 0.936), (35.6, 71, 71, 71),
            source="NVIDIA Ampere GA102 whitepaper",
        ),
        _device(
            "a6000", "NVIDIA RTX A6000", ((8, 6), 84), (48, 0.768), (38.7, 154.8, 154.8, 154.8),
            source="NVIDIA RTX A6000 datasheet",
        ),
        _device(
            "l40s", "NVIDIA L40S", ((8, 9), 142), (48, 0.864), (91.6, 362, 362, 733),
            source="NVIDIA L40S datasheet",
        ),
        _device(
            "l4", "NVIDIA L4", ((8, 9), 58), (24, 0.3), (30.3, 121, 121, 242.5),
            source="NVIDIA L4 datasheet",
        ),
        _device(
            "a10", "NVIDIA A10", ((8, 6), 72), (24, 0.6), (31.2, 125, 125, 125),
            source="NVIDIA A10 datasheet",
        ),
        _device(
            "v100", "Tesla V100-SXM2-32GB", ((7, 0), 80), (32, 0.9), (15.7, 15.7, 125, 15.7),
            source="NVIDIA V100 datasheet, SXM2",
        ),
        _device(
            "t4", "Tesla T4", ((7, 5), 40), (16, 0.32), (8.1, 8.1, 65, 8.1),
            source="NVIDIA T4 datasheet",
        ),
    ]
)  # fmt: skip


def find_device(name: str | Device) -> Device:
    if isinstance(name, Device):
        return name
    try:
        return DEVICES[name.lower()]
    except (KeyError, AttributeError):
        raise AcplanError(
            f"device: expected one of {', '.join(DEVICES)}, found {name!r}"
        ) from None
