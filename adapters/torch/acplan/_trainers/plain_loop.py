"""acplan.auto_checkpoint: the plan of a training loop of the user's own."""

from typing import Any

import torch

from acplan._apply.apply import apply
from acplan._apply.refusals import require_no_checkpoints
from acplan._device.devices import Device
from acplan._files.lengths_file import Lengths
from acplan._program.budgets import Budget
from acplan._program.plan import PLAN_OPTIONS, require_plannable
from acplan._program.visible_device import with_visible_device
from acplan._trainers.optimizer_state import is_on_device, make_state_of_plan
from acplan._trainers.planned_step import StepToPlan, require_lengths


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

    For batches of several lengths, `lengths` is an acplan.Lengths, `plans` the most plans of
    the table, and the only argument of the model a function of a length that returns its
    inputs, as for acplan.trace_lengths: the plan is switched by the inputs of each forward pass
    (docs/python/lengths.md).

    progress: shows a bar beyond two seconds, if tqdm is installed; by default if somebody
              watches.
    verify:   traces the model again with the plan, and raises AcplanError if its peak is over
              the budget; the model is then unchanged.
    """
    options = {name: kwargs.pop(name) for name in PLAN_OPTIONS if name in kwargs}
    budget, options = with_visible_device(budget, options)
    lengths, plans = None, 1
    if isinstance(kwargs.get("lengths"), Lengths):  # others are an argument of the model
        inputs_of = args[0] if len(args) == 1 else None
        plans = kwargs.pop("plans", 1)
        lengths = require_lengths(
            kwargs.pop("lengths"), plans, inputs_of, options, "the model's argument"
        )
    require_no_checkpoints(model)
    require_plannable(budget, options)
    step = StepToPlan(model, args, kwargs, lengths, plans)
    new_plan = step.plan(budget, device, options, verify=verify, progress=progress)
    optimizer = kwargs.get("optimizer")
    planned_model = apply(model, new_plan)
    if isinstance(optimizer, torch.optim.Optimizer) and is_on_device(optimizer):
        make_state_of_plan(new_plan, optimizer)
    return planned_model
