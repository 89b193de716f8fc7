"""Operators that stand for what a device chooses its kernels for, so that a step on
the CPU and the trace of one on a GPU can be set side by side.

Attention, dropout, norms, recurrent layers and CTC loss run as one operator or as many,
as the device has it. In both steps one marked operator takes their
place: the same arguments, a result of the same shape, type and layout. Autocast is made
that of CUDA.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor

from cuda_autocast import as_on_cuda, cast_as_half, cast_as_single

_SDPA = F.scaled_dot_product_attention
_RMS_NORM = F.rms_norm
_BATCH_NORM = F.batch_norm
_INSTANCE_NORM = F.instance_norm
_GROUP_NORM = F.group_norm
_ONE_HOT = F.one_hot
_CTC_LOSS = F.ctc_loss
_RECURRENT = torch._C._VariableFunctions
_LAYERS = ("lstm", "gru", "rnn_tanh", "rnn_relu")
_CELLS = ("lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell")


@contextlib.contextmanager
def device_marks() -> Iterator[None]:
    """Puts marked operators in the place of the device's kernels, within its block."""
    with contextlib.ExitStack() as replaced:
        for owner, name, value in _REPLACEMENTS:
            replaced.enter_context(mock.patch.object(owner, name, value))
        replaced.enter_context(as_on_cuda())
        yield


def _zero_gradients(op: Any) -> None:
    """Gives an operator gradients of zeros: only forward passes are compared, and the backward
    pass has but to run. Nothing is kept for it, as marked tensors may be written to."""

    def setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.gradients = [_zeros_like(value) for value in inputs]

    def backward(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
        return tuple(
            [zeros() for zeros in make] if isinstance(make, list) else make()
            for make in ctx.gradients
        )

    op.register_autograd(backward, setup_context=setup)


def _zeros_like(value: Any) -> Any:
    """Returns a function that makes the gradient of an input, or a list of such functions."""
    if isinstance(value, (list, tuple)) and isinstance(value[0], Tensor):
        return [_zeros_like(item) for item in value]
    if not isinstance(value, Tensor) or not value.requires_grad:
        return lambda: None
    shape, dtype, device = value.shape, value.dtype, value.device
    return lambda: torch.zeros(shape, dtype=dtype, device=device)


@torch.library.custom_op("acplan_marks::attention", mutates_args=())
def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
) -> Tensor:
    out = _SDPA(
        query,
        key,
        value,
        attn_mask=attn_mask,
        is_causal=is_causal,
        scale=scale,
        enable_gqa=enable_gqa,
    )
    return _rows_first(query, value).copy_(out)


def _rows_first(query: Tensor, value: Tensor) -> Tensor:
    """Returns an empty result of attention, laid out as flash attention does: rows before
    heads."""
    shape = (*query.shape[:-1], value.shape[-1])
    if len(shape) != 4:
        return query.new_empty(shape)
    return query.new_empty(shape[0], shape[2], shape[1], shape[3]).transpose(1, 2)


@_attention.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, *rest: Any) -> Tensor:
    return _rows_first(query, value)


_zero_gradients(_attention)


def _marked_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    query, key, value = (cast_as_half(t) for t in (query, key, value))
    if attn_mask is not None:
        attn_mask = cast_as_half(attn_mask)
    return _attention(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)


@torch.library.custom_op("acplan_marks::dropout", mutates_args=())
def _dropout(input: Tensor, p: float) -> Tensor:
    return input.clone()


@_dropout.register_fake
def _(input: Tensor, p: float) -> Tensor:
    return torch.empty_like(input)


_zero_gradients(_dropout)


