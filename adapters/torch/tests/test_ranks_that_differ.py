"""Ranks of a parallel model whose steps differ: no rank runs a collective alone."""

import datetime
import json
import pathlib
import warnings
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

import acplan
from acplan._apply import alone
from parallel_experts import ExpertNet, even, split_experts
from parallel_models import Dropout, adamw, loss_of
from rank import leave

_RANKS = 2
_SECONDS = 3.0
_UNITS = ["ExpertNet.blocks.0", "ExpertNet.blocks.1"]


class Masked(nn.Module):
    """A module whose results a rank multiplies, in each of its calls from `first` on, as by a
    mask that the other ranks do not have."""

    def __init__(self, inner: nn.Module, first: int, is_masked: bool) -> None:
        super().__init__()
        self.inner, self.first, self.is_masked = inner, first, is_masked
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x, place = self.inner(x), self.calls % 2
        self.calls += 1
        return x * torch.ones_like(x) if self.is_masked and place >= self.first else x


def _net(first: int, is_masked: bool) -> nn.Module:
    """Returns blocks of which each calls its dropout twice: before tokens are sent to experts,
    and at its end."""
    torch.manual_seed(0)
    net = ExpertNet(even)
    for block in net.blocks:
        block.dropout = Masked(Dropout(), first, is_masked)
    return net


def _plan(tokens: torch.Tensor) -> acplan.Plan:
    """Returns a plan that skips collectives."""

    def make() -> nn.Module:
        with torch.device("meta"):
            return _net(0, False)

    trace = acplan.trace(
        make, tokens, mesh={"ep": _RANKS}, parallelize=split_experts, forward_fn=loss_of,
        optimizer=adamw, workspaces=False, progress=False,
    )  # fmt: skip
    options: Any = {"ac_units": _UNITS, "segments": "none", "without_host": True}
    least = acplan.plan(trace, "min", **options)
    plan = acplan.plan(trace, (least.peak_bytes + trace.peak_bytes) // 2, **options)
    assert any(o.skip and "all_to_all" in o.name for m in plan.modules for o in m.operators)
    return plan


def _tokens(rank: int) -> torch.Tensor:
    numbers = torch.Generator().manual_seed(rank)
    return torch.randint(0, 52, (4, 16), generator=numbers)


def _values(
    net: nn.Module, mesh: DeviceMesh, plan: acplan.Plan | None, rank: int
) -> list[torch.Tensor]:
    """Returns the loss and the rank's own gradients."""
    if plan is not None:
        net = acplan.apply(net, plan)
    split_experts(net, mesh)
    torch.manual_seed(rank)
    loss = loss_of(net, _tokens(rank))
    loss.backward()
    gradients: list[Any] = [p.grad for p in net.parameters()]
    return [loss.detach(), *(getattr(g, "_local_tensor", g) for g in gradients)]


def run(rank: int, folder: str) -> None:
    """Writes what the steps of this rank came to, of which the last one ends by an error."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    alone.SECONDS = _SECONDS
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/rendezvous",
        rank=rank,
        world_size=_RANKS,
        timeout=datetime.timedelta(seconds=60),
    )
    mesh = init_device_mesh("cpu", (_RANKS,), mesh_dim_names=("ep",))
    plan = acplan.Plan.load(f"{folder}/plan.json")
    is_masked = rank == _RANKS - 1
    expected, actual = (_values(_net(0, is_masked), mesh, p, rank) for p in (None, plan))
    is_equal = all(map(torch.equal, expected, actual))
    error = ""
    try:
        _values(_net(1, is_masked), mesh, plan, rank)
    except Exception as caught:  # that of the process group, on the other rank
        error = f"{type(caught).__name__}: {caught}"
    path = pathlib.Path(folder, f"{rank}.json")
    path.write_text(json.dumps({"equal": is_equal, "error": error}))
    leave()


def test_a_mask_of_one_rank_leaves_no_rank_alone(tmp_path: pathlib.Path) -> None:
    """A mask before the collectives changes nothing: the rank saves those that others skip. If
    it comes after one that has been skipped, that rank ends with an error, and no rank waits
    for it."""
    _plan(_tokens(0)).save(tmp_path / "plan.json")
    torch.multiprocessing.spawn(run, (str(tmp_path),), nprocs=_RANKS)
    results = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(_RANKS)]
    assert all(result["equal"] for result in results)
    assert "AcplanError: ExpertNet.blocks.0: _c10d_functional.all_to_all" in results[1]["error"]
    assert "would run again on rank 1 and not on rank 0" in results[1]["error"]
    assert "Error" in results[0]["error"]
