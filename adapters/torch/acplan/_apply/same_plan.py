"""acplan.require_same_plan: the plans of ranks are compared before the first step."""

import hashlib
from typing import Any

import torch.distributed as dist

from acplan._base.errors import AcplanError
from acplan._files.plan_file import Plan, plan_given


def require_same_plan(plan: Plan | None, group: dist.ProcessGroup | None = None) -> None:
    """Raises AcplanError on every rank of the group, by default of all, unless all ranks call
    it with the same plan, or all without one.

    A unit that runs again runs its collectives again, so ranks of a model whose units
    communicate, as with tensor parallelism, would otherwise wait for one another. All ranks
    must call it, as for any collective.
    """
    if not dist.is_initialized():
        raise AcplanError("require_same_plan: expected a process group, found none")
    modules = () if plan is None else plan_given(plan).modules
    digest = hashlib.sha256(repr(modules).encode()).hexdigest()
    digests: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(digests, digest, group)
    others = [str(rank) for rank, other in enumerate(digests) if other != digests[0]]
    if others:
        raise AcplanError(
            f"plan: expected one plan on all ranks, found another one on rank "
            f"{', '.join(others)} than on rank 0: save the plan once, and load that file"
        )
