"""Context parallelism: a small causal model, and kernels of attention for its real processes.

PyTorch's ring attention takes the results of kernels that only GPUs have. On a CPU these are
replaced by products in float32, with the same results, so that all that PyTorch runs around
them, its own code, runs in real processes.
"""

import contextlib
import functools
import math
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.experimental import context_parallel
from torch.distributed.tensor.experimental._attention import _cp_options, set_rotate_method

import acplan
from parallel_models import WIDTH, Case, Function, Net

_efficient = torch.ops.aten._scaled_dot_product_efficient_attention


class CausalAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.o = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = self.qkv(x).unflatten(-1, (3, -1, 8)).permute(2, 0, 3, 1, 4).unbind()
        mixed = F.scaled_dot_product_attention(*heads, is_causal=True)
        return self.o(mixed.transpose(1, 2).flatten(2))


class CausalNet(Net):
    """Sequences are split, so `tokens` are a whole one, and its part within the context."""

    def __init__(self) -> None:
        super().__init__(52, tied=False)
        for block in self.blocks:
            block.attention = CausalAttention()


def in_parts(microbatch: acplan.Microbatch, rotation: str, balanced: bool) -> Any:
    """Returns the context in which each rank has its part of the sequence."""
    mesh: Any = microbatch.model.cp_mesh
    return _in_parts(mesh, microbatch.args[0], rotation, balanced)


@contextlib.contextmanager
def _in_parts(
    mesh: DeviceMesh, tokens: torch.Tensor, rotation: str, balanced: bool
) -> Iterator[None]:
    set_rotate_method(rotation)
    before, _cp_options.enable_load_balance = _cp_options.enable_load_balance, balanced
    try:
        with context_parallel(mesh, buffers=[tokens], buffer_seq_dims=[1]):
            yield
    finally:
        _cp_options.enable_load_balance = before


def sharded_over_both(*dimensions: str) -> Function:
    """Returns a function that shards every block over all ranks of these dimensions, since all
    of them have other tokens."""

    def shard(model: nn.Module, mesh: DeviceMesh) -> None:
        # A part of a mesh is made by operators, which are no part of the step.
        model.cp_mesh = mesh["cp"]
        part = mesh[dimensions]._flatten("_".join(dimensions)) if dimensions[1:] else mesh["cp"]
        for module in (*model.get_submodule("blocks").children(), model):
            fully_shard(module, mesh=part)

    return shard


def context_case(
    name: str, mesh: dict[str, int], rotation: str = "allgather", balanced: bool = True
) -> Case:
    context = functools.partial(in_parts, rotation=rotation, balanced=balanced)
    length = 64 * mesh["cp"]
    options = {"microbatch_context": context}
    return Case(
        name, mesh, [sharded_over_both(*mesh)], options, make_net=CausalNet, length=length
    )


def context_cases(world_size: int) -> list[Case]:
    """Returns the cases for so many processes."""
    cp = {"cp": world_size}
    cases = [
        context_case("cp", cp),
        context_case("cp, all-to-all", cp, "alltoall"),
        context_case("cp, not balanced", cp, balanced=False),
    ]
    if world_size > 2:
        cases.append(context_case("fsdp x cp", {"dp": world_size // 2, "cp": 2}))
    return cases


def _scores(
    query: torch.Tensor, key: torch.Tensor, is_causal: bool, scale: float | None
) -> torch.Tensor:
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = query.float() @ key.float().mT * factor
    if is_causal:
        scores.masked_fill_(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), -math.inf)
    return scores


def _by_rows(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Returns the tensor in the order in which the kernel leaves its results."""
    return tensor.to(dtype).transpose(1, 2).contiguous().transpose(1, 2)


def _forward(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_bias: torch.Tensor | None,
    compute_log_sumexp: bool,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
) -> tuple[torch.Tensor, ...]:
    assert attn_bias is None and dropout_p == 0
    scores = _scores(query, key, is_causal, scale)
    out = _by_rows(scores.softmax(-1) @ value.float(), query.dtype)
    rows = query.shape[2]
    sums = F.pad(scores.logsumexp(-1), (0, -rows % 32))
    number = torch.zeros((), dtype=torch.long)
    return out, sums, number, number.clone()


def _backward(
    grad: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_bias: torch.Tensor | None,
    out: torch.Tensor,
    logsumexp: torch.Tensor,
    philox_seed: torch.Tensor,
    philox_offset: torch.Tensor,
    dropout_p: float,
    grad_input_mask: list[bool],
    is_causal: bool = False,
    *,
    scale: float | None = None,
) -> tuple[torch.Tensor | None, ...]:
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    rows = query.shape[2]
    weights = (_scores(query, key, is_causal, scale) - logsumexp[..., :rows, None]).exp()
    grad_value = weights.mT @ grad.float()
    shares = (grad.float() * out.float()).sum(-1, keepdim=True)
    grad_scores = weights * (grad.float() @ value.float().mT - shares) * factor
    results = (grad_scores @ key.float(), grad_scores.mT @ query.float(), grad_value)
    return *(_by_rows(result, query.dtype) for result in results), None


@contextlib.contextmanager
def kernels_on_cpu() -> Iterator[None]:
    """Lets attention run, within the block, the operators that it runs on a GPU."""
    library = torch.library.Library("aten", "IMPL")  # noqa: TOR901 - removed below
    library.impl("_scaled_dot_product_efficient_attention", _forward, "CPU")
    library.impl("_scaled_dot_product_efficient_attention_backward", _backward, "CPU")
    plain = F.scaled_dot_product_attention

    # context_parallel replaces the function under its name.
    def scaled_dot_product_attention(
        query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, is_causal: bool = False
    ) -> torch.Tensor:
        out: torch.Tensor = _efficient(query, key, value, None, True, 0.0, is_causal)[0]
        return out

    F.scaled_dot_product_attention = scaled_dot_product_attention
    try:
        yield
    finally:
        F.scaled_dot_product_attention = plain
        library._destroy()
