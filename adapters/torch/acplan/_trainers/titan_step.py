"""A rank of torchtitan's step: its model, sharded by its own functions, and its loss."""

import copy
import importlib
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.utils._python_dispatch import _disable_current_modes

from acplan._base.arguments import whole_number

# Kinds of parallelism beyond data.
_KINDS = ("tensor", "expert", "context", "pipeline")


def is_sharded(parallelism: Any) -> bool:
    """Returns whether a configuration is parallel beyond data."""
    return any(degree_of(parallelism, kind) > 1 for kind in _KINDS)


def degree_of(parallelism: Any, kind: str) -> int:
    """Returns the number of ranks among which a kind of parallelism splits."""
    name = f"{kind}_parallel_degree"
    return whole_number(getattr(parallelism, name, 1), name, 1)


def part_of_torchtitan(name: str) -> Any:
    """Returns a module of torchtitan, which need not be installed otherwise."""
    return importlib.import_module(f"torchtitan.{name}")


class TitanStep:
    """The step of a configuration, whose trainer has begun: it has updated the model's
    configuration, and made the process group."""

    def __init__(self, config: Any) -> None:
        self._config = config

    @property
    def leader(self) -> int | None:
        """The rank that makes the plan of this process, or None if one does for all."""
        return None

    def __deepcopy__(self, _: Any) -> "TitanStep":
        # The configuration has a policy that has this step.
        return self

    def make(self) -> torch.nn.Module:
        """Returns the whole model on the meta device."""
        dtype = part_of_torchtitan("config").TORCH_DTYPE_MAP[self._config.training.dtype]
        with torch.device("meta"), part_of_torchtitan("tools.utils").set_default_dtype(dtype):
            model: torch.nn.Module = self._config.model_spec.model.build()
        return model

    def shard(self, model: torch.nn.Module, _: DeviceMesh) -> None:
        """Shards the model in place, without checkpoints and compilation."""
        self._shard(model, self.dims())

    def _shard(self, model: torch.nn.Module, dims: Any) -> None:
        self._config.model_spec.parallelize_fn(model, **self.options(dims))

    def options(self, dims: Any) -> dict[str, Any]:
        """Returns the options of torchtitan's functions that shard, on these meshes."""
        config = self._config
        compile_config = copy.copy(config.compile)
        compile_config.enable = False
        return {
            "parallel_dims": dims,
            "training": config.training,
            "parallelism": config.parallelism,
            "compile_config": compile_config,
            "ac_config": None,
            "dump_folder": "",
        }

    def dims(self) -> Any:
        kind = part_of_torchtitan("distributed.parallel_dims").ParallelDims
        # Meshes compute with tensors that must have values.
        dims = kind.from_config(self._config.parallelism, dist.get_world_size())
        with _disable_current_modes():
            dims.build_mesh()
        plain = dims.get_mesh

        def get_mesh(*args: Any) -> Any:
            with _disable_current_modes():
                return plain(*args)

        vars(dims)["get_mesh"] = get_mesh
        return dims

    def update(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Clips and steps as the trainer does, whose experts have a mesh of their own."""
        parameters = [*model.parameters()]
        is_split = self._config.parallelism.expert_parallel_degree > 1
        norm = self._config.training.max_norm
        clip = part_of_torchtitan("distributed.utils").clip_grad_norm_
        clip(parameters, norm, foreach=True, ep_enabled=is_split)
        optimizer.step()
        optimizer.zero_grad()

    def loss_of(self) -> Callable[..., torch.Tensor]:
        """Returns the function of the model and its inputs that returns the trainer's loss."""
        chunked = part_of_torchtitan("components.loss").ChunkedLossWrapper
        loss = self._config.loss.build(compile_config=None)

        def forward(
            model: Any, tokens: torch.Tensor, labels: torch.Tensor, **others: Any
        ) -> torch.Tensor:
            if isinstance(loss, chunked):
                loss.set_lm_head(model.lm_head)
                model._skip_lm_head = True
            output = model(tokens, **others)
            result: torch.Tensor = loss(output, labels, float(labels.numel()))[0]
            return result

        return forward
