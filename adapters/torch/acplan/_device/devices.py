"""The rates of devices, and the run-time of an operator on them."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch.utils.flop_counter import flop_registry

from acplan._base.errors import AcplanError
from acplan._base.host_links import link_of_gpu
from acplan._base.process_groups import is_collective
from acplan._base.tensors import is_sparse
from acplan._device.collective_times import (
    accelerators,
    collective_seconds,
    link_of,
)
from acplan._device.host_copy_times import copy_ms, is_host_copy
from acplan._device.kernel_times import kernel_seconds
from acplan._device.product_times import Call

_TERA = 1e12


class OperatorRun(NamedTuple):
    """An operator that ran: its arguments, and its results."""

    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    out: Any


@dataclasses.dataclass(frozen=True)
class Device:
    """Peak FLOP/s by data type, dense (without sparsity), bytes a second, the shares of them
    that kernels reach, and the properties that PyTorch reads of a device to choose its
    kernels."""

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
    tfloat32: float  # 0 if there is none
    memory_share: float  # of bandwidth, by streaming kernels
    product_share: float  # of the peak on matrix units, by large products
    float32_share: float  # of the peak in float32, by large products
    source: str
    # The accelerator of data/training/systems.json that has its links; "": a card with PCIe.
    accelerator: str = dataclasses.field(default="", kw_only=True)
    # How far predicted times of a step are from measured ones, |predicted / measured - 1|: the
    # median, and that of nine steps in ten (docs/measured/gpu_truth.md). (0, 0): no step was
    # measured on the device. None: its times are measurements.
    time_errors: tuple[float, float] | None = dataclasses.field(default=(0, 0), kw_only=True)
    # How much more time the host takes than the one that was measured (host_times.py); 0: its
    # time is not counted, as for steps in CUDA graphs.
    host_factor: float = dataclasses.field(default=1.0, kw_only=True)

    def peak_flops(self, dtype: torch.dtype) -> float:
        if dtype == torch.bfloat16:
            return self.bfloat16
        if dtype == torch.float16:
            return self.float16
        if dtype.itemsize == 1 and dtype.is_floating_point:
            return self.float8
        return self.float32

    @property
    def memory_rate(self) -> float:
        """Returns the bytes a second of streaming kernels."""
        return self.bandwidth * self.memory_share

    def product_rate(self, dtype: torch.dtype, is_convolution: bool) -> float:
        """Returns the FLOPs a second of large products, or of convolutions, whose float32
        PyTorch rounds by another setting."""
        peak = self.peak_flops(dtype)
        if peak > self.float32:
            return peak * self.product_share
        if dtype == torch.float32 and self.tfloat32 and _rounds_to_tfloat32(is_convolution):
            return max(self.tfloat32 * self.product_share, peak * self.float32_share)
        return peak * self.float32_share

    def runtime_ms(
        self,
        run: OperatorRun,
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
    ) -> float:
        """Returns the time of an operator (`kernel_times`). `inputs` and `outputs` are the
        tensors with memory that it reads and writes."""
        func, args, kwargs, out = run
        if is_host_copy(func):
            return copy_ms(func, outputs, link_of_gpu(known_as(self.name)))
        if is_collective(func):
            link = link_of(self.accelerator)
            return collective_seconds(func, args, kwargs, out, link) * 1e3
        call = Call(func, args, kwargs, out, inputs, outputs, flops_of(*run))
        return kernel_seconds(call, self) * 1e3

    def traffic_ms(self, byte_count: float) -> float:
        """Returns the time of a streaming kernel."""
        return byte_count / self.memory_rate * 1e3


def _rounds_to_tfloat32(is_convolution: bool) -> bool:
    """Returns whether this process's settings let float32 be rounded on matrix units: by
    default convolutions are, products are not."""
    backend: Any = torch.backends.cudnn if is_convolution else torch.backends.cuda.matmul
    try:
        return bool(backend.allow_tf32)
    except RuntimeError:  # the settings of newer versions of PyTorch were used
        newer = backend.conv if is_convolution else backend
        return str(newer.fp32_precision) == "tf32"


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


# The errors for training steps of image models that were not used for a fit, and the devices on
# which public steps were measured.
_TIME_ERRORS = 0.07, 0.30
_WITH_MEASURED_STEPS = ("rtx3090", "a100", "a100-80gb", "h100", "v100", "l4")


def _device(
    name: str,
    product: str,
    chip: tuple[tuple[int, int], int],
    memory: tuple[int, float],
    tflops: Sequence[float],
    *,
    shares: tuple[float, float, float],
    source: str,
    accelerator: str = "",
) -> tuple[str, Device]:
    """Returns a row of DEVICES.

    chip:   its compute capability, and how many multiprocessors it has.
    memory: gigabytes, and terabytes a second.
    tflops: in float32, bfloat16, float16, float8 and TF32.
    shares: of memory's rate, of matrix units, of float32.
    """
    float32, bfloat16, float16, float8, tfloat32 = (t * _TERA for t in tflops)
    return name, Device(
        name, product, *chip, memory[0] * 2**30, product.startswith("AMD"), memory[1] * _TERA,
        float32, bfloat16, float16, float8, tfloat32, *shares, source, accelerator=accelerator,
        time_errors=_TIME_ERRORS if name in _WITH_MEASURED_STEPS else (0, 0),
    )  # fmt: skip


def _accelerator(
    name: str,
    product: str,
    accelerator: str,
    capability: tuple[int, int],
    tflops: tuple[float, float],
    *,
    shares: tuple[float, float, float],
) -> tuple[str, Device]:
    """Returns a row of DEVICES for a GPU of the training cost model, which has the vendor's
    other figures and their sources.

    accelerator: its name in data/training/systems.json.
    tflops:      in float32 and TF32.
    shares:      of memory's rate, of matrix units, of float32.
    """
    figures = accelerators()[accelerator]
    memory, multiprocessors, half, float8, rate = (
        figures[key]["value"]
        for key in ("memory_gib", "multiprocessors", "bf16_tflops", "fp8_tflops", "memory_gbs")
    )
    return _device(
        name, product, (capability, multiprocessors), (memory, rate / 1e3),
        (tflops[0], half, half, float8 or half, tflops[1]), shares=shares,
        source=figures["bf16_tflops"]["from"], accelerator=accelerator,
    )  # fmt: skip


_HOPPER = (67, 989.4, 989.4, 1978.9, 494.7)

_AMPERE_SHARES = (0.87, 0.82, 0.91)
_HOPPER_SHARES = (0.87, 0.78, 0.73)
_BLACKWELL_SHARES = (0.86, 0.515, 0.73)
_CDNA_SHARES = (0.7, 0.55, 0.6)

# float32 is without TF32 (which PyTorch leaves off for matrix products), half precision with
# sums in float32. If a device has no unit for a type, the rate is that of the type it takes
# instead. A rate is the vendor's; a share is what public measurements reach of it
# (docs/measured/gpu_truth.md), or, where there are none, that of the device of the same
# architecture that is nearest.
DEVICES: Mapping[str, Device] = dict(
    [
        _accelerator(
            "a100", "NVIDIA A100-SXM4-40GB", "A100-SXM4-40GB", (8, 0), (19.5, 156),
            shares=(0.87, 0.82, 0.88),
        ),
        _accelerator(
            "a100-80gb", "NVIDIA A100-SXM4-80GB", "A100-SXM4-80GB", (8, 0), (19.5, 156),
            shares=_AMPERE_SHARES,
        ),
        _accelerator(
            "a100-pcie", "NVIDIA A100 80GB PCIe", "A100-PCIE", (8, 0), (19.5, 156),
            shares=_AMPERE_SHARES,
        ),
        _device(
            "a100-pcie-40gb", "NVIDIA A100-PCIE-40GB", ((8, 0), 108), (40, 1.555),
            (19.5, 312, 312, 312, 156), shares=(0.87, 0.82, 0.88),
            source="NVIDIA A100 datasheet, 40GB PCIe",
        ),
        _accelerator(
            "a800", "NVIDIA A800-SXM4-80GB", "A800-SXM4-80GB", (8, 0), (19.5, 156),
            shares=_AMPERE_SHARES,
        ),
        _accelerator(
            "h100", "NVIDIA H100 80GB HBM3", "H100-SXM5", (9, 0), (67, 494.7),
            shares=_HOPPER_SHARES,
        ),
        _device(
            "h100-pcie", "NVIDIA H100 PCIe", ((9, 0), 114), (80, 2.0),
            (51, 756.5, 756.5, 1513, 378), shares=(0.87, 0.68, 0.7),
            source="NVIDIA H100 datasheet, PCIe",
        ),
        _device(
            "h100-nvl", "NVIDIA H100 NVL", ((9, 0), 132), (94, 3.9),
            (60, 835.5, 835.5, 1671, 417.5), shares=(0.87, 0.75, 0.73),
            source="NVIDIA H100 datasheet, NVL",
        ),
        _accelerator(
            "h200", "NVIDIA H200", "H200", (9, 0), (67, 494.7), shares=_HOPPER_SHARES
        ),
        _accelerator(
            "h800", "NVIDIA H800", "H800", (9, 0), (67, 494.7), shares=_HOPPER_SHARES
        ),
        _accelerator("h20", "NVIDIA H20", "H20", (9, 0), (44, 74), shares=_HOPPER_SHARES),
        _device(
            "gh200", "NVIDIA GH200 480GB", ((9, 0), 132), (96, 4.0), _HOPPER,
            shares=_HOPPER_SHARES,
            source="NVIDIA GH200 datasheet, HBM3", accelerator="H200",
        ),
        _accelerator(
            "b200", "NVIDIA B200", "B200", (10, 0), (80, 1125), shares=_BLACKWELL_SHARES
        ),
        _accelerator(
            "b300", "NVIDIA B300", "B300", (10, 3), (80, 1125), shares=_BLACKWELL_SHARES
        ),
        _accelerator(
            "gb200", "NVIDIA GB200", "GB200", (10, 0), (80, 1250), shares=_BLACKWELL_SHARES
        ),
        _accelerator(
            "gb300", "NVIDIA GB300", "GB300", (10, 3), (80, 1250), shares=_BLACKWELL_SHARES
        ),
        _device(
            "mi250x", "AMD Instinct MI250X", ((9, 0), 110), (64, 1.6384),
            (47.85, 191.5, 191.5, 191.5, 0), shares=_CDNA_SHARES,
            source="AMD Instinct MI250X data sheet: one of its two dies, which is a device",
        ),
        _accelerator(
            "mi300x", "AMD Instinct MI300X", "MI300X", (9, 4), (163.4, 0), shares=_CDNA_SHARES
        ),
        _accelerator(
            "mi325x", "AMD Instinct MI325X", "MI325X", (9, 4), (163.4, 0), shares=_CDNA_SHARES
        ),
        _accelerator(
            "mi355x", "AMD Instinct MI355X", "MI355X", (9, 5), (157.3, 0), shares=_CDNA_SHARES
        ),
        _accelerator(
            "rtx-pro-6000", "NVIDIA RTX PRO 6000 Blackwell Workstation Edition",
            "RTX-PRO-6000", (12, 0), (126, 251.9), shares=(0.9, 0.75, 0.7),
        ),
        _device(
            "rtx5090", "NVIDIA GeForce RTX 5090", ((12, 0), 170), (32, 1.792),
            (104.8, 209.5, 209.5, 419, 104.8), shares=(0.9, 1.0, 0.7),
            source="NVIDIA RTX Blackwell whitepaper",
        ),
        _device(
            "rtx4090", "NVIDIA GeForce RTX 4090", ((8, 9), 128), (24, 1.008),
            (82.6, 165.2, 165.2, 330.3, 82.6), shares=(0.92, 1.0, 0.7),
            source="NVIDIA Ada whitepaper",
        ),
        _device(
            "rtx3090", "NVIDIA GeForce RTX 3090", ((8, 6), 82), (24, 0.936),
            (35.6, 71, 71, 71, 35.6), shares=(0.92, 1.03, 0.85),
            source="NVIDIA Ampere GA102 whitepaper",
        ),
        _device(
            "a6000", "NVIDIA RTX A6000", ((8, 6), 84), (48, 0.768),
            (38.7, 154.8, 154.8, 154.8, 77.4), shares=(0.87, 0.85, 0.7),
            source="NVIDIA RTX A6000 datasheet",
        ),
        _device(
            "a40", "NVIDIA A40", ((8, 6), 84), (48, 0.696),
            (37.4, 149.7, 149.7, 149.7, 74.8), shares=(0.87, 0.85, 0.7),
            source="NVIDIA A40 datasheet",
        ),
        _device(
            "rtx6000-ada", "NVIDIA RTX 6000 Ada Generation", ((8, 9), 142), (48, 0.96),
            (91.1, 364.2, 364.2, 728.5, 182.1), shares=(0.85, 0.7, 0.6),
            source="NVIDIA RTX 6000 Ada datasheet",
        ),
        _device(
            "l40s", "NVIDIA L40S", ((8, 9), 142), (48, 0.864), (91.6, 362, 362, 733, 183),
            shares=(0.85, 0.7, 0.6),
            source="NVIDIA L40S datasheet",
        ),
        _device(
            "l40", "NVIDIA L40", ((8, 9), 142), (48, 0.864), (90.5, 181, 181, 362, 90.5),
            shares=(0.85, 0.7, 0.6),
            source="NVIDIA L40 datasheet",
        ),
        _device(
            "l4", "NVIDIA L4", ((8, 9), 58), (24, 0.3), (30.3, 121, 121, 242.5, 60),
            shares=(0.78, 0.45, 0.3),
            source="NVIDIA L4 datasheet",
        ),
        _device(
            "a10", "NVIDIA A10", ((8, 6), 72), (24, 0.6), (31.2, 125, 125, 125, 62.5),
            shares=(0.85, 0.6, 0.5),
            source="NVIDIA A10 datasheet",
        ),
        _device(
            "a10g", "NVIDIA A10G", ((8, 6), 80), (24, 0.6), (31.5, 70, 70, 70, 35),
            shares=(0.85, 0.85, 0.5),
            source="NVIDIA A10G datasheet, on AWS's page of the G5 instances",
        ),
        _device(
            "v100", "Tesla V100-SXM2-32GB", ((7, 0), 80), (32, 0.9),
            (15.7, 15.7, 125, 15.7, 0), shares=(0.91, 0.8, 0.95),
            source="NVIDIA V100 datasheet, SXM2",
        ),
        _device(
            "v100-pcie", "Tesla V100-PCIE-32GB", ((7, 0), 80), (32, 0.9), (14, 14, 112, 14, 0),
            shares=(0.91, 0.8, 0.95),
            source="NVIDIA V100 datasheet, PCIe",
        ),
        _device(
            "v100-16gb", "Tesla V100-SXM2-16GB", ((7, 0), 80), (16, 0.9),
            (15.7, 15.7, 125, 15.7, 0), shares=(0.91, 0.8, 0.95),
            source="NVIDIA V100 datasheet, SXM2, 16 GB",
        ),
        _device(
            "t4", "Tesla T4", ((7, 5), 40), (16, 0.32), (8.1, 8.1, 65, 8.1, 0),
            shares=(0.75, 0.45, 0.5),
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


def known_as(name: str) -> str:
    """Returns the device in DEVICES that a name, of it or of its driver, matches best; an A100
    if there is none."""
    plain = name.lower().replace(" ", "")
    fitting = [k for k in DEVICES if all(part in plain for part in k.split("-"))]
    return max(fitting, key=len, default="a100")
