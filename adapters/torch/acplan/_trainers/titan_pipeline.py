"""A rank of torchtitan's pipelines: its stage and the schedule, made by torchtitan's own
functions."""

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.pipelining.schedules import PipelineScheduleSingle, get_schedule_class
from torch.utils._python_dispatch import _disable_current_modes

from acplan._base.errors import AcplanError
from acplan._base.patching import set_attribute
from acplan._step.parallel import Parallel
from acplan._trainers.titan_step import TitanStep, degree_of, part_of_torchtitan


class TitanPipeline(TitanStep):
    """The step of the stage of this process.

    torchtitan splits the model, shards the part and makes the schedule in one function. A trace
    needs the part first. So the function runs twice: once on the whole model, for the part, and
    for the schedule once more with a part that is sharded already.
    """

    def __init__(self, config: Any, length: int) -> None:
        super().__init__(config)
        self._length = length
        self._dims: Any = None

    @functools.cached_property
    def _whole(self) -> torch.nn.Module:
        return super().make()

    @property
    def leader(self) -> int | None:
        """The first of the ranks that have the same stage as this process."""
        ranks = dist.get_world_size() // degree_of(self._config.parallelism, "pipeline")
        return dist.get_rank() // ranks * ranks

    def make(self) -> torch.nn.Module:
        """Returns the rank's stage on the meta device."""
        group = Parallel({"world": dist.get_world_size()}, (), self.leader or 0)
        with group.group_made():
            _, parts, *_ = self._split(lambda part, **_: part, self.dims(), None)
        stage: torch.nn.Module = parts[0]
        return stage

    def shard(self, model: torch.nn.Module, _: DeviceMesh) -> None:
        """Shards the stage in place."""
        self._dims = self.dims()
        self._shard(model, self._dims)

    def schedule(self, model: torch.nn.Module, _: DeviceMesh | None) -> Any:
        """Returns the schedule of the stage, whose step takes the inputs of any rank."""
        stage: Any = model
        loss = self._config.loss.build(compile_config=None)
        schedule, _, is_first, is_last = self._split(lambda *_, **__: stage, self._dims, loss)
        chunked = part_of_torchtitan("components.loss").ChunkedLossWrapper
        if is_last and isinstance(loss, chunked):
            loss.set_lm_head(stage.lm_head)
            stage._skip_lm_head = True
        plain = schedule.step

        def step(tokens: torch.Tensor, labels: torch.Tensor, **others: Any) -> Any:
            target = {"target": labels} if is_last else {}
            count = {"global_valid_tokens": float(labels.numel())}
            args = (tokens,) if is_first else ()
            return plain(*args, **target, **others, loss_kwargs=count, return_outputs=False)

        schedule.step = step
        return schedule

    def _split(self, parallelize: Callable[..., Any], dims: Any, loss: Any) -> Any:
        """Returns what torchtitan's function returns if `parallelize` shards the stage."""
        config = self._config
        module = part_of_torchtitan("distributed.pipeline_parallel")
        stage: Any = module.PipelineStage
        with (
            _disable_current_modes(),
            set_attribute(module, "PipelineStage", self._stage(stage)),
        ):
            return config.model_spec.pipelining_fn(
                self._whole,
                **self.options(dims),
                device=torch.device("meta"),
                model_config=config.model_spec.model,
                parallelize_fn=parallelize,
                loss_fn=loss,
            )

    def _stage(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        """Returns the class of stages with the shapes that other ranks would send."""
        config = self._config
        size = config.parallelism.pipeline_parallel_microbatch_size
        dtype = part_of_torchtitan("config").TORCH_DTYPE_MAP[
            config.training.mixed_precision_param
        ]

        def make(model: Any, index: int, *args: Any, **options: Any) -> Any:
            if index > 0:
                shape = (size, self._length, config.model_spec.model.dim)
                options["input_args"] = (torch.empty(shape, dtype=dtype, device="meta"),)
            return plain(model, index, *args, **options)

        return make


def pipeline_of(config: Any, length: int, accumulate: int) -> TitanPipeline:
    """Returns the step of a configuration with pipelines. Refuses what is not planned."""
    parallelism = config.parallelism
    name, csv = "pipeline_parallel_schedule", "pipeline_parallel_schedule_csv"
    own_actions = getattr(parallelism, csv, None)
    schedule = own_actions or getattr(parallelism, name)
    is_single = not own_actions and issubclass(
        get_schedule_class(schedule), PipelineScheduleSingle
    )
    if not is_single:
        raise AcplanError(
            f"{name}: expected a schedule with one stage on a rank, 1F1B or GPipe, found "
            f"{schedule}: torchtitan applies the plan of a stage before it shards the next one"
        )
    if accumulate > 1:
        raise AcplanError(
            f"global_batch_size: expected {config.training.global_batch_size // accumulate} "
            f"with pipelines, found {config.training.global_batch_size}: the schedule runs "
            "all microbatches of a step"
        )
    return TitanPipeline(config, length)
