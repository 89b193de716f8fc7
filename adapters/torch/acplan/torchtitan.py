"""Plans for torchtitan: acplan.torchtitan.Policy in place of its activation checkpointing, or
`apply_ac` with the signature of torchtitan's own."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F

from acplan._apply.apply import apply
from acplan._base.arguments import require_attributes, require_module, whole_number
from acplan._base.errors import AcplanError
from acplan._base.modules import class_name_of
from acplan._device.devices import Device
from acplan._files.plan_file import Plan
from acplan._program.budgets import Budget
from acplan._step.optimizers import OPTIMIZERS
from acplan._trainers.titan_pipeline import TitanPipeline, pipeline_of
from acplan._trainers.titan_step import TitanStep, degree_of, is_sharded
from acplan._trainers.trainer_step import (
    TrainerStep,
    checkpoint_step,
    master_bytes,
    plan_step,
)

# A function of the model's output and the labels.
TitanLoss = Callable[[Any, torch.Tensor], torch.Tensor]


def cross_entropy(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Returns torchtitan's loss of language models, a sum over tokens."""
    return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(0, 1), reduction="sum")


@dataclasses.dataclass(frozen=True)
class Policy:
    """The value of torchtitan's `activation_checkpoint`, made of the rest of its configuration:

        config.activation_checkpoint = acplan.torchtitan.Policy.from_config(config, "60GiB")

    torchtitan applies it at the place of its own: after the model is made (on the meta device),
    before torch.compile and fully_shard. The first rank makes the plan; in a pipeline, the
    first rank of each stage.
    """

    budget: Budget | None
    batch: int
    length: int
    dtype: torch.dtype
    accumulate: int
    shards: int
    optimizer: str
    max_norm: float | None
    inputs: Mapping[str, torch.Tensor] | None = None
    loss: TitanLoss = cross_entropy
    device: str | Device = "a100"
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    # Versions whose configuration has a mode apply it if the mode is not "none".
    mode: str = "acplan"
    # The step that torchtitan's own functions shard, if it is parallel beyond data.
    whole_step: TitanStep | None = None

    @classmethod
    def from_config(
        cls,
        config: Any,
        budget: Budget | None = None,
        *,
        inputs: Mapping[str, torch.Tensor] | None = None,
        loss: TitanLoss = cross_entropy,
        device: str | Device = "a100",
        **options: Any,
    ) -> "Policy":
        """Returns the policy for a configuration.

        config:  torchtitan's job configuration (`training`, `parallelism`, `optimizer`).
        inputs:  the model's inputs, by name, if they are not `tokens` alone, such as masks.
        options: options of acplan.plan, such as reserve, or device_memory in place of a budget.
        """
        kind = "a configuration of torchtitan, with training and parallelism"
        require_attributes(config, "config", kind, "training parallelism")
        training, parallel = config.training, config.parallelism
        ranks = dist.get_world_size() if dist.is_initialized() else 1
        size, length = (
            whole_number(getattr(training, name, None), name, 1)
            for name in ("local_batch_size", "seq_len")
        )
        # Ranks that split products or sequences have the same batch.
        parts, stages = degree_of(parallel, "context"), degree_of(parallel, "pipeline")
        batches = max(1, ranks // (parts * stages * degree_of(parallel, "tensor")))
        micro, whole = size * batches, training.global_batch_size
        accumulate = max(1, whole // micro) if whole > 0 else 1
        whole_step = None
        if is_sharded(parallel):
            whole_step = TitanStep(config)
            if stages > 1:
                whole_step = pipeline_of(config, length // parts, accumulate)
        norm = getattr(training, "max_norm", None)
        if norm is not None and not isinstance(norm, (int, float)):
            raise AcplanError(f"max_norm: expected a number, found {norm!r}")
        return cls(
            budget,
            size,
            length // parts,
            _dtype(training.mixed_precision_param),
            accumulate,
            _shards(parallel, ranks) if whole_step is None else 1,
            _optimizer(getattr(config, "optimizer", None)),
            float(norm) if norm else None,
            inputs,
            loss,
            device,
            options,
            whole_step=whole_step,
        )

    def build(self, dump_folder: str = "") -> "Policy":
        """Returns the policy itself, as torchtitan builds its own from a configuration."""
        return self

    def apply(self, model: torch.nn.Module) -> Plan:
        """Checkpoints the model, in place. Returns the plan."""
        require_module(model)
        if not isinstance(getattr(model, "layers", None), torch.nn.Module):
            raise AcplanError(
                "model: expected layers, as the models of torchtitan have, found a "
                f"{type(model).__name__} without"
            )
        if self.whole_step is not None:
            return self._apply_to_rank(model, self.whole_step)
        shape = (self.batch, self.length)
        labels = torch.zeros(shape, dtype=torch.long, device="meta")
        inputs = dict(self.inputs or {"tokens": labels.clone()})
        loss = self.loss

        def forward(plain_model: torch.nn.Module, labels: Any, **values: Any) -> torch.Tensor:
            return loss(plain_model(**values), labels)

        trace_options = {
            "forward_fn": forward,
            "param_dtype": self.dtype,
            "optimizer": self.optimizer,
            "accumulate": self.accumulate,
            "clip_grad_norm": self.max_norm,
        }
        root = class_name_of(model)
        layers = [name for name, _ in model.get_submodule("layers").named_children()]
        plan_options = {
            "world_size": self.shards,
            "fsdp_units": [f"{root}.layers.{name}" for name in layers],
            # In a segment, modules that are sharded one by one would be recomputed whole.
            "segments": "none",
            "reserve": master_bytes(model, self.dtype, self.shards),
        }
        step = TrainerStep(
            model, {**inputs, "labels": labels}, trace_options, plan_options, self.dtype
        )
        return self._answer(checkpoint_step, step)

    def _apply_to_rank(self, model: torch.nn.Module, whole_step: TitanStep) -> Plan:
        """Plans the step of the first rank as torchtitan shards it."""
        tokens = torch.zeros((self.batch, self.length), dtype=torch.long, device="meta")
        inputs = {name: tokens.clone() for name in ("tokens", "labels", "positions")}
        loss: dict[str, Any] = (
            {"schedule": whole_step.schedule, "rank": whole_step.leader}
            if isinstance(whole_step, TitanPipeline)
            else {"forward_fn": whole_step.loss_of(), "accumulate": self.accumulate}
        )
        trace_options = {
            **loss,
            "optimizer": self.optimizer,
            "step_fn": whole_step.update,
            "mesh": {"world": dist.get_world_size()},
            "parallelize": whole_step.shard,
        }
        step = TrainerStep(
            model,
            {**inputs, **(self.inputs or {})},
            trace_options,
            traced=whole_step.make,
            leader=whole_step.leader,
        )
        if not isinstance(whole_step, TitanPipeline):
            return self._answer(checkpoint_step, step)
        plan = whole_step.part_of_plan(model, lambda: self._answer(plan_step, step))
        apply(model, plan)
        return plan

    def _answer(self, make: Callable[..., Any], step: TrainerStep) -> Plan:
        result = make(step, self.budget, self.device, False, self.options)
        assert isinstance(result, Plan)  # without lengths, which its batches do not have
        return result


def apply_ac(
    model: torch.nn.Module, ac_config: Policy, *, base_folder: str = "", **_: Any
) -> None:
    """Replaces torchtitan.distributed.activation_checkpoint.apply_ac, in versions that have it:
    further arguments of its own policies have no meaning for a plan."""
    if not isinstance(ac_config, Policy):
        raise AcplanError(
            "apply_ac: expected an acplan.torchtitan.Policy as activation_checkpoint, "
            f"found {type(ac_config).__name__}"
        )
    ac_config.build(dump_folder=base_folder).apply(model)


def _shards(parallel: Any, ranks: int) -> int:
    """Returns the number of ranks that share parameters; -1 stands for all that are no
    replicas."""
    degree = parallel.data_parallel_shard_degree
    if degree >= 1:
        return int(degree)
    name = "data_parallel_replicate_degree"
    replicas = whole_number(getattr(parallel, name, 1), name, 1)
    if replicas > ranks:
        raise AcplanError(f"{name}: expected {ranks} or less, the ranks, found {replicas}")
    return ranks // replicas


def _dtype(name: Any) -> torch.dtype:
    dtype = getattr(torch, str(name), None)
    if not isinstance(dtype, torch.dtype):
        raise AcplanError(f"mixed_precision_param: expected a data type, found {name!r}")
    return dtype


def _optimizer(config: Any) -> str:
    """Returns the optimizer's name in acplan.OPTIMIZERS."""
    name = str(getattr(config, "name", "AdamW")).lower()
    implementation = str(getattr(config, "implementation", "fused"))
    both = f"{name}-{implementation}"
    return both if both in OPTIMIZERS else name
