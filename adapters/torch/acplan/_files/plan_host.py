"""The times of a step on the host and on streams, as a plan file states them."""

import dataclasses
from typing import Any

from acplan._base.errors import AcplanError


@dataclasses.dataclass(frozen=True)
class PlanHost:
    """The host's time for a step: Python, PyTorch's dispatcher, autograd and launches.

    baseline_ms: without the plan.
    ms: with the plan.
    device_ms: the device's time for all operators of the step, with what the plan costs.
    step_ms: the longer of `ms` and `device_ms`.
    least_step_ms: no plan's step takes less, proven; None if it was not asked for, as in plans
        for a device.
    """

    baseline_ms: float
    ms: float
    device_ms: float
    step_ms: float
    least_step_ms: float | None = None

    @classmethod
    def from_optional(cls, data: Any) -> "PlanHost | None":
        """Returns the entry `host` of a plan file, or None if there is none."""
        return None if data is None else cls(**_numbers(cls, "host", data))

    @property
    def is_waited_for(self) -> bool:
        """Says whether the step waits for the host, not for the device."""
        return self.ms > self.device_ms


@dataclasses.dataclass(frozen=True)
class PlanStreams:
    """The times of a step on the device's streams, of which one computes.

    baseline_ms: the step without the plan.
    baseline_exposed_ms: exposed communication without the plan: the time in which the stream
        that computes waits for others, or communicates itself.
    communication_ms: the sum of all collectives, with the plan.
    exposed_ms: exposed communication with the plan.
    step_ms: the step with the plan.
    least_step_ms: no plan's step takes less, proven; None if it was not asked for, as in plans
        for a device.
    """

    baseline_ms: float
    baseline_exposed_ms: float
    communication_ms: float
    exposed_ms: float
    step_ms: float
    least_step_ms: float | None = None

    @classmethod
    def from_optional(cls, data: Any) -> "PlanStreams | None":
        """Returns the entry `streams` of a plan file, or None if there is none."""
        return None if data is None else cls(**_numbers(cls, "streams", data))


def _numbers(kind: type[Any], entry: str, data: Any) -> dict[str, float]:
    """Returns the numbers of an entry of a plan file, by the fields of a class. Fields without
    a default must be there."""
    if not isinstance(data, dict):
        raise AcplanError(f"plan: {entry}: expected an object, found {data!r}")
    fields = dataclasses.fields(kind)
    values = {f.name: data[f.name] for f in fields if data.get(f.name) is not None}
    for key, value in values.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise AcplanError(f"plan: {entry}: {key}: expected a number, found {value!r}")
    for field in fields:
        if field.default is dataclasses.MISSING and field.name not in values:
            raise AcplanError(f"plan: {entry}: expected a key {field.name!r}")
    return values
