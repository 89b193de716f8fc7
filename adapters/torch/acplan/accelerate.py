"""Plans for loops with accelerate: acplan.accelerate.auto_checkpoint, before
`accelerator.prepare`."""

import dataclasses
import logging
from collections.abc import Callable, Iterator
from typing import Any

import torch

from acplan._base.arguments import require_attributes, require_function, require_module
from acplan._base.errors import AcplanError
from acplan._base.modules import class_name_of
from acplan._device.devices import Device
from acplan._files.lengths_file import Lengths
from acplan._files.plan_file import Plan
from acplan._files.plan_table import PlanTable
from acplan._program.budgets import Budget
from acplan._program.plan import PLAN_OPTIONS
from acplan._step.training_step import LossFn, default_loss
from acplan._trainers.planned_step import InputsOf
from acplan._trainers.trainer_step import (
    TrainerStep,
    autocast_forward,
    checkpoint_step,
    master_bytes,
    require_checkpoints_off,
)


def auto_checkpoint(
    accelerator: Any,
    model: torch.nn.Module,
    *,
    budget: Budget | None = None,
    loss_fn: LossFn | None = None,
    inputs_of: InputsOf | None = None,
    plans: int = 1,
    device: str | Device = "a100",
    verify: bool = False,
    **kwargs: Any,
) -> Plan | PlanTable:
    """Checkpoints the model, in place, so that training it on `model(**kwargs)` with the
    accelerator stays within the budget of a process (or on a device of device_memory) and
    recomputes least.

    It must come before `accelerator.prepare`. The mixed precision, the gradient accumulation
    and the processes are the accelerator's; other options of acplan.trace for the step, such as
    optimizer and clip_grad_norm, and options of acplan.plan, such as reserve, are keyword
    arguments; all others are the model's. The first process makes the plan, and all apply it.

    For batches of several lengths, give in place of the model's arguments
    `lengths=acplan.Lengths(...)`, `plans`, and `inputs_of`, a function of a length that returns
    them as a dict (docs/python/lengths.md).
    """
    setup = Setup.from_accelerator(accelerator, model)
    require_function(loss_fn, "loss_fn", "the model's output")
    names = ("optimizer", "accumulate", "clip_grad_norm", "clip_grad_value", "ema")
    step_options = {name: kwargs.pop(name) for name in names if name in kwargs}
    options = {name: kwargs.pop(name) for name in PLAN_OPTIONS if name in kwargs}
    loss_of = loss_fn or default_loss
    inputs: dict[str, Any] | InputsOf = kwargs
    if isinstance(kwargs.get("lengths"), Lengths):  # others are an argument of the model
        options |= {"lengths": kwargs.pop("lengths"), "plans": plans}
        if inputs_of is None or kwargs:
            raise AcplanError(
                "lengths: expected inputs_of, a function of a length, in place of the model's "
                "arguments"
            )
        inputs = inputs_of

    def forward(plain_model: torch.nn.Module, **inputs: Any) -> torch.Tensor:
        return loss_of(plain_model(**inputs))

    accumulate = int(accelerator.gradient_accumulation_steps)
    step = setup.step(model, inputs, forward, {"accumulate": accumulate, **step_options})
    step = dataclasses.replace(step, logger=logging.getLogger("accelerate"))
    return checkpoint_step(step, budget, device, verify, options)


@dataclasses.dataclass(frozen=True)
class Setup:
    """The changes that an accelerator will make to a model. `shards` is its plugin for FSDP."""

    mixed_precision: str
    processes: int
    shards: Any

    @classmethod
    def from_accelerator(cls, accelerator: Any, model: torch.nn.Module) -> "Setup":
        kind = "an accelerate.Accelerator"
        attributes = "state mixed_precision num_processes gradient_accumulation_steps"
        require_attributes(accelerator, "accelerator", kind, attributes)
        require_module(model)
        if getattr(model, "_is_accelerate_prepared", False):
            raise AcplanError(
                "accelerate has already prepared the model; plan before accelerator.prepare "
                "(or trainer.train)"
            )
        state = accelerator.state
        if getattr(state, "deepspeed_plugin", None) is not None:
            raise AcplanError("DeepSpeed: acplan has no plans for its partitioning")
        precision = str(accelerator.mixed_precision)
        if precision not in ("no", "bf16", "fp16"):
            raise AcplanError(
                f"mixed_precision: expected no, bf16 or fp16, found {precision!r}"
            )
        shards = getattr(state, "fsdp_plugin", None)
        if shards is not None:
            require_checkpoints_off(
                shards.activation_checkpointing, "the FSDP plugin's activation_checkpointing"
            )
            if getattr(shards, "fsdp_version", 1) != 2:
                raise AcplanError(
                    "FSDP: expected version 2 (fully_shard), found 1; set fsdp_version=2"
                )
        return cls(precision, int(accelerator.num_processes), shards)

    def step(
        self,
        model: torch.nn.Module,
        inputs: dict[str, Any] | InputsOf,
        forward: Callable[..., torch.Tensor],
        options: dict[str, Any],
        noting: tuple[Any, ...] = (),
    ) -> TrainerStep:
        """Returns the step. `forward` makes the loss of the model, in its state before it is
        prepared; its changes to the objects in `noting` are undone."""
        is_mixed = self.mixed_precision != "no"
        # fully_shard casts the parameters instead.
        autocast = self.mixed_precision if is_mixed and self.shards is None else None

        def forward_fn(plain_model: torch.nn.Module, **values: Any) -> torch.Tensor:
            with autocast_forward(plain_model, autocast):
                return forward(plain_model, **values)

        trace_options = {**options, "forward_fn": forward_fn}
        if self.mixed_precision == "fp16":
            trace_options["grad_scaler"] = True
        if self.shards is None:
            return TrainerStep(model, inputs, trace_options, noting=noting)
        dtype = getattr(self.shards.mixed_precision_policy, "param_dtype", None)
        if dtype is not None:
            trace_options["param_dtype"] = dtype
        sharded = {
            "world_size": self.processes,
            "fsdp_units": list(self._units(model)),
            # In a segment, modules that are sharded one by one would be recomputed whole.
            "segments": "none",
        }
        if dtype is not None:
            sharded["reserve"] = master_bytes(model, dtype, self.processes)
        return TrainerStep(model, inputs, trace_options, sharded, dtype, noting)

    def _units(self, model: torch.nn.Module) -> Iterator[str]:
        """Yields the blocks that the plugin's policy shards, by class."""
        root = class_name_of(model)
        names = self.shards.transformer_cls_names_to_wrap
        names = names or getattr(model, "_no_split_modules", None) or ()
        for path, module in model.named_modules():
            if path and class_name_of(module) in names:
                yield f"{root}.{path}"
