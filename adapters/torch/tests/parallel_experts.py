"""Expert parallelism: a small mixture of experts that is sharded as torchtitan shards its own.

Experts are shards of DTensors on the dimension "ep"; an all-to-all brings their tokens and
takes the results back; their products are grouped. The router's choices are fixed by large
constants, so that real processes have the counts of the trace.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed._functional_collectives import (
    all_to_all_single,
    all_to_all_single_autograd,
    wait_tensor,
)
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

from parallel_models import WIDTH, Case, Function, Net, adamw, tensor_parallel

_EXPERTS, _CHOICES, _HIDDEN, _TOKENS = 4, 2, 48, 64


def even() -> torch.Tensor:
    """Returns the choices of each token: all experts are picks by as many."""
    return torch.arange(_TOKENS * _CHOICES).view(_TOKENS, _CHOICES) % _EXPERTS


def uneven() -> torch.Tensor:
    """Returns choices of which the first two experts get three times as many."""
    return torch.tensor([[0, 1], [1, 0], [0, 1], [2, 3]]).repeat(_TOKENS // 4, 1)


class Experts(nn.Module):
    """Experts of two products each, or, if they are gated, of three."""

    def __init__(self, count: int, width: int, hidden: int, is_gated: bool = False) -> None:
        super().__init__()
        columns = 2 * hidden if is_gated else hidden
        self.into = nn.Parameter(torch.randn(count, width, columns) / width**0.5)
        self.out = nn.Parameter(torch.randn(count, hidden, width) / hidden**0.5)
        self.count, self.is_gated = count, is_gated
        self.mesh: DeviceMesh | None = None

    def forward(self, x: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        """Returns the results of tokens that are sorted by their experts."""
        assert self.mesh is not None
        group = self.mesh.get_group()
        ranks, own = self.mesh.size(), self.count // self.mesh.size()
        with torch.no_grad():
            received = wait_tensor(all_to_all_single(counts, None, None, group))
            input_counts = _numbers(counts.view(ranks, own).sum(1))
            output_counts = _numbers(received.view(ranks, own).sum(1))
            experts = torch.arange(own, device=x.device).repeat(ranks)
            order = experts.repeat_interleave(received).argsort(stable=True)
            ends = received.view(ranks, own).sum(0).cumsum(0).to(torch.int32)
        x = all_to_all_single_autograd(x, output_counts, input_counts, group)[order]
        hidden = self._activated(torch._grouped_mm(x, _local(self.into), offs=ends))
        x = torch._grouped_mm(hidden, _local(self.out), offs=ends)
        x = torch.zeros_like(x).index_copy(0, order, x)
        return all_to_all_single_autograd(x, input_counts, output_counts, group)

    def _activated(self, x: torch.Tensor) -> torch.Tensor:
        if not self.is_gated:
            return F.gelu(x)
        gate, up = x.chunk(2, -1)
        return F.silu(gate) * up


def through_experts(
    experts: Experts, x: torch.Tensor, picks: torch.Tensor, weights: torch.Tensor
) -> torch.Tensor:
    """Returns, for each token, the weighted sum of the results of the experts it picks."""
    choices, picks = picks.shape[-1], picks.flatten()
    order = picks.argsort(stable=True)
    counts = picks.new_zeros(experts.count).scatter_add(0, picks, torch.ones_like(picks))
    places = order // choices
    results = experts(x[places], counts) * weights.flatten()[order].unsqueeze(1)
    return torch.zeros_like(x).index_add(0, places, results)


def _numbers(tensor: torch.Tensor) -> list[int]:
    numbers: list[int] = tensor.to("cpu", copy=True).tolist()
    return numbers


def _local(parameter: Any) -> torch.Tensor:
    local: torch.Tensor = parameter.to_local()
    return local


class Moe(nn.Module):
    def __init__(self, choices: Callable[[], torch.Tensor]) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, _EXPERTS, bias=False)
        self.experts = Experts(_EXPERTS, WIDTH, _HIDDEN)
        self.tp: DeviceMesh | None = None
        constants = torch.zeros(_TOKENS, _EXPERTS).scatter_(1, choices(), 100.0)
        self.register_buffer("constants", constants)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shape = x.shape
        x = x.flatten(0, 1)
        scores = self.gate(x).softmax(-1)
        picks = (scores + self.constants).topk(_CHOICES)[1]
        weights = scores.gather(1, picks)
        if self.tp is not None:
            x, weights = (_whole(tensor, self.tp) for tensor in (x, weights))
        y = through_experts(self.experts, x, picks, weights)
        if self.tp is not None:
            parts = DTensor.from_local(y, self.tp, [Partial()])
            y = parts.redistribute(self.tp, [Replicate()]).to_local()
        return y.view(shape)


def _whole(tensor: torch.Tensor, mesh: DeviceMesh) -> torch.Tensor:
    """Returns a tensor that all ranks have; each computes a part of its gradient."""
    whole = DTensor.from_local(tensor, mesh, [Replicate()], run_check=False)
    return whole.to_local(grad_placements=[Partial()])


class ExpertNet(Net):
    def __init__(self, choices: Callable[[], torch.Tensor]) -> None:
        super().__init__(52, tied=False)
        for block in self.blocks:
            block.mlp = Moe(choices)


def split_experts(model: nn.Module, mesh: DeviceMesh) -> None:
    """Shards experts on "ep", and each one on "tp", if that is there."""
    for block in model.get_submodule("blocks").children():
        moe: Any = block.get_submodule("mlp")
        moe.tp = mesh["tp"] if "tp" in (mesh.mesh_dim_names or ()) else None
        shard_experts(moe.experts, mesh)


def shard_experts(experts: Experts, mesh: DeviceMesh) -> None:
    """Shards experts on "ep", and each one on "tp", if that is there."""
    has_tp = "tp" in (mesh.mesh_dim_names or ())
    part = mesh["ep", "tp"] if has_tp else mesh["ep"]
    experts.mesh = mesh["ep"]
    for name, dim in (("into", 2), ("out", 1)):
        placements = [Shard(0), Shard(dim)] if has_tp else [Shard(0)]
        shard = distribute_tensor(getattr(experts, name), part, placements)
        setattr(experts, name, nn.Parameter(shard))


def sharded_beside_experts(model: nn.Module, mesh: DeviceMesh, **options: Any) -> None:
    """Shards experts over the ranks that have the same ones, and the rest over all."""
    whole = mesh["edp", "ep"]._flatten("dp")
    for block in model.get_submodule("blocks").children():
        fully_shard(block.get_submodule("mlp.experts"), mesh=mesh["edp"], **options)
        fully_shard(block, mesh=whole, **options)
    fully_shard(model, mesh=whole, **options)


def _expert_case(
    name: str,
    mesh: dict[str, int],
    before: tuple[Function, ...],
    choices: Callable[[], torch.Tensor] = even,
    **options: Any,
) -> Case:
    return Case(
        name,
        mesh,
        [*before, sharded_beside_experts],
        {"optimizer": adamw, **options},
        make_net=lambda: ExpertNet(choices),
    )


def expert_cases(world_size: int) -> list[Case]:
    """Returns the cases for so many processes."""
    mesh = {"edp": world_size // 2, "ep": 2}
    cases = [
        _expert_case("fsdp x ep", mesh, (split_experts,)),
        _expert_case(
            "fsdp x ep, uneven counts",
            mesh,
            (split_experts,),
            uneven,
            expert_shares=[3, 3, 1, 1],
        ),
    ]
    if world_size > 2:
        tp = tensor_parallel(sequence=False, mlp=False)
        mesh = {"edp": world_size // 4, "ep": 2, "tp": 2}
        cases.append(_expert_case("fsdp x ep x tp", mesh, (tp, split_experts)))
    return cases
