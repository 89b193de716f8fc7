"""Plans for transformers' Trainer: acplan.transformers.auto_checkpoint, before
`trainer.train()`."""

import dataclasses
import functools
import logging
from collections.abc import Callable, Mapping
from typing import Any, overload

import torch

from acplan._apply.apply import apply, has_plan
from acplan._base.arguments import require_attributes, require_function, require_mapping
from acplan._base.errors import AcplanError
from acplan._device.devices import Device
from acplan._fakes.random_states import random_state_kept
from acplan._fakes.restored_state import objects_kept
from acplan._files.lengths_file import Lengths
from acplan._files.plan_file import Plan
from acplan._files.plan_table import PlanTable
from acplan._program.budgets import Budget
from acplan._trainers.optimizer_state import make_optimizer_state
from acplan._trainers.planned_step import InputsOf
from acplan._trainers.trainer_step import (
    TrainerStep,
    checkpoint_step,
    require_checkpoints_off,
    require_read_again,
)
from acplan.accelerate import Setup

_NUM_ITEMS = "num_items_in_batch"
_ORIGINAL = "_acplan_model_init"


@overload
def auto_checkpoint(
    trainer: Any,
    budget: Budget | None = None,
    *,
    batch: Mapping[str, Any] | None = None,
    lengths: None = None,
    **options: Any,
) -> Plan: ...


@overload
def auto_checkpoint(
    trainer: Any,
    *,
    batch: Callable[[int], Mapping[str, Any]],
    lengths: Lengths,
    plans: int = 1,
    **options: Any,
) -> PlanTable: ...


def auto_checkpoint(
    trainer: Any,
    budget: Budget | None = None,
    *,
    batch: Mapping[str, Any] | Callable[[int], Mapping[str, Any]] | None = None,
    lengths: Lengths | None = None,
    plans: int = 1,
    device: str | Device = "a100",
    verify: bool = False,
    **options: Any,
) -> Plan | PlanTable:
    """Checkpoints the trainer's model, in place, so that `trainer.train()` stays within the
    budget of a process and recomputes least:

        trainer = transformers.Trainer(model, arguments, train_dataset=data)
        acplan.transformers.auto_checkpoint(trainer, budget="20GiB")
        trainer.train()

    It must come after the trainer is made and before the trainer makes its optimizer and wraps
    the model (DDP, FSDP2, torch.compile), so that the plan is in time for all of them. The step
    is the trainer's own: `compute_loss` of a batch of its data collator, mixed precision,
    optimizer, clipping and gradient accumulation of its TrainingArguments. Losses, checkpoints
    and saved models are those without the plan, also for subclasses of Trainer. If a trainer
    makes its models (model_init), the plan is applied to each of them.

    batch:       the batch to plan for; by default the largest of the first batches that make up
                 an update. If batches are padded to their own longest sample, give the longest
                 that may occur.
    lengths, plans: for batches of several lengths, an acplan.Lengths, and the most plans of a
                 table that the inputs switch (docs/python/lengths.md). `batch` is then a
                 function of a length that returns a batch, and the result is the table.
    device, verify: as for acplan.auto_checkpoint.
    options:     options of acplan.plan, such as reserve, or device_memory in place of a budget.
    """
    attributes = "args model model_wrapped accelerator get_train_dataloader"
    require_attributes(trainer, "trainer", "a transformers.Trainer", attributes)
    if batch is not None and lengths is None:
        require_mapping(batch, "batch")
    arguments = trainer.args
    if lengths is not None and getattr(arguments, "torch_compile", False):
        raise AcplanError(
            "lengths: a table of plans is switched in eager code: expected "
            "TrainingArguments.torch_compile off"
        )
    for name in ("gradient_checkpointing", "activation_checkpointing"):
        is_on = getattr(arguments, name, False)
        require_checkpoints_off(is_on, f"TrainingArguments.{name}")
    if getattr(arguments, "n_gpu", 1) > 1:
        raise AcplanError(
            "DataParallel: acplan has no plans for several GPUs of one process; start "
            "one process for each, with torchrun"
        )
    if trainer.model_wrapped is not trainer.model:
        raise AcplanError("the model is wrapped already; plan before trainer.train()")
    setup = Setup.from_accelerator(trainer.accelerator, trainer.model)
    with objects_kept(trainer):
        step = _step(trainer, setup, _inputs_or_function(trainer, batch, lengths))
    options = {**options, "lengths": lengths, "plans": plans}
    new_plan = checkpoint_step(step, budget, device, verify, options)
    if new_plan.device is not None and new_plan.device.optimizer_state_first:
        trainer.add_callback(_state_callback())
    if trainer.model_init is not None:
        trainer.model_init = _model_init_with_plan(trainer, new_plan, step.param_dtype)
    return new_plan


