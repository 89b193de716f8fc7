"""The time of a kernel on a GPU, queued behind others.

A kernel ends no sooner than its bytes come from memory and its products are computed. Both
rates are shares of the vendor's: of memory's, what streaming kernels reach; of the peak, what
large products reach (`Device`, with the source of each share). Each kind of
operator stays below these shares for its own reasons:

- Products. The result is cut into tiles, and each multiprocessor computes one at a time. A
  small tile reaches a smaller share of the rate, and the last wave may leave multiprocessors
  idle. The library takes the fastest tile, and splits the sums of a product whose tiles are
  fewer than the multiprocessors. The tiles of 16-bit products are those of the training cost
  model, which reads the same table of GPUs (data/training/systems.json).
- Convolutions are products of the unfolded input. Tensor cores take channels last: in other
  layouts input and output are transposed first. Depthwise convolutions have kernels of their
  own, which stream or visit taps (`depthwise_times`).
- Attention computes the scores that a causal mask leaves, in blocks of queries
  (`attention_times`).
- Everything else is traffic, times a factor by kind: a normalisation reads its input twice.

The figures are in the table of GPUs, each with the public measurements that it was fitted to;
docs/measured/gpu_truth.md has the errors by source and kind, beside rows that were not used.
"""

from collections.abc import Callable, Mapping

import torch

from acplan._device.attention_times import attention_seconds
from acplan._device.convolution_times import convolution_backward_seconds, convolution_seconds
from acplan._device.gpu_table import kernel_figure
from acplan._device.product_times import (
    FLOAT32_OVERHEAD,
    FLOAT32_TILES,
    TENSOR_CORE_TILES,
    TILE_OVERHEAD,
    Call,
    Product,
    Rates,
    bytes_of,
    split_seconds,
)

LAUNCH_SECONDS: float = kernel_figure("launch_us") * 1e-6
"""The least time from one kernel's end to the next one's end."""


def kernel_seconds(call: Call, rates: Rates) -> float:
    """Returns the seconds that an operator takes."""
    packet = str(call.func._overloadpacket)
    own = _SECONDS.get(packet)
    if own is not None:
        return LAUNCH_SECONDS + own(call, rates)
    seconds = call.traffic * _FACTORS.get(packet, 1.0) / rates.memory_rate
    if call.flops:
        seconds = max(seconds, call.flops / rates.product_rate(call.dtype, False))
    return LAUNCH_SECONDS + seconds


# The rate of batches of products in float32, relative to single ones.
_BATCHED_FLOAT32: float = kernel_figure("float32_batched_share")

# Batches of products in 16 bits with a side of so few elements stream their matrices.
_STREAMED_SIDE: int = kernel_figure("batched_streamed_side")


def _product_seconds(product: Product, call: Call, rates: Rates) -> float:
    rate = rates.product_rate(call.dtype, False)
    if call.dtype in (torch.float32, torch.float64):
        rate *= 1 if product.groups == 1 else _BATCHED_FLOAT32
        compute = split_seconds(product, rate, rates, FLOAT32_TILES, FLOAT32_OVERHEAD)
    elif product.groups > 1 and min(product[1:]) <= _STREAMED_SIDE:
        compute = 0.0
    else:
        compute = split_seconds(product, rate, rates, TENSOR_CORE_TILES, TILE_OVERHEAD)
    return max(compute, call.traffic / rates.memory_rate)


def _mm(call: Call, rates: Rates, first: int = 0) -> float:
    a, b = call.args[first : first + 2]
    groups = a.shape[0] if a.dim() == 3 else 1
    return _product_seconds(Product(groups, a.shape[-2], b.shape[-1], a.shape[-1]), call, rates)


def _grouped_mm(call: Call, rates: Rates) -> float:
    a, b = call.args[:2]
    inner, columns = a.shape[-1], b.shape[-1]
    groups = b.shape[0] if b.dim() == 3 else a.shape[0] if a.dim() == 3 else 0
    if groups == 0:  # both are split along their common dimension
        groups = call.outputs[0].shape[0]
        return _product_seconds(
            Product(groups, a.shape[0], columns, max(1, inner / groups)), call, rates
        )
    rows = a.shape[-2] if a.dim() == 3 else max(1, a.shape[0] / groups)
    if b.dim() == 2:
        columns = max(1, columns / groups)
    return _product_seconds(Product(groups, rows, columns, inner), call, rates)


_SECONDS_OF_A_RECURRENT_STEP: float = kernel_figure("recurrent_step_us") * 1e-6
_RECURRENT_SHARE: float = kernel_figure("recurrent_share")  # of the rates of other kernels


def _rnn(call: Call, rates: Rates) -> float:
    """Returns the seconds of layers and steps one after another, each at least a launch."""
    input = next(t for t in call.args if isinstance(t, torch.Tensor))
    steps = input.shape[1] if call.argument("batch_first") else input.shape[0]
    layers = int(call.argument("num_layers") or 1)
    directions = 2 if call.argument("bidirectional") else 1
    compute = call.flops / rates.product_rate(call.dtype, False)
    least = steps * layers * directions * _SECONDS_OF_A_RECURRENT_STEP
    return max(max(compute, call.traffic / rates.memory_rate) / _RECURRENT_SHARE, least)


