"""acplan.auto_checkpoint: the plan of a training loop of the user's own."""

from typing import Any

import torch

from acplan._apply.apply import apply
from acplan._apply.refusals import require_no_checkpoints
from acplan._device.devices import Device
from acplan._program.budgets import Budget
from acplan._program.plan import PLAN_OPTIONS, plan, require_plannable
from acplan._step.trace import trace
from acplan._trainers.optimizer_state import is_on_device, make_state_of_plan, options_for
from acplan._verify.verify import verify as verify_plan
from acplan._verify.within_budget import require_within_budget


def auto_checkpoint(
    model: torch.nn.Module,
    *args: Any,
    budget: Budget | None = None,
    device: str | Device = "a100",
    progress: bool | None = None,
    verify: bool = False,
    **kwargs: Any,
) -> torch.nn.Module:
    """Checkpoints the model, in place, so that training it on `model(*args, **kwargs)` stays
    within the budget, or on a device of device_memory, and recomputes least: acplan.trace, plan
    and apply.

    budget and the options of acplan.plan, such as `reserve` and `device_memory`, are for the
    plan; device and the options of acplan.trace that describe the step, such as loss_fn,
    optimizer, autocast and accumulate, are for the trace; other keyword arguments are the
    model's.

    If the plan is for a device and needs the optimizer's state before the first step
    (`Plan.device`), this function makes it if `optimizer` is the optimizer that trains and the
    model is on the device; else call acplan.make_optimizer_state when it is.

    progress: shows a bar beyond two seconds, if tqdm is installed; by default if somebody
              watches.
    verify:   traces the model again with the plan, and raises AcplanError if its peak is over
              the budget; the model is then unchanged.
    """
    options = {name: kwargs.pop(name) for name in PLAN_OPTIONS if name in kwargs}
    require_no_checkpoints(model)
    require_plannable(budget, options)
    traced = trace(model, *args, device=device, progress=progress, **kwargs)
    optimizer = kwargs.get("optimizer")
    options = options_for(optimizer, options)
    new_plan = plan(traced, budget, progress=progress, **options)
    if verify:
        require_within_budget(
            new_plan, verify_plan(model, new_plan, *args, trace=traced, **kwargs)
        )
    planned_model = apply(model, new_plan)
    if isinstance(optimizer, torch.optim.Optimizer) and is_on_device(optimizer):
        make_state_of_plan(new_plan, optimizer)
    return planned_model
