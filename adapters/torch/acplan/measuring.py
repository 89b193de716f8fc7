"""acplan.verify: the model with its plan, traced again on fake tensors."""

import contextlib
import csv
import dataclasses
import math
import pathlib
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import torch

from acplan import showing
from acplan.applying import Plan, applied, plan_given
from acplan.arguments import require_module
from acplan.checkpointed import without_checkpointing
from acplan.devices import DEVICES, find_device
from acplan.errors import AcplanError
from acplan.figures import figure, made_of, remember
from acplan.program import run_acplan
from acplan.real_values import Limits
from acplan.recorder import Operator, Recorder
from acplan.tracing import (
    Trace,
    alone,
    peak_of,
    run_step,
    step_on_fakes,
    timeline_of,
    trace,
)
from acplan.training_steps import TrainingStep
from acplan.value_check import ValueCheck, compare_values, is_small


@dataclasses.dataclass(frozen=True)
class Step:
    """An operator that runs, the bytes in use while it does, and its run-time, by the
    roofline where it is re-traced."""

    name: str
    live_bytes: int
    runtime_ms: float = dataclasses.field(default=0.0, compare=False)


@dataclasses.dataclass(frozen=True)
class Verification:
    """A plan's peak as predicted from the trace of the model without it, and as seen
    when the model with it is traced again, on fake tensors: what is called measured
    here. Operator by operator."""

    predicted: tuple[Step, ...]
    measured: tuple[Step, ...]
    # Losses, gradients and buffers on real tensors; None: nobody asked.
    values: ValueCheck | None = dataclasses.field(default=None, compare=False)

    @property
    def predicted_bytes(self) -> int:
        return max((step.live_bytes for step in self.predicted), default=0)

    @property
    def measured_bytes(self) -> int:
        return max((step.live_bytes for step in self.measured), default=0)

    @property
    def predicted_ms(self) -> float:
        """Run-time of all operators, those that run again included."""
        return math.fsum(step.runtime_ms for step in self.predicted)

    @property
    def measured_ms(self) -> float:
        return math.fsum(step.runtime_ms for step in self.measured)

    @property
    def error(self) -> float:
        """Of the predicted peak, relative to the re-traced one."""
        if self.measured_bytes == 0:
            return 0.0
        return self.predicted_bytes / self.measured_bytes - 1

    @property
    def runs_the_same_operators(self) -> bool:
        return [s.name for s in self.predicted] == [s.name for s in self.measured]

    def first_difference(self) -> tuple[int, Step | None, Step | None] | None:
        """Where both part: the place, what was predicted, what ran when re-traced."""
        longest = max(len(self.predicted), len(self.measured))
        for place in range(longest):
            predicted = self.predicted[place] if place < len(self.predicted) else None
            measured = self.measured[place] if place < len(self.measured) else None
            if predicted != measured:
                return place, predicted, measured
        return None

    def to_pandas(self) -> Any:
        """A table of the operators as re-traced, with the bytes predicted beside."""
        return showing.to_pandas(
            [
                {
                    "name": step.name,
                    "runtime_ms": step.runtime_ms,
                    "predicted_bytes": self.predicted[k].live_bytes
                    if k < len(self.predicted)
                    else None,
                    "measured_bytes": step.live_bytes,
                }
                for k, step in enumerate(self.measured)
            ]
        )

    def __repr__(self) -> str:
        return f"<Verification: {str(self).splitlines()[0]}>"

    def _repr_html_(self) -> str:
        steps = {"re-traced": self.measured, "predicted": self.predicted}
        curves = {
            name: [(float(k), float(step.live_bytes)) for k, step in enumerate(found)]
            for name, found in steps.items()
        }
        charts = showing.chart("operators of the step", curves, None)
        made = made_of(self)
        # The report's is of what was predicted.
        if made and self.first_difference() is None:
            charts = figure(["memory"], made[0], charts, plan=made[1])
        return showing.page(
            "Verification",
            {"peak": showing.size(self.measured_bytes), "error": f"{self.error:+.4%}"},
            charts,
        )

    def __str__(self) -> str:
        text = (
            f"predicted peak {self.predicted_bytes:,} bytes, re-traced "
            f"{self.measured_bytes:,} ({self.error:+.4%})"
        )
        difference = self.first_difference()
        if difference is None:
            text += f", equal at all {len(self.measured):,} operators"
        else:
            place, predicted, measured = difference
            text += (
                f"\nthey part at operator {place}: predicted {predicted}, re-traced {measured}"
            )
        return text if self.values is None else f"{text}\n{self.values}"


def verify(
    model: torch.nn.Module,
    plan: Plan,
    *args: Any,
    of: Trace | None = None,
    values: bool | str | None = None,
    **kwargs: Any,
) -> Verification:
    """Predicts the plan's memory over a training step, and traces the step again with
    the plan applied, on fake tensors: no GPU is asked.

    Arguments and options as for acplan.trace, microbatches as `of` has them; `of` is
    the model's trace where there is one. The model comes without the plan and is left
    so.

    values: takes steps of copies of the model with the plan and without it, on real
    tensors where the model is, and compares losses, gradients, buffers and random states
    (`Verification.values`). By default where that takes moments. A smaller batch in
    `args`, without `of`, makes a larger model affordable. As text it is acplan.trace's.
    """
    require_module(model)
    plan = plan_given(plan)
    if isinstance(values, str):
        kwargs["values"], values = values, None
    if of is None:
        of = trace(model, *args, **kwargs)
    with verifying(model, *args, of=of, **kwargs) as verified:
        verification = verified(plan)
    if values is False or not (values or is_small(of)):
        return verification
    own = {name: kwargs[name] for name in kwargs if name not in _OF_TRACES}
    try:
        check = compare_values(TrainingStep.of(model, args, own), plan)
    except AcplanError as error:
        if values:
            raise
        check = ValueCheck(skipped=str(error))
    return remember(dataclasses.replace(verification, values=check), of, plan)


