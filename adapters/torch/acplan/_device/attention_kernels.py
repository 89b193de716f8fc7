"""Chooses the kernel that PyTorch takes for scaled_dot_product_attention on a device.

The rules are those of aten/src/ATen/native/transformers/cuda/sdp_utils.cpp and sdp_utils_cpp.h,
and comments have the names of their functions, as of PyTorch 2.6 to 2.14. Nested tensors take
the mathematical form here, even if the device would take another kernel.
"""

import dataclasses
import enum
from collections.abc import Callable, Sequence

import torch

Version = tuple[int, int]


class Kernel(enum.IntEnum):
    """The kernels, with the numbers of at::SDPBackend."""

    MATH = 0
    FLASH = 1
    EFFICIENT = 2
    CUDNN = 3


DEFAULT_ORDER = (Kernel.FLASH, Kernel.EFFICIENT, Kernel.MATH, Kernel.CUDNN)
_CUDNN_FIRST = (Kernel.CUDNN, Kernel.FLASH, Kernel.EFFICIENT, Kernel.MATH)
_HALF = (torch.float16, torch.bfloat16)

# The version of cuDNN for which the metadata of the wheels on PyPI asks.
_CUDNN_VERSIONS: dict[Version, int] = {
    (2, 6): 90100,
    (2, 7): 90501,
    (2, 8): 91002,
    (2, 9): 91002,
    (2, 10): 91002,
    (2, 11): 91900,
    (2, 12): 92000,
    (2, 13): 92000,
    (2, 14): 92400,
}


def cudnn_version_of(pytorch: Version) -> int:
    """Returns the version of cuDNN that comes with a version of PyTorch, as cuDNN counts."""
    versions = [v for v in _CUDNN_VERSIONS if v <= pytorch]
    return _CUDNN_VERSIONS[max(versions, default=min(_CUDNN_VERSIONS))]


