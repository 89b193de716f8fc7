"""The step of a model with a plan, traced again on fake tensors."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from acplan._apply.apply import applied, apply
from acplan._apply.unit import Unit, wrapped_in
from acplan._base.errors import AcplanError
from acplan._device.devices import DEVICES, Device, find_device
from acplan._fakes.real_values import Limits
from acplan._files.plan_file import Plan
from acplan._files.trace_file import PARALLEL, Trace
from acplan._files.verification import VerifiedOperator
from acplan._step.checkpointing_off import without_checkpointing
from acplan._step.recorder import Recorder
from acplan._step.records import Operator
from acplan._step.run_step import peak_of, run_step, timeline_of
from acplan._step.step import Step, alone, step_on_fakes
from acplan._step.step_log import StepLog
from acplan._step.trace_data import Recorded, trace_data
from acplan._step.training_step import TrainingStep, training_step

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
    options["parallel"] = model_trace.data.get(PARALLEL)
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
    model: Any,
    *args: Any,
    device: str = "a100",
    workspaces: bool = True,
    real: Limits | None = None,
    parallel: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> Iterator[Callable[[Plan, bool], Retrace]]:
    """Yields a function of a plan, and of whether a trace is asked for; a first step runs
    without a plan, except if the model is parallel. `real`: with real values, within these
    limits. `parallel`: the entry of the model's trace on its rank, if it is one."""
    target = find_device(device)
    options = _Options(target, target if workspaces else None)
    if parallel is None or "plan_first" not in parallel:
        training = TrainingStep.from_arguments(model, args, kwargs)
        with _on_fakes(training, target, real) as (step, optimizer):

            def retraced(plan: Plan, wants_trace: bool) -> Retrace:
                step.model.zero_grad(set_to_none=True)  # in case a step with a plan failed
                with applied(step.model, plan) as planned_model:
                    now = step.with_model(planned_model)
                    return options.retraced(now, optimizer, wants_trace)

            yield retraced
        return

    def retraced_rank(plan: Plan, wants_trace: bool) -> Retrace:
        # Sharding is for good, so each plan has a model of its own.
        training = training_step(model, args, kwargs)
        assert training.parallel is not None
        functions = training.parallel.with_plan(
            lambda plain: apply(plain, plan, strict=True), parallel["plan_first"]
        )
        with_plan = dataclasses.replace(training, parallelize=functions)
        with _on_fakes(with_plan, target, None) as (step, optimizer):
            return options.retraced(step, optimizer, wants_trace)

    yield retraced_rank


@contextlib.contextmanager
def _on_fakes(
    training: TrainingStep, target: Device, real: Limits | None
) -> Iterator[tuple[Step, torch.optim.Optimizer]]:
    with (
        alone(),
        without_checkpointing(training.model, is_told=False) as plain,
        step_on_fakes(dataclasses.replace(training, model=plain), target, real=real) as result,
    ):
        yield result


@dataclasses.dataclass(frozen=True)
class _Options:
    """The device of a step that is traced again, and the device whose workspaces count."""

    target: Device
    kernels: Device | None

    def retraced(
        self, step: Step, optimizer: torch.optim.Optimizer, wants_trace: bool
    ) -> Retrace:
        """Runs a step whose model has a plan."""
        recorder = Recorder(self.target, kernels=self.kernels)
        marks = run_step(recorder, step, optimizer)
        operators = _operators_of(recorder.log)
        if not wants_trace:
            return Retrace(operators)
        recorded = Recorded(recorder, recorder, marks, {})
        data = _without_units(trace_data(step, self.target, recorded), step.model)
        return Retrace(operators, Trace(data))


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
