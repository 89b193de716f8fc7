"""The budget of a plan, or of a table of plans, beside its steps traced again."""

from acplan._base.errors import AcplanError
from acplan._files.plan_file import Plan
from acplan._files.plan_table import PlanTable
from acplan._files.verification import TableVerification, Verification


def require_within_budget(
    plan: Plan | PlanTable, verification: Verification | TableVerification
) -> None:
    """Raises AcplanError if a re-traced peak is over the budget, and if a run of a plan or of a
    table for a device does not end there."""
    if isinstance(plan, PlanTable):
        usable = plan.usable_bytes
    else:
        _require_whole_step(plan)
        usable = plan.budget_bytes - int(plan.data.get("reserve_bytes", 0))
    if verification.measured_bytes > usable:
        raise AcplanError(
            f"verify: the plan peaks at {verification.measured_bytes:,} bytes, the "
            f"budget is {usable:,}: keep a reserve of at least "
            f"{verification.measured_bytes - usable:,} bytes",
            exit_code=1,
        )
    if plan.device is not None and verification.device is not None:
        if not verification.device.fits:
            raise AcplanError(f"verify: {verification.device}", exit_code=1)


def _require_whole_step(plan: Plan) -> None:
    data = plan.data
    if (
        data.get("world_size", 1) != 1
        or data.get("without_states")
        or data.get("memory_model") == "torch"
    ):
        raise AcplanError(
            "verify: it traces a whole step on one device, but the plan is for several ranks "
            "or leaves out a part of the memory"
        )