@dataclasses.dataclass(frozen=True)
class Layout:
    """The properties of a tensor on which a choice depends."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int = 0
    requires_grad: bool = False

    @classmethod
    def from_tensor(cls, tensor: torch.Tensor) -> "Layout":
        return cls(
            tensor.dtype,
            tuple(tensor.shape),
            tensor.stride(),
            int(tensor.storage_offset()),
            tensor.requires_grad,
        )


@dataclasses.dataclass(frozen=True)
class Attention:
    """A call of scaled_dot_product_attention."""

    query: Layout
    key: Layout
    value: Layout
    mask: Layout | None = None
    dropout: float = 0.0
    is_causal: bool = False
    enable_gqa: bool = False
    is_grad_enabled: bool = True

    @property
    def trains(self) -> bool:
        return self.is_grad_enabled and any(
            tensor.requires_grad for tensor in (self.query, self.key, self.value)
        )


@dataclasses.dataclass(frozen=True)
class Platform:
    """The platform that runs a call: the version of PyTorch, and the device's compute
    capability."""

    pytorch: Version
    capability: tuple[int, int]
    cudnn: int
    is_rocm: bool = False


@dataclasses.dataclass(frozen=True)
class Switches:
    """The settings that a program may change: torch.backends.cuda.enable_*_sdp,
    torch.nn.attention.sdpa_kernel, torch.use_deterministic_algorithms, and the environment."""

    enabled: frozenset[Kernel] = frozenset(Kernel)
    order: tuple[Kernel, ...] = DEFAULT_ORDER
    is_deterministic: bool = False
    keeps_cudnn_last: bool = False  # TORCH_CUDNN_SDPA_DEPRIORITIZED


def choose(call: Attention, platform: Platform, switches: Switches) -> Kernel | None:
    """Returns the first kernel that can take the call, or None if there is none
    (select_sdp_backend)."""
    for kernel in _order(platform, switches):
        if kernel in switches.enabled and _CHECKS[kernel](call, platform, switches):
            return kernel
    return None


def _order(platform: Platform, switches: Switches) -> Sequence[Kernel]:
    """Returns the order of the kernels; an order that the program has set is unchanged
    (priority_order)."""
    if switches.order == DEFAULT_ORDER and _prefers_cudnn(platform, switches):
        return _CUDNN_FIRST
    return switches.order


def _prefers_cudnn(platform: Platform, switches: Switches) -> bool:
    """Returns whether cuDNN comes first (check_prefer_cudnn_attention)."""
    return (
        platform.pytorch >= (2, 10)
        and not platform.is_rocm
        and not switches.keeps_cudnn_last
        and platform.cudnn > 91500
        and platform.capability[0] in (9, 10)
        and (platform.pytorch >= (2, 13) or platform.capability[1] in (0, 3))
    )


def _can_use_math(call: Attention, platform: Platform, switches: Switches) -> bool:
    return True


def _can_use_flash(call: Attention, platform: Platform, switches: Switches) -> bool:
    """Returns whether flash attention can take the call (can_use_flash_attention)."""
    return (
        _has_four_dimensions(call)
        and call.mask is None
        and _has_one_head_size(call, 512 if platform.is_rocm else 256)
        and (platform.is_rocm or (8, 0) <= platform.capability <= _newest(platform))
        and _can_train_on_small_chips(call, platform)
        and not (call.is_causal and call.query.shape[2] != call.key.shape[2])
        and _has_dtype(call, _HALF)
        and _has_fitting_heads(call, supports_gqa=True)
        and _has_rows(call)
        and _is_packed(call, ignores_size_one=True)
    )


def _can_use_efficient(call: Attention, platform: Platform, switches: Switches) -> bool:
    """Returns whether memory-efficient attention can take the call
    (can_use_mem_efficient_attention)."""
    if not _has_four_dimensions(call):
        return False
    if platform.is_rocm:
        fits = _fits_efficient_on_rocm(call)
    else:
        fits = (5, 0) <= platform.capability <= _newest(platform) and _fits_efficient(
            call, platform
        )
    has_bf16 = platform.is_rocm or platform.capability[0] >= 8
    dtypes = (*_HALF, torch.float32) if has_bf16 else (torch.float16, torch.float32)
    return (
        fits
        and _has_rows(call)
        and _is_packed(call, ignores_size_one=False)
        and _has_fitting_heads(
            call, supports_gqa=platform.pytorch >= (2, 14) and not platform.is_rocm
        )
        and _has_dtype(call, dtypes)
    )


def _fits_efficient(call: Attention, platform: Platform) -> bool:
    """Returns whether sizes and addresses are aligned (check_head_dim_size_mem_efficient,
    check_data_ptr_alignment_mem_efficient)."""
    alignment = _gemm_alignment(call.query.dtype, platform.capability)
    head, value_head = call.query.shape[3], call.value.shape[3]
    is_aligned = (
        head == call.key.shape[3]
        and head > 0
        and value_head > 0
        and head % alignment == 0
        and value_head % alignment == 0
    )
    if platform.pytorch < (2, 14) or platform.capability[0] < 8:
        return is_aligned
    return is_aligned and all(
        tensor.offset % alignment == 0 or 0 in tensor.shape
        for tensor in (call.query, call.key, call.value)
    )


def _gemm_alignment(dtype: torch.dtype, capability: tuple[int, int]) -> int:
    """Returns the alignment of matrix products, in elements (minimum_gemm_alignment)."""
    is_half = dtype in _HALF
    uses_tensor_cores = capability[0] >= 8 or (capability[0] >= 7 and is_half)
    least = 4 if capability[0] >= 8 else 1
    return max(least, 8 if is_half else 4) if uses_tensor_cores else least


def _fits_efficient_on_rocm(call: Attention) -> bool:
    """Returns whether the mask and the sizes of heads fit
    (check_head_dim_size_flash<caller_is_meff>): flash and memory-efficient attention share one
    kernel on ROCm."""
    alignment = 8 if call.query.dtype in _HALF else 4
    has_mask_type = call.mask is None or call.mask.dtype in (
        torch.bool,
        call.query.dtype,
    )
    return (
        has_mask_type
        and _has_one_head_size(call, 512)
        and call.query.shape[3] > 0
        and call.query.shape[3] % alignment == 0
    )


def _can_use_cudnn(call: Attention, platform: Platform, switches: Switches) -> bool:
    """Returns whether cuDNN's attention can take the call (can_use_cudnn_attention)."""
    if platform.is_rocm or platform.cudnn < 90000 or switches.is_deterministic:
        return False
    if not (_has_four_dimensions(call) and (8, 0) <= platform.capability <= _newest(platform)):
        return False
    return (
        _can_drop_out_in_cudnn(call, platform)
        and _has_dtype(call, _HALF)
        and _has_broadcast_mask(call)
        and _has_rows(call)
        and _is_packed(call, ignores_size_one=True)
        and _has_fitting_heads(call, supports_gqa=True, equal_key_and_value=False)
        and _fits_cudnn(call, platform)
    )


def _can_drop_out_in_cudnn(call: Attention, platform: Platform) -> bool:
    """Returns whether this cuDNN has the dropout (check_cudnn_dropout, and the versions in
    can_use_cudnn_attention)."""
    if call.dropout > 0 and platform.pytorch >= (2, 10) and 91100 < platform.cudnn < 91400:
        return False
    return platform.pytorch < (2, 13) or call.dropout * 16 == int(call.dropout * 16)


