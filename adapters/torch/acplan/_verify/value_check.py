"""Compares the values of a step with a plan with those without it, on real tensors.

Two copies of the model take the same steps from the same random states, one of them with the
plan. Losses, gradients, buffers and the next random numbers must be the same. The copies run on
the model's device, for most models the CPU; a few operators have other names there than on a
GPU, and the plan then recomputes them.
"""

import contextlib
import copy
import random
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from acplan._apply.apply import apply
from acplan._base.errors import AcplanError, PlanMismatchWarning
from acplan._fakes.random_states import random_state_kept
from acplan._fakes.restored_state import objects_kept
from acplan._files.plan_file import Plan
from acplan._files.trace_file import Trace
from acplan._files.verification import ValueCheck
from acplan._step.autocast import autocast_of
from acplan._step.checkpointing_off import without_checkpointing
from acplan._step.parallel_already import mesh_of
from acplan._step.training_step import TrainingStep, default_loss

# Limits, by the numbers of the trace, above which a step on a CPU takes long.
_MOST_BYTES = 1 << 28
_MOST_MS = 0.5
_MOST_OPERATORS = 4000
_SEED = 1
_STEPS = 2


def is_small(trace: "Trace") -> bool:
    """Returns whether a step of this trace takes moments on a CPU."""
    operators = trace.data["operators"]
    runtime_ms = sum(operator["runtime_ms"] for operator in operators)
    return (
        trace.peak_bytes <= _MOST_BYTES
        and runtime_ms <= _MOST_MS
        and len(operators) <= _MOST_OPERATORS
    )


def compare_values(step: TrainingStep, plan: Plan) -> ValueCheck:
    """Takes steps with the plan and without it, on copies of the model.

    Raises AcplanError if the model or its inputs cannot be run or copied, such as a model on
    the meta device.
    """
    inputs = tree_leaves((step.args, step.kwargs))
    tensors = [*step.model.parameters(), *step.model.buffers(), *inputs]
    if any(isinstance(t, torch.Tensor) and t.device.type == "meta" for t in tensors):
        raise AcplanError("values: the model or one of its arguments is on the meta device")
    functions = (step.loss_fn, step.forward_fn)
    with objects_kept(*functions), random_state_kept(), torch.enable_grad():
        try:
            expected = _outcome(step, None)
            values = _outcome(step, plan)
            check = _compared(expected, values)
            if check.differences:
                # Values that differ from one time to the next without a plan prove nothing.
                repeat = _compared(expected, _outcome(step, None))
                if repeat.differences:
                    return ValueCheck(
                        skip_reason="the step without the plan differs between runs, too: "
                        f"{repeat.differences[0]}"
                    )
        except AcplanError:
            raise
        except Exception as error:  # raised by the user's code, or by PyTorch on this device
            raise AcplanError(
                f"values: the step does not run where the model is: "
                f"{type(error).__name__}: {error}"
            ) from error
    return check


def _outcome(step: TrainingStep, plan: Plan | None) -> dict[str, Any]:
    """Returns the values that some steps of a copy of the model leave, by name."""
    _seed()
    model = copy.deepcopy(step.model).train()
    model.zero_grad(set_to_none=True)
    values: dict[str, Any] = {}
    with contextlib.ExitStack() as stack:
        model = stack.enter_context(without_checkpointing(model, is_told=False))
        if plan is not None:
            model = apply(model, plan)
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore", PlanMismatchWarning)
        for k in range(_STEPS):
            args, kwargs = copy.deepcopy((step.args, step.kwargs))
            loss = _loss(step, model, args, kwargs)
            loss.backward()  # gradients of steps add up
            values[f"loss of step {k}"] = loss.detach().clone()
        for name, parameter in model.named_parameters():
            if parameter.grad is not None:
                values[f"gradient of {name}"] = parameter.grad
        values |= {f"buffer {name}": t.clone() for name, t in model.named_buffers()}
        values["next random numbers"] = torch.rand(3)
        values["Python's next random number"] = torch.tensor(random.random())
    return values


def _seed() -> None:
    torch.manual_seed(_SEED)
    random.seed(_SEED)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(_SEED)


def _loss(step: TrainingStep, model: torch.nn.Module, args: Any, kwargs: Any) -> torch.Tensor:
    with _autocast(step, model):
        if step.forward_fn is not None:
            return step.forward_fn(model, *args, **kwargs)
        loss_fn = step.loss_fn or default_loss
        loss: torch.Tensor = loss_fn(model(*args, **kwargs))
        return loss


@contextlib.contextmanager
def _autocast(step: TrainingStep, model: torch.nn.Module) -> Iterator[None]:
    autocast = autocast_of(step.autocast)
    if autocast is None:
        yield
        return
    device = next((p.device.type for p in model.parameters()), "cpu")
    with torch.autocast(device, autocast.dtype, cache_enabled=autocast.keeps_casts):
        yield


def _compared(expected: dict[str, Any], values: dict[str, Any]) -> ValueCheck:
    differences = [
        f"{name} exists in one of the two only" for name in expected.keys() ^ values.keys()
    ]
    is_exact = True
    for name in expected.keys() & values.keys():
        one, other = (_dense(side[name]) for side in (expected, values))
        if one.shape == other.shape and torch.equal(one, other):
            continue
        is_exact = False
        off = _difference(one, other)
        if off > _tolerance(one):
            differences.append(f"{name} by {off:.3g} of its largest")
    return ValueCheck(len(expected), tuple(sorted(differences)), is_exact)


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.detach()
    if tensor.layout != torch.strided:
        tensor = tensor.to_dense()
    # A NaN in both is equal.
    return tensor.nan_to_num() if tensor.is_floating_point() else tensor


def _difference(one: torch.Tensor, other: torch.Tensor) -> float:
    if one.shape != other.shape:
        return float("inf")
    wide = torch.complex128 if one.is_complex() else torch.float64
    one, other = one.to(wide), other.to(wide)
    largest = max(float(one.abs().max()), 1e-30)
    return float((one - other).abs().max()) / largest


def _tolerance(tensor: torch.Tensor) -> float:
    """Returns the relative difference that sums in another order may make, as in kernels with
    threads."""
    is_rounded = tensor.is_floating_point() or tensor.is_complex()
    return 16 * torch.finfo(tensor.dtype).eps if is_rounded else 0.0


def check_values(
    step: TrainingStep, plan: Plan, model_trace: Trace, wants: bool | None
) -> ValueCheck | None:
    """Compares the values of the step, if they are wanted; None: if that takes moments."""
    if step.is_of_rank or mesh_of(step.model) is not None:
        if wants:
            raise AcplanError("values: expected a model on one device, found a rank of a mesh")
        return None
    if wants is False or not (wants or is_small(model_trace)):
        return None
    try:
        return compare_values(step, plan)
    except AcplanError as error:
        if wants:
            raise
        return ValueCheck(skip_reason=str(error))
