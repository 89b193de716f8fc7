"""Autocast on CPU tensors, by the rules that it has for CUDA's.

PyTorch casts other operators' inputs on the CPU than on CUDA. The lists are those of
"Autocast Op Reference" in PyTorch's documentation.
"""

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

_HALF = """
_convolution.deprecated _convolution conv1d conv2d conv3d conv_tbc conv_transpose1d
conv_transpose2d.input conv_transpose3d.input convolution prelu addmm addmv addr matmul
einsum mm mv linalg_vecdot linear addbmm baddbmm bmm chain_matmul linalg_multi_dot
_thnn_fused_lstm_cell _thnn_fused_gru_cell lstm_cell gru_cell rnn_tanh_cell
rnn_relu_cell _scaled_dot_product_flash_attention scaled_dot_product_attention
""".split()

_SINGLE = """
acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan
pow.Tensor_Scalar pow.Tensor_Tensor pow.Scalar softplus layer_norm native_layer_norm
rms_norm group_norm frobenius_norm.dim nuclear_norm nuclear_norm.dim cosine_similarity
poisson_nll_loss cosine_embedding_loss nll_loss nll_loss2d hinge_embedding_loss kl_div
l1_loss smooth_l1_loss huber_loss mse_loss margin_ranking_loss multilabel_margin_loss
soft_margin_loss triplet_margin_loss multi_margin_loss binary_cross_entropy_with_logits
dist pdist cdist renorm logsumexp upsample_nearest1d _upsample_nearest_exact1d
upsample_nearest2d _upsample_nearest_exact2d upsample_nearest3d
_upsample_nearest_exact3d upsample_linear1d upsample_bilinear2d
_upsample_bilinear2d_aa upsample_trilinear3d upsample_bicubic2d _upsample_bicubic2d_aa
""".split()

# They get float32 as their `dtype`, where they were given none.
_SINGLE_RESULT = """
prod prod.dim_int softmax.int log_softmax.int cumprod cumsum linalg_vector_norm
linalg_matrix_norm linalg_matrix_norm.str_ord sum sum.dim_IntList
""".split()

_WIDEST = """
addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler index_put tensordot
scatter_add
""".split()

_KEY = "AutocastCPU"


@contextlib.contextmanager
def as_on_cuda() -> Iterator[None]:
    """Makes torch.autocast("cpu") cast what torch.autocast("cuda") does, within its block."""
    if not torch.is_autocast_enabled("cpu"):
        yield
        return
    casts: dict[int, tuple[Tensor, Tensor]] = {}
    with (
        warnings.catch_warnings(),
        torch.library._scoped_library("aten", "IMPL") as library,
    ):
        warnings.filterwarnings("ignore", "Warning only once for all operators")
        for names, rule in (
            (_HALF, lambda tensor: _half(tensor, casts)),
            (_SINGLE, _single),
            (_SINGLE_RESULT, None),
            (_WIDEST, None),
        ):
            for name in names:
                operator = _operator(name)
                kernel = (
                    _casting(operator, rule)
                    if rule
                    else _with_single_result(operator)
                    if names is _SINGLE_RESULT
                    else _promoting(operator)
                )
                library.impl(operator, kernel, _KEY, allow_override=True)
        for operator in _of_the_cpu_alone():
            library.impl(operator, torch.library.fallthrough_kernel, _KEY, allow_override=True)
        yield


def cast_as_half(tensor: Tensor) -> Tensor:
    """Casts an input of attention as autocast does, if it is on."""
    kind = tensor.device.type
    if not torch.is_autocast_enabled(kind) or not _is_cast(tensor):
        return tensor
    return tensor.to(torch.get_autocast_dtype(kind))


def cast_as_single(tensor: Tensor) -> Tensor:
    """Casts an input of a norm to float32 as autocast does, if it is on."""
    if not torch.is_autocast_enabled(tensor.device.type) or not _is_cast(tensor):
        return tensor
    return tensor.to(torch.float32)


def _is_cast(value: Any) -> bool:
    return (
        isinstance(value, Tensor) and value.is_floating_point() and value.dtype != torch.float64
    )


def _operator(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


def _half(tensor: Tensor, casts: dict[int, tuple[Tensor, Tensor]]) -> Tensor:
    """Casts of trained leaves are kept until autocast ends."""
    half = torch.get_autocast_dtype("cpu")
    if tensor.dtype == half:
        return tensor
    is_kept = (
        tensor.dtype == torch.float32
        and tensor.requires_grad
        and tensor.is_leaf
        and not tensor._is_view()
        and torch.is_autocast_cache_enabled()
    )
    if not is_kept:
        return tensor.to(half)
    if id(tensor) not in casts:
        casts[id(tensor)] = (tensor, tensor.to(half))
    return casts[id(tensor)][1]


def _single(tensor: Tensor) -> Tensor:
    return tensor.to(torch.float32)


def _without_autocast() -> Any:
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)
    return torch._C._ExcludeDispatchKeyGuard(keys)


def _casting(operator: Any, rule: Callable[[Tensor], Tensor]) -> Callable[..., Any]:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        with _without_autocast():
            args, kwargs = _cast_all(rule, args, kwargs)
            return operator(*args, **kwargs)

    return kernel


def _cast_all(
    rule: Callable[[Tensor], Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Casts the arguments from the last to the first, as compiled C++ does."""

    def cast(value: Any) -> Any:
        return rule(value) if _is_cast(value) else value

    cast_kwargs = {name: tree_map(cast, kwargs[name]) for name in reversed(kwargs)}
    cast_args = [tree_map(cast, value) for value in reversed(args)]
    return tuple(reversed(cast_args)), cast_kwargs


def _with_single_result(operator: Any) -> Callable[..., Any]:
    places = [argument.name for argument in operator._schema.arguments]

    def kernel(*args: Any, **kwargs: Any) -> Any:
        arguments = dict(zip(places, args)) | kwargs
        with _without_autocast():
            if _is_cast(args[0]) and arguments.get("dtype") is None:
                arguments["dtype"] = torch.float32
            first = arguments.pop(places[0])
            return operator(first, **arguments)

    return kernel


def _promoting(operator: Any) -> Callable[..., Any]:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if _is_cast(leaf)]
        is_single = any(tensor.dtype == torch.float32 for tensor in tensors)
        widest = torch.float32 if is_single else torch.get_autocast_dtype("cpu")

        with _without_autocast():
            args, kwargs = _cast_all(lambda t: t.to(widest), args, kwargs)
            return operator(*args, **kwargs)

    return kernel


def _of_the_cpu_alone() -> Iterator[Any]:
    ours = {*_HALF, *_SINGLE, *_SINGLE_RESULT, *_WIDEST}
    for name in torch._C._dispatch_get_registrations_for_dispatch_key(_KEY):
        bare = name.removeprefix("aten::")
        if name.startswith("aten::") and bare not in ours:
            operator = _operator(bare)
            # Operators that autocast itself needs are there for CUDA as well.
            if not torch._C._dispatch_has_kernel_for_dispatch_key(name, "AutocastCUDA"):
                yield operator
