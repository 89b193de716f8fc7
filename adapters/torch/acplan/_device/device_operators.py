"""Adds to fake tensors what they lack to run a device's operators: shapes of operators for
which PyTorch has only kernels, and the operators that it has on CUDA alone."""

import contextlib
import importlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._subclasses import fake_impls, fake_tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._mode_utils import no_dispatch
from torch.utils._pytree import tree_map, tree_unflatten

from acplan._base.errors import AcplanError
from acplan._base.patching import set_attribute

_aten = torch.ops.aten
Fake = Callable[..., Any]

_AUTOCAST = "AutocastCUDA"

# torch.optim does not have the first as an attribute.
_MODULES_OF_LISTS = ("torch.optim.optimizer", "torch.utils._foreach_utils")

# The operators of native_functions.yaml that have a kernel for CUDA and a composite one for all
# other devices: without the kernel, PyTorch would run the operators of the composite.
_AUTOCAST = "AutocastCUDA"
KERNELS_OF_CUDA = ("_fused_rms_norm", "mish_backward", "silu_backward")


@contextlib.contextmanager
def shapes_of_device_operators() -> Iterator[None]:
    """Adds the operators of `_fakes` to fake tensors within the block, and lets optimizers take
    fake tensors in lists, as they take tensors on the device."""
    implementations = {
        operator: _as_implementation(fake) for operator, fake in _fakes().items()
    }
    with contextlib.ExitStack() as undo:
        undo.enter_context(_implementations(implementations))
        for owner in map(importlib.import_module, _MODULES_OF_LISTS):
            types = [*owner._foreach_supported_types, FakeTensor]
            undo.enter_context(set_attribute(owner, "_foreach_supported_types", types))
        yield


@contextlib.contextmanager
def _implementations(implementations: dict[Any, Any]) -> Iterator[None]:
    """Adds these to the table of fake tensors' operators within the block."""
    table = fake_impls.op_implementations_dict
    before = {operator: table[operator] for operator in implementations if operator in table}
    table.update(implementations)
    try:
        yield
    finally:
        for operator in implementations:
            del table[operator]
        table.update(before)


@contextlib.contextmanager
def operators_of_cuda() -> Iterator[None]:
    """Lets a PyTorch without CUDA run, within the block, the operators that a PyTorch with CUDA
    runs, and take shapes from the CPU's kernels in place of CUDA's."""
    library = torch.library.Library("aten", "IMPL")
    try:
        for name in KERNELS_OF_CUDA:
            if hasattr(_aten, name) and not _has_cuda_kernel(name):
                library.impl(name, _never_runs, "CUDA")
        if not torch._C._dispatch_has_kernel_for_dispatch_key("aten::_cudnn_rnn", _AUTOCAST):
            library.impl("_cudnn_rnn", _cast_rnn, _AUTOCAST)
        with set_attribute(fake_tensor, "run_fallback_kernel", _on_the_cpu):
            yield
    finally:
        library._destroy()


# aten/src/ATen/cudnn/AutocastRNN.cpp: to float16, whatever autocast's data type.
def _cast_rnn(input: torch.Tensor, weight: list[torch.Tensor], *arguments: Any) -> Any:
    """Runs a recurrent layer with its input and states in float16, and with weights that are
    views of a flat copy in float16. Autograd sees the copies."""
    weight_stride0, weight_buf, hx, cx, *rest = arguments
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCUDA)
    half: dict[str, Any] = {"dtype": torch.float16, "device": input.device}
    with torch._C._ExcludeDispatchKeyGuard(keys):
        if weight[0].dtype not in (torch.float16, torch.float64):
            weight_buf = torch.zeros(sum(map(torch.numel, weight)), **half)
            flat = weight_buf.untyped_storage()
            place: Any = torch.Tensor.set_
            starts = itertools.accumulate(map(torch.numel, weight), initial=0)
            parts = [
                place(torch.empty(0, **half), flat, start, w.shape)
                for start, w in zip(starts, weight)
            ]
            weight = [part.copy_(w) for part, w in zip(parts, weight, strict=True)]
        states = [
            state if state is None or state.dtype == torch.float64 else state.half()
            for state in (input, hx, cx)
        ]
        return _aten._cudnn_rnn(
            states[0], weight, weight_stride0, weight_buf, states[1], states[2], *rest
        )


def _has_cuda_kernel(name: str) -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", "CUDA")


def _never_runs(*args: Any, **kwargs: Any) -> Any:
    raise AcplanError("a kernel of CUDA was called without CUDA")


def _as_implementation(fake: Fake) -> Fake:
    def implementation(mode: FakeTensorMode, func: Any, *args: Any, **kwargs: Any) -> Any:
        with mode:
            return fake(*args, **kwargs)

    return implementation


