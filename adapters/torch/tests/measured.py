"""A model with its trace, on which plans are made and measured."""

import dataclasses
import functools
import json
import math
import pathlib
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn

from acplan import Plan, Trace, Verification, plan, trace
from acplan._base.program import run_acplan
from acplan._verify.verify import verifying
from zoo import Example

# Steps of small models wait for the host, whatever their plan recomputes.
WITHOUT_SKIP: dict[str, Any] = {"decisions": "save,recompute", "without_host": True}
WITH_SKIP = {**WITHOUT_SKIP, "decisions": "save,recompute,skip", "segments": "auto"}
# The tolerance for times that are sums of the same numbers in another order.
SAME = 1e-9


@dataclasses.dataclass(frozen=True)
class Measured:
    """The memory and time of the model with a plan, and those that were predicted."""

    peak_bytes: int
    recompute_ms: float
    predicted_bytes: int
    predicted_ms: float
    operators: int
    is_equal_everywhere: bool

    @property
    def is_as_predicted(self) -> bool:
        """The peak to the byte, memory at every operator, and the run-time of those
        that run again."""
        return (
            self.is_equal_everywhere
            and self.peak_bytes == self.predicted_bytes
            and same_ms(self.recompute_ms, self.predicted_ms)
        )

    def is_as_promised(self, plan: Plan, budget: int) -> bool:
        """Returns whether the step is as predicted, within the budget, and as the plan says."""
        return (
            self.is_as_predicted
            and self.peak_bytes <= budget
            and self.peak_bytes == plan.peak_bytes
            and same_ms(self.recompute_ms, plan.recompute_ms)
        )


def same_ms(a: float, b: float) -> bool:
    return math.isclose(a, b, rel_tol=SAME, abs_tol=1e-12)


@dataclasses.dataclass(frozen=True)
class Subject:
    """`path` is that of the trace's file."""

    example: Example
    model: nn.Module
    inputs: dict[str, Any]
    autocast: torch.dtype | None
    traced: Trace
    path: pathlib.Path
    until_end: ExitStack

    @functools.cached_property
    def _step_ms(self) -> float:
        return math.fsum(op["runtime_ms"] for op in self.traced.data["operators"])

    @functools.cached_property
    def _verified(self) -> Callable[[Plan], Verification]:
        """On fake tensors that are there until the subject ends."""
        return self.until_end.enter_context(
            verifying(
                self.model, model_trace=self.traced, autocast=self.autocast, **self.inputs
            )
        )

    def plan(self, budget: int | str, **options: Any) -> Plan:
        return plan(self.path, budget, **options)

    @functools.cached_property
    def least(self) -> Plan:
        """The plan with the least memory."""
        return self.plan("min", **WITHOUT_SKIP)

    @functools.cached_property
    def least_with_skip(self) -> Plan:
        return self.plan("min", **WITH_SKIP)

    def measured(self, plan: Plan) -> Measured:
        verification = self._verified(plan)
        return Measured(
            verification.measured_bytes,
            verification.measured_ms - self._step_ms,
            verification.predicted_bytes,
            verification.predicted_ms - self._step_ms,
            len(verification.measured),
            verification.first_difference() is None,
        )

    def simulated_bytes(self, plan: Plan) -> int:
        return int(simulated(self.traced, plan)["peak_bytes"])


def simulated(traced: Trace, plan: Plan) -> dict[str, Any]:
    """Returns what `acplan simulate` says of the step with a plan."""
    with tempfile.TemporaryDirectory(prefix="acplan-") as folder:
        trace_file, plan_file = (pathlib.Path(folder) / f"{n}.json" for n in ("trace", "plan"))
        traced.save(trace_file)
        plan.save(plan_file, model=traced.data["model"]["name"])
        said = run_acplan(["simulate", f"{trace_file}", f"{plan_file}", "--json"])
    result: dict[str, Any] = json.loads(said)["planned"]
    return result


@contextmanager
def subject(
    example: Example, autocast: torch.dtype | None, trace_file: pathlib.Path | None = None
) -> Iterator[Subject]:
    """Yields the subject with its trace, which is read from the given file if it is there, and
    else written to it."""
    model, inputs = example.on_meta()
    with (
        tempfile.TemporaryDirectory(prefix="acplan-") as folder,
        ExitStack() as until_end,
    ):
        path = trace_file or pathlib.Path(folder) / "trace.json"
        if path.exists():
            traced = Trace.load(path)
        else:
            traced = trace(model, autocast=autocast, **inputs)
            traced.save(path)
        yield Subject(example, model, inputs, autocast, traced, path, until_end)
