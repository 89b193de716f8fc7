"""Modules of public benchmarks on GPUs, their times and peaks of memory, for
compare_gpu_truth.py: the plain PyTorch of Liger's table, and a projection with cross entropy.

A peak of Liger's table is the median of max_memory_allocated of ten calls. Each one adds to the
gradients of those before, and keeps a name for its output while it runs backward:

    y = module(x)
    y.backward(gradient, retain_graph=True)      # or loss.backward()

A time is that of such a call, or of its first or second line. Calls that are timed add to the
gradients of weights alone. Where a benchmark does something else, the comment beside it says
so. Peaks of embeddings are left out: they have 12 GiB whose origin the script does not show.
"""

import dataclasses
import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from acplan import Device, Trace, trace
from gpu_truth_liger import Case, Function, case_of
from gpu_truth_operators import Row

_LEFT_OUT = ("embedding",)
_UNITS = {"MiB": 2**20, "GB": 10**9}


class _Gradients(torch.autograd.Function):
    """The loss of outputs whose gradients are tensors that are there. If one has another type
    than its output, PyTorch's engine casts it, and keeps that until backward ends."""

    @staticmethod
    def forward(context: Any, *outputs_and_gradients: torch.Tensor) -> torch.Tensor:
        count = len(outputs_and_gradients) // 2
        context.gradients = outputs_and_gradients[count:]
        context.types = [output.dtype for output in outputs_and_gradients[:count]]
        return outputs_and_gradients[0].new_empty(())

    @staticmethod
    def backward(context: Any, *_: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        context.cast = [
            gradient.to(dtype)
            for gradient, dtype in zip(context.gradients, context.types, strict=True)
        ]
        return (*context.cast, *(None for _ in context.cast))


@dataclasses.dataclass(frozen=True)
class _Harness:
    """How a benchmark differs from others."""

    is_loss: bool = False
    keeps_graph: bool = True
    frees_gradients: bool = False  # of the call before
    sums_output: bool = False  # and runs backward from there
    twins: int = 0  # weights of other implementations that are there as well
    is_whole: bool = False  # also where it is said to be the backward pass
    # The inputs are a softmax of leaves, made once: backward passes go on to the leaves.
    takes_softmax: bool = False


_SOFTMAX = ("aten._softmax.default", "aten._log_softmax.default")

_HARNESSES = {
    "cross_entropy": _Harness(is_loss=True, keeps_graph=False),
    "fused_linear_cross_entropy": _Harness(is_loss=True, keeps_graph=False, twins=1),
    "fused_add_rms_norm": _Harness(keeps_graph=False, twins=3),
    "group_norm": _Harness(twins=1),
    "kl_div": _Harness(is_loss=True, takes_softmax=True),
    "layer_norm": _Harness(twins=1),
    "megatron_rms_norm": _Harness(keeps_graph=False, sums_output=True, is_whole=True),
    "megatron_swiglu": _Harness(
        keeps_graph=False, frees_gradients=True, sums_output=True, is_whole=True
    ),
    "rms_norm": _Harness(twins=1),
    "tvd": _Harness(is_loss=True, takes_softmax=True),
}


class _Call(nn.Module):
    """A call of the benchmark. `leaves`: inputs whose gradients are added to."""

    def __init__(
        self, module: nn.Module, leaves: tuple[torch.Tensor, ...], harness: _Harness
    ) -> None:
        super().__init__()
        self.module, self._harness = module, harness
        self.leaves = nn.ParameterList(leaves)
        for k, weight in enumerate([*module.parameters()] * harness.twins):
            self.register_buffer(f"twin_{k}", torch.empty_like(weight))
        self._saved: list[torch.Tensor] = []

    def _save(self, tensor: torch.Tensor) -> torch.Tensor:
        self._saved.append(tensor)
        return tensor

    def forward(
        self, gradients: tuple[torch.Tensor, ...], others: tuple[torch.Tensor, ...]
    ) -> torch.Tensor:
        self._saved.clear()
        if not self._harness.keeps_graph:
            return self._loss(gradients, others)
        with torch.autograd.graph.saved_tensors_hooks(self._save, lambda tensor: tensor):
            return self._loss(gradients, others)

    def _loss(
        self, gradients: tuple[torch.Tensor, ...], others: tuple[torch.Tensor, ...]
    ) -> torch.Tensor:
        y = self.module(*self.leaves, *others)
        if self._harness.is_loss:
            loss: torch.Tensor = y
            return loss
        outputs = [self._save(output) for output in _outputs(y)]
        if self._harness.sums_output:
            return outputs[0].sum()
        # PyTorch leaves apply untyped.
        # PyTorch has no type for apply.
        with_gradients: torch.Tensor = _Gradients.apply(*outputs, *gradients)  # type: ignore[no-untyped-call]
        return with_gradients


class _ForwardAlone(nn.Module):
    """A call of the benchmark that runs forward. The process has run backward before, so both
    threads have a workspace of cuBLAS: a product of one element takes them."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module, self.element = module, nn.Parameter(torch.empty(1, 1, device="meta"))

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        self.module(*inputs)
        return (self.element @ self.element).sum()


def _outputs(y: Any) -> tuple[torch.Tensor, ...]:
    return y if isinstance(y, tuple) else (y,)


def _traced(module: nn.Module, *inputs: Any, device: Device, accumulate: int) -> Trace:
    parameters = list(module.parameters())
    return trace(
        module,
        *inputs,
        device=device,
        optimizer=torch.optim.SGD(parameters, 0.1),  # it has no memory
        accumulate=accumulate,
        source=False,
    )


def _harness_of(row: Row) -> _Harness:
    return _HARNESSES.get(row["model"], _Harness())


def _gradients_of(case: Case, harness: _Harness) -> tuple[torch.Tensor, ...]:
    """Returns tensors like the input, one for each output."""
    module, inputs = case
    if harness.is_loss or harness.sums_output:
        return ()
    x = next(x for x in (*inputs, *module.parameters()) if x.is_floating_point())
    outputs = _outputs(module(*inputs))
    # An embedding's gradient is like its output.
    return tuple(torch.empty_like(x if x.shape == y.shape else y) for y in outputs)


def module_ms(row: Row, device: Device) -> float | None:
    """Returns the predicted time of a row of Liger's table, or None if its operator is not
    known."""
    harness = _harness_of(row)
    case = case_of(row, {"softmax": harness.takes_softmax})
    if case is None:
        return None
    module, inputs = case
    gradients = _gradients_of(case, harness)
    # Gradients of inputs are freed, except those of the leaves behind a softmax.
    is_freed = isinstance(module, Function) and module.has_input and not harness.takes_softmax
    accumulate = 1 if is_freed else 2
    call = _Call(module, (), harness)
    data = _traced(call, gradients, inputs, device=device, accumulate=accumulate).data
    operators, forward, end = data["operators"], data["forward_end"], data["backward_end"]
    first = forward
    if not harness.is_loss and not harness.sums_output:  # the loss and its gradient
        first = next(k for k in range(forward, end) if "ones_like" in operators[k]["name"]) + 1
    mode = "full" if harness.is_whole and "backward" in row["note"] else row["note"]
    passes = [*range(forward)] if not mode.startswith("backward") else []
    passes += [*range(first, end)] if not mode.startswith("forward") else []
    return math.fsum(
        operators[k]["runtime_ms"]
        for k in passes
        if not (harness.takes_softmax and operators[k]["name"] in _SOFTMAX)
        and operators[k]["name"] != "aten.new_empty.default"
    )


def _liger_bytes(row: Row, device: Device) -> int | None:
    harness = _harness_of(row)
    settings = {"softmax": harness.takes_softmax}
    if row["model"] in ("relu_squared", "softmax"):
        settings["M"] = 1  # their scripts have randn(N) in place of randn(M, N)
    case = None if row["model"] in _LEFT_OUT else case_of(row, settings)
    if case is None:
        return None
    module, inputs = case
    # The scripts of other operators measure the whole call under every name.
    if "glu" in row["model"] and row["note"].startswith("forward"):
        return _traced(_ForwardAlone(module), *inputs, device=device, accumulate=1).peak_bytes
    gradients = _gradients_of(case, harness)
    leaves = tuple(x for x in inputs if x.requires_grad)
    others = tuple(x for x in inputs if not x.requires_grad)
    call = _Call(module, leaves, harness)
    accumulate = 1 if harness.frees_gradients else 2
    return _traced(call, gradients, others, device=device, accumulate=accumulate).peak_bytes


class _Projection(nn.Module):
    def __init__(self, inner: int, classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inner, classes, bias=False)

    def forward(self, x: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.linear(x), targets)


def _projection_bytes(row: Row) -> int:
    """Returns the peak above what was there before: cuBLAS' workspaces were."""
    inner, classes = (int(part.split()[1]) for part in row["build"].split(", "))
    with torch.device("meta"):
        module = _Projection(inner, classes)
        x = torch.empty(int(row["batch"]), inner)
        targets = torch.empty(int(row["batch"]), dtype=torch.long)
    sgd = torch.optim.SGD(module.parameters(), 0.1)
    traced = trace(module, x, targets, optimizer=sgd, workspaces=False, source=False)
    return traced.peak_bytes


def peak_bytes(row: Row, device: Device | None) -> int | None:
    """Returns the predicted peak of a row, or None if nothing says how it was measured."""
    if row["source"] == "liger" and device is not None:
        return _liger_bytes(row, device)
    if row["source"] == "efficient_cross_entropy":
        return _projection_bytes(row)
    return None


def measured_bytes(row: Row) -> float:
    return float(row["value"]) * _UNITS[row["unit"]]
