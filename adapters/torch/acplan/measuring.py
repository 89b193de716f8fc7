"""acplan.verify: the model with its plan, traced again."""

import csv
import dataclasses
import math
import pathlib
import tempfile
from typing import Any

import torch

from acplan.applying import Plan, applied
from acplan.devices import DEVICES, find_device
from acplan.errors import AcplanError
from acplan.program import run_acplan
from acplan.recorder import Operator, Recorder
from acplan.tracing import (
    LossFn,
    OptimizerFn,
    Trace,
    peak_of,
    run_step,
    step_on_fakes,
    timeline_of,
    trace,
)


@dataclasses.dataclass(frozen=True)
class Step:
    """An operator that runs, the bytes in use while it does, and its run-time, by the
    roofline where it is measured."""

    name: str
    live_bytes: int
    runtime_ms: float = dataclasses.field(default=0.0, compare=False)


@dataclasses.dataclass(frozen=True)
class Verification:
    """A plan's peak as predicted from the trace of the model without it, and as
    measured on the model with it, operator by operator."""

    predicted: tuple[Step, ...]
    measured: tuple[Step, ...]

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
        """Of the predicted peak, relative to the measured one."""
        if self.measured_bytes == 0:
            return 0.0
        return self.predicted_bytes / self.measured_bytes - 1

    @property
    def runs_the_same_operators(self) -> bool:
        return [s.name for s in self.predicted] == [s.name for s in self.measured]

    def first_difference(self) -> tuple[int, Step | None, Step | None] | None:
        """Where both part: the place, what was predicted, what was measured."""
        longest = max(len(self.predicted), len(self.measured))
        for place in range(longest):
            predicted = self.predicted[place] if place < len(self.predicted) else None
            measured = self.measured[place] if place < len(self.measured) else None
            if predicted != measured:
                return place, predicted, measured
        return None

    def __str__(self) -> str:
        text = (
            f"predicted peak {self.predicted_bytes:,} bytes, measured "
            f"{self.measured_bytes:,} ({self.error:+.4%})"
        )
        difference = self.first_difference()
        if difference is None:
            return text + f", equal at all {len(self.measured):,} operators"
        place, predicted, measured = difference
        return text + (
            f"\nthey part at operator {place}: predicted {predicted}, measured "
            f"{measured}"
        )


def verify(
    model: torch.nn.Module,
    plan: Plan,
    *args: Any,
    loss_fn: LossFn | None = None,
    optimizer: OptimizerFn | None = None,
    autocast: torch.dtype | None = None,
    of: Trace | None = None,
    **kwargs: Any,
) -> Verification:
    """Predicts and measures the plan's memory over a training step.

    Arguments as for acplan.trace; `of` is the model's trace where there is one. The
    model comes without the plan and is left so.
    """
    options: dict[str, Any] = {
        "loss_fn": loss_fn,
        "optimizer": optimizer,
        "autocast": autocast,
    }
    without = of or trace(model, *args, **options, **kwargs)
    traced_for = without.data["device"]["name"]
    options["device"] = traced_for if traced_for in DEVICES else "a100"
    return Verification(
        predicted=simulate(without, plan),
        measured=measure(model, plan, *args, **options, **kwargs),
    )


def measure(
    model: torch.nn.Module,
    plan: Plan,
    *args: Any,
    loss_fn: LossFn | None = None,
    optimizer: OptimizerFn | None = None,
    autocast: torch.dtype | None = None,
    device: str = "a100",
    **kwargs: Any,
) -> tuple[Step, ...]:
    """The operators of a training step of the model with the plan."""
    with applied(model, plan) as planned:
        on = find_device(device)
        with step_on_fakes(
            planned, args, kwargs, loss_fn, optimizer, autocast, on
        ) as (step, run_optimizer):
            recorder = Recorder(on)
            run_step(recorder, step, run_optimizer)
            return _steps(recorder)


def _steps(recorder: Recorder) -> tuple[Step, ...]:
    live = timeline_of(recorder)
    assert max(live, default=0) == peak_of(recorder)
    return tuple(
        Step(operator.name, live_bytes, operator.runtime_ms)
        for operator, live_bytes in zip(recorder.operators, live)
        if not _is_of_a_frame(recorder, operator)
    )


def _is_of_a_frame(recorder: Recorder, operator: Operator) -> bool:
    # Checkpoints of older PyTorch versions begin with a tensor without elements.
    made = [recorder.storages[index] for index in operator.outputs]
    return operator.name == "aten.empty.memory_format" and not any(
        storage.bytes or storage.on_device for storage in made
    )


def simulate(of: Trace, plan: Plan) -> tuple[Step, ...]:
    """The operators of a training step with the plan, by `acplan simulate`."""
    with tempfile.TemporaryDirectory() as folder:
        files = pathlib.Path(folder)
        of.save(files / "trace.json")
        plan.save(files / "plan.json", model=of.data["model"]["name"])
        try:
            run_acplan(
                ["simulate", f"{files}/trace.json", f"{files}/plan.json"]
                + ["--timeline", f"{files}/steps.csv"]
            )
        except AcplanError as error:
            raise AcplanError(str(error).replace(f"{files}/plan.json: ", "")) from None
        with (files / "steps.csv").open(newline="") as file:
            return tuple(
                Step(
                    row["name"],
                    int(row["live_bytes"]),
                    of.data["operators"][int(row["operator"])]["runtime_ms"],
                )
                for row in csv.DictReader(file)
            )
