"""A rank of torchtitan's pipelines: its stages and the schedule, made by torchtitan's own
functions."""

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.utils._python_dispatch import _disable_current_modes

from acplan._base.errors import AcplanError
from acplan._base.patching import set_attribute
from acplan._files.plan_file import Plan
from acplan._step.parallel import Parallel
from acplan._trainers.plan_part import children_of, part_of
from acplan._trainers.titan_step import TitanStep, degree_of, part_of_torchtitan


class TitanPipeline(TitanStep):
    """The step of the stages of this process.

    torchtitan splits the model, shards the parts and makes the schedule in one function. A
    trace needs the parts first. So the function runs twice: once on the whole model, for the
    parts, and for the schedule once more with parts that are sharded already.

    torchtitan applies a policy to one part at a time, and shards it before the next one. So the
    plan is made at the first part, and kept until each part has taken its own.
    """

    def __init__(self, config: Any, length: int) -> None:
        super().__init__(config)
        self._length = length
        self._dims: Any = None
        self._plan: Plan | None = None
        self._parts_left: set[str] = set()

    @functools.cached_property
    def _whole(self) -> torch.nn.Module:
        return super().make()

    @property
    def leader(self) -> int | None:
        """The first of the ranks that have the same stage as this process."""
        ranks = dist.get_world_size() // degree_of(self._config.parallelism, "pipeline")
        return dist.get_rank() // ranks * ranks

    def part_of_plan(self, model: torch.nn.Module, make_plan: Callable[[], Plan]) -> Plan:
        """Returns the plan of one of the rank's stages. `make_plan` makes that of all."""
        if self._plan is None:
            self._plan = make_plan()
            self._parts_left = set(children_of(self._plan))
        part = part_of(self._plan, model)
        self._parts_left.discard(part.child)
        if not self._parts_left:
            self._plan = None
        return part.plan

    def make(self) -> torch.nn.Module:
        """Returns the list of the rank's stages on the meta device."""
        group = Parallel({"world": dist.get_world_size()}, (), self.leader or 0)
        with group.group_made():
            _, parts, *_ = self._split(lambda part, **_: part, self.dims(), None)
        return torch.nn.ModuleList(parts)

    def shard(self, model: torch.nn.Module, _: DeviceMesh) -> None:
        """Shards the stages in place."""
        self._dims = self.dims()
        for stage in model.children():
            self._shard(stage, self._dims)

    def schedule(self, model: torch.nn.Module, _: DeviceMesh | None) -> Any:
        """Returns the schedule of the stages, whose step takes the inputs of any rank."""
        stages = model.children()
        loss = self._config.loss.build(compile_config=None)
        schedule, parts, is_first, is_last = self._split(
            lambda *_, **__: next(stages), self._dims, loss
        )
        chunked = part_of_torchtitan("components.loss").ChunkedLossWrapper
        if is_last and isinstance(loss, chunked):
            last = parts[-1]
            loss.set_lm_head(last.lm_head)
            last._skip_lm_head = True
        plain = schedule.step

        def step(tokens: torch.Tensor, labels: torch.Tensor, **others: Any) -> Any:
            target = {"target": labels} if is_last else {}
            count = {"global_valid_tokens": float(labels.numel())}
            args = (tokens,) if is_first else ()
            return plain(*args, **target, **others, loss_kwargs=count, return_outputs=False)

        schedule.step = step
        return schedule

    def _split(self, parallelize: Callable[..., Any], dims: Any, loss: Any) -> Any:
        """Returns what torchtitan's function returns if `parallelize` shards the stages."""
        config = self._config
        module = part_of_torchtitan("distributed.pipeline_parallel")
        stage: Any = module.PipelineStage
        with (
            _disable_current_modes(),
            set_attribute(module, "PipelineStage", self._stage(stage, dims)),
        ):
            return config.model_spec.pipelining_fn(
                self._whole,
                **self.options(dims),
                device=torch.device("meta"),
                model_config=config.model_spec.model,
                parallelize_fn=parallelize,
                loss_fn=loss,
            )

    def _stage(self, plain: Callable[..., Any], dims: Any) -> Callable[..., Any]:
        """Returns the class of stages with the shapes that other ranks would send."""

        def make(model: Any, index: int, count: int, *args: Any, **options: Any) -> Any:
            if index > 0:
                options["input_args"] = (self._boundary(dims),)
            if index < count - 1:
                options["output_grads"] = (self._boundary(dims),)
            return plain(model, index, count, *args, **options)

        return make

    def _boundary(self, dims: Any) -> torch.Tensor:
        """Returns the result of a stage, or its gradient, for one microbatch. Under tensor
        parallelism, stages send parts of sequences, or with
        enable_sequence_parallel=False all that is the same on each rank."""
        config, parallelism = self._config, self._config.parallelism
        ranks = degree_of(parallelism, "tensor")
        is_split = ranks > 1 and parallelism.enable_sequence_parallel
        size = parallelism.pipeline_parallel_microbatch_size
        length = self._length // ranks if is_split else self._length
        types = part_of_torchtitan("config").TORCH_DTYPE_MAP
        local = torch.empty(
            (size, length, config.model_spec.model.dim),
            dtype=types[config.training.mixed_precision_param],
            device="meta",
        )
        if ranks == 1 or _backend(config) != "partial_dtensor":
            return local
        placement = Shard(1) if is_split else Replicate()
        return DTensor.from_local(local, dims.get_mesh("tp"), [placement], run_check=False)


def _backend(config: Any) -> str:
    """Returns how torchtitan splits activations; versions before 0.3 do not say."""
    return str(getattr(config.parallelism, "spmd_backend", ""))


def pipeline_of(config: Any, length: int, accumulate: int) -> TitanPipeline:
    """Returns the step of a configuration with pipelines. Refuses what is not planned."""
    if accumulate > 1:
        raise AcplanError(
            f"global_batch_size: expected {config.training.global_batch_size // accumulate} "
            f"with pipelines, found {config.training.global_batch_size}: the schedule runs "
            "all microbatches of a step"
        )
    if _backend(config) == "full_dtensor":
        raise AcplanError(
            "spmd_backend: expected partial_dtensor or spmd_types with pipelines, found "
            "full_dtensor: stages then send DTensors of all meshes"
        )
    return TitanPipeline(config, length)
