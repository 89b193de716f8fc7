"""A step on several GPUs: fully_shard on the repeated blocks of a model, and on the model."""

import contextlib
import dataclasses
import functools
from collections.abc import Iterator

import torch
from torch.distributed.device_mesh import DeviceMesh

from acplan._advise.levers import ROUNDING, Lever, NotApplicable
from acplan._advise.precision import computes_in_float32, copy_on_meta
from acplan._step.training_step import TrainingStep


def sharded_step(step: TrainingStep, gpus: int) -> TrainingStep:
    """Returns the step of a rank of so many, with a copy of the model that is sharded when it
    is traced."""
    return dataclasses.replace(copy_on_meta(step), mesh={"dp": gpus}, parallelize=_shard)


def _shard(
    model: torch.nn.Module, mesh: DeviceMesh, param_dtype: torch.dtype | None = None
) -> None:
    # Not every PyTorch that acplan supports has it.
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    policy = MixedPrecisionPolicy(
        param_dtype=param_dtype, reduce_dtype=None if param_dtype is None else torch.float32
    )
    for block in repeated_blocks(model):
        fully_shard(block, mesh=mesh["dp"], mp_policy=policy)
    fully_shard(model, mesh=mesh["dp"], mp_policy=policy)


def repeated_blocks(model: torch.nn.Module) -> list[torch.nn.Module]:
    """Returns the modules of the outermost lists that have several with parameters."""
    blocks: list[torch.nn.Module] = []
    for module in model.children():
        parts = [m for m in module.children() if next(m.parameters(), None) is not None]
        is_list = isinstance(module, (torch.nn.ModuleList, torch.nn.Sequential))
        blocks += parts if is_list and len(parts) > 1 else repeated_blocks(module)
    return blocks


@contextlib.contextmanager
def _mixed_precision(step: TrainingStep) -> Iterator[TrainingStep]:
    if not computes_in_float32(step):
        raise NotApplicable("the step does not compute in float32")
    shard = functools.partial(_shard, param_dtype=torch.bfloat16)
    yield dataclasses.replace(step, parallelize=shard)


def mixed_precision_lever() -> Lever:
    """Returns the lever of fully_shard that computes in bfloat16 with weights in float32."""
    return Lever(
        "fully_shard in bf16",
        "mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, "
        "reduce_dtype=torch.float32) in each fully_shard",
        _mixed_precision,
        "precision",
        ROUNDING,
    )
