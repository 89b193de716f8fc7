"""The times of a convolution's passes on a GPU (see `kernel_times`)."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from acplan._device.gpu_table import kernel_figure
from acplan._device.product_times import (
    FLOAT32_OVERHEAD,
    FLOAT32_TILES,
    TENSOR_CORE_TILES,
    TILE_OVERHEAD,
    Call,
    Product,
    Rates,
    Tile,
    bytes_of,
    split_seconds,
    tile_seconds,
    tiles_of,
)

# Implicit products of convolutions also have narrow tiles, for few channels.
_CONVOLUTION_TILES = (*TENSOR_CORE_TILES, *tiles_of("convolution_tiles"))
_GROUPED_TILES = (*_CONVOLUTION_TILES, *tiles_of("grouped_convolution_tiles"))
# Units of matrix products take at least so many channels.
_LEAST_CHANNELS = 8


class _Convolution(NamedTuple):
    input: torch.Tensor
    weight: torch.Tensor
    result: torch.Tensor
    groups: int

    @classmethod
    def from_call(
        cls, input: Any, weight: Any, result: Any, rest: Sequence[Any]
    ) -> "_Convolution":
        is_transposed, groups = bool(rest[3]), int(rest[5])
        if is_transposed:  # its passes are those of a convolution from result to input
            input, result = result, input
        return cls(input, weight, result, groups)

    @property
    def channels_in(self) -> int:
        return self.input.shape[1] // self.groups

    @property
    def channels_out(self) -> int:
        return self.result.shape[1] // self.groups

    @property
    def taps(self) -> int:
        return math.prod(self.weight.shape[2:])

    @property
    def places(self) -> int:
        """The elements of a channel of the result."""
        return self.result.shape[0] * math.prod(self.result.shape[2:])

    @property
    def is_depthwise(self) -> bool:
        return self.groups > 1 and self.channels_in == self.channels_out == 1

    @property
    def is_channels_last(self) -> bool:
        return self.input.shape[1] > 1 and self.input.stride(1) == 1

    @property
    def traffic(self) -> int:
        return bytes_of(self.input) + bytes_of(self.result)

    def forward(self) -> Product:
        inner = self.channels_in * self.taps
        return Product(self.groups, self.places, self.channels_out, inner)

    def input_gradient(self) -> Product:
        inner = self.channels_out * self.taps
        return Product(self.groups, self.places, self.channels_in, inner)

    def weight_gradient(self) -> Product:
        columns = self.channels_in * self.taps
        return Product(self.groups, self.channels_out, columns, self.places)


def convolution_seconds(call: Call, rates: Rates) -> float:
    input, weight = call.args[:2]
    it = _Convolution.from_call(input, weight, call.out, call.args[3:])
    return _convolution_pass(it, it.forward(), call, rates, _FORWARD)


def convolution_backward_seconds(call: Call, rates: Rates) -> float:
    gradient, input, weight = call.args[:3]
    mask = call.args[10]
    it = _Convolution.from_call(input, weight, gradient, call.args[4:])
    is_transposed = bool(call.args[7])
    seconds = 0.0
    if mask[0]:
        product = it.forward() if is_transposed else it.input_gradient()
        seconds += _convolution_pass(it, product, call, rates, _INPUT_GRADIENT)
    if mask[1]:
        product = it.weight_gradient()
        seconds += _convolution_pass(it, product, call, rates, _WEIGHT_GRADIENT)
    if mask[2]:
        seconds += bytes_of(gradient) / rates.memory_rate
    return seconds


def _convolution_pass(
    it: _Convolution, product: Product, call: Call, rates: Rates, kernels: "_Kernels"
) -> float:
    memory = it.traffic / rates.memory_rate
    if it.is_depthwise:
        elements = it.places * it.result.shape[1] * it.taps * it.input.element_size()
        by_tap = elements / rates.memory_rate
        traffic, taps = kernels.depthwise_last if it.is_channels_last else kernels.depthwise
        return traffic * memory + taps * by_tap
    rate = rates.product_rate(call.dtype, True)
    if call.dtype.itemsize != 2 and rate <= rates.product_rate(call.dtype, False):
        compute = split_seconds(product, rate, rates, FLOAT32_TILES, FLOAT32_OVERHEAD)
        return max(compute, memory)
    dense, grouped = kernels.dense, kernels.grouped
    share, transposed = grouped if it.groups > 1 else dense
    tiles = _GROUPED_TILES if it.groups > 1 else _CONVOLUTION_TILES
    if it.groups > 1:
        product = product._replace(
            columns=max(product.columns, _LEAST_CHANNELS),
            inner=max(product.inner, _LEAST_CHANNELS),
        )
    seconds = kernels.seconds(product, rate * share, rates, tiles, TILE_OVERHEAD)
    seconds = max(seconds, memory)
    return seconds if it.is_channels_last else seconds + transposed * memory


def _whole_seconds(
    product: Product, rate: float, rates: Rates, tiles: Sequence[Tile], overhead: float
) -> float:
    return tile_seconds(product, rate, rates.multiprocessors, tiles, overhead)


class _Kernels(NamedTuple):
    """The kernels of a pass of a convolution.

    dense, grouped: the share of the rate of products, and the traffic of transposing to
        channels last and back, relative to the pass's own, in other layouts.
    depthwise, depthwise_last: factors of the traffic, and of the traffic of reading an
        element for each tap; with channels last.
    """

    dense: tuple[float, float]
    grouped: tuple[float, float]
    depthwise: tuple[float, float]
    depthwise_last: tuple[float, float]
    seconds: Callable[[Product, float, Rates, Sequence[Tile], float], float]


def _kernels(
    name: str, seconds: Callable[[Product, float, Rates, Sequence[Tile], float], float]
) -> _Kernels:
    shares = kernel_figure("convolution_shares")[name]
    return _Kernels(**{kind: tuple(pair) for kind, pair in shares.items()}, seconds=seconds)


_FORWARD = _kernels("forward", _whole_seconds)
_INPUT_GRADIENT = _kernels("input_gradient", _whole_seconds)
_WEIGHT_GRADIENT = _kernels("weight_gradient", split_seconds)
