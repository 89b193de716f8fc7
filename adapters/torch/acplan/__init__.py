"""Plans activation checkpointing of PyTorch models with acplan."""

import importlib
from typing import Any

from acplan._base.needs_torch import require_torch

require_torch()

# ruff: noqa: E402 - the imports need PyTorch
from acplan._advise.balance import Balance, RankTime, balance_stages
from acplan._advise.best_batch import BestBatch, best_batch
from acplan._advise.explain import Explanation, explain
from acplan._advise.fits import Fit, Fits, Miss
from acplan._advise.lengths import BatchTable, largest_batches
from acplan._advise.levers import LEVERS
from acplan._advise.what_fits import what_fits
from acplan._apply.apply import apply, remove
from acplan._apply.same_plan import require_same_plan
from acplan._base.errors import AcplanError, PlanMismatchWarning
from acplan._base.offloaded_states import offload_states
from acplan._base.package import __version__
from acplan._compile.compile import (
    Partitioner,
    compile,
    compiled_plans,
    partitioner,
    verify_compiled,
)
from acplan._compile.compiled_plan import CompiledPlan
from acplan._compile.memory_budget import (
    BudgetAudit,
    BudgetChoice,
    MemoryBudgets,
    memory_budgets,
)
from acplan._compile.step_plan import StepPlan
from acplan._device.devices import DEVICES, Device
from acplan._device.profiled_device import ProfiledDevice, profiled_device
from acplan._files.display import set_chart
from acplan._files.lengths_file import Lengths
from acplan._files.plan_file import Plan, PlanDevice, PlannedModule, PlannedOperator
from acplan._files.plan_host import PlanHost, PlanStreams
from acplan._files.plan_table import PlanTable
from acplan._files.profile_file import Profile
from acplan._files.times_off import Regret, TimesOff
from acplan._files.trace_file import Trace
from acplan._files.verification import TableVerification, Verification
from acplan._peers.dataflow import dataflow_graph
from acplan._peers.sac_milp import get_optimal_checkpointing_policy_per_module, sac_milp
from acplan._program.audit import Audit, audit
from acplan._program.calibrate import calibrate
from acplan._program.frontier import Comparison, Frontier, compare, frontier
from acplan._program.plan import plan
from acplan._program.profile import from_torch, profile
from acplan._program.report import report
from acplan._step.linear_cross_entropy import linear_cross_entropy
from acplan._step.microbatches import Microbatch
from acplan._step.optimizers import OPTIMIZERS
from acplan._step.trace import trace
from acplan._step.trace_lengths import trace_lengths
from acplan._trainers.optimizer_state import make_optimizer_state
from acplan._trainers.plain_loop import auto_checkpoint
from acplan._verify.verify import verify

__all__ = [
    "DEVICES",
    "LEVERS",
    "OPTIMIZERS",
    "AcplanError",
    "Audit",
    "Balance",
    "BatchTable",
    "BestBatch",
    "BudgetAudit",
    "BudgetChoice",
    "Comparison",
    "CompiledPlan",
    "Device",
    "Explanation",
    "Fit",
    "Fits",
    "Frontier",
    "Lengths",
    "MemoryBudgets",
    "Microbatch",
    "Miss",
    "Partitioner",
    "Plan",
    "PlanDevice",
    "PlanHost",
    "PlanMismatchWarning",
    "PlanStreams",
    "PlanTable",
    "PlannedModule",
    "PlannedOperator",
    "Profile",
    "ProfiledDevice",
    "RankTime",
    "Regret",
    "StepPlan",
    "TableVerification",
    "TimesOff",
    "Trace",
    "Verification",
    "__version__",
    "apply",
    "audit",
    "auto_checkpoint",
    "balance_stages",
    "best_batch",
    "calibrate",
    "compare",
    "compile",
    "compiled_plans",
    "dataflow_graph",
    "explain",
    "from_torch",
    "frontier",
    "get_optimal_checkpointing_policy_per_module",
    "largest_batches",
    "linear_cross_entropy",
    "make_optimizer_state",
    "memory_budgets",
    "offload_states",
    "partitioner",
    "plan",
    "profile",
    "profiled_device",
    "remove",
    "report",
    "require_same_plan",
    "sac_milp",
    "set_chart",
    "trace",
    "trace_lengths",
    "verify",
    "verify_compiled",
    "what_fits",
]

# The libraries for which these modules are need not be installed.
_TRAINERS = ("accelerate", "lightning", "torchtitan", "transformers")


def __getattr__(name: str) -> Any:
    if name in _TRAINERS:
        return importlib.import_module(f"acplan.{name}")
    raise AttributeError(f"module 'acplan' has no attribute {name!r}")
