"""The cross entropy of a last layer's logits, without ever holding all logits."""

import math
from typing import Any

import torch
from torch.autograd.function import once_differentiable


def linear_cross_entropy(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    target: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    rows: int | None = None,
) -> torch.Tensor:
    """Returns `cross_entropy(linear(hidden, weight, bias).float(), target)`, computed in chunks
    of `rows` rows, each with its gradients, which wait for backward in place of the logits; by
    default a chunk's logits are about as large as `hidden`.

    hidden is [n, width], target [n] of indices. The gradient of the weight is summed in the
    type of the weight. Backward through it runs once. (PyTorch's own linear_cross_entropy is
    one operator, whose memory and run-time cannot be traced; this one is made of PyTorch's
    operators.)
    """
    if reduction not in ("mean", "sum"):
        raise ValueError(f"reduction: expected mean or sum, found {reduction!r}")
    if rows is None:
        chunks = max(1, math.ceil(weight.shape[0] / weight.shape[1]))
        rows = max(1, math.ceil(hidden.shape[0] / chunks))
    loss: torch.Tensor = _InChunks.apply(  # type: ignore[no-untyped-call]
        hidden, weight, bias, target, ignore_index, reduction, rows
    )
    return loss


class _InChunks(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        target: torch.Tensor,
        ignore_index: int,
        reduction: str,
        rows: int,
    ) -> torch.Tensor:
        counts = target != ignore_index
        scale = torch.ones((), device=hidden.device)
        if reduction == "mean":
            scale = 1 / counts.sum()
        needs_hidden, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        of_hidden = torch.empty_like(hidden) if needs_hidden else None
        of_weight = torch.zeros_like(weight) if needs_weight else None
        of_bias = torch.zeros_like(bias) if bias is not None and needs_bias else None
        total = torch.zeros((), device=hidden.device)
        for start in range(0, hidden.shape[0], rows):
            part = slice(start, start + rows)
            logits = torch.nn.functional.linear(hidden[part], weight, bias).float()
            logs = torch.log_softmax(logits, -1)
            del logits
            labels = target[part].clamp(min=0).unsqueeze(-1)
            mask = counts[part].unsqueeze(-1)
            total -= (logs.gather(-1, labels) * mask).sum()
            # The gradient of the logits: softmax, less one at the right index.
            gradient = logs.exp_()
            gradient.scatter_add_(-1, labels, torch.full_like(labels, -1, dtype=gradient.dtype))
            gradient *= mask * scale
            gradient = gradient.to(weight.dtype)
            if of_hidden is not None:
                of_hidden[part] = gradient @ weight
            if of_weight is not None:
                of_weight.addmm_(gradient.t(), hidden[part].to(weight.dtype))
            if of_bias is not None:
                of_bias += gradient.sum(0)
        ctx.gradients = (of_hidden, of_weight, of_bias)
        return total * scale

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        if ctx.gradients is None:
            raise RuntimeError("linear_cross_entropy: backward through it runs once")
        gradients, ctx.gradients = ctx.gradients, None
        scaled = (None if g is None else g.mul_(grad_outputs[0]) for g in gradients)
        return (*scaled, None, None, None, None)
