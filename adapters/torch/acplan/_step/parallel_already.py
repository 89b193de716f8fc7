"""A model that is parallel before it is traced, in its own process groups, real or fake.

Its meshes and groups stay: collectives of fake tensors end at once and reach no other rank.
FSDP begins anew on the fake tensors, as it begins before a first step.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from acplan._base.errors import AcplanError
from acplan._base.modules import FSDPModule
from acplan._base.patching import replaced_here
from acplan._base.sharded_modules import groups_of
from acplan._device.fake_streams import fake_streams
from acplan._step.parallel import not_tracing, without_shardings

_DEVICE = torch.device("cuda", 0)


def mesh_of(model: torch.nn.Module) -> DeviceMesh | None:
    """Returns the largest mesh of a model's parameters, or None if no parameter has one."""
    meshes = [p.device_mesh for p in model.parameters() if isinstance(p, DTensor)]
    return max(meshes, key=lambda mesh: mesh.ndim, default=None)


def parallel_data(mesh: DeviceMesh) -> dict[str, Any]:
    """Returns the trace's entry on the rank."""
    names = mesh.mesh_dim_names or [f"dim{place}" for place in range(mesh.ndim)]
    return {"mesh": dict(zip(names, mesh.mesh.shape, strict=True)), "rank": mesh.get_rank()}


@contextlib.contextmanager
def own_groups(model: torch.nn.Module) -> Iterator[None]:
    """Lets a model on fake tensors, which is parallel already, train within the block."""
    on_device = property(lambda mesh: "cuda")
    is_there: Any = replaced_here(DeviceMesh, "device_type", on_device)
    with fake_streams(), is_there, without_shardings(), not_tracing():
        for module in model.modules():
            if isinstance(module, FSDPModule):
                _begin_anew(module)
        yield


def _begin_anew(module: FSDPModule) -> None:
    state: Any = module._get_fsdp_state()
    state._is_root = None
    state._state_ctx = type(state._state_ctx)()
    state._comm_ctx = type(state._comm_ctx)()
    state._device, state._device_handle = _DEVICE, torch.cuda
    for group in groups_of(module):
        if not group.is_sharded:
            raise AcplanError(
                "model: expected sharded parameters, found whole ones: call reshard() of each "
                "sharded module before the trace"
            )
        group.device, group.device_handle = _DEVICE, torch.cuda
        group._reset_sharded_params = False
        for parameter in group.fsdp_params:
            parameter.device = _DEVICE
            parameter._sharded_param_data = None
            parameter.unsharded_accumulated_grad = None
            parameter.all_gather_outputs = []
            vars(parameter).pop("_unsharded_param", None)
