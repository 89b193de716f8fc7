"""The times of a convolution's passes on a GPU (see `kernel_times`)."""

from collections.abc import Mapping, Sequence

from acplan._device.convolution import Convolution, Pass
from acplan._device.depthwise_times import depthwise_seconds
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


def convolution_seconds(call: Call, rates: Rates) -> float:
    input, weight = call.args[:2]
    it = Convolution.from_call(input, weight, call.out, call.args[3:])
    return pass_seconds(it, Pass.FORWARD, call, rates)


def convolution_backward_seconds(call: Call, rates: Rates) -> float:
    gradient, input, weight = call.args[:3]
    of_input, of_weight, of_bias = call.args[10]
    it = Convolution.from_call(input, weight, gradient, call.args[4:])
    seconds = 0.0
    if of_input:
        seconds += pass_seconds(it, Pass.INPUT_GRADIENT, call, rates)
    if of_weight:
        seconds += pass_seconds(it, Pass.WEIGHT_GRADIENT, call, rates)
    if of_bias:
        seconds += bytes_of(gradient) / rates.memory_rate
    return seconds


def pass_seconds(it: Convolution, which: Pass, call: Call, rates: Rates) -> float:
    if it.is_depthwise:
        return depthwise_seconds(it, which, rates)
    product = it.product(which)
    memory = it.traffic / rates.memory_rate
    rate = rates.product_rate(call.dtype, True)
    if call.dtype.itemsize != 2 and rate <= rates.product_rate(call.dtype, False):
        compute = split_seconds(product, rate, rates, FLOAT32_TILES, FLOAT32_OVERHEAD)
        return max(compute, memory)
    share, transposed = _SHARES[which]["grouped" if it.groups > 1 else "dense"]
    tiles = _GROUPED_TILES if it.groups > 1 else _CONVOLUTION_TILES
    if it.groups > 1:
        product = product._replace(
            columns=max(product.columns, _LEAST_CHANNELS),
            inner=max(product.inner, _LEAST_CHANNELS),
        )
    seconds = _product_seconds(product, which, rate * share, rates, tiles)
    seconds = max(seconds, memory)
    return seconds if it.is_channels_last else seconds + transposed * memory


def _product_seconds(
    product: Product, which: Pass, rate: float, rates: Rates, tiles: Sequence[Tile]
) -> float:
    """Returns the seconds of the product, whose sums are split for the weights' gradient."""
    if which == Pass.WEIGHT_GRADIENT:
        return split_seconds(product, rate, rates, tiles, TILE_OVERHEAD)
    return tile_seconds(product, rate, rates.multiprocessors, tiles, TILE_OVERHEAD)


# For each pass and kind of convolution the share of the rate of products, and the traffic of
# transposing to channels last and back, relative to the pass's own, in other layouts.
_SHARES: Mapping[Pass, Mapping[str, tuple[float, float]]] = {
    Pass(name): shares for name, shares in kernel_figure("convolution_shares").items()
}
