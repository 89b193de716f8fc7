"""The memory of a step with its plan, predicted and re-traced."""

import dataclasses
import math
from typing import Any

from acplan._files import display
from acplan._files.charts import figure, made_of


@dataclasses.dataclass(frozen=True)
class VerifiedOperator:
    """An operator that runs, the bytes in use while it does, and its run-time, by the rates
    if it is re-traced."""

    name: str
    live_bytes: int
    runtime_ms: float = dataclasses.field(default=0.0, compare=False)


@dataclasses.dataclass(frozen=True)
class ValueCheck:
    """A comparison of losses, gradients and buffers with the plan and without it.

    `compared` counts the values; `differences` names those that differ, with the largest
    difference; `exact`: all are equal to the bit. `skip_reason` says why nothing was compared,
    or is "".
    """

    compared: int = 0
    differences: tuple[str, ...] = ()
    exact: bool = True
    skip_reason: str = ""

    @property
    def is_equal(self) -> bool:
        return not self.differences

    def __str__(self) -> str:
        if self.skip_reason:
            return f"values were not compared: {self.skip_reason}"
        if self.differences:
            more = len(self.differences) - 3
            text = "; ".join(self.differences[:3]) + (f" and {more} more" if more > 0 else "")
            return f"VALUES DIFFER from those without the plan: {text}"
        how = "to the bit" if self.exact else "except for rounding"
        compared = f"{self.compared:,} losses, gradients and buffers"
        return f"{compared} equal those without the plan {how}"


@dataclasses.dataclass(frozen=True)
class DeviceRun:
    """A training run on PyTorch's allocator, as simulated.

    fits: the run ends; `failure` says where it runs out of memory if it does not.
    allocated_bytes, reserved_bytes: the most that is allocated and reserved.
    least_device_bytes: the smallest device on which it ends, or None if there is none.
    """

    allocated_bytes: int
    reserved_bytes: int
    least_device_bytes: int | None
    failure: str = ""

    @property
    def fits(self) -> bool:
        return not self.failure


@dataclasses.dataclass(frozen=True)
class DeviceCheck:
    """The run that repeats the step with the plan, on a device: as predicted from the trace of
    the model without the plan, and of the step that was traced again with it.

    allocator, torch_version, optimizer_state_first: those of the plan (acplan.PlanDevice), or
        for a plan for a budget the defaults.
    device_bytes: the memory of the device, or None: no limit.
    """

    allocator: str
    torch_version: str
    optimizer_state_first: bool
    device_bytes: int | None
    predicted: DeviceRun
    measured: DeviceRun

    @property
    def fits(self) -> bool:
        """True if both runs end."""
        return self.predicted.fits and self.measured.fits

    @property
    def is_equal(self) -> bool:
        return self.predicted == self.measured

    def __str__(self) -> str:
        run = self.measured
        state = ", optimizer's state first" if self.optimizer_state_first else ""
        setting = f"{self.allocator}{state}"
        if not self.fits:
            step = "re-traced" if not run.fits else "predicted"
            why = run.failure or self.predicted.failure
            return f"OUT OF MEMORY on {_exact(self.device_bytes)}, {step} ({setting}): {why}"
        where = "" if self.device_bytes is None else f" of {display.size(self.device_bytes)}"
        least = f"least device {_exact(run.least_device_bytes)}"
        same = ", predicted and re-traced" if self.is_equal else f", predicted {self.predicted}"
        return f"on a device{where} ({setting}): {least}{same}"


def _exact(count: int | None) -> str:
    return "none" if count is None else f"{count:,} bytes"


