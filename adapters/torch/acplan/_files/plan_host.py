"""The host's time for a step, as a plan file states it."""

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
        if data is None:
            return None
        if not isinstance(data, dict):
            raise AcplanError(f"plan: host: expected an object, found {data!r}")
        keys = [field.name for field in dataclasses.fields(cls)]
        values = {key: data[key] for key in keys if data.get(key) is not None}
        for key, value in values.items():
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise AcplanError(f"plan: host: {key}: expected a number, found {value!r}")
        missing = [key for key in keys[:4] if key not in values]
        if missing:
            raise AcplanError(f"plan: host: expected a key {missing[0]!r}")
        return cls(**values)

    @property
    def is_waited_for(self) -> bool:
        """Says whether the step waits for the host, not for the device."""
        return self.ms > self.device_ms