def _marked_dropout(
    input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Tensor:
    if not training or p == 0 or input.numel() == 0:
        return input
    out = _dropout(input, float(p))
    return input.copy_(out) if inplace else out


@torch.library.custom_op("acplan_marks::rms_norm", mutates_args=())
def _rms_norm(
    input: Tensor, shape: Sequence[int], weight: Tensor | None, eps: float | None
) -> Tensor:
    return _RMS_NORM(input, list(shape), weight, eps).contiguous().clone()


@_rms_norm.register_fake
def _(input: Tensor, shape: Sequence[int], *rest: Any) -> Tensor:
    return torch.empty_like(input, memory_format=torch.contiguous_format)


_zero_gradients(_rms_norm)


def _marked_rms_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Tensor:
    cast = None if weight is None else cast_as_single(weight)
    return _rms_norm(cast_as_single(input), list(normalized_shape), cast, eps)


@torch.library.custom_op("acplan_marks::batch_norm", mutates_args=())
def _batch_norm(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    by_image: bool,
    eps: float,
) -> Tensor:
    if by_image:
        return _INSTANCE_NORM(input, None, None, weight, bias, eps=eps).clone()
    is_enough = input.numel() > input.shape[1]
    training = {"training": is_enough, "eps": eps}
    means = None if is_enough else input.new_zeros(input.shape[1])
    spreads = None if is_enough else input.new_ones(input.shape[1])
    return _BATCH_NORM(input, means, spreads, weight, bias, **training).clone()


@_batch_norm.register_fake
def _(input: Tensor, *rest: Any) -> Tensor:
    return torch.empty_like(input)


_zero_gradients(_batch_norm)


def _marked_batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    return _batch_norm(input, weight, bias, False, eps)


def _marked_instance_norm(
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    return _batch_norm(input, weight, bias, True, eps)


@torch.library.custom_op("acplan_marks::group_norm", mutates_args=())
def _group_norm(
    input: Tensor, groups: int, weight: Tensor | None, bias: Tensor | None, eps: float
) -> Tensor:
    return _GROUP_NORM(input.contiguous(), groups, weight, bias, eps).clone()


@_group_norm.register_fake
def _(input: Tensor, *rest: Any) -> Tensor:
    return torch.empty_like(input, memory_format=torch.contiguous_format)


_zero_gradients(_group_norm)


def _marked_group_norm(
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    weight, bias = (None if t is None else cast_as_single(t) for t in (weight, bias))
    return _group_norm(cast_as_single(input), num_groups, weight, bias, eps)


@torch.library.custom_op("acplan_marks::one_hot", mutates_args=())
def _one_hot(tensor: Tensor, classes: int) -> Tensor:
    return _ONE_HOT(tensor, classes)


@_one_hot.register_fake
def _(tensor: Tensor, classes: int) -> Tensor:
    return tensor.new_empty(*tensor.shape, classes)


def _marked_one_hot(tensor: Tensor, num_classes: int = -1) -> Tensor:
    if num_classes < 0:
        return _ONE_HOT(tensor)
    return _one_hot(tensor, num_classes)


@torch.library.custom_op("acplan_marks::ctc_loss", mutates_args=())
def _ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor,
    target_lengths: Tensor,
    blank: int,
    reduction: str,
    zero_infinity: bool,
) -> Tensor:
    lengths = (input_lengths, target_lengths)
    options = (blank, reduction, zero_infinity)
    return _CTC_LOSS(log_probs.float(), targets, *lengths, *options).clone()


@_ctc_loss.register_fake
def _(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor,
    target_lengths: Tensor,
    blank: int,
    reduction: str,
    zero_infinity: bool,
) -> Tensor:
    shape = input_lengths.shape if reduction == "none" else ()
    return log_probs.new_empty(shape, dtype=torch.float32)


_zero_gradients(_ctc_loss)


def _marked_ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> Tensor:
    lengths = [
        value if isinstance(value, Tensor) else torch.tensor(value)
        for value in (input_lengths, target_lengths)
    ]
    return _ctc_loss(log_probs, targets, *lengths, blank, reduction, zero_infinity)


@torch.library.custom_op("acplan_marks::recurrent", mutates_args=())
def _recurrent(
    kind: str,
    input: Tensor,
    lengths: Tensor | None,
    state: Sequence[Tensor],
    weights: Sequence[Tensor],
    has_biases: bool,
    layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> list[Tensor]:
    # Autocast casts weights with the input.
    weights = [weight.to(input.dtype) for weight in weights]
    hidden = tuple(state) if kind == "lstm" else state[0]
    run = getattr(_RECURRENT, kind)
    options = (has_biases, layers, dropout, train, bidirectional)
    if lengths is None:
        outputs = run(input, hidden, weights, *options, batch_first)
    else:
        outputs = run(input, lengths, hidden, weights, *options)
    return [t.contiguous().clone() for t in outputs]


@_recurrent.register_fake
def _(
    kind: str,
    input: Tensor,
    lengths: Tensor | None,
    state: Sequence[Tensor],
    weights: Sequence[Tensor],
    has_biases: bool,
    layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> list[Tensor]:
    width = state[0].shape[-1] * (2 if bidirectional else 1)
    out = input.new_empty(*input.shape[:-1], width)
    return [out, *(torch.empty_like(s) for s in state)]


_zero_gradients(_recurrent)


def _marked_layer(kind: str) -> Callable[..., tuple[Tensor, ...]]:
    def layer(input: Tensor, second: Any, third: Any, *rest: Any) -> Any:
        # A packed sequence comes with the sizes of its batches, before the state.
        is_packed = isinstance(second, Tensor) and isinstance(third, (Tensor, tuple))
        lengths, state, weights = (
            (second, third, rest[0]) if is_packed else (None, second, third)
        )
        options = (*rest[1:], False) if is_packed else rest
        states = list(state) if isinstance(state, (tuple, list)) else [state]
        input, states = cast_as_half(input), [cast_as_half(s) for s in states]
        return tuple(_recurrent(kind, input, lengths, states, list(weights), *options))

    return layer


@torch.library.custom_op("acplan_marks::cell", mutates_args=())
def _cell(
    kind: str, input: Tensor, state: Sequence[Tensor], weights: Sequence[Tensor]
) -> list[Tensor]:
    weights = [weight.to(input.dtype) for weight in weights]
    hidden = tuple(state) if kind == "lstm_cell" else state[0]
    outputs = getattr(_RECURRENT, kind)(input, hidden, *weights)
    return [t.clone() for t in ((outputs,) if isinstance(outputs, Tensor) else outputs)]


@_cell.register_fake
def _(
    kind: str, input: Tensor, state: Sequence[Tensor], weights: Sequence[Tensor]
) -> list[Tensor]:
    return [torch.empty_like(s) for s in state]


_zero_gradients(_cell)


def _marked_cell(kind: str) -> Callable[..., Any]:
    def cell(input: Tensor, state: Any, *weights: Tensor | None) -> Any:
        states = [state] if isinstance(state, Tensor) else list(state)
        input, states = cast_as_half(input), [cast_as_half(s) for s in states]
        present_weights = [w for w in weights if w is not None]
        outputs = tuple(_cell(kind, input, states, present_weights))
        return outputs if kind == "lstm_cell" else outputs[0]

    return cell


_REPLACEMENTS: tuple[tuple[Any, str, Any], ...] = (
    (F, "scaled_dot_product_attention", _marked_attention),
    (F, "dropout", _marked_dropout),
    (F, "rms_norm", _marked_rms_norm),
    (F, "batch_norm", _marked_batch_norm),
    (F, "instance_norm", _marked_instance_norm),
    (F, "group_norm", _marked_group_norm),
    (F, "one_hot", _marked_one_hot),
    (F, "ctc_loss", _marked_ctc_loss),
    *((torch._VF, kind, _marked_layer(kind)) for kind in _LAYERS),
    *((torch._VF, kind, _marked_cell(kind)) for kind in _CELLS),
)
