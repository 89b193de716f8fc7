"""The time of a product on a GPU: tiles, waves and split sums (see `kernel_times`)."""

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch

from acplan._device.gpu_table import kernel_figure


class Tile(NamedTuple):
    rows: int
    columns: int
    share: float
    """The share of the rate of products, relative to the largest tile's."""


def tiles_of(figure: str) -> tuple[Tile, ...]:
    """Returns the tiles of the table of GPUs' figure."""
    return tuple(Tile(*tile) for tile in kernel_figure(figure))


TENSOR_CORE_TILES = tiles_of("tiles")
TILE_OVERHEAD: float = kernel_figure("tile_overhead")
"""The loads before and stores after the inner loop of a tile, in steps of the loop."""
IDLE_SHARE: float = kernel_figure("idle_share")
"""The share of the last wave's idle time that counts."""
FLOAT32_TILES = tiles_of("float32_tiles")
FLOAT32_OVERHEAD: float = kernel_figure("float32_tile_overhead")
_SPLITS = (1, 2, 4, 8, 16, 32, 64, 128)


class Rates(Protocol):
    """The rates that a device reaches, in FLOPs and bytes a second (see `Device`)."""

    @property
    def multiprocessors(self) -> int: ...
    @property
    def capability(self) -> tuple[int, int]: ...
    @property
    def memory_rate(self) -> float: ...
    @property
    def tfloat32(self) -> float: ...
    @property
    def product_share(self) -> float: ...
    @property
    def attention_shares(self) -> "AttentionShares": ...
    def peak_flops(self, dtype: torch.dtype) -> float: ...
    def product_rate(self, dtype: torch.dtype, is_convolution: bool) -> float: ...


class AttentionShares(NamedTuple):
    """The shares of the peak in 16 bits that fused attention reaches on heads of 128 and long
    sequences: FlashAttention 2, which PyTorch has, cuDNN's, and the memory-efficient one."""

    flash: float
    flash_backward: float
    cudnn: float
    cudnn_backward: float
    efficient: float
    efficient_backward: float


class Product(NamedTuple):
    """`groups` products of rows x inner with inner x columns elements."""

    groups: float
    rows: float
    columns: float
    inner: float

    @property
    def flops(self) -> float:
        return 2 * self.groups * self.rows * self.columns * self.inner


class Call(NamedTuple):
    """An operator that ran."""

    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    out: Any
    inputs: Sequence[torch.Tensor]
    outputs: Sequence[torch.Tensor]
    flops: int

    @property
    def dtype(self) -> torch.dtype:
        floating = (t.dtype for t in self.inputs if t.is_floating_point())
        return next(floating, torch.float32)

    @property
    def traffic(self) -> float:
        once = {id(tensor): tensor for tensor in self.inputs}  # x * x reads x once
        return sum(map(bytes_of, once.values())) + sum(map(bytes_of, self.outputs))

    def argument(self, name: str) -> Any:
        """Returns the argument of a name, or None if it was not given."""
        if name in self.kwargs:
            return self.kwargs[name]
        position = _position(self.func, name)
        if position is None or position >= len(self.args):
            return None
        return self.args[position]


@functools.cache
def _position(func: Any, name: str) -> int | None:
    names = [argument.name for argument in func._schema.arguments]
    return names.index(name) if name in names else None


def bytes_of(tensor: torch.Tensor) -> int:
    """Returns the bytes in memory of the elements, of which expanded ones are one."""
    sizes = (size for size, stride in zip(tensor.shape, tensor.stride()) if stride or size == 0)
    return math.prod(sizes) * tensor.element_size()


def tile_seconds(
    product: Product, rate: float, multiprocessors: int, tiles: Sequence[Tile], overhead: float
) -> float:
    """Returns the seconds of a product whose operands are there in time.

    rate: FLOPs a second of large products.
    """
    best = math.inf
    groups, rows, columns, inner = product
    for tile in tiles:
        count = groups * min(
            math.ceil(rows / tile.rows) * math.ceil(columns / tile.columns),
            math.ceil(rows / tile.columns) * math.ceil(columns / tile.rows),
        )
        full = count / multiprocessors
        waves = max(1.0, full + IDLE_SHARE * (math.ceil(full) - full))
        steps = tile.rows * tile.columns * (inner + overhead)
        best = min(best, waves * 2 * steps * multiprocessors / (rate * tile.share))
    return best


def split_seconds(
    product: Product, rate: float, rates: Rates, tiles: Sequence[Tile], overhead: float
) -> float:
    """Returns the seconds as `tile_seconds` does, where sums may be split among
    multiprocessors, which costs the traffic of the parts in float32."""
    best = math.inf
    parts_of = 4 * product.groups * product.rows * product.columns / rates.memory_rate
    for split in _SPLITS:
        part = product._replace(groups=product.groups * split, inner=product.inner / split)
        seconds = tile_seconds(part, rate, rates.multiprocessors, tiles, overhead)
        if split > 1:
            seconds += parts_of
        if seconds > best:
            break
        best = seconds
    return best
