"""acplan.verify: the model with its plan, traced again on fake tensors."""

import contextlib
import csv
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import torch

from acplan._apply.apply import applied
from acplan._base.arguments import require_module
from acplan._base.errors import AcplanError
from acplan._base.question import question_folder
from acplan._device.devices import DEVICES, find_device
from acplan._fakes.real_values import Limits
from acplan._files.charts import remember
from acplan._files.plan_file import Plan, plan_given
from acplan._files.trace_file import Trace
from acplan._files.verification import ValueCheck, Verification, VerifiedOperator
from acplan._step.checkpointing_off import without_checkpointing
from acplan._step.recorder import Recorder
from acplan._step.records import Operator
from acplan._step.run_step import peak_of, run_step, timeline_of
from acplan._step.step import alone, step_on_fakes
from acplan._step.step_log import StepLog
from acplan._step.trace import trace as make_trace
from acplan._step.trace_data import Recorded, trace_data
from acplan._step.training_step import TrainingStep
from acplan._verify.device_check import check_device, has_run
from acplan._verify.value_check import compare_values, is_small


def verify(
    model: torch.nn.Module,
    plan: Plan,
    *args: Any,
    trace: Trace | None = None,
    values: bool | str | None = None,
    **kwargs: Any,
) -> Verification:
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
    """
    require_module(model)
    plan = plan_given(plan)
    if isinstance(values, str):
        kwargs["values"], values = values, None
    model_trace = make_trace(model, *args, **kwargs) if trace is None else trace
    with _verifying(
        model, *args, model_trace=model_trace, on_device=True, **kwargs
    ) as verified:
        verification = verified(plan)
    if values is False or not (values or is_small(model_trace)):
        return verification
    own = {name: kwargs[name] for name in kwargs if name not in _OF_TRACES}
    try:
        check = compare_values(TrainingStep.from_arguments(model, args, own), plan)
    except AcplanError as error:
        if values:
            raise
        check = ValueCheck(skip_reason=str(error))
    return remember(dataclasses.replace(verification, values=check), model_trace, plan)


# Options of acplan.trace that do not describe the step.
_OF_TRACES = ("progress", "workspaces", "source", "device")


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
    accumulate = kwargs.setdefault("accumulate", model_trace.accumulate)
    if accumulate != model_trace.accumulate:
        raise AcplanError(
            f"verify: accumulate is {accumulate!r}, and {model_trace.accumulate} in the trace"
        )
    capacity = kwargs.setdefault("capacity", model_trace.capacity)
    if capacity != model_trace.capacity:
        raise AcplanError(
            f"verify: capacity is {capacity!r}, and {model_trace.capacity!r} in the trace"
        )
    for name in (*_OF_TRACES, "values"):
        kwargs.pop(name, None)
    real = Limits.of_the_machine() if model_trace.has_real_values else None
    traced_for = model_trace.data["device"]["name"]
    kwargs["device"] = traced_for if traced_for in DEVICES else "a100"
    with (
        _simulating(model_trace) as simulated,
        _retracing(
            model, *args, workspaces=model_trace.workspaces, real=real, **kwargs
        ) as retraced,
    ):

        def verified(plan: Plan) -> Verification:
            retrace = retraced(plan, on_device and has_run(plan))
            device = None
            if retrace.trace is not None:
                device = check_device(model_trace, plan, retrace.trace)
            verification = Verification(simulated(plan), retrace.operators, device=device)
            return remember(verification, model_trace, plan)

        yield verified


def measure(
    model: torch.nn.Module, plan: Plan, *args: Any, **kwargs: Any
) -> tuple[VerifiedOperator, ...]:
    """Returns the operators of a training step of the model with the plan, on fake tensors;
    options are those of acplan.trace."""
    with measuring(model, *args, **kwargs) as measured:
        return measured(plan)


@contextlib.contextmanager
def measuring(
    model: torch.nn.Module, *args: Any, **kwargs: Any
) -> Iterator[Callable[[Plan], tuple[VerifiedOperator, ...]]]:
    """Yields a function like `measure` for many plans, one after the other."""
    with _retracing(model, *args, **kwargs) as retraced:
        yield lambda plan: retraced(plan, False).operators


@dataclasses.dataclass(frozen=True)
class _Retrace:
    """A step with a plan, traced again."""

    operators: tuple[VerifiedOperator, ...]
    # The same as a trace. Its modules are no candidates for a plan.
    trace: Trace | None = None


@contextlib.contextmanager
def _retracing(
    model: torch.nn.Module,
    *args: Any,
    device: str = "a100",
    workspaces: bool = True,
    real: Limits | None = None,
    **kwargs: Any,
) -> Iterator[Callable[[Plan, bool], _Retrace]]:
    """Yields a function of a plan, and of whether a trace is asked for; a first step runs
    without a plan. `real`: with real values, within these limits."""
    training = TrainingStep.from_arguments(model, args, kwargs)
    target = find_device(device)

    with (
        alone(),
        without_checkpointing(model, is_told=False) as plain,
        step_on_fakes(dataclasses.replace(training, model=plain), target, real=real) as (
            on_fakes,
            optimizer,
        ),
    ):

        def retraced(plan: Plan, wants_trace: bool) -> _Retrace:
            recorder = Recorder(target, kernels=target if workspaces else None)
            plain.zero_grad(set_to_none=True)  # in case a step with a plan failed
            with applied(plain, plan) as planned_model:
                step = dataclasses.replace(on_fakes, model=planned_model)
                marks = run_step(recorder, step, optimizer)
                operators = _operators_of(recorder.log)
                if not wants_trace:
                    return _Retrace(operators)
                recorded = Recorded(recorder, recorder, marks, {})
                data = _names_apart(trace_data(step, target, recorded))
                return _Retrace(operators, Trace(data))

        yield retraced


def _names_apart(data: dict[str, Any]) -> dict[str, Any]:
    """Returns the trace with a name of its own for each module: a unit's wrapper within another
    wrapper may have the name of what it wraps."""
    names: set[str] = set()
    for module in data["modules"]:
        while module["fqn"] in names:
            module["fqn"] += "_"
        names.add(module["fqn"])
    return data


def _operators_of(log: StepLog) -> tuple[VerifiedOperator, ...]:
    live = timeline_of(log)
    assert max(live, default=0) == peak_of(log)
    return tuple(
        VerifiedOperator(operator.name, live_bytes, operator.runtime_ms)
        for operator, live_bytes in zip(log.operators, live)
        if not is_of_a_frame(log, operator)
    )


def is_of_a_frame(log: StepLog, operator: Operator) -> bool:
    # Checkpoints of older PyTorch versions begin with a tensor without elements.
    storages = [log.storages[index] for index in operator.outputs]
    return operator.name == "aten.empty.memory_format" and not any(
        storage.bytes or storage.on_device for storage in storages
    )


def simulate(model_trace: Trace, plan: Plan) -> tuple[VerifiedOperator, ...]:
    """Returns the operators of a training step with the plan, by `acplan simulate`."""
    with _simulating(model_trace) as simulated:
        return simulated(plan)


@contextlib.contextmanager
def _simulating(model_trace: Trace) -> Iterator[Callable[[Plan], tuple[VerifiedOperator, ...]]]:
    """Yields a function like `simulate` for many plans, one after the other."""
    with question_folder() as folder:
        question = {
            "trace": folder.add("trace", model_trace),
            "plan": "plan",
            "timeline": "steps.csv",
        }

        def simulated(plan: Plan) -> tuple[VerifiedOperator, ...]:
            plan.save(folder.path_of("plan"), model=model_trace.data["model"]["name"])
            folder.ask("simulate", question).require_success()
            with folder.path_of("steps.csv").open(newline="") as file:
                return tuple(_operator_of(row, model_trace) for row in csv.DictReader(file))

        yield simulated


def _operator_of(row: dict[str, str], model_trace: Trace) -> VerifiedOperator:
    runtime_ms = model_trace.data["operators"][int(row["operator"])]["runtime_ms"]
    return VerifiedOperator(row["name"], int(row["live_bytes"]), runtime_ms)


def require_within_budget(plan: Plan, verification: Verification) -> None:
    """Raises AcplanError if the re-traced peak is over the plan's budget, and if a run of a
    plan for a device does not end there."""
    data = plan.data
    if (
        data.get("world_size", 1) != 1
        or data.get("without_states")
        or data.get("memory_model") == "torch"
    ):
        raise AcplanError(
            "verify: it traces a whole step on one device, but the plan is for several ranks "
            "or leaves out a part of the memory"
        )
    usable = plan.budget_bytes - int(data.get("reserve_bytes", 0))
    if verification.measured_bytes > usable:
        raise AcplanError(
            f"verify: the plan peaks at {verification.measured_bytes:,} bytes, the "
            f"budget is {usable:,}: keep a reserve of at least "
            f"{verification.measured_bytes - usable:,} bytes",
            exit_code=1,
        )
    if plan.device is not None and verification.device is not None:
        if not verification.device.fits:
            raise AcplanError(f"verify: {verification.device}", exit_code=1)
