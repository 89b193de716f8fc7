"""Memory that a device's kernels take from PyTorch's allocator beside their results, which fake
tensors do not show: docs/workspaces.md has the formulas and their sources.

Memory that cuDNN and cuBLASLt take by heuristics of their own is not included.
"""

import functools
import math
import os
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from acplan._base.tensors import block_bytes
from acplan._device.devices import Device

_HALF = (torch.float16, torch.bfloat16)
_INDEX = 8  # bytes of an int64

Arguments = dict[str, Any]

# Operators whose kernels are products of cuBLAS or cuBLASLt. Convolutions, recurrent layers and
# fused attention have kernels of their own or cuDNN's.
_PRODUCTS = frozenset(
    """_addmm_activation _grouped_mm _int_mm _scaled_grouped_mm _scaled_mm addmm addmv baddbmm
    bmm cholesky_inverse cholesky_solve dot lu_solve mm mv triangular_solve vdot""".split()
)


_REDUCED_LOSSES = ("mse_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy")


def workspace_bytes(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any, device: Device
) -> int:
    """Returns the bytes that the operator allocates while it runs and frees before it ends."""
    name = func._schema.name.removeprefix("aten::")
    model = _MODELS.get(name)
    if model is None or _is_on_the_cpu(out, args):
        return 0
    return model(_bound(func, args, kwargs), device)


def persistent_bytes(device: Device, handles: int = 2) -> int:
    """Returns the bytes that stay allocated from the first matrix product on: the workspaces of
    cuBLAS' handles, one for the program's thread and one for autograd's."""
    return handles * _blocks(_cublas_workspace(device))


def is_product(name: str) -> bool:
    """Returns whether an operator asks cuBLAS for its handle. Solvers may do so: they count."""
    operator = name.removeprefix("aten.").partition(".")[0]
    return operator in _PRODUCTS or operator.startswith(("linalg_", "_linalg_"))


def _is_on_the_cpu(out: Any, args: tuple[Any, ...]) -> bool:
    for value in (out, *args):
        for tensor in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(tensor, torch.Tensor):
                return tensor.device.type == "cpu"
    return True


