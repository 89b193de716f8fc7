"""The time that the host takes for operators: Python, PyTorch's dispatcher, autograd, launches.

The microseconds were measured on models whose tensors are tiny (`tests/compare_host_times.py`
measures them again), and a launch of a CUDA kernel is added, whose median in public profiles of
an A100 is 4 us. They belong to one core of a server of 2024 with Python 3.11;
`Device.host_factor` is for others.
"""

from typing import Any

from acplan._device.devices import Device

_LAUNCH_US = 4.0

# An operator that computes, without its launch, and a view.
_FORWARD_US = 3.0, 1.3
_BACKWARD_US = 3.0, 0.9
# An operator of a unit, in its forward pass and in its recomputation; of a unit that recomputes
# everything, where Python is not called; and a call of a module in a unit.
_UNIT_US = 37.0, 12.0
_QUIET_UNIT_US = 15.5, 0.5
_MODULE_US = 98.0
_UPDATE_US = 5.5
_CALL_US = 3.7


def host_times_of(device: Device) -> dict[str, Any]:
    """Returns the entry `host` of a trace (docs/file_formats.md), or nothing if the host's time
    is not counted."""
    factor = device.host_factor
    if not factor:
        return {}

    def pair(microseconds: tuple[float, float], launch: float = 0) -> dict[str, float]:
        operator, view = microseconds
        return {"operator": (operator + launch) * factor, "view": view * factor}

    return {
        "host": {
            "forward_us": pair(_FORWARD_US, _LAUNCH_US),
            "backward_us": pair(_BACKWARD_US, _LAUNCH_US),
            "update_us": _UPDATE_US * factor,
            "call_us": _CALL_US * factor,
            "unit_us": pair(_UNIT_US),
            "quiet_unit_us": pair(_QUIET_UNIT_US),
            "module_us": _MODULE_US * factor,
            "launch_us": _LAUNCH_US * factor,
        }
    }
