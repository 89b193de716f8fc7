"""Fused attention and norms by the names of data/devices/times.csv, for
compare_gpu_truth.py."""

import re
from typing import Any

import torch

from acplan import Device
from acplan._device.devices import OperatorRun
from gpu_truth_operators import Row

aten = torch.ops.aten


def fused_kernel_ms(row: Row, device: Device) -> float | None:
    """Returns the predicted time of a fused kernel in 16 bits, or None if its name is not
    known."""
    sizes = {key: int(value) for key, value in re.findall(r"(\w+)=(\d+)", row["build"])}
    is_backward = row["note"].startswith("backward")
    if row["model"] in ("flash attention", "cuDNN attention"):
        return _attention_ms(row["model"], sizes, is_backward, device)
    if row["model"] in ("layer norm", "rms norm"):
        return _norm_ms(row["model"], sizes, is_backward, device)
    return None


def _tensor(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(*shape, dtype=dtype, device="meta")


def _attention_ms(
    kernel: str, sizes: dict[str, int], is_backward: bool, device: Device
) -> float:
    batch, queries, keys = sizes["B"], sizes["S"], sizes["T"]
    query = _tensor(batch, sizes["H"], queries, sizes["D"])
    key = _tensor(batch, sizes["K"], keys, sizes["D"])
    value = _tensor(batch, sizes["K"], keys, sizes["V"])
    out = _tensor(batch, sizes["H"], queries, sizes["V"])
    sums = _tensor(batch, sizes["H"], queries, dtype=torch.float32)
    causal = bool(sizes["causal"])
    seed = _tensor(2, dtype=torch.uint64)
    lengths = (None, None, queries, keys)
    if kernel == "flash attention":
        forward = aten._scaled_dot_product_flash_attention.default
        backward = aten._scaled_dot_product_flash_attention_backward.default
        args: tuple[Any, ...] = (query, key, value, 0.0, causal)
        last = (0.0, causal, seed, seed)
        backward_args = (out, query, key, value, out, sums, *lengths, *last)
    else:
        forward = aten._scaled_dot_product_cudnn_attention.default
        backward = aten._scaled_dot_product_cudnn_attention_backward.default
        args = (query, key, value, None, True, 0.0, causal)
        last = (seed, seed, None, *lengths, 0.0, causal)
        backward_args = (out, query, key, value, out, sums, *last)
    if is_backward:
        return _ms(backward, backward_args, [query, key, value], device)
    return _ms(forward, args, [out, sums], device)


def _norm_ms(kernel: str, sizes: dict[str, int], is_backward: bool, device: Device) -> float:
    x, weight = _tensor(sizes["N"], sizes["C"]), _tensor(sizes["C"])
    shape = [sizes["C"]]
    sums = _tensor(sizes["N"], 1, dtype=torch.float32)
    if kernel == "rms norm":
        if is_backward:
            args: tuple[Any, ...] = (x, x, shape, sums, weight, [True, True])
            return _ms(aten._fused_rms_norm_backward.default, args, [x, weight], device)
        return _ms(aten._fused_rms_norm.default, (x, shape, weight, 1e-5), [x, sums], device)
    if is_backward:
        args = (x, x, shape, sums, sums, weight, weight, [True] * 3)
        results = [x, weight, weight]
        return _ms(aten.native_layer_norm_backward.default, args, results, device)
    args = (x, shape, weight, weight, 1e-5)
    return _ms(aten.native_layer_norm.default, args, [x, sums, sums], device)


def _ms(func: Any, args: tuple[Any, ...], results: list[torch.Tensor], device: Device) -> float:
    read = [arg for arg in args if isinstance(arg, torch.Tensor)]
    return device.runtime_ms(OperatorRun(func, args, {}, tuple(results)), read, results)
