"""acplan.verify: the model with its plan, traced again on fake tensors."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any, overload

import torch

from acplan._base.arguments import require_module, with_old_name
from acplan._base.errors import AcplanError
from acplan._files.charts import remember
from acplan._files.plan_file import Plan, plan_given
from acplan._files.plan_table import PlanTable
from acplan._files.trace_file import Trace
from acplan._files.verification import TableVerification, Verification
from acplan._step.trace import trace as make_trace
from acplan._step.training_step import TrainingStep
from acplan._verify.device_check import check_device, has_run
from acplan._verify.retrace import OF_TRACES, options_of_retrace, retracing
from acplan._verify.simulated import simulating
from acplan._verify.value_check import check_values
from acplan._verify.verify_table import verify_table


@overload
def verify(
    model: torch.nn.Module,
    plan: Plan,
    *args: Any,
    trace: Trace | None = None,
    values: bool | str | None = None,
    **kwargs: Any,
) -> Verification: ...


@overload
def verify(
    model: torch.nn.Module,
    plan: PlanTable,
    *args: Any,
    trace: Mapping[int, Trace] | None = None,
    values: bool | str | None = None,
    **kwargs: Any,
) -> TableVerification: ...


@with_old_name("of", "trace", Trace)
def verify(
    model: torch.nn.Module,
    plan: Plan | PlanTable,
    *args: Any,
    trace: Trace | Mapping[int, Trace] | None = None,
    values: bool | str | None = None,
    **kwargs: Any,
) -> Verification | TableVerification:
    """Predicts the plan's memory over a training step, and traces the step again with the plan
    applied, on fake tensors: no GPU is used.

    `Verification.device` has the run that repeats the step on PyTorch's allocator, predicted
    and of the step that was traced again.

    Arguments and options are those of acplan.trace, microbatches are those of `trace`, the
    model's trace, if it is given. The model must be without the plan, and is left so.

    values: takes steps of copies of the model with the plan and without it, on real tensors on
    the model's device, and compares losses, gradients, buffers and random states
    (`Verification.values`). This is the default if it takes moments. With a smaller batch in
    `args`, and without `trace`, a larger model is affordable. A text is passed to acplan.trace.

    A table of plans takes in place of arguments a function of a length that returns the model's
    inputs, as acplan.trace_lengths, `lengths`, and as `trace` the traces by length. The step of
    each traced length is traced again with its plan, and the run of all batches is simulated.
    `evaluations` are those of acplan.plan.
    """
    if kwargs.get("mesh") is None:
        require_module(model)
    if isinstance(values, str):
        kwargs["values"], values = values, None
    if isinstance(plan, PlanTable):
        if isinstance(trace, Trace):
            raise AcplanError("verify: a table of plans needs traces by length, found one")
        return verify_table(model, plan, args, values, {**kwargs, "trace": trace})
    if isinstance(trace, Mapping):
        raise AcplanError("verify: traces by length are for a table of plans")
    plan = plan_given(plan)
    model_trace = make_trace(model, *args, **kwargs) if trace is None else trace
    with _verifying(
        model, *args, model_trace=model_trace, on_device=True, **kwargs
    ) as verified:
        verification = verified(plan)
    own = {name: kwargs[name] for name in kwargs if name not in OF_TRACES}
    step = TrainingStep.from_arguments(model, args, own)
    check = check_values(step, plan, model_trace, values)
    return remember(dataclasses.replace(verification, values=check), model_trace, plan)


@contextlib.contextmanager
def verifying(
    model: torch.nn.Module, *args: Any, model_trace: Trace | None = None, **kwargs: Any
) -> Iterator[Callable[[Plan], Verification]]:
    """Yields a function like `verify` for many plans, one after the other, on the same fake
    tensors, without a run on a device."""
    with _verifying(model, *args, model_trace=model_trace, **kwargs) as verified:
        yield verified


@contextlib.contextmanager
def _verifying(
    model: torch.nn.Module,
    *args: Any,
    model_trace: Trace | None,
    on_device: bool = False,
    **kwargs: Any,
) -> Iterator[Callable[[Plan], Verification]]:
    if model_trace is None:
        model_trace = make_trace(model, *args, **kwargs)
    kwargs = options_of_retrace(model_trace, kwargs)
    with (
        simulating(model_trace) as simulated,
        retracing(model, *args, **kwargs) as retraced,
    ):

        def verified(plan: Plan) -> Verification:
            retrace = retraced(plan, on_device and has_run(plan))
            device = None
            if retrace.trace is not None:
                device = check_device(model_trace, plan, retrace.trace)
            verification = Verification(simulated(plan), retrace.operators, device=device)
            return remember(verification, model_trace, plan)

        yield verified