@dataclasses.dataclass(frozen=True)
class Verification:
    """The memory of a step with a plan, operator by operator: as predicted from the trace of
    the model without the plan, and as seen when the model with the plan is traced again, on
    fake tensors, which is called measured here."""

    predicted: tuple[VerifiedOperator, ...]
    measured: tuple[VerifiedOperator, ...]
    # Losses, gradients and buffers on real tensors, or None if values were not asked for.
    values: ValueCheck | None = dataclasses.field(default=None, compare=False)
    # The run on a device, or None if it was not simulated.
    device: DeviceCheck | None = dataclasses.field(default=None, compare=False)

    @property
    def predicted_bytes(self) -> int:
        return max((operator.live_bytes for operator in self.predicted), default=0)

    @property
    def measured_bytes(self) -> int:
        return max((operator.live_bytes for operator in self.measured), default=0)

    @property
    def predicted_ms(self) -> float:
        """The run-time of all operators, including those that run again."""
        return math.fsum(operator.runtime_ms for operator in self.predicted)

    @property
    def measured_ms(self) -> float:
        return math.fsum(operator.runtime_ms for operator in self.measured)

    @property
    def error(self) -> float:
        """The error of the predicted peak, relative to the re-traced peak."""
        if self.measured_bytes == 0:
            return 0.0
        return self.predicted_bytes / self.measured_bytes - 1

    @property
    def runs_the_same_operators(self) -> bool:
        return [o.name for o in self.predicted] == [o.name for o in self.measured]

    def first_difference(
        self,
    ) -> tuple[int, VerifiedOperator | None, VerifiedOperator | None] | None:
        """Returns the first place at which both differ, with the predicted operator and the
        re-traced operator, or None if there is none."""
        longest = max(len(self.predicted), len(self.measured))
        for place in range(longest):
            predicted = self.predicted[place] if place < len(self.predicted) else None
            measured = self.measured[place] if place < len(self.measured) else None
            if predicted != measured:
                return place, predicted, measured
        return None

    def to_pandas(self) -> Any:
        """Returns a table of the operators as re-traced, with the predicted bytes beside."""
        return display.to_pandas(
            [
                {
                    "name": operator.name,
                    "runtime_ms": operator.runtime_ms,
                    "predicted_bytes": self.predicted[k].live_bytes
                    if k < len(self.predicted)
                    else None,
                    "measured_bytes": operator.live_bytes,
                }
                for k, operator in enumerate(self.measured)
            ]
        )

    def __repr__(self) -> str:
        return f"<Verification: {str(self).splitlines()[0]}>"

    def _repr_html_(self) -> str:
        runs = {"re-traced": self.measured, "predicted": self.predicted}
        curves = {
            name: [(float(k), float(operator.live_bytes)) for k, operator in enumerate(run)]
            for name, run in runs.items()
        }
        charts = display.chart("operators of the step", curves, None)
        sources = made_of(self)
        # The report's chart shows the predicted memory.
        if sources and self.first_difference() is None:
            charts = figure(["memory"], sources[0], charts, plan=sources[1])
        return display.page(
            "Verification",
            {"peak": display.size(self.measured_bytes), "error": f"{self.error:+.4%}"},
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
                f"\nthey differ from operator {place}: predicted {predicted}, re-traced "
                f"{measured}"
            )
        parts = [text, self.device, self.values]
        return "\n".join(str(part) for part in parts if part is not None)


@dataclasses.dataclass(frozen=True)
class TableVerification:
    """The memory of batches of several lengths with a table of plans: the verification of each
    length that was traced, and the run of all batches on the device."""

    lengths: dict[int, Verification]
    device: DeviceCheck | None = None

    @property
    def measured_bytes(self) -> int:
        """The largest peak of a step that was traced again."""
        return max((v.measured_bytes for v in self.lengths.values()), default=0)

    @property
    def is_equal(self) -> bool:
        """True if all predictions are as traced again: each step's, and the run's."""
        are_steps = all(v.first_difference() is None for v in self.lengths.values())
        return are_steps and (self.device is None or self.device.is_equal)

    def __repr__(self) -> str:
        return f"<TableVerification of lengths {', '.join(map(str, self.lengths))}>"

    def __str__(self) -> str:
        lines = [f"length {length}: {check}" for length, check in self.lengths.items()]
        return "\n".join(lines + ([] if self.device is None else [str(self.device)]))
