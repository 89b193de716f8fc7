"""Plans for Lightning: the callback acplan.lightning.AcplanCallback.

Replaced in Lightning (_base/patching.py says how to read the list):

    lightning.pytorch.LightningModule.log
    lightning.pytorch.LightningModule.log_dict
        _by_itself: logging is the trainer's, and does nothing in a trace.
    lightning.pytorch.LightningModule.forward
        _by_itself: the method of the class runs, and not compiled code.
"""

import contextlib
import copy
import functools
import inspect
import logging
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from acplan._apply.apply import has_plan
from acplan._apply.switching import switch_of
from acplan._base.errors import AcplanError
from acplan._base.patching import set_attribute
from acplan._device.devices import Device
from acplan._fakes.random_states import random_state_kept
from acplan._fakes.restored_state import objects_kept
from acplan._files.lengths_file import Lengths
from acplan._files.plan_file import Plan
from acplan._files.plan_table import PlanTable
from acplan._program.budgets import Budget
from acplan._trainers.optimizer_state import make_state_of_plan
from acplan._trainers.planned_step import InputsOf
from acplan._trainers.trainer_step import TrainerStep, checkpoint_step, require_read_again

try:
    from lightning.pytorch import Callback
except ImportError:
    try:
        from pytorch_lightning import Callback  # type: ignore[assignment]
    except ImportError:
        raise AcplanError("acplan.lightning needs Lightning: pip install lightning") from None

# The autocast of Trainer(precision=...). Without one, weights have that type.
_AUTOCAST = {
    "32-true": None,
    "64-true": None,
    "16-true": None,
    "bf16-true": None,
    "16-mixed": "fp16",
    "bf16-mixed": "bf16",
}


class AcplanCallback(Callback):
    """A callback that checkpoints a LightningModule when its training starts, in place, so that
    it stays within the budget of a process and recomputes least:

        trainer = lightning.Trainer(callbacks=[AcplanCallback(budget="20GiB")])

    The step is the module's own: `training_step` of the first batch of the trainer's data, with
    its precision, optimizer, clipping and accumulation. The first rank makes the plan (`plan`),
    all apply it; checkpoints have the keys of the model without the plan.

    batch:       the batch to plan for, in place of the first one: if batches are padded to
                 their own longest sample, give the longest that may occur.
    lengths, plans: for batches of several lengths, an acplan.Lengths, and the most plans of a
                 table that the batches switch (docs/python/lengths.md). `batch` is then a
                 function of a length that returns a batch.
    device, verify: as for acplan.auto_checkpoint.
    options:     options of acplan.plan, such as reserve, or device_memory in place of a budget.

    A model that `configure_model` has parallelised with ModelParallelStrategy (fully_shard,
    parallelize_module) is planned as the first rank runs it. FSDPStrategy and DeepSpeed are
    refused.
    """

    def __init__(
        self,
        budget: Budget | None = None,
        *,
        batch: Any = None,
        lengths: Lengths | None = None,
        plans: int = 1,
        device: str | Device = "a100",
        verify: bool = False,
        **options: Any,
    ) -> None:
        super().__init__()
        self.plan: Plan | PlanTable | None = None
        self._budget = budget
        self._batch = batch
        self._device = device
        self._is_verified = verify
        self._options = {**options, "lengths": lengths, "plans": plans}

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        if self.plan is not None and has_plan(pl_module):
            return  # planned in an earlier call of fit
        _require_plannable(trainer, pl_module)
        options = _trace_options(trainer, _modes_of(pl_module))
        # The logger of Lightning, in either package.
        logger = logging.getLogger(Callback.__module__)
        step = TrainerStep(pl_module, self._inputs(trainer), options, logger=logger)
        self.plan = checkpoint_step(
            step, self._budget, self._device, self._is_verified, self._options
        )
        make_state_of_plan(self.plan, trainer.optimizers[0])
        switch = switch_of(pl_module)
        if switch is not None:
            # training_step may call parts of the module only, with other arguments.
            switch.follows_calls = False

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        switch = switch_of(pl_module)
        if switch is not None:
            switch.follow({"batch": batch})

    def _inputs(self, trainer: Any) -> dict[str, Any] | InputsOf:
        batch_of = self._batch
        if self._options["lengths"] is not None:
            if not callable(batch_of):
                raise AcplanError("lengths: expected batch=, a function of a length")
            return lambda length: {"batch": batch_of(length)}
        return {"batch": _first_batch(trainer) if batch_of is None else batch_of}