def _written_seconds(call: Call, rates: Rates) -> float:
    """Fills: what is written was not read before."""
    return sum(map(bytes_of, call.outputs)) / rates.memory_rate


def _copied(call: Call, rates: Rates) -> float:
    """Returns the seconds of `copy_`, which does not read its target."""
    return (bytes_of(call.args[1]) + bytes_of(call.args[0])) / rates.memory_rate


def _gathered(call: Call, rates: Rates) -> float:
    """Reads of a table what it returns, element by element."""
    elements = sum(t.numel() for t in call.outputs)
    slowest = elements / (_GATHERED_ELEMENTS * rates.multiprocessors)
    return max(2 * _written_seconds(call, rates), slowest)


# A second and multiprocessor.
_GATHERED_ELEMENTS: float = kernel_figure("gathered_elements")


def _scattered(call: Call, rates: Rates) -> float:
    """Reads values, and reads and writes as much of the target."""
    target = call.args[0]
    values = sum(bytes_of(t) for t in call.inputs if t is not target)
    is_in_place = str(call.func._overloadpacket).endswith("_")
    copied = 0 if is_in_place else bytes_of(target) + sum(map(bytes_of, call.outputs))
    return (copied + 3 * values) / rates.memory_rate


def _padded(call: Call, rates: Rates) -> float:
    """Returns the seconds of a view's gradient: zeros, and a copy into a part of them."""
    return _written_seconds(call, rates) + 2 * bytes_of(call.inputs[0]) / rates.memory_rate


_SECONDS_OF_SORTING: float = kernel_figure("embedding_backward_us") * 1e-6


def _embedding_backward(call: Call, rates: Rates) -> float:
    """Sorts indices, fills the table, adds rows."""
    gradient = call.args[0]
    traffic = _written_seconds(call, rates) + 3 * bytes_of(gradient) / rates.memory_rate
    return _SECONDS_OF_SORTING + traffic


_WIDTHS: tuple[int, int] = tuple(kernel_figure("width_bytes"))


def _by_width(figure: str) -> Callable[[Call, Rates], float]:
    """Returns the seconds of a kernel that reduces rows. It keeps a short row in registers or
    shared memory, and reads a wide one again: from the cache, where that is large."""
    factors: tuple[float, float, float] = tuple(kernel_figure(figure))
    narrow, middle, wide = factors

    def seconds(call: Call, rates: Rates) -> float:
        memory = call.traffic / rates.memory_rate
        if rates.capability in _LARGE_CACHES:
            return memory
        row = call.inputs[0]
        width = row.shape[-1] * row.element_size() if row.dim() else 1
        return memory * (
            narrow if width <= _WIDTHS[0] else middle if width <= _WIDTHS[1] else wide
        )

    return seconds


# The gradients of a normalisation: the elements a second and multiprocessor that both kernels
# together take at most. Gradients of weights are sums over rows, and up to so many rows a
# thread walks over all rows of its columns.
_NORM_ELEMENTS: float = kernel_figure("norm_backward_elements")
_ROWS_OF_A_THREAD = 65536
_SECONDS_OF_A_ROW: float = kernel_figure("norm_backward_row_ns") * 1e-9


def _norm_backward(call: Call, rates: Rates) -> float:
    """Returns the seconds of two kernels, of the input's gradient and of the weights'."""
    row = call.inputs[0]
    rows = row.numel() // max(1, row.shape[-1]) if row.dim() else 1
    return max(
        _by_width("norm_backward_widths")(call, rates),
        row.numel() / (_NORM_ELEMENTS * rates.multiprocessors),
        rows * _SECONDS_OF_A_ROW if rows <= _ROWS_OF_A_THREAD else 0.0,
    )


def _softmax_backward(call: Call, rates: Rates) -> float:
    """Returns the seconds of two kernels: the product of gradient and result comes first."""
    return call.traffic / rates.memory_rate + _by_width("softmax_backward_widths")(call, rates)


def _reduced_loss(call: Call, rates: Rates) -> float:
    """Returns the seconds of two kernels: the first one writes each element's loss."""
    is_reduced = call.outputs[0].dim() == 0 and call.inputs[0].dim() > 0
    losses = bytes_of(call.inputs[0]) if is_reduced else 0
    return (call.traffic + 2 * losses) / rates.memory_rate


# Ada and the Blackwell of graphics cards: 48 to 96 MB.
_LARGE_CACHES = ((8, 9), (12, 0))

# Reductions inside of a block of threads wait for one another: the bytes a second that a
# multiprocessor takes in.
_GROUP_NORM_RATE: float = kernel_figure("group_norm_rate")


