"""Plans activation checkpointing of PyTorch models with acplan."""

import importlib
from typing import Any

from acplan._version import __version__
from acplan.applying import Plan, PlannedModule, PlannedOperator, apply, remove
from acplan.batches import BestBatch, best_batch
from acplan.compiling import (
    CompiledPlan,
    Partitioner,
    compile,
    compiled_plans,
    partitioner,
    verify_compiled,
)
from acplan.dataflow import dataflow_graph
from acplan.devices import DEVICES, Device
from acplan.errors import AcplanError, PlanMismatchWarning
from acplan.explaining import Explanation, explain
from acplan.levers import LEVERS
from acplan.losses import linear_cross_entropy
from acplan.measuring import Verification, verify
from acplan.optimizers import OPTIMIZERS
from acplan.planning import auto_checkpoint, plan
from acplan.profiles import Profile, from_torch, profile
from acplan.reporting import report
from acplan.step_planning import StepPlan
from acplan.tables import Comparison, Frontier, compare, frontier
from acplan.torch_lookalikes import (
    get_optimal_checkpointing_policy_per_module,
    sac_milp,
)
from acplan.tracing import Trace, trace

__all__ = [
    "DEVICES",
    "LEVERS",
    "OPTIMIZERS",
    "AcplanError",
    "BestBatch",
    "Comparison",
    "CompiledPlan",
    "Device",
    "Explanation",
    "Frontier",
    "Partitioner",
    "Plan",
    "PlanMismatchWarning",
    "PlannedModule",
    "PlannedOperator",
    "Profile",
    "StepPlan",
    "Trace",
    "Verification",
    "__version__",
    "apply",
    "auto_checkpoint",
    "best_batch",
    "compare",
    "compile",
    "compiled_plans",
    "dataflow_graph",
    "explain",
    "from_torch",
    "frontier",
    "get_optimal_checkpointing_policy_per_module",
    "linear_cross_entropy",
    "partitioner",
    "plan",
    "profile",
    "remove",
    "report",
    "sac_milp",
    "trace",
    "verify",
    "verify_compiled",
]

# What they are for need not be installed.
_TRAINERS = ("accelerate", "lightning", "torchtitan", "transformers")


def __getattr__(name: str) -> Any:
    if name in _TRAINERS:
        return importlib.import_module(f"acplan.{name}")
    raise AttributeError(f"module 'acplan' has no attribute {name!r}")
