"""The code that the modules for trainers share: a step as the trainer runs it, planned once,
and applied on every rank."""

import contextlib
import dataclasses
import functools
import logging
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from acplan._apply.apply import apply
from acplan._apply.refusals import require_no_checkpoints
from acplan._base.errors import AcplanError
from acplan._base.patching import set_attribute
from acplan._base.program import warnings_collected
from acplan._device.devices import Device
from acplan._fakes.restored_state import objects_kept, read_once
from acplan._files.plan_file import Plan
from acplan._files.plan_table import PlanTable
from acplan._program.budgets import Budget
from acplan._program.plan import PLAN_OPTIONS, require_plannable
from acplan._program.visible_device import with_visible_device
from acplan._step.autocast import autocast_of
from acplan._trainers.once_per_rank import made_once
from acplan._trainers.planned_step import InputsOf, StepToPlan, require_lengths
from acplan._trainers.summary import log_refused, log_summary, summary


@dataclasses.dataclass(frozen=True)
class TrainerStep:
    """A step of a trainer, for acplan.trace, and the options with which its plan is made and
    applied: options of acplan.plan, and the type in which parameters compute. `noting` are
    objects, such as the trainer, that may note results of the step: they are restored
    afterwards. For batches of several lengths, `inputs` is a function of a length. `logger` is
    the trainer's, for the summary of the plan."""

    model: torch.nn.Module
    inputs: Mapping[str, Any] | InputsOf
    trace_options: Mapping[str, Any]
    plan_options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    param_dtype: torch.dtype | None = None
    noting: tuple[Any, ...] = ()
    # The model to trace, or the function that makes it, if it is another one.
    traced: Any = None
    logger: logging.Logger = logging.getLogger("acplan")
    # The rank that makes the plan of this one, if that is not the first of all.
    leader: int | None = None


def checkpoint_step(
    step: TrainerStep,
    budget: Budget | None,
    device: str | Device,
    verify: bool,
    options: Mapping[str, Any],
) -> Plan | PlanTable:
    """Plans the step as plan_step does, and applies the plan on each rank, in place. Returns
    the plan."""
    shared_plan = plan_step(step, budget, device, verify, options)
    planned_model = apply(step.model, shared_plan, param_dtype=step.param_dtype)
    assert planned_model is step.model  # traced with forward_fn, it is no unit
    return shared_plan


def plan_step(
    step: TrainerStep,
    budget: Budget | None,
    device: str | Device,
    verify: bool,
    options: Mapping[str, Any],
) -> Plan | PlanTable:
    """Traces and plans the step on the first rank. Returns the plan on each. `options` are the
    user's options of acplan.plan, which precede the step's, and for a table of plans `lengths`
    and `plans`."""
    options = dict(options)
    lengths, plans = options.pop("lengths", None), options.pop("plans", 1)
    unknown = [name for name in options if name not in PLAN_OPTIONS]
    if unknown:
        raise AcplanError(
            f"unknown option {unknown[0]!r}; known are those of acplan.plan: "
            f"{', '.join(PLAN_OPTIONS)}"
        )
    require_no_checkpoints(step.model)
    budget, plan_options = with_visible_device(budget, {**step.plan_options, **options})
    run = require_lengths(lengths, plans, step.inputs, plan_options, "batch")
    require_plannable(budget, plan_options)
    if isinstance(step.inputs, Mapping):
        traced = step.model if step.traced is None else step.traced
        to_plan = StepToPlan(traced, (), {**step.trace_options, **step.inputs})
    elif run is not None:
        to_plan = StepToPlan(step.model, (step.inputs,), step.trace_options, run, plans)
    else:
        raise AcplanError("batch: a function of a length needs lengths")

    def make() -> Plan | PlanTable:
        with objects_kept(*step.noting):
            return to_plan.plan(budget, device, plan_options, verify=verify)

    with warnings_collected() as warnings:
        shared_plan = made_once(make, step.leader)
    refused = log_refused(warnings)
    log_summary(step.logger, summary(shared_plan, step.inputs, device, refused))
    return shared_plan


@contextlib.contextmanager
def autocast_forward(model: torch.nn.Module, autocast: str | None) -> Iterator[None]:
    """Lets the model run under autocast within the block, and return fractions as float32, as
    with accelerate."""
    settings = autocast_of(autocast)
    if settings is None:
        yield
        return
    original = model.forward

    @functools.wraps(original)
    def forward(*args: Any, **kwargs: Any) -> Any:
        with settings.context():
            outputs = original(*args, **kwargs)
        return _in_float32(outputs)

    with set_attribute(model, "forward", forward):
        yield


def _in_float32(outputs: Any) -> Any:
    if isinstance(outputs, torch.Tensor):
        is_half = outputs.dtype in (torch.float16, torch.bfloat16)
        return outputs.float() if is_half else outputs
    if isinstance(outputs, Mapping):
        return type(outputs)(**{k: _in_float32(v) for k, v in outputs.items()})
    if isinstance(outputs, (list, tuple)):
        values = [_in_float32(value) for value in outputs]
        is_named = hasattr(outputs, "_fields")
        return type(outputs)(*values) if is_named else type(outputs)(values)
    return outputs


def master_bytes(model: torch.nn.Module, dtype: torch.dtype, ranks: int) -> int:
    """Returns the bytes that a rank of fully_shard keeps in float32 and that a trace with
    parameters of this type does not have: for weights, gradients and two moments."""
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    return -(-trained * max(0, 4 - dtype.itemsize) * 4 // ranks)


def require_read_again(loader: Any) -> None:
    """Raises AcplanError for a loader if the training would lose the batch that is planned
    for."""
    parts = {"loader": loader}
    if isinstance(loader, torch.utils.data.DataLoader):  # which has workers of its own
        names = ("dataset", "sampler", "batch_sampler", "collate_fn")
        parts = {name: getattr(loader, name, None) for name in names}
    is_in_order = isinstance(parts.get("dataset"), torch.utils.data.IterableDataset)
    for name, part in parts.items():
        kind = read_once(part, name == "loader" or is_in_order)
        if kind:
            raise AcplanError(
                f"the train data read a {kind}, which can be read once: give a batch as batch="
            )


def require_checkpoints_off(is_on: Any, switch: str) -> None:
    if is_on:
        raise AcplanError(f"{switch} checkpoints every block in place of a plan: switch it off")
