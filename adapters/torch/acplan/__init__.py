"""Traces PyTorch models for acplan, the activation-checkpointing planner."""

from acplan.applying import Plan, PlannedModule, PlannedOperator, apply
from acplan.devices import DEVICES, Device
from acplan.errors import AcplanError
from acplan.measuring import Verification, verify
from acplan.tracing import Trace, trace

__all__ = [
    "DEVICES",
    "AcplanError",
    "Device",
    "Plan",
    "PlannedModule",
    "PlannedOperator",
    "Trace",
    "Verification",
    "apply",
    "trace",
    "verify",
]
