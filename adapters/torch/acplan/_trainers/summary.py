"""The line with which a trainer's logger says what acplan did."""

import logging
from collections.abc import Collection, Mapping
from typing import Any

import torch.distributed as dist

from acplan._base.tensors import tensors_in
from acplan._device.devices import Device
from acplan._files import display
from acplan._files.plan_file import Plan
from acplan._files.plan_table import PlanTable

_LOGGER = logging.getLogger("acplan")


def log_summary(logger: logging.Logger, text: str) -> None:
    """Logs the text on the first rank: as information if the logger shows it, else, as most
    trainers show only warnings, as a warning."""
    if dist.is_available() and dist.is_initialized() and dist.get_rank() != 0:
        return
    is_shown = logger.isEnabledFor(logging.INFO)
    logger.log(logging.INFO if is_shown else logging.WARNING, "acplan: %s", text)


def log_refused(warnings: Collection[str]) -> int:
    """Logs warnings about flags, and those about modules that cannot be units as information.
    Returns how many are about modules. The summary has the status of the plan."""
    of_flags = [text for text in warnings if text.startswith("--")]
    of_modules = [text for text in warnings if not text.startswith(("--", "plan: "))]
    for texts, level in ((of_flags, logging.WARNING), (of_modules, logging.INFO)):
        for text in texts:
            _LOGGER.log(level, "%s", text)
    return len(of_modules)


def summary(plan: Plan | PlanTable, inputs: Any, device: str | Device, refused: int = 0) -> str:
    """Returns the summary of a plan for a step with these inputs. `refused` counts the warnings
    about modules that cannot be units."""
    name = device.name if isinstance(device, Device) else device
    if isinstance(plan, PlanTable):
        return f"{plan!r}; {_recomputed(plan.recompute_ms)} a batch on {name}{_needs(plan)}"
    before, after = display.size(plan.baseline_peak_bytes), display.size(plan.peak_bytes)
    kind = "budget" if plan.device is None else "device"
    limit = f"{kind} {display.size(plan.budget_bytes)}"
    if not plan.modules:
        parts = [f"the step fits as it is, nothing changed: peak {before}, {limit}"]
    else:
        units = "1 unit" if len(plan.modules) == 1 else f"{len(plan.modules)} units"
        parts = [
            f"peak {before} without a plan, {after} with it, {limit}",
            f"{_recomputed(plan.recompute_ms)}, {plan.overhead:.2%} of the step on {name}",
            f"{units}, {_status(plan)}",
        ]
    if shapes := _shapes(inputs):
        parts.append(f"planned for {shapes}")
    if refused:
        parts.append("some modules cannot be units (logger acplan, level INFO)")
    return "; ".join(parts) + _needs(plan)


def _status(plan: Plan) -> str:
    if plan.status == "optimal" or plan.stall_ms is not None:
        return f"{plan.status} plan"
    return f"{plan.status} plan: none recomputes less than {plan.bound_ms:.2f} ms"


def _recomputed(milliseconds: float) -> str:
    return f"recomputes {milliseconds:.2f} ms"


def _shapes(inputs: Any) -> str:
    if not isinstance(inputs, Mapping):
        return ""
    return ", ".join(
        f"{name} {' '.join(sizes)}"
        for name, value in inputs.items()
        if (sizes := [str(list(t.shape)) for t in tensors_in(value) if t.dim() > 0])
    )


def _needs(plan: Plan | PlanTable) -> str:
    device = plan.device
    return f"; it needs {device.needs}" if device is not None and device.needs else ""