def _on_the_cpu(
    mode: FakeTensorMode,
    func: Any,
    flat_args: list[Any],
    spec: Any,
    error: Exception,
) -> Any:
    """Returns results with the shapes that the CPU's kernel returns for tensors of zeros, for
    an operator without shapes of its own."""
    if not func._schema.returns:
        return None
    originals: dict[int, FakeTensor] = {}

    def real(value: Any) -> Any:
        if not isinstance(value, FakeTensor):
            return value
        zeros = torch.zeros(value.shape, dtype=value.dtype)
        originals[id(zeros)] = value
        return zeros

    with no_dispatch():
        args, kwargs = tree_unflatten([real(value) for value in flat_args], spec)
        try:
            out = func(*args, **kwargs)
        except NotImplementedError:
            raise AcplanError(
                f"{func}: PyTorch has neither shapes for it nor a kernel for the CPU, "
                "so it cannot be traced without a CUDA device"
            ) from error

    def fake(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if id(value) in originals:
            return originals[id(value)]
        with mode:
            return torch.empty_strided(
                value.shape, value.stride(), dtype=value.dtype, device="cuda"
            )

    return tree_map(fake, out)


def _fakes() -> dict[Any, Fake]:
    """Returns the functions that make an operator's fake results, indexed by operator, for the
    operators of this version of PyTorch."""
    fakes: dict[str, Fake] = {
        "_thnn_fused_gru_cell": _gru_cell,
        "_thnn_fused_gru_cell_backward": _gru_cell_backward,
        "_cudnn_rnn": _cudnn_rnn,
        "_cudnn_rnn_backward": _rnn_backward,
        "miopen_rnn_backward": _rnn_backward,
        "cudnn_grid_sampler": _grid_sampler,
        "cudnn_grid_sampler_backward": _grid_sampler_backward,
        "_grouped_mm": _grouped_mm,
        "_ctc_loss": _ctc_loss,
        "_ctc_loss.Tensor": _ctc_loss,
        "_ctc_loss_backward": _ctc_loss_backward,
        "_ctc_loss_backward.Tensor": _ctc_loss_backward,
        "_use_cudnn_ctc_loss": _no_cudnn_ctc_loss,
        "_use_cudnn_ctc_loss.Tensor": _no_cudnn_ctc_loss,
        "_use_miopen_ctc_loss": _no_cudnn_ctc_loss,
        "_use_miopen_ctc_loss.Tensor": _no_cudnn_ctc_loss,
    }
    fakes_by_operator = {}
    for name, fake in fakes.items():
        packet, _, overload = name.partition(".")
        if hasattr(_aten, packet):
            operators = getattr(_aten, packet)
            if (overload or "default") in operators.overloads():
                fakes_by_operator[getattr(operators, overload or "default")] = fake
    return fakes_by_operator


# aten/src/ATen/native/cuda/RNN.cu
_GRU_WORKSPACE = 5


def _gru_cell(
    input_gates: torch.Tensor,
    hidden_gates: torch.Tensor,
    hx: torch.Tensor,
    input_bias: torch.Tensor | None = None,
    hidden_bias: torch.Tensor | None = None,
) -> Any:
    workspace = hx.new_empty(hx.shape[0], hx.shape[1] * _GRU_WORKSPACE)
    return torch.empty_like(hx, memory_format=torch.contiguous_format), workspace


def _gru_cell_backward(grad_hy: torch.Tensor, workspace: torch.Tensor, has_bias: bool) -> Any:
    rows, hidden = workspace.shape[0], workspace.shape[1] // _GRU_WORKSPACE
    gates = [workspace.new_empty(rows, hidden * 3) for _ in range(2)]
    grad_hx = torch.empty_like(grad_hy, memory_format=torch.contiguous_format)
    biases = [workspace.new_empty(hidden * 3) for _ in range(2)] if has_bias else []
    return (*gates, grad_hx, *(biases or (None, None)))


# The values that cuDNN keeps of each element of a layer's state, by the mode that PyTorch gives
# (relu, tanh, LSTM, GRU): those of LSTM and GRU follow from reserves that were
# measured (docs/workspaces.md), those of plain layers are the least that backward can need.
_RESERVED_VALUES = (1, 1, 5, 6)


def _reserve_bytes(
    input: torch.Tensor, mode: int, hidden_size: int, num_layers: int, directions: int
) -> int:
    """Returns the bytes that backward reads of the forward pass: the values of each layer, and
    the outputs of all but the last."""
    steps = input.numel() // input.shape[-1]
    values = num_layers * _RESERVED_VALUES[mode] + num_layers - 1
    return steps * directions * hidden_size * values * input.element_size()


# aten/src/ATen/native/cudnn/RNN.cpp
def _cudnn_rnn(
    input: torch.Tensor,
    weight: list[torch.Tensor],
    weight_stride0: int,
    weight_buf: torch.Tensor,
    hx: torch.Tensor,
    cx: torch.Tensor | None,
    mode: int,
    hidden_size: int,
    proj_size: int,
    num_layers: int,
    batch_first: bool,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_sizes: list[int],
    dropout_state: torch.Tensor | None,
) -> Any:
    """Returns shapes as on the CPU, and the reserve of a forward pass that trains."""
    directions = 2 if bidirectional else 1
    width = (proj_size or hidden_size) * directions
    if batch_sizes:
        output = input.new_empty(input.shape[0], width)
    elif batch_first:
        output = input.new_empty(input.shape[1], input.shape[0], width).transpose(0, 1)
    else:
        output = input.new_empty(*input.shape[:2], width)
    hy = torch.empty_like(hx, memory_format=torch.contiguous_format)
    cy = hx.new_empty(0) if cx is None else cx.new_empty(cx.shape)
    reserved = _reserve_bytes(input, mode, hidden_size, num_layers, directions) if train else 0
    reserve = input.new_empty(reserved, dtype=torch.uint8)
    return output, hy, cy, reserve, weight_buf


def _rnn_backward(
    input: torch.Tensor,
    weight: list[torch.Tensor],
    weight_stride0: int,
    weight_buf: torch.Tensor,
    hx: torch.Tensor,
    cx: torch.Tensor | None,
    *args: Any,
) -> Any:
    mask = args[-1]
    grad_input = input.new_empty(input.shape)
    grad_hx = hx.new_empty(hx.shape)
    grad_cx = None if cx is None else cx.new_empty(cx.shape)
    weights = []
    if mask[3]:
        # One chunk of memory, and each gradient is a part of it.
        sizes = [w.numel() for w in weight]
        parts = input.new_empty(sum(sizes)).split(sizes)
        weights = [part.view(w.shape) for part, w in zip(parts, weight)]
    return grad_input, grad_hx, grad_cx, weights


# aten/src/ATen/native/cudnn/GridSampler.cpp
def _grid_sampler(self: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
    return self.new_empty(*self.shape[:2], *grid.shape[1:3])


def _grid_sampler_backward(
    self: torch.Tensor, grid: torch.Tensor, grad_output: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    return self.new_empty(self.shape), grid.new_empty(grid.shape)


def _grouped_mm(
    mat_a: torch.Tensor,
    mat_b: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Returns a fake result, as create_grouped_gemm_output_tensor of
    aten/src/ATen/native/GroupedMMUtils.h makes it. PyTorch's own function for fake tensors
    takes only bfloat16, CUDA's kernel also float32 and float16."""
    dtype = out_dtype or mat_a.dtype
    is_flat = mat_a.dim() == 2, mat_b.dim() == 2
    if is_flat == (True, True):
        assert offs is not None
        size = [offs.shape[0], mat_a.shape[0], mat_b.shape[1]]
    elif is_flat == (True, False):
        size = [mat_a.shape[0], mat_b.shape[2]]
    elif is_flat == (False, True):
        size = [mat_a.shape[1], mat_b.shape[1]]
    else:
        size = [mat_a.shape[0], mat_a.shape[1], mat_b.shape[2]]
    if torch.version.hip:
        return mat_a.new_empty(size, dtype=dtype)
    alignment = 16 // dtype.itemsize
    row = -(-size[-1] // alignment) * alignment
    stride = [row, 1] if len(size) == 2 else [size[1] * row, row, 1]
    return mat_a.new_empty_strided(size, stride, dtype=dtype)


# aten/src/ATen/native/cuda/LossCTC.cu
def _ctc_loss(
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    zero_infinity: bool = False,
) -> Any:
    longest = (
        max(target_lengths, default=0)
        if isinstance(target_lengths, (list, tuple))
        else targets.shape[-1]  # at most
    )
    steps, batch = log_probs.shape[:2]
    return (
        log_probs.new_empty(batch),
        log_probs.new_empty(batch, steps, 2 * longest + 1),
    )


def _ctc_loss_backward(grad: torch.Tensor, log_probs: torch.Tensor, *_: Any) -> Any:
    return torch.empty_like(log_probs, memory_format=torch.contiguous_format)


def _no_cudnn_ctc_loss(*args: Any) -> bool:
    """Returns that cuDNN (or MIOpen) does not compute the loss: it takes targets of 32 bits on
    the CPU, which training does not have."""
    return False