def _group_norm(call: Call, rates: Rates) -> float:
    """Moments and result are kernels of their own, and each reads the input."""
    traffic = call.traffic + max(map(bytes_of, call.inputs))
    slowest = min(rates.memory_rate, _GROUP_NORM_RATE * rates.multiprocessors)
    return traffic / slowest


_COLUMN_SUM: float = kernel_figure("column_sum")


def _reduction(call: Call, rates: Rates) -> float:
    """Sums over rows stream; over other dimensions (gradients of biases), threads wait for
    memory that is not next to theirs."""
    dimensions = call.args[1] if len(call.args) > 1 else None
    last = call.inputs[0].dim() - 1
    is_of_rows = not dimensions or any(d in (last, -1) for d in dimensions)
    factor = 1.0 if is_of_rows else _COLUMN_SUM
    return factor * call.traffic / rates.memory_rate


_FIRST: float = kernel_figure("batch_norm_first")


def _batch_norm(call: Call, rates: Rates) -> float:
    """Streams with channels last. With channels first, a channel's elements lie apart."""
    image = call.inputs[0]
    is_last = image.dim() > 2 and image.shape[1] > 1 and image.stride(1) == 1
    return (1.0 if is_last else _FIRST) * call.traffic / rates.memory_rate


def _second_mm(call: Call, rates: Rates) -> float:
    return _mm(call, rates, first=1)


_ATTENTION = (
    "aten._scaled_dot_product_flash_attention",
    "aten._scaled_dot_product_flash_attention_backward",
    "aten._scaled_dot_product_efficient_attention",
    "aten._scaled_dot_product_efficient_attention_backward",
    "aten._scaled_dot_product_cudnn_attention",
    "aten._scaled_dot_product_cudnn_attention_backward",
)
_FILLS = (
    "zero_", "fill_", "zeros_like", "ones_like", "full_like", "new_zeros", "new_ones",
    "new_full", "zeros", "ones", "full", "arange", "bernoulli_", "normal_", "uniform_",
    "exponential_", "random_", "rand_like", "randn_like", "nll_loss_backward",
    "nll_loss2d_backward",
)  # fmt: skip
_GATHERS = ("embedding", "gather", "index", "index_select", "take", "nll_loss_forward")
_SCATTERS = (
    "index_put", "index_put_", "_unsafe_index_put", "index_add", "index_add_", "scatter",
    "scatter_", "scatter_add", "scatter_add_",
)  # fmt: skip
_REDUCED_LOSSES = ("mse_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy")
_PADS = ("slice_backward", "select_backward", "constant_pad_nd")

_SECONDS: Mapping[str, Callable[[Call, Rates], float]] = {
    "aten.mm": _mm,
    "aten.bmm": _mm,
    "aten.addmm": _second_mm,
    "aten.baddbmm": _second_mm,
    "aten._scaled_mm": _mm,
    "aten._grouped_mm": _grouped_mm,
    "aten.convolution": convolution_seconds,
    "aten.convolution_backward": convolution_backward_seconds,
    **dict.fromkeys(_ATTENTION, attention_seconds),
    "aten._cudnn_rnn": _rnn,
    "aten._cudnn_rnn_backward": _rnn,
    "aten.miopen_rnn": _rnn,
    "aten.miopen_rnn_backward": _rnn,
    **{f"aten.{name}": _written_seconds for name in _FILLS},
    **{f"aten.{name}": _gathered for name in _GATHERS},
    **{f"aten.{name}": _scattered for name in _SCATTERS},
    **{f"aten.{name}": _padded for name in _PADS},
    "aten.copy_": _copied,
    "aten.embedding_dense_backward": _embedding_backward,
    "aten._softmax": _by_width("softmax_widths"),
    "aten._log_softmax": _by_width("softmax_widths"),
    "aten._softmax_backward_data": _softmax_backward,
    **{f"aten.{name}": _reduced_loss for name in _REDUCED_LOSSES},
    "aten._log_softmax_backward_data": _by_width("softmax_backward_widths"),
    "aten.native_layer_norm": _by_width("norm_widths"),
    "aten._fused_rms_norm": _by_width("norm_widths"),
    "aten.native_layer_norm_backward": _norm_backward,
    "aten._fused_rms_norm_backward": _norm_backward,
    "aten.sum": _reduction,
    "aten.mean": _reduction,
    "aten.native_group_norm": _group_norm,
    "aten.native_group_norm_backward": _group_norm,
    "aten.native_batch_norm": _batch_norm,
    "aten.native_batch_norm_backward": _batch_norm,
    "aten.cudnn_batch_norm": _batch_norm,
    "aten.cudnn_batch_norm_backward": _batch_norm,
    "aten._batch_norm_with_update": _batch_norm,
    "aten.batch_norm_backward": _batch_norm,
}

# The time of an operator's traffic, relative to streaming.
_FACTORS: Mapping[str, float] = {
    f"aten.{name}": factor for name, factor in kernel_figure("traffic_factors").items()
}
