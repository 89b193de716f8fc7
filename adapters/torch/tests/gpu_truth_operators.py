"""Operators and small modules of public benchmarks on GPUs, by the names of their tables, for
compare_gpu_truth.py."""

import re
from collections.abc import Mapping
from typing import Any

import torch

from acplan import DEVICES, Device
from acplan._device.devices import OperatorRun

aten = torch.ops.aten

Row = Mapping[str, str]


# The names of GPUs in the tables.
GPUS: Mapping[str, Device] = {
    "NVIDIA A100-SXM4-80GB": DEVICES["a100-80gb"],
    "NVIDIA A100 80GB PCIe": DEVICES["a100-pcie"],
    "A100 80GB PCIe": DEVICES["a100-pcie"],
    "NVIDIA A100-PCIE-40GB": DEVICES["a100-pcie-40gb"],
    "NVIDIA H100 80GB HBM3": DEVICES["h100"],
    "h100": DEVICES["h100"],
    "NVIDIA H100 PCIe": DEVICES["h100-pcie"],
    "NVIDIA H100 NVL": DEVICES["h100-nvl"],
    "NVIDIA H200": DEVICES["h200"],
    "NVIDIA H20": DEVICES["h20"],
    "NVIDIA A40": DEVICES["a40"],
    "NVIDIA L40S": DEVICES["l40s"],
    "NVIDIA A10G": DEVICES["a10g"],
    "NVIDIA B200": DEVICES["b200"],
    "NVIDIA GB200": DEVICES["gb200"],
    "NVIDIA GB300": DEVICES["gb300"],
    "NVIDIA L4": DEVICES["l4"],
    "l4": DEVICES["l4"],
    "Tesla T4": DEVICES["t4"],
    "Tesla V100-PCIE-32GB": DEVICES["v100-pcie"],
    "V100 PCIe 32GB": DEVICES["v100-pcie"],
    "RTX 3090": DEVICES["rtx3090"],
    "NVIDIA GeForce RTX 3090": DEVICES["rtx3090"],
    "NVIDIA GeForce RTX 4090": DEVICES["rtx4090"],
    "NVIDIA GeForce RTX 5090": DEVICES["rtx5090"],
}


def operator_ms(row: Row, device: Device) -> float | None:
    """Returns the predicted time of a single operator in float32, or None if the name is not
    known."""
    sizes = {key: int(value) for key, value in re.findall(r"(\w)=(\d+)", row["build"])}

    def tensor(*shape: int) -> torch.Tensor:
        return torch.empty(*shape, device="meta")

    name = row["model"]
    if name == "bmm":
        b, m, n, k = (sizes[key] for key in "BMNK")
        return _ms(aten.bmm.default, (tensor(b, m, k), tensor(b, k, n)), device)
    if name == "linear":
        rows, inner, columns = sizes["B"] * sizes["M"], sizes["N"], sizes["K"]
        bias, weight = tensor(columns), tensor(columns, inner).t()
        return _ms(aten.addmm.default, (bias, tensor(rows, inner), weight), device)
    x = tensor(sizes["B"], sizes["H"])
    if name == "ln":
        weight = tensor(sizes["H"])
        args = (x, [sizes["H"]], weight, weight, 1e-5)
        return _ms(aten.native_layer_norm.default, args, device)
    if name == "softmax":
        return _ms(aten._softmax.default, (x, -1, False), device)
    binary = {"add": aten.add, "mul": aten.mul, "div": aten.div}
    if name in binary:
        return _ms(binary[name].Tensor, (x, x.clone()), device)
    if name == "pow":
        return _ms(aten.pow.Tensor_Tensor, (x, x.clone()), device)
    unary = {"relu": aten.relu.default, "gelu": aten.gelu.default, "tanh": aten.tanh.default}
    if name in unary:
        return _ms(unary[name], (x,), device)
    if name.endswith("u") and name[:-1] in (*binary, "pow"):
        return _ms(aten.mul.Scalar, (x, 2.0), device)
    return None


def _ms(func: Any, args: tuple[Any, ...], device: Device) -> float:
    out = func(*args)
    read = [arg for arg in args if isinstance(arg, torch.Tensor)]
    results = [out] if isinstance(out, torch.Tensor) else list(out)
    return device.runtime_ms(OperatorRun(func, args, {}, out), read, results)
