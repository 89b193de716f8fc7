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
from acplan._device.collective_times import collective_seconds, link_of
from acplan._device.gpu_table import accelerators, kernel_figure, kind_errors
from acplan._device.host_copy_times import copy_ms, host_seconds, is_host_copy
from acplan._device.kernel_times import LAUNCH_SECONDS, kernel_seconds
from acplan._device.product_times import AttentionShares, Call

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
    attention_shares: AttentionShares = dataclasses.field(
        default=AttentionShares(0.73, 0.63, 0.6, 0.52, 0.41, 0.34),
        kw_only=True,  # an A100's
    )
    # The GPU of data/training/systems.json that has its links.
    accelerator: str = dataclasses.field(default="A100-PCIE", kw_only=True)
    # How far predicted times of a step are from measured ones, |predicted / measured - 1|: the
    # median, and that of nine steps in ten (docs/measured/gpu_truth.md). (0, 0): no step was
    # measured on the device. None: its times are measurements.
    time_errors: tuple[float, float] | None = dataclasses.field(default=(0, 0), kw_only=True)
    # The error that nine measured operators in ten of a kind are within; {}: none was measured.
    kind_errors: Mapping[str, float] = dataclasses.field(
        default_factory=dict, kw_only=True, hash=False
    )
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


def time_of(
    device: Device,
    run: OperatorRun,
    inputs: Sequence[torch.Tensor],
    outputs: Sequence[torch.Tensor],
    with_host: bool,
) -> float:
    """Returns the milliseconds of an operator. If `with_host`, those of the host's memory count
    as such: the CPU runs them, or they copy between its memory and the device."""
    link = link_of_gpu(known_as(device.name))
    seconds = host_seconds(run.func, inputs, outputs, link) if with_host else None
    if seconds is None:
        return device.runtime_ms(run, inputs, outputs)
    return (LAUNCH_SECONDS + seconds) * 1e3


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


def _device_of(gpu: Mapping[str, Any]) -> Device:
    """Returns a GPU of the table. A type for which it has no unit has the rate of the type that
    it takes instead: bfloat16 before Ampere is float32, 8 bits are 16."""
    traces = gpu["traces"]
    memory, multiprocessors, half, float8, memory_rate = (
        gpu[key]["value"]
        for key in ("memory_gib", "multiprocessors", "bf16_tflops", "fp8_tflops", "memory_gbs")
    )
    product, capability = traces["product"], tuple(traces["capability"])
    is_rocm = product.startswith("AMD")
    float32 = traces["float32_tflops"]["value"]
    has_bfloat16 = is_rocm or capability >= (8, 0)
    is_measured = traces["has_measured_steps"]
    errors = kernel_figure("step_errors") if is_measured else (0, 0)
    return Device(
        name=traces["name"],
        product=product,
        capability=capability,
        multiprocessors=multiprocessors,
        memory=memory * 2**30,
        is_rocm=is_rocm,
        bandwidth=memory_rate / 1e3 * _TERA,
        float32=float32 * _TERA,
        bfloat16=(half if has_bfloat16 else float32) * _TERA,
        float16=half * _TERA,
        float8=(float8 or (half if has_bfloat16 else float32)) * _TERA,
        tfloat32=traces["tf32_tflops"]["value"] * _TERA,
        memory_share=traces["memory_share"]["value"],
        product_share=traces["product_share"]["value"],
        float32_share=traces["float32_share"]["value"],
        source=gpu["bf16_tflops"]["from"],
        attention_shares=AttentionShares(*traces["attention_shares"]["value"]),
        accelerator=gpu["name"],
        time_errors=tuple(errors),
        kind_errors=kind_errors() if is_measured else {},
    )


# Float32 is without TF32 (which PyTorch leaves off for matrix products), half precision with
# sums in float32.
DEVICES: Mapping[str, Device] = {
    gpu["traces"]["name"]: _device_of(gpu) for gpu in accelerators().values() if "traces" in gpu
}


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
