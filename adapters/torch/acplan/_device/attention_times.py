"""The time of fused attention on a GPU.

A multiprocessor computes a block of queries: it walks over the keys that the mask leaves, and
has further work for each block: to read the queries, to normalise and to write. This takes the
time of a number of keys, so short sequences reach a smaller share of the rate. Under a causal
mask the blocks on the diagonal are computed whole, and blocks differ in length.

A kernel's share of the peak depends on the GPU, as it was written for one: FlashAttention 2 and
PyTorch's memory-efficient attention have no instructions of Hopper and later. The shares are in
the table of GPUs (data/training/systems.json); docs/measured/gpu_truth.md has the errors beside
rows that were not used.
"""

import math

import torch

from acplan._device.gpu_table import kernel_figure
from acplan._device.product_times import IDLE_SHARE, Call, Rates

_QUERIES = 128  # of a block
# Forward and backward.
_BLOCK_KEYS: list[float] = kernel_figure("attention_block_keys")
_MASKED_KEYS: list[float] = kernel_figure("attention_masked_keys")
# Heads of fewer than 128 dimensions.
_SMALL_HEAD_SHARE: float = kernel_figure("small_head_share")
_FLASH_SMALL_HEAD_SHARE: float = kernel_figure("flash_small_head_share")


def attention_seconds(call: Call, rates: Rates) -> float:
    """Returns the seconds of a fused attention, forward or backward."""
    name = str(call.func._overloadpacket)
    query, key = _queries_and_keys(call)
    rate = _rate(name, call.dtype, rates)
    if query.shape[-1] < 128:
        rate *= _FLASH_SMALL_HEAD_SHARE if "flash" in name else _SMALL_HEAD_SHARE
    queries, keys = query.shape[-2], max(1, key.shape[-2])
    blocks = math.prod(query.shape[:-2]) * math.ceil(queries / _QUERIES)
    full = blocks / rates.multiprocessors
    waves = max(1.0, full + IDLE_SHARE * (math.ceil(full) - full)) / max(full, 1e-9)
    direction = 1 if "backward" in name else 0
    computed = _BLOCK_KEYS[direction] / keys
    if call.argument("is_causal"):
        masked = _MASKED_KEYS[direction] / keys
        computed += min(1.0, _unmasked_share(queries, keys) + masked)
    else:
        computed += 1.0
    return max(waves * computed * call.flops / rate, call.traffic / rates.memory_rate)


def _rate(name: str, dtype: torch.dtype, rates: Rates) -> float:
    """Returns the FLOPs a second of a kernel on heads of 128."""
    shares = rates.attention_shares
    kernel = next((k for k in ("flash", "cudnn") if k in name), "efficient")
    share: float = getattr(shares, kernel + "_backward" if "backward" in name else kernel)
    peak = rates.peak_flops(dtype)
    if dtype == torch.float32:
        peak = max(peak, rates.tfloat32 / 3)  # each product is three products of TF32
    return peak * share


def _queries_and_keys(call: Call) -> tuple[torch.Tensor, torch.Tensor]:
    first = 1 if "backward" in str(call.func._overloadpacket) else 0
    query, key = call.args[first : first + 2]
    return query, key


def _unmasked_share(queries: int, keys: int) -> float:
    """Returns the share of scores that a causal mask leaves."""
    if queries <= keys:
        return queries / (2 * keys)
    return 1 - keys / (2 * queries)