def _state_callback() -> Any:
    """Returns a callback that makes the optimizer's state when the training starts."""
    from transformers import TrainerCallback

    class MakeOptimizerState(TrainerCallback):
        def on_train_begin(self, *args: Any, optimizer: Any = None, **kwargs: Any) -> None:
            if optimizer is not None:
                make_optimizer_state(optimizer)

    return MakeOptimizerState()


def _model_init_with_plan(
    trainer: Any, plan: Plan | PlanTable, dtype: torch.dtype | None
) -> Callable[..., torch.nn.Module]:
    """Returns a function that makes models as the trainer does, with the plan, unless the user
    has removed the plan from the trainer's current model."""
    original = trainer.model_init
    model_init = getattr(original, _ORIGINAL, original)

    @functools.wraps(model_init)
    def make_model(*args: Any) -> torch.nn.Module:
        model: torch.nn.Module = model_init(*args)
        is_wanted = trainer.model is None or has_plan(trainer.model)
        return apply(model, plan, param_dtype=dtype) if is_wanted else model

    setattr(make_model, _ORIGINAL, model_init)
    return make_model


def _inputs_or_function(
    trainer: Any, batch: Any, lengths: Lengths | None
) -> dict[str, Any] | InputsOf:
    if lengths is None:
        return _inputs(trainer, batch)
    require_function(batch, "batch", "a length")
    if batch is None:
        raise AcplanError("lengths: expected batch=, a function of a length, found none")

    def inputs_of(length: int) -> dict[str, Any]:
        batch_of_length = batch(length)
        require_mapping(batch_of_length, "batch")
        with objects_kept(trainer):
            return _inputs(trainer, batch_of_length)

    return inputs_of


def _inputs(trainer: Any, batch: Mapping[str, Any] | None) -> dict[str, Any]:
    """Returns a batch as the model is given it. Data and random numbers are restored."""
    count = trainer.args.gradient_accumulation_steps
    if batch is not None:
        batches, items = trainer.get_batch_samples(
            iter([batch] * count), count, trainer.args.device
        )
    else:
        if trainer.train_dataset is None or _is_empty(trainer.train_dataset):
            raise AcplanError(_NO_BATCH)
        with random_state_kept():
            loader = trainer.get_train_dataloader()
            require_read_again(loader)
            batches, items = trainer.get_batch_samples(iter(loader), count, trainer.args.device)
    if not batches:
        raise AcplanError(_NO_BATCH)
    largest: Any = max(batches, key=_size)
    inputs = dict(largest)
    if getattr(trainer, "model_accepts_loss_kwargs", False) and items is not None:
        inputs[_NUM_ITEMS] = items
    return inputs


_NO_BATCH = "the train dataset has no batch: give one as batch="


def _is_empty(data: Any) -> bool:
    return hasattr(data, "__len__") and len(data) == 0


def _size(batch: Mapping[str, Any]) -> int:
    return sum(v.numel() for v in batch.values() if isinstance(v, torch.Tensor))


def _step(trainer: Any, setup: Setup, inputs: dict[str, Any] | InputsOf) -> TrainerStep:
    def forward(model: torch.nn.Module, **values: Any) -> torch.Tensor:
        items = values.pop(_NUM_ITEMS, None)
        loss: torch.Tensor = trainer.compute_loss(model, values, num_items_in_batch=items)
        return loss

    norm = trainer.args.max_grad_norm
    options = {
        "optimizer": _optimizer(trainer),
        "accumulate": trainer.args.gradient_accumulation_steps,
        "clip_grad_norm": norm if norm else None,
    }
    step = setup.step(trainer.model, inputs, forward, options, (trainer,))
    return dataclasses.replace(step, logger=logging.getLogger("transformers.trainer"))


def _optimizer(trainer: Any) -> torch.optim.Optimizer:
    """Returns the optimizer as the trainer will make it."""
    if trainer.optimizer is not None:
        own_optimizer: torch.optim.Optimizer = trainer.optimizer
        return own_optimizer
    class_and_options = getattr(trainer, "optimizer_cls_and_kwargs", None)
    try:
        if class_and_options is not None:  # the trainer removes some entries
            trainer.optimizer_cls_and_kwargs = (
                class_and_options[0],
                dict(class_and_options[1]),
            )
        optimizer: torch.optim.Optimizer = trainer.create_optimizer()
        return optimizer
    finally:
        trainer.optimizer = None
        if class_and_options is not None:
            trainer.optimizer_cls_and_kwargs = class_and_options