def _bound(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
    parameters = func._schema.arguments
    defaults = {p.name: p.default_value for p in parameters if p.has_default_value()}
    positional = {parameter.name: value for parameter, value in zip(parameters, args)}
    return defaults | positional | kwargs


def _blocks(*sizes: int) -> int:
    """Returns the bytes of allocations of these sizes, which live at one time."""
    return sum(map(block_bytes, sizes))


def _pytorch() -> tuple[int, int]:
    major, minor = torch.__version__.split(".")[:2]
    return int(major), int(minor)


# --- cuBLAS


def _cublas_workspace(device: Device) -> int:
    config = os.environ.get("CUBLAS_WORKSPACE_CONFIG", "")
    configured = re.findall(r":([0-9]+):([0-9]+)", config)
    if configured:
        return sum(int(size) * int(count) * 1024 for size, count in configured)
    if device.is_rocm:
        return 128 * 2**20 if device.capability[0] == 9 else 32 * 2**20
    is_large = device.capability == (9, 0) or (
        _pytorch() >= (2, 11) and device.capability[0] in (9, 10, 12)
    )
    return 32 * 2**20 if is_large else (4096 * 2 + 16 * 8) * 1024


def _copied_operands(arguments: Arguments, device: Device) -> int:
    """Returns the bytes of copies of matrices whose strides cuBLAS does not take: neither
    rows nor columns are in one piece, or an expanded tensor repeats them."""
    names = ("self", "mat1", "mat2", "batch1", "batch2")
    operands = [arguments[name] for name in names if name in arguments]
    return _blocks(*(m.nbytes for m in operands[-2:] if not _is_taken_by_cublas(m)))


def _is_taken_by_cublas(matrix: torch.Tensor) -> bool:
    if matrix.layout != torch.strided:
        return True
    (rows, columns), (row_stride, stride) = matrix.shape[-2:], matrix.stride()[-2:]
    if matrix.is_contiguous() or matrix.mT.is_contiguous():
        return True
    if stride == 1:
        return row_stride >= max(1, columns)
    return row_stride == 1 and stride >= max(1, rows)


# --- Attention


def _flash_forward(arguments: Arguments, device: Device) -> int:
    if device.is_rocm or arguments["dropout_p"]:
        return 0
    batch, heads, rows, width = arguments["query"].shape
    columns = arguments["key"].shape[2]
    block = 256 if width <= 64 else 128 if width <= 128 else 64
    splits = _flash_splits(
        batch * heads * -(-rows // 64),
        device.multiprocessors * 2,
        -(-columns // block),
    )
    if splits <= 1:
        return 0
    each = 4 * splits * batch * heads * rows
    return _blocks(each, each * _flash_width(width))


def _flash_splits(blocks: int, processors: int, column_blocks: int) -> int:
    """Returns the least number of splits that keeps most processors busy
    (num_splits_heuristic)."""
    if blocks >= 0.8 * processors:
        return 1
    efficiency = {}
    for splits in range(1, min(128, processors, column_blocks) + 1):
        each = -(-column_blocks // splits)
        if splits == 1 or each != -(-column_blocks // (splits - 1)):
            waves = blocks * splits / processors
            efficiency[splits] = waves / math.ceil(waves)
    best = max(efficiency.values(), default=0)
    return next((s for s, share in efficiency.items() if share >= 0.85 * best), 1)


def _flash_width(width: int) -> int:
    return -(-width // 32) * 32 if width <= 192 else 256


def _flash_backward(arguments: Arguments, device: Device) -> int:
    if device.is_rocm:
        return 0
    query, key = arguments["query"], arguments["key"]
    batch, heads, rows, width = query.shape
    key_heads, columns = key.shape[1:3]
    rounded = -(-rows // 128) * 128
    copies = 1
    if torch.are_deterministic_algorithms_enabled():
        copies = -(-device.multiprocessors // (batch * heads))
    sizes = [
        4 * copies * batch * rounded * heads * _flash_width(width),  # dq_accum
        4 * batch * heads * rounded,  # softmax_d
        *_uncontiguous(arguments["grad_out"], arguments["out"]),
    ]
    if key_heads != heads:
        # dk and dv for every head of the query.
        sizes += 2 * [batch * columns * heads * width * query.element_size()]
    return _blocks(*sizes)


def _uncontiguous(*tensors: torch.Tensor) -> list[int]:
    """Returns the bytes of copies of the tensors that are not contiguous as [batch, rows,
    heads, width]."""
    return [
        tensor.numel() * tensor.element_size()
        for tensor in tensors
        if not tensor.transpose(1, 2).is_contiguous()
    ]


def _efficient_backward(arguments: Arguments, device: Device) -> int:
    if device.is_rocm:
        return 0
    query, key, value = arguments["query"], arguments["key"], arguments["value"]
    batch, heads, rows, width = query.shape
    columns, value_width = key.shape[2], value.shape[3]
    is_half = query.dtype in _HALF
    block_i, block_j, is_in_registers = _efficient_tile(
        max(width, value_width), is_half, bool(arguments["dropout_p"]), device.capability
    )
    sums = 0
    if is_half and not is_in_registers:
        splits = -(-columns // block_j)
        if batch * heads >= 256 and columns <= 2 * block_j:
            splits = 1
        splits = max(1, min(splits, 200 // (batch * heads)))
        if torch.are_deterministic_algorithms_enabled():
            splits = 1
        for size in (width, value_width):
            sums += splits * block_j * -(-size // block_i) * block_i
    tiles = -(-rows // block_i) * -(-width // block_i)
    sums += tiles * (4 + block_i * block_i)
    workspace = 4 * batch * heads * (-(-sums // 4) * 4)
    delta = 4 * batch * heads * rows
    has_own_delta = is_half and (is_in_registers or device.capability != (7, 0))
    if has_own_delta:
        return _blocks(delta, workspace)
    # The product of the gradient and the result, in float32, and then its sums.
    product = _blocks(4 * value_width * batch * heads * rows, delta)
    return max(product, _blocks(delta, workspace))


def _efficient_tile(
    width: int, is_half: bool, has_dropout: bool, capability: tuple[int, int]
) -> tuple[int, int, bool]:
    """Returns, for the first kernel that fits: rows of queries, rows of keys, and whether
    gradients stay in registers. Kernels of 128 rows fit into the shared memory of large
    chips."""
    is_large = capability in ((8, 0), (9, 0)) or capability[0] == 10
    if width <= 64:
        return 64, 64, is_half
    if is_half and width <= 96 and capability in ((8, 6), (8, 9)) and not has_dropout:
        return 128, 64, True
    if not is_large:
        return 64, 64, False
    if is_half and width <= 128:
        return 128, 128, True
    return 128, 64, False


def _cudnn_attention_backward(arguments: Arguments, device: Device) -> int:
    query, key = arguments["query"], arguments["key"]
    batch, heads, rows, width = query.shape
    sizes = [4 * batch * heads * rows * width, 4 * batch * heads * rows]
    if key.shape[1] != heads:
        sizes += 2 * [batch * heads * key.shape[2] * width * query.element_size()]
    # One workspace holds all of these.
    return _blocks(sum(sizes))


# --- Norms


def _copied_rows(*names: str) -> Callable[[Arguments, Device], int]:
    """Returns the bytes of copies of these arguments where they are not in one piece."""

    def copies(arguments: Arguments, device: Device) -> int:
        tensors = [arguments[name] for name in names]
        return _blocks(*(t.nbytes for t in tensors if not t.is_contiguous()))

    return copies


def _reduced_loss(arguments: Arguments, device: Device) -> int:
    """Returns the bytes of the losses of all elements, if their sum or mean is asked for."""
    input, target = arguments["self"], arguments["target"]
    if arguments["reduction"] == 0:
        return 0
    shape = torch.broadcast_shapes(input.shape, target.shape)
    dtype = torch.promote_types(input.dtype, target.dtype)
    return _blocks(math.prod(shape) * dtype.itemsize)


def _masked_scatter(arguments: Arguments, device: Device) -> int:
    """Returns the bytes of the place in the source of every element."""
    return _blocks(_INDEX * arguments["self"].numel())


def _softmax_backward(arguments: Arguments, device: Device) -> int:
    """Returns the bytes of the product of gradient and result."""
    gradient, output = arguments["grad_output"], arguments["output"]
    dtype = torch.promote_types(gradient.dtype, output.dtype)
    return _blocks(output.numel() * dtype.itemsize)


def _group_norm(arguments: Arguments, device: Device) -> int:
    each = arguments["N"] * arguments["C"] * _accumulator(arguments["input"].dtype)
    return _blocks(each, each)


def _group_norm_backward(arguments: Arguments, device: Device) -> int:
    size = _accumulator(arguments["input"].dtype)
    channels = arguments["N"] * arguments["C"] * size
    groups = arguments["N"] * arguments["group"] * size
    return _blocks(channels, channels, channels, groups, groups)


def _accumulator(dtype: torch.dtype) -> int:
    return 4 if dtype in _HALF else dtype.itemsize


def _foreach_norm(arguments: Arguments, device: Device) -> int:
    tensors = arguments["self"]
    if not tensors:
        return 0
    chunks = max(-(-tensor.numel() // 65536) for tensor in tensors)
    return _blocks(len(tensors) * chunks * _accumulator(tensors[0].dtype))


# --- Indices


def _sorted_pairs(count: int) -> int:
    """Returns the bytes of cub's radix sort of pairs of 64 bits: another pair of buffers."""
    return 2 * _INDEX * count


def _embedding_backward(arguments: Arguments, device: Device) -> int:
    gradient, indices = arguments["grad_output"], arguments["indices"]
    count, width = indices.numel(), gradient.shape[-1]
    copied = 0
    if not gradient.is_contiguous():
        copied = gradient.numel() * gradient.element_size()
    if count <= 3072 and not arguments["scale_grad_by_freq"]:
        return _blocks(copied)
    size = indices.element_size()
    segments = min(count, arguments["num_weights"])
    partials = count // 10 + segments
    ordered = _blocks(copied, size * count, size * count)
    sorting = _blocks(size * count, _sorted_pairs(count))
    summing = _blocks(
        size * count,
        size * segments,
        size * segments,
        size * partials,
        partials * width * _accumulator(gradient.dtype),
    )
    return ordered + max(sorting, summing)


def _index_put(arguments: Arguments, device: Device) -> int:
    if not arguments["accumulate"]:
        return 0
    indices = [index for index in arguments["indices"] if index is not None]
    if not indices or any(index.dtype == torch.bool for index in indices):
        return 0
    count = torch.broadcast_shapes(*(index.shape for index in indices)).numel()
    each = _INDEX * count
    # The places, sorted, their order, and the numbers that are sorted along with them.
    return _blocks(each, each, each, each, _sorted_pairs(count))


# --- Samplers


def _grid_copies(arguments: Arguments, device: Device) -> int:
    """Returns the bytes of copies of the tensors that cuDNN needs in one piece."""
    grid = arguments["grid"]
    copied = [] if grid.is_contiguous() else [grid]
    others = (arguments["self"], arguments.get("grad_output"))
    copied += [t for t in others if t is not None and 0 in t.stride()]
    return _blocks(*(t.numel() * t.element_size() for t in copied))


# --- Reductions


def _reduction(arguments: Arguments, device: Device) -> int:
    tensor = arguments["self"]
    dims = arguments.get("dim")
    if dims is None or dims == []:
        dims = range(tensor.dim())
    elif isinstance(dims, int):
        dims = [dims]
    dtype = arguments.get("dtype") or tensor.dtype
    return _reduction_bytes(
        tuple(tensor.shape),
        tensor.stride(),
        [dim % max(tensor.dim(), 1) for dim in dims],
        8 if not dtype.is_floating_point else _accumulator(dtype),
        device,
    )


def _reduction_bytes(
    shape: Sequence[int],
    strides: Sequence[int],
    dims: Iterable[int],
    size: int,
    device: Device,
) -> int:
    """Returns the bytes of partial sums of blocks, if blocks share an output
    (setReduceConfig)."""
    reduced_dims, kept_dims = _iterated(shape, strides, set(dims))
    outputs = math.prod(length for length, _ in kept_dims)
    inputs = math.prod(length for length, _ in reduced_dims)
    if outputs * inputs == 0:
        return 0
    is_inner = not kept_dims or (bool(reduced_dims) and reduced_dims[0][1] < kept_dims[0][1])
    vector = 1
    if is_inner:
        x, y = inputs, outputs
        if reduced_dims and reduced_dims[0][1] == 1 and x >= 128 and len(reduced_dims) == 1:
            x //= 4
    else:
        x, y = outputs, inputs
        if kept_dims[0][1] == 1:
            vector = _common_vector(
                kept_dims[0][0], [s for _, s in reduced_dims + kept_dims[1:]]
            )
            x //= vector
    width, height = _block_of(x, y, 512 // vector, 64 if device.is_rocm else 32)
    step_in, step_out = (width, 1) if is_inner else (1, width)
    per_thread = -(-inputs // step_in)
    if per_thread < min(height * 16, 256):
        return 0  # warps share no output, and so blocks do not
    step_in *= height
    per_thread = -(-inputs // step_in)
    grid = -(-(outputs // vector) // step_out)
    threads = _threads_per_multiprocessor(device.capability)
    target = device.multiprocessors * (threads // (width * height))
    if per_thread < 256 or grid > target:
        return 0
    fewest = 128 if device.is_rocm else 16
    blocks = max(min(-(-target // grid), -(-per_thread // fewest)), -(-per_thread // 256))
    if blocks <= 1:
        return 0
    staged = size * outputs * blocks * (1 if is_inner else width * vector)
    return _blocks(staged, 4 * grid)


_Dimensions = list[tuple[int, int]]


def _iterated(
    shape: Sequence[int], strides: Sequence[int], dims: set[int]
) -> tuple[_Dimensions, _Dimensions]:
    """Returns lengths and strides as TensorIterator goes through them: the dimensions that are
    reduced and those that are kept, innermost first, neighbours merged."""
    groups: tuple[_Dimensions, _Dimensions] = ([], [])
    places = sorted(range(len(shape)), key=lambda place: strides[place])
    for place in places:
        if shape[place] == 1:
            continue
        group = groups[0 if place in dims else 1]
        if group and group[-1][0] * group[-1][1] == strides[place]:
            group[-1] = (group[-1][0] * shape[place], group[-1][1])
        else:
            group.append((shape[place], strides[place]))
    return groups


def _common_vector(length: int, strides: Iterable[int]) -> int:
    return functools.reduce(math.gcd, [length, *strides], 4)


def _block_of(x: int, y: int, most: int, warp: int) -> tuple[int, int]:
    x, y = (min(most, 1 << max(n, 1).bit_length() - 1) for n in (x, y))
    width = min(x, warp)
    height = min(y, most // width)
    return min(x, most // height), height


def _threads_per_multiprocessor(capability: tuple[int, int]) -> int:
    if capability == (7, 5):
        return 1024
    return 1536 if capability in ((8, 6), (8, 9)) or capability[0] == 12 else 2048


_MODELS: dict[str, Callable[[Arguments, Device], int]] = {
    "_scaled_dot_product_flash_attention": _flash_forward,
    "_scaled_dot_product_flash_attention_backward": _flash_backward,
    "_scaled_dot_product_efficient_attention_backward": _efficient_backward,
    "_scaled_dot_product_cudnn_attention_backward": _cudnn_attention_backward,
    "native_layer_norm": _copied_rows("input"),
    "native_layer_norm_backward": _copied_rows("grad_out", "input"),
    "_fused_rms_norm": _copied_rows("input"),
    "_fused_rms_norm_backward": _copied_rows("grad_out", "input"),
    "_softmax": _copied_rows("self"),
    "_log_softmax": _copied_rows("self"),
    "_log_softmax_backward_data": _copied_rows("grad_output", "output"),
    "_softmax_backward_data": _softmax_backward,
    **dict.fromkeys(("mm", "bmm", "addmm", "baddbmm"), _copied_operands),
    **dict.fromkeys(_REDUCED_LOSSES, _reduced_loss),
    "masked_scatter_": _masked_scatter,
    "native_group_norm": _group_norm,
    "native_group_norm_backward": _group_norm_backward,
    "_foreach_norm": _foreach_norm,
    "embedding_dense_backward": _embedding_backward,
    "cudnn_grid_sampler": _grid_copies,
    "cudnn_grid_sampler_backward": _grid_copies,
    "index_put": _index_put,
    "index_put_": _index_put,
    "_index_put_impl_": _index_put,
    "_unsafe_index_put": _index_put,
    "sum": _reduction,
    "mean": _reduction,
    "amax": _reduction,
    "amin": _reduction,
    "linalg_vector_norm": _reduction,
}
