"""The modules in plain PyTorch of Liger's benchmarks, by the names of its table, for
compare_gpu_truth.py."""

import json
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from gpu_truth_operators import Row


class Function(nn.Module):
    """A function of inputs and of parameters. `x` is a parameter that the benchmark takes for
    an input, the others are weights."""

    def __init__(self, function: Callable[..., torch.Tensor], **weights: torch.Tensor) -> None:
        super().__init__()
        self._function = function
        self.has_input = "x" in weights
        for name, weight in weights.items():
            self.register_parameter(name, nn.Parameter(weight))

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self._function(*inputs, **dict(self.named_parameters()))


Case = tuple[nn.Module, tuple[torch.Tensor, ...]]


def case_of(row: Row, changes: Mapping[str, int]) -> Case | None:
    """Returns the module and the inputs of a row of Liger's table, of its plain PyTorch, on
    the meta device, or None if its operator is not known. `changes`: of its settings;
    softmax: the input of a loss is the softmax of a leaf."""
    make = _MODULES.get(row["model"])
    if make is None:
        return None
    settings = json.loads(row["build"][row["build"].index("{") :])
    name, _, value = row["size"].partition("=")
    settings[name] = int(float(value))
    settings |= changes
    dtype = getattr(torch, settings.get("dtype", "torch.float32").removeprefix("torch."))
    with torch.device("meta"):
        return make(settings, dtype)


def _leaf(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(*shape, dtype=dtype, requires_grad=True)


def _embedding(s: dict[str, Any], dtype: torch.dtype) -> Case:
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


def _mlp(activation: Callable[..., Any]) -> Callable[[dict[str, Any], torch.dtype], Case]:
    def make(s: dict[str, Any], dtype: torch.dtype) -> Case:
        module = _Mlp(s["hidden_size"], s["intermediate_size"], activation, dtype)
        return module, (_leaf(s.get("B", s.get("bsz")), s["T"], s["hidden_size"], dtype=dtype),)

    return make


def _linear_cross_entropy(s: dict[str, Any], dtype: torch.dtype) -> Case:
    target = torch.empty(s["BT"], dtype=torch.long)

    def loss(x: torch.Tensor, labels: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(F.linear(x, weight), labels)

    module = Function(loss, weight=torch.empty(s["V"], s["H"], dtype=dtype))
    return module, (_leaf(s["BT"], s["H"], dtype=dtype), target)


def _cross_entropy(s: dict[str, Any], dtype: torch.dtype) -> Case:
    tokens = s["B"] * s["T"]
    target = torch.empty(tokens, dtype=torch.long)
    logits = torch.empty(tokens, s["V"], dtype=dtype)
    return Function(lambda labels, x: F.cross_entropy(x, labels), x=logits), (target,)


def _relu_squared(s: dict[str, Any], dtype: torch.dtype) -> Case:
    x = torch.empty(s["M"], s["N"], dtype=dtype)
    return Function(lambda x: F.relu(x).square(), x=x), ()


def _scaled(wide: torch.Tensor, eps: float) -> torch.Tensor:
    return wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)


def _rms(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return weight * _scaled(x.float(), eps).to(x.dtype)


def _softmax(s: dict[str, Any], dtype: torch.dtype) -> Case:
    x = torch.empty(s["M"], s["N"], dtype=dtype)
    return Function(lambda x: x.softmax(-1), x=x), ()


def _megatron_rms_norm(s: dict[str, Any], dtype: torch.dtype) -> Case:
    shape = s["S"], s["B"], s["H"]
    module = nn.RMSNorm(s["H"], 1e-6, dtype=torch.bfloat16)
    return module, (_leaf(*shape, dtype=torch.bfloat16),)


def _rms_norm(s: dict[str, Any], dtype: torch.dtype) -> Case:
    module = Function(lambda x, weight: _rms(x, weight, s["eps"]), weight=torch.empty(s["H"]))
    return module, (_leaf(s["M"], s["H"], dtype=dtype),)


def _add_rms_norm(s: dict[str, Any], dtype: torch.dtype) -> Case:
    def function(x: torch.Tensor, r: torch.Tensor, weight: torch.Tensor) -> Any:
        total = x.float() + r.float()
        return weight * _scaled(total, s["eps"]).to(x.dtype), total.to(x.dtype)

    shape = (s["M"], s["H"])
    module = Function(function, weight=torch.empty(s["H"]))
    return module, (_leaf(*shape, dtype=dtype), _leaf(*shape, dtype=dtype))


def _layer_norm(s: dict[str, Any], dtype: torch.dtype) -> Case:
    return nn.LayerNorm(s["N"]), (_leaf(s["M"], s["N"], dtype=dtype),)


def _group_norm(s: dict[str, Any], dtype: torch.dtype) -> Case:
    channels = s["C"]
    module = nn.GroupNorm(channels // s["channels_per_group"], channels, dtype=dtype)
    return module, (_leaf(s["M"], channels, s["H"], dtype=dtype),)


def _megatron_swiglu(s: dict[str, Any], dtype: torch.dtype) -> Case:
    def function(x: torch.Tensor) -> torch.Tensor:
        first, second = x.chunk(2, -1)
        return F.silu(first) * second

    x = torch.empty(s["S"], s["B"], 2 * s["ffn_local"], dtype=torch.bfloat16)
    return Function(function, x=x), ()


def _tvd(s: dict[str, Any], dtype: torch.dtype) -> Case:
    def function(q: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        p = x.softmax(-1) if s["softmax"] else x
        return ((p - q).abs() / 2).sum() / p.shape[0]

    shape = (s["B"] * s["T"], s["V"])
    targets = torch.empty(shape, dtype=dtype)
    return Function(function, x=torch.empty(shape, dtype=dtype)), (targets,)


def _kl_div(s: dict[str, Any], dtype: torch.dtype) -> Case:
    shape = (s["B"] * s["T"], s["V"])

    def function(y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        x = x.log_softmax(-1) if s["softmax"] else x
        return F.kl_div(x, y, reduction="batchmean")

    module = Function(function, x=torch.empty(shape, dtype=dtype))
    return module, (torch.empty(shape, dtype=dtype),)


_MODULES: Mapping[str, Callable[[dict[str, Any], torch.dtype], Case]] = {
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
    "megatron_rms_norm": _megatron_rms_norm,
    "megatron_swiglu": _megatron_swiglu,
    "softmax": _softmax,
    "tvd": _tvd,
    "kl_div": _kl_div,
}