# Options of acplan.trace that say nothing of the step.
_OF_TRACES = ("progress", "workspaces", "source", "device")


@contextlib.contextmanager
def verifying(
    model: torch.nn.Module, *args: Any, of: Trace | None = None, **kwargs: Any
) -> Iterator[Callable[[Plan], Verification]]:
    """`verify` for one plan after the other, on the same fake tensors."""
    if of is None:
        of = trace(model, *args, **kwargs)
    accumulate = kwargs.setdefault("accumulate", of.accumulate)
    if accumulate != of.accumulate:
        raise AcplanError(
            f"verify: accumulate is {accumulate!r}, and {of.accumulate} in the trace"
        )
    capacity = kwargs.setdefault("capacity", of.capacity)
    if capacity != of.capacity:
        raise AcplanError(f"verify: capacity is {capacity!r}, and {of.capacity!r} in the trace")
    for name in (*_OF_TRACES, "values"):
        kwargs.pop(name, None)
    real = Limits.of_the_machine() if of.has_real_values else None
    traced_for = of.data["device"]["name"]
    kwargs["device"] = traced_for if traced_for in DEVICES else "a100"
    with (
        _simulating(of) as simulated,
        measuring(model, *args, workspaces=of.workspaces, real=real, **kwargs) as measured,
    ):
        yield lambda plan: remember(Verification(simulated(plan), measured(plan)), of, plan)


def measure(model: torch.nn.Module, plan: Plan, *args: Any, **kwargs: Any) -> tuple[Step, ...]:
    """The operators of a training step of the model with the plan, on fake tensors;
    options as for acplan.trace."""
    with measuring(model, *args, **kwargs) as measured:
        return measured(plan)


@contextlib.contextmanager
def measuring(
    model: torch.nn.Module,
    *args: Any,
    device: str = "a100",
    workspaces: bool = True,
    real: Limits | None = None,
    **kwargs: Any,
) -> Iterator[Callable[[Plan], tuple[Step, ...]]]:
    """`measure` for one plan after the other: a first step runs without any. `real`: with
    real values, within these limits."""
    step = TrainingStep.of(model, args, kwargs)
    on = find_device(device)

    with (
        alone(),
        without_checkpointing(model, is_told=False) as plain,
        step_on_fakes(
            plain,
            step.args,
            step.kwargs,
            step.loss_fn,
            step.optimizer,
            step.autocast,
            step.update,
            on,
            step.forward_fn,
            step.param_dtype,
            real=real,
            capacity=step.capacity,
        ) as (on_fakes, optimizer),
    ):

        def measured(plan: Plan) -> tuple[Step, ...]:
            recorder = Recorder(on, kernels=on if workspaces else None)
            plain.zero_grad(set_to_none=True)  # where a step with a plan failed
            with applied(plain, plan) as planned:
                run_step(recorder, dataclasses.replace(on_fakes, model=planned), optimizer)
            return _steps(recorder)

        yield measured


def _steps(recorder: Recorder) -> tuple[Step, ...]:
    live = timeline_of(recorder)
    assert max(live, default=0) == peak_of(recorder)
    return tuple(
        Step(operator.name, live_bytes, operator.runtime_ms)
        for operator, live_bytes in zip(recorder.operators, live)
        if not is_of_a_frame(recorder, operator)
    )


def is_of_a_frame(recorder: Recorder, operator: Operator) -> bool:
    # Checkpoints of older PyTorch versions begin with a tensor without elements.
    made = [recorder.storages[index] for index in operator.outputs]
    return operator.name == "aten.empty.memory_format" and not any(
        storage.bytes or storage.on_device for storage in made
    )


def simulate(of: Trace, plan: Plan) -> tuple[Step, ...]:
    """The operators of a training step with the plan, by `acplan simulate`."""
    with _simulating(of) as simulated:
        return simulated(plan)


@contextlib.contextmanager
def _simulating(of: Trace) -> Iterator[Callable[[Plan], tuple[Step, ...]]]:
    """`simulate` for one plan after the other."""
    with tempfile.TemporaryDirectory(prefix="acplan-") as folder:
        files = pathlib.Path(folder)
        of.save(files / "trace.json")

        def simulated(plan: Plan) -> tuple[Step, ...]:
            plan.save(files / "plan.json", model=of.data["model"]["name"])
            try:
                run_acplan(
                    ["simulate", f"{files}/trace.json", f"{files}/plan.json"]
                    + ["--timeline", f"{files}/steps.csv"]
                )
            except AcplanError as error:
                told = str(error).replace(f"{files}/plan.json: ", "")
                raise AcplanError(told) from None
            with (files / "steps.csv").open(newline="") as file:
                return tuple(_step_of(row, of) for row in csv.DictReader(file))

        yield simulated


def _step_of(row: dict[str, str], of: Trace) -> Step:
    runtime_ms = of.data["operators"][int(row["operator"])]["runtime_ms"]
    return Step(row["name"], int(row["live_bytes"]), runtime_ms)
