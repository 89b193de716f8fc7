"""Operators and small modules of public benchmarks on GPUs, by the names of their tables, for
compare_gpu_truth.py."""

import dataclasses
import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from acplan import DEVICES, Device, trace
from acplan._device.devices import OperatorRun

aten = torch.ops.aten

Row = Mapping[str, str]


def _pcie(key: str, **changes: Any) -> Device:
    return dataclasses.replace(DEVICES[key], **changes)


# The names of GPUs in the tables.
GPUS: Mapping[str, Device] = {
    "NVIDIA A100-SXM4-80GB": DEVICES["a100-80gb"],
    "NVIDIA A100 80GB PCIe": _pcie("a100-80gb", bandwidth=1.935e12),
    "A100 80GB PCIe": _pcie("a100-80gb", bandwidth=1.935e12),
    "NVIDIA A100-PCIE-40GB": DEVICES["a100"],
    "NVIDIA H100 80GB HBM3": DEVICES["h100"],
    "h100": DEVICES["h100"],
    "NVIDIA B200": DEVICES["b200"],
    "NVIDIA L4": DEVICES["l4"],
    "l4": DEVICES["l4"],
    "Tesla T4": DEVICES["t4"],
    "Tesla V100-PCIE-32GB": _pcie("v100", float32=14e12, float16=112e12),
    "V100 PCIe 32GB": _pcie("v100", float32=14e12, float16=112e12),
    "RTX 3090": DEVICES["rtx3090"],
    "NVIDIA GeForce RTX 3090": DEVICES["rtx3090"],
    "NVIDIA GeForce RTX 4090": DEVICES["rtx4090"],
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


class _Function(nn.Module):
    """A function of inputs, and of parameters that it makes."""

    def __init__(self, function: Callable[..., torch.Tensor], **weights: torch.Tensor) -> None:
        super().__init__()
        self._function = function
        for name, weight in weights.items():
            self.register_parameter(name, nn.Parameter(weight))

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self._function(*inputs, **dict(self.named_parameters()))


def module_ms(row: Row, device: Device) -> float | None:
    """Returns the predicted time of a row of Liger's table, of its plain PyTorch, or None if
    its operator is not known."""
    make = _MODULES.get(row["model"])
    if make is None:
        return None
    settings = json.loads(row["build"][row["build"].index("{") :])
    name, _, value = row["size"].partition("=")
    settings[name] = int(float(value))
    dtype = getattr(torch, settings.get("dtype", "torch.float32").removeprefix("torch."))
    with torch.device("meta"):
        module, inputs = make(settings, dtype)
    # The benchmark adds gradients of weights to those of earlier calls.
    data = trace(
        module,
        *inputs,
        device=device,
        optimizer=None,
        accumulate=1 if isinstance(module, _Function) and not inputs else 2,
        source=False,
    ).data
    operators, forward = data["operators"], data["forward_end"]
    times = [operator["runtime_ms"] for operator in operators]
    mode = row["note"].partition(",")[0]
    if row["model"] in _LOSSES:
        first, end = {
            "forward": (0, forward),
            "backward": (forward, data["backward_end"]),
            "full": (0, data["backward_end"]),
        }[mode]
        return math.fsum(times[first:end])
    # The benchmark has no loss: its gradient is a tensor that is there.
    mean = next(k for k in reversed(range(forward)) if "mean" in operators[k]["name"])
    scaled = next(
        k for k in range(forward, len(operators)) if operators[k]["name"] == "aten.div.Scalar"
    )
    first, end = {
        "forward": (0, mean),
        "backward": (scaled + 1, data["backward_end"]),
        "full": (0, data["backward_end"]),
    }[mode]
    return math.fsum(times[k] for k in range(first, end) if not mean <= k <= scaled)


_Case = tuple[nn.Module, tuple[torch.Tensor, ...]]


def _leaf(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(*shape, dtype=dtype, requires_grad=True)


def _embedding(s: dict[str, Any], dtype: torch.dtype) -> _Case:
    tokens = torch.empty(s["B"], s["T"], dtype=torch.long)
    return nn.Embedding(s["V"], s["D"], dtype=dtype), (tokens,)


class _Mlp(nn.Module):
    def __init__(
        self, hidden: int, inner: int, activation: Callable[..., Any], dtype: Any
    ) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden, inner, bias=False, dtype=dtype)
        self.up_proj = nn.Linear(hidden, inner, bias=False, dtype=dtype)
        self.down_proj = nn.Linear(inner, hidden, bias=False, dtype=dtype)
        self._activation = activation

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gated: torch.Tensor = self._activation(self.gate_proj(x))
        result: torch.Tensor = self.down_proj(gated * self.up_proj(x))
        return result


def _tanh_gelu(x: torch.Tensor) -> torch.Tensor:
    return F.gelu(x, approximate="tanh")


def _mlp(activation: Callable[..., Any]) -> Callable[[dict[str, Any], torch.dtype], _Case]:
    def make(s: dict[str, Any], dtype: torch.dtype) -> _Case:
        module = _Mlp(s["hidden_size"], s["intermediate_size"], activation, dtype)
        return module, (_leaf(s.get("B", s.get("bsz")), s["T"], s["hidden_size"], dtype=dtype),)

    return make


def _linear_cross_entropy(s: dict[str, Any], dtype: torch.dtype) -> _Case:
    target = torch.empty(s["BT"], dtype=torch.long)

    def loss(x: torch.Tensor, labels: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(F.linear(x, weight), labels)

    module = _Function(loss, weight=torch.empty(s["V"], s["H"], dtype=dtype))
    return module, (_leaf(s["BT"], s["H"], dtype=dtype), target)


def _cross_entropy(s: dict[str, Any], dtype: torch.dtype) -> _Case:
    tokens = s["B"] * s["T"]
    target = torch.empty(tokens, dtype=torch.long)
    logits = torch.empty(tokens, s["V"], dtype=dtype)
    return _Function(lambda labels, x: F.cross_entropy(x, labels), x=logits), (target,)


def _relu_squared(s: dict[str, Any], dtype: torch.dtype) -> _Case:
    x = torch.empty(s["M"], s["N"], dtype=dtype)
    return _Function(lambda x: F.relu(x).square(), x=x), ()


def _rms(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    wide = x.float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return weight * wide.to(x.dtype)


def _rms_norm(s: dict[str, Any], dtype: torch.dtype) -> _Case:
    module = _Function(
        lambda x, weight: _rms(x, weight, s["eps"]), weight=torch.empty(s["H"], dtype=dtype)
    )
    return module, (_leaf(s["M"], s["H"], dtype=dtype),)


def _add_rms_norm(s: dict[str, Any], dtype: torch.dtype) -> _Case:
    def function(x: torch.Tensor, r: torch.Tensor, weight: torch.Tensor) -> Any:
        total = x + r
        return _rms(total, weight, s["eps"]) + total

    shape = (s["M"], s["H"])
    module = _Function(function, weight=torch.empty(s["H"], dtype=dtype))
    return module, (_leaf(*shape, dtype=dtype), _leaf(*shape, dtype=dtype))


def _layer_norm(s: dict[str, Any], dtype: torch.dtype) -> _Case:
    return nn.LayerNorm(s["N"], dtype=dtype), (_leaf(s["M"], s["N"], dtype=dtype),)


def _group_norm(s: dict[str, Any], dtype: torch.dtype) -> _Case:
    channels = s["C"]
    module = nn.GroupNorm(channels // s["channels_per_group"], channels, dtype=dtype)
    return module, (_leaf(s["M"], channels, s["H"], dtype=dtype),)


def _megatron_swiglu(s: dict[str, Any], dtype: torch.dtype) -> _Case:
    def function(x: torch.Tensor) -> torch.Tensor:
        first, second = x.chunk(2, -1)
        return F.silu(first) * second

    x = torch.empty(s["S"], s["B"], 2 * s["ffn_local"], dtype=torch.bfloat16)
    return _Function(function, x=x), ()


def _tvd(s: dict[str, Any], dtype: torch.dtype) -> _Case:
    def function(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
        return 0.5 * (p - q).abs().sum(-1).mean()

    shape = (s["B"] * s["T"], s["V"])
    targets = torch.empty(shape, dtype=dtype)
    return _Function(lambda q, p: function(p, q), p=torch.empty(shape, dtype=dtype)), (targets,)


def _kl_div(s: dict[str, Any], dtype: torch.dtype) -> _Case:
    shape = (s["B"] * s["T"], s["V"])
    module = _Function(
        lambda y, x: F.kl_div(x, y, reduction="batchmean"), x=torch.empty(shape, dtype=dtype)
    )
    return module, (torch.empty(shape, dtype=dtype),)


_LOSSES = ("fused_linear_cross_entropy", "cross_entropy", "tvd", "kl_div")

_MODULES: Mapping[str, Callable[[dict[str, Any], torch.dtype], _Case]] = {
    "embedding": _embedding,
    "swiglu": _mlp(F.silu),
    "geglu": _mlp(_tanh_gelu),
    "tiled_swiglu": _mlp(F.silu),
    "tiled_geglu": _mlp(_tanh_gelu),
    "fused_linear_cross_entropy": _linear_cross_entropy,
    "cross_entropy": _cross_entropy,
    "relu_squared": _relu_squared,
    "rms_norm": _rms_norm,
    "fused_add_rms_norm": _add_rms_norm,
    "layer_norm": _layer_norm,
    "group_norm": _group_norm,
    "megatron_swiglu": _megatron_swiglu,
    "tvd": _tvd,
    "kl_div": _kl_div,
}