def _require_plannable(trainer: Any, module: Any) -> None:
    if not module.automatic_optimization:
        raise AcplanError(
            "the module uses manual optimization: plan a step of it with acplan.auto_checkpoint"
        )
    wrapped = trainer.strategy.model
    if "Fully" in type(wrapped).__name__ or "DeepSpeed" in str(type(wrapped)):
        raise AcplanError(
            "strategy: expected ModelParallelStrategy for a sharded model, found a "
            f"{type(wrapped).__name__}, whose parts acplan does not trace"
        )
    if trainer.precision not in _AUTOCAST:
        raise AcplanError(
            f"precision: expected one of {', '.join(_AUTOCAST)}, found {trainer.precision!r}"
        )

    if "dataloader_iter" in inspect.signature(module.training_step).parameters:
        raise AcplanError(
            "training_step takes its batches from a dataloader_iter: plan a step of it with "
            "acplan.auto_checkpoint"
        )


def _first_batch(trainer: Any) -> Any:
    """Returns a batch as the module is given it. Data and random numbers are restored."""
    loaders = tree_map(_without_workers, trainer.train_dataloader)
    for loader in tree_leaves(loaders):
        require_read_again(loader)
    with random_state_kept(), objects_kept(loaders):
        for batch in _batches_of(trainer, loaders):
            batch = trainer.precision_plugin.convert_input(batch)
            return trainer.strategy.batch_to_device(batch)
    raise AcplanError("the train dataloader has no batch: give one as batch=")


def _without_workers(loader: Any) -> Any:
    """Returns the same loader without the workers from which the trainer reads."""
    if not isinstance(loader, torch.utils.data.DataLoader):
        return loader
    plain_loader = copy.copy(loader)
    plain_loader._iterator = None
    return plain_loader


def _batches_of(trainer: Any, loaders: Any) -> Iterator[Any]:
    """Yields the batches of one data loader, or of a collection of several, as the trainer
    reads it."""
    own = getattr(getattr(trainer, "fit_loop", None), "_combined_loader", None)
    if own is None or not isinstance(loaders, (dict, list, tuple)):
        yield from loaders
        return
    for batch, *_ in type(own)(loaders, own._mode):
        yield batch


Modes = Sequence[tuple[torch.nn.Module, bool]]


def _modes_of(module: torch.nn.Module) -> Modes:
    """Returns which parts train, as Lightning leaves them."""
    return [(part, part.training) for part in module.modules()]


def _trace_options(trainer: Any, modes: Modes) -> dict[str, Any]:
    if not any(group["params"] for o in trainer.optimizers for group in o.param_groups):
        raise AcplanError("configure_optimizers: expected an optimizer, found none")
    clip = trainer.gradient_clip_val
    by_value = str(getattr(trainer.gradient_clip_algorithm, "value", "norm")) == "value"
    return {
        "forward_fn": functools.partial(_loss_of_step, modes),
        "optimizer": trainer.optimizers[0],
        "autocast": _AUTOCAST[trainer.precision],
        "grad_scaler": trainer.precision == "16-mixed",
        "accumulate": trainer.accumulate_grad_batches,
        "clip_grad_value" if by_value else "clip_grad_norm": clip if clip else None,
    }


def _loss_of_step(modes: Modes, module: Any, batch: Any) -> torch.Tensor:
    for part, is_training in modes:
        part.training = is_training
    # The method of the class: that of a compiled module is compiled.
    step = functools.partial(type(module).training_step, module)
    has_index = len(inspect.signature(step).parameters) > 1
    with _by_itself(module):
        output = step(batch, 0) if has_index else step(batch)
    loss = output.get("loss") if isinstance(output, dict) else output
    if not isinstance(loss, torch.Tensor):
        raise AcplanError(
            f"training_step: expected a loss or a dict with one, found {type(output).__name__}"
        )
    return loss


@contextlib.contextmanager
def _by_itself(module: Any) -> Iterator[None]:
    """Disables, within the block, the module's logging, which is the trainer's, and compiled
    code. Notes that it makes of a step are forgotten."""
    with contextlib.ExitStack() as undo:
        for name, value in list(vars(module).items()):
            if isinstance(value, (list, dict)) and not name.startswith("_"):
                undo.callback(setattr, module, name, value)
                setattr(module, name, copy.copy(value))
        for name in ("log", "log_dict"):
            undo.enter_context(set_attribute(module, name, _not_logged))
        plain = functools.partial(type(module).forward, module)
        undo.enter_context(set_attribute(module, "forward", plain))
        yield


def _not_logged(*args: Any, **kwargs: Any) -> None:
    pass
