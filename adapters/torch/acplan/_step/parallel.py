"""A rank of a parallel model: its process group, its mesh of devices, and its sharding.

The other ranks do not exist. The rank's process group is PyTorch's fake one, whose collectives
end at once and change nothing; it lives in a world of its own, so that a process that trains
with real groups can trace as well.
"""

import contextlib
import dataclasses
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional_collectives
import torch.distributed.distributed_c10d as c10d
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.tensor import DTensor, placement_types
from torch.utils._python_dispatch import _disable_current_modes

from acplan._base.arguments import whole_number
from acplan._base.errors import AcplanError
from acplan._base.modules import FSDPModule
from acplan._base.patching import replaced_here, set_attribute
from acplan._base.sharded_modules import groups_of
from acplan._base.sharding import forget_shardings
from acplan._device.fake_streams import fake_streams

# Shards a model on a mesh in place; returns the model, or None.
Shard = Callable[[torch.nn.Module, DeviceMesh], torch.nn.Module | None]
# Several are called in their order.
Parallelize = Shard | Sequence[Shard]

# Names of groups are these numbers and those after them; a program's own are small.
_FIRST_NAME = 1_000_000
_TABLES = (
    "pg_map", "pg_names", "pg_group_ranks", "pg_backend_config", "tags_to_pg", "pg_to_tag",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Parallel:
    """The sizes of a mesh by the names of its dimensions, the functions that shard the model,
    and the rank that is traced."""

    mesh: Mapping[str, int]
    functions: tuple[Shard, ...]
    rank: int = 0

    @classmethod
    def from_options(cls, mesh: Any, parallelize: Any, rank: Any) -> "Parallel | None":
        """Returns the checked options, or None if the model is not parallel."""
        if mesh is None and parallelize is None:
            if rank is not None:
                raise AcplanError("rank: expected a mesh and parallelize with it, found none")
            return None
        if mesh is None or parallelize is None:
            one, other = ("parallelize", "mesh") if mesh is None else ("mesh", "parallelize")
            raise AcplanError(f"{one}: expected {other} with it, found none")
        if (
            not isinstance(mesh, Mapping)
            or not mesh
            or not all(isinstance(n, str) for n in mesh)
        ):
            raise AcplanError(
                'mesh: expected the sizes of its dimensions by name, such as {"dp": 8}, found '
                f"{mesh!r}"
            )
        sizes = {name: whole_number(size, f"mesh[{name!r}]", 1) for name, size in mesh.items()}
        is_list = isinstance(parallelize, (list, tuple))
        functions = tuple(parallelize) if is_list else (parallelize,)
        for function in functions:
            if not callable(function):
                raise AcplanError(
                    "parallelize: expected a function of the model and the mesh, or a list of "
                    f"such functions, found {type(function).__name__}"
                )
        number = 0 if rank is None else whole_number(rank, "rank", 0)
        world_size = math.prod(sizes.values())
        if number >= world_size:
            raise AcplanError(
                f"rank: expected less than {world_size}, the size of the mesh, found {number}"
            )
        return cls(sizes, functions, number)

    @property
    def world_size(self) -> int:
        return math.prod(self.mesh.values())

    @contextlib.contextmanager
    def group_made(self) -> Iterator[DeviceMesh]:
        """Makes the process group of the rank within the block. Yields the mesh."""
        on_device = property(lambda mesh: "cuda")
        is_there: Any = replaced_here(DeviceMesh, "device_type", on_device)
        with fake_streams(), _own_world(), is_there, without_shardings(), not_tracing():
            with _disable_current_modes():
                # Earlier versions of PyTorch register the backend with this module.
                from torch.testing._internal.distributed.fake_pg import FakeStore

                dist.init_process_group(
                    "fake", store=FakeStore(), rank=self.rank, world_size=self.world_size
                )
                shape, names = tuple(self.mesh.values()), tuple(self.mesh)
                mesh = init_device_mesh("cuda", shape, mesh_dim_names=names)
            yield mesh

    def shard(self, model: torch.nn.Module, mesh: DeviceMesh) -> None:
        """Shards a model on fake tensors."""
        for function in self.functions:
            result = function(model, mesh)
            if result is not None and result is not model:
                raise AcplanError(
                    "parallelize: expected the model itself, sharded in place, found "
                    f"{type(result).__name__}"
                )
        require_traceable(model)

    def with_plan(
        self, apply: Callable[[torch.nn.Module], object], is_first: bool
    ) -> Parallelize:
        """Returns the functions with one that applies a plan where training does so: before the
        last one if `is_first`, else after it."""

        def apply_plan(model: torch.nn.Module, mesh: DeviceMesh) -> None:
            apply(model)

        place = len(self.functions) - is_first
        return (*self.functions[:place], apply_plan, *self.functions[place:])

    def data(self, model: torch.nn.Module) -> dict[str, Any]:
        """Returns the trace's entry on the rank of a model that has been sharded."""
        return {
            "mesh": dict(self.mesh),
            "rank": self.rank,
            "plan_first": len(self.functions) > 1 or _is_sharded_by_fsdp_alone(model),
        }


def _is_sharded_by_fsdp_alone(model: torch.nn.Module) -> bool:
    groups = [
        group
        for module in model.modules()
        if isinstance(module, FSDPModule)
        for group in groups_of(module)
    ]
    return bool(groups) and not any(p.is_dtensor for g in groups for p in g.fsdp_params)


def require_traceable(model: torch.nn.Module) -> None:
    """Refuses ways of being parallel that fake tensors do not show as they are."""
    for module in model.modules():
        if isinstance(module, FullyShardedDataParallel):
            raise AcplanError(
                "model: FullyShardedDataParallel (FSDP1) is not traced: shard by fully_shard"
            )


def way_out_of_shapes(model: torch.nn.Module) -> str:
    """Returns the likely cause of an error about shapes in the step of a rank: a dimension of
    its mesh that does not divide what it splits. Shards of fully_shard may be uneven."""
    of_fsdp = {
        name
        for module in model.modules()
        if isinstance(module, FSDPModule)
        for group in groups_of(module)
        for name in group.mesh_info.mesh.mesh_dim_names or ()
    }
    uneven: dict[tuple[str, int, int], list[str]] = {}
    for path, parameter in model.named_parameters():
        if not isinstance(parameter, DTensor):
            continue
        mesh = parameter.device_mesh
        names = mesh.mesh_dim_names or ("",) * mesh.ndim
        for name, size, placement in zip(names, mesh.shape, parameter.placements):
            if name in of_fsdp or not isinstance(placement, placement_types.Shard):
                continue
            whole = parameter.shape[placement.dim]
            if whole % size:
                uneven.setdefault((name, size, whole), []).append(path)
    way = (
        "the shapes are those of a rank: give its own part of the inputs, and a mesh that "
        "divides heads, experts and sequences"
    )
    if not uneven:
        return way
    (name, size, whole), paths = max(uneven.items(), key=lambda item: len(item[1]))
    others = f" and {len(paths) - 1} other parameters" if len(paths) > 1 else ""
    return (
        f"{way}; the {size} ranks of {name!r} do not divide {whole}, a dimension of "
        f"{paths[0]}{others}"
    )


def whole_gradients(model: torch.nn.Module) -> list[torch.Tensor]:
    """Returns the gradients of whole parameters that FSDP keeps, as it does after microbatches
    that are not synchronised."""
    gradients = [
        gradient
        for module in model.modules()
        if isinstance(module, FSDPModule)
        for group in groups_of(module)
        for p in group.fsdp_params
        for gradient in (
            getattr(getattr(p, "_unsharded_param", None), "grad", None),
            p.unsharded_accumulated_grad,
        )
    ]
    return [gradient for gradient in gradients if gradient is not None]


def model_of_rank(model: Any, parallel: Parallel | None) -> Any:
    """Returns the model that a function makes, if the model is parallel, since sharding changes
    it for good; else the model itself."""
    if parallel is None:
        return model
    if isinstance(model, torch.nn.Module) or not callable(model):
        raise AcplanError(
            "model: expected a function that returns a new model, which parallelize shards, "
            f"found {type(model).__name__}"
        )
    result = model()
    if not isinstance(result, torch.nn.Module):
        raise AcplanError(
            f"model: expected a function that returns a module, found {type(result).__name__}"
        )
    return result


@contextlib.contextmanager
def _own_world() -> Iterator[None]:
    """Lets the process have no process group at the start of the block, and those that it had
    after the block."""
    kind: Any = type("_World", (c10d._World,), dict.fromkeys((*_TABLES, "group_count")))
    world = kind()
    for table in _TABLES:
        setattr(world, table, {})
    world.group_count = _FIRST_NAME
    excepthook = sys.excepthook
    with set_attribute(c10d, "_world", world):
        try:
            yield
        finally:
            sys.excepthook = excepthook
            for name in world.pg_names.values():
                torch._C._distributed_c10d._unregister_process_group(name)


@contextlib.contextmanager
def not_tracing() -> Iterator[None]:
    """Lets torch.distributed run within the block what it runs in training: on fake tensors it
    would wait for each collective at once, as compiled code does."""
    plain = getattr(functional_collectives, "_are_we_tracing", None)
    with contextlib.ExitStack() as undo:
        for name, module in [*sys.modules.items()]:
            is_of_ranks = plain is not None and name.startswith("torch.distributed.")
            if is_of_ranks and vars(module).get("_are_we_tracing") is plain:
                undo.enter_context(replaced_here(module, "_are_we_tracing", lambda: False))
        yield


@contextlib.contextmanager
def without_shardings() -> Iterator[None]:
    """Forgets, after the block, the shardings that DTensor has worked out in it: they hold the
    mesh, and would be used for an equal mesh of other processes. Random numbers begin anew."""
    from torch.distributed.tensor import _random

    forget_shardings()
    with set_attribute(_random, "_rng_tracker", None):
        try:
            yield
        finally:
            forget_shardings()