def _fits_cudnn(call: Attention, platform: Platform) -> bool:
    """Returns whether shapes fit cuDNN (check_cudnn_tensor_shapes,
    check_cudnn_d256_bprop_head_dim)."""
    head, value_head = call.query.shape[3], call.value.shape[3]
    limit = _cudnn_head_limit(head, value_head, platform)
    if max(head, value_head) > limit or head % 8 or value_head % 8:
        return False
    if _cudnn_takes_256(platform) and call.trains and max(head, value_head) > 128:
        if (head, value_head) not in ((192, 128), (256, 256)):
            return False
    if platform.pytorch >= (2, 14) and max(call.query.shape[:2]) > 65535:
        return False
    rows, columns = call.query.shape[2], call.key.shape[2]
    if platform.pytorch < (2, 9):
        return rows != 1 and columns != 1
    return columns != 1 and not (call.dropout != 0 and rows == 1)


def _cudnn_takes_256(platform: Platform) -> bool:
    is_large = platform.capability == (9, 0) or platform.capability[0] == 10
    return platform.pytorch >= (2, 14) and platform.cudnn > 92200 and is_large


def _cudnn_head_limit(head: int, value_head: int, platform: Platform) -> int:
    if platform.pytorch >= (2, 14):
        if _cudnn_takes_256(platform):
            return 256
        is_large = platform.capability == (9, 0) or platform.capability[0] == 10
    else:
        if (
            platform.pytorch >= (2, 8)
            and platform.cudnn >= 91000
            and platform.capability == (9, 0)
        ):
            return 256
        is_large = platform.pytorch >= (2, 11) and platform.capability[0] == 10
    if is_large and platform.cudnn >= 91100 and (head, value_head) == (192, 128):
        return 192
    return 128


def _newest(platform: Platform) -> tuple[int, int]:
    return (12, 1) if platform.pytorch >= (2, 7) else (9, 0)


def _has_four_dimensions(call: Attention) -> bool:
    """Returns whether all tensors have four dimensions (check_tensor_shapes)."""
    return all(len(t.shape) == 4 for t in (call.query, call.key, call.value))


def _has_one_head_size(call: Attention, limit: int) -> bool:
    """Returns whether all tensors have one head size, at most `limit`
    (check_head_dim_size_flash)."""
    head = call.query.shape[3]
    return head == call.key.shape[3] == call.value.shape[3] and head <= limit


def _can_train_on_small_chips(call: Attention, platform: Platform) -> bool:
    """Returns whether small chips have the backward pass of this head size
    (check_requires_grad_and_head_dim_gt192_constraints_on_sm86_89_or_120)."""
    is_small = (8, 6) <= platform.capability <= (8, 9) or (
        (12, 0) <= platform.capability <= (12, 1)
    )
    if not call.trains or not is_small or platform.is_rocm:
        return True
    head = call.query.shape[3]
    return head <= 192 or (head > 224 and call.dropout == 0)


def _has_dtype(call: Attention, dtypes: Sequence[torch.dtype]) -> bool:
    """Returns whether all tensors have one of these data types (check_tensor_dtype)."""
    dtype = call.query.dtype
    return dtype == call.key.dtype == call.value.dtype and dtype in dtypes


def _has_rows(call: Attention) -> bool:
    """Returns whether no sequence is empty (check_nonzero_sequence_lengths_dense)."""
    return call.query.shape[2] != 0 and call.key.shape[2] != 0


def _is_packed(call: Attention, ignores_size_one: bool) -> bool:
    """Returns whether the last dimension has stride 1
    (check_last_dim_stride_equals_1_dense)."""
    is_packed = all(t.stride[-1] == 1 for t in (call.query, call.key, call.value))
    if ignores_size_one and call.query.shape[-1] == 1:
        is_packed = True
    return is_packed and (call.mask is None or call.mask.stride[-1] == 1)


def _has_fitting_heads(
    call: Attention, supports_gqa: bool, equal_key_and_value: bool = True
) -> bool:
    """Returns whether batches and numbers of heads fit (check_batch_size_and_num_heads_dense,
    check_grouped_query_attention)."""
    if not call.query.shape[0] == call.key.shape[0] == call.value.shape[0]:
        return False
    heads, keys, values = (t.shape[1] for t in (call.query, call.key, call.value))
    if not (call.enable_gqa and supports_gqa):
        return heads == keys == values
    if equal_key_and_value and keys != values:
        return False
    return heads % keys == 0 and heads % values == 0


def _has_broadcast_mask(call: Attention) -> bool:
    """Returns whether the mask broadcasts to the scores (check_attn_mask_shape)."""
    mask = call.mask
    if mask is None:
        return True
    if mask.requires_grad or len(mask.shape) not in (2, 4):
        return False
    batch, heads, rows, _ = call.query.shape
    full = (batch, heads, rows, call.key.shape[2])[-len(mask.shape) :]
    return all(size in (1, whole) for size, whole in zip(mask.shape, full))


_Check = Callable[[Attention, Platform, Switches], bool]
_CHECKS: dict[Kernel, _Check] = {
    Kernel.MATH: _can_use_math,
    Kernel.FLASH: _can_use_flash,
    Kernel.EFFICIENT: _can_use_efficient,
    Kernel.CUDNN: _can_use_cudnn,
}
