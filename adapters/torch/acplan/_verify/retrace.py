"""The step of a model with a plan, traced again on fake tensors."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from acplan._apply.apply import applied
from acplan._apply.unit import Unit, wrapped_in
from acplan._base.errors import AcplanError
from acplan._device.devices import DEVICES, find_device
from acplan._fakes.real_values import Limits
from acplan._files.plan_file import Plan
from acplan._files.trace_file import Trace
from acplan._files.verification import VerifiedOperator
from acplan._step.checkpointing_off import without_checkpointing
from acplan._step.recorder import Recorder
from acplan._step.records import Operator
from acplan._step.run_step import peak_of, run_step, timeline_of
from acplan._step.step import alone, step_on_fakes
from acplan._step.step_log import StepLog
from acplan._step.trace_data import Recorded, trace_data
from acplan._step.training_step import TrainingStep

# Options of acplan.trace that do not describe the step.
OF_TRACES = ("progress", "workspaces", "source", "device")


def options_of_retrace(model_trace: Trace, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arguments and options of `retracing` for those of acplan.verify: the step is
    that of the model's trace. Raises AcplanError if they describe another one."""
    options = dict(kwargs)
    accumulate = options.setdefault("accumulate", model_trace.accumulate)
    if accumulate != model_trace.accumulate:
        raise AcplanError(
            f"verify: accumulate is {accumulate!r}, and {model_trace.accumulate} in the trace"
        )
    capacity = options.setdefault("capacity", model_trace.capacity)
    if capacity != model_trace.capacity:
        raise AcplanError(
            f"verify: capacity is {capacity!r}, and {model_trace.capacity!r} in the trace"
        )
    for name in (*OF_TRACES, "values"):
        options.pop(name, None)
    traced_for = model_trace.data["device"]["name"]
    options["device"] = traced_for if traced_for in DEVICES else "a100"
    options["workspaces"] = model_trace.workspaces
    options["real"] = Limits.of_the_machine() if model_trace.has_real_values else None
    return options


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
    with retracing(model, *args, **kwargs) as retraced:
        yield lambda plan: retraced(plan, False).operators


@dataclasses.dataclass(frozen=True)
class Retrace:
    """A step with a plan, traced again."""

    operators: tuple[VerifiedOperator, ...]
    # The same as a trace. Its modules are no candidates for a plan.
    trace: Trace | None = None


@contextlib.contextmanager
def retracing(
    model: torch.nn.Module,
    *args: Any,
    device: str = "a100",
    workspaces: bool = True,
    real: Limits | None = None,
    **kwargs: Any,
) -> Iterator[Callable[[Plan, bool], Retrace]]:
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

        def retraced(plan: Plan, wants_trace: bool) -> Retrace:
            recorder = Recorder(target, kernels=target if workspaces else None)
            plain.zero_grad(set_to_none=True)  # in case a step with a plan failed
            with applied(plain, plan) as planned_model:
                step = dataclasses.replace(on_fakes, model=planned_model)
                marks = run_step(recorder, step, optimizer)
                operators = _operators_of(recorder.log)
                if not wants_trace:
                    return Retrace(operators)
                recorded = Recorded(recorder, recorder, marks, {})
                data = _without_units(trace_data(step, target, recorded), planned_model)
                return Retrace(operators, Trace(data))

        yield retraced


def _without_units(data: dict[str, Any], model: torch.nn.Module) -> dict[str, Any]:
    """Returns the trace with the model's own modules, without the units around some of them:
    the calls of a unit are those of its module."""
    modules = [module for _, module in model.named_modules()]
    own = [module for module in modules if not isinstance(module, Unit)]
    place_of = {id(module): place for place, module in enumerate(own)}
    for call in data["calls"]:
        call["module"] = place_of[id(wrapped_in(modules[call["module"]]))]
    data["modules"] = [
        entry
        for entry, module in zip(data["modules"], modules, strict=True)
        if not isinstance(module, Unit)
    ]
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
