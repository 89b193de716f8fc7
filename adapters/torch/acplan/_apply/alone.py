"""Collectives that a rank runs again without its plan.

Ranks with one plan run the same collectives, also when units run again. A rank whose step runs
other operators than the plan's, or whose backward pass asks for more, may need a collective
that its plan saves or skips. Nobody answers it if the others go on as planned, so all ranks of
the group have to ask for it.
"""

import datetime
from collections import Counter
from typing import Any, NamedTuple

import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
from torch._subclasses.fake_tensor import FakeTensor

from acplan._apply.tape import Tape
from acplan._base.errors import AcplanError
from acplan._base.process_groups import group_of
from acplan._base.tensors import tensors_of

# The seconds in which all ranks have to ask, far below the time-outs of process groups.
SECONDS = 60.0
# The number of requests of this process, by what they were for.
_request_counts: Counter[str] = Counter()


class Rerun(NamedTuple):
    """A collective that is about to run again in a unit, and its place on the unit's tape, or
    None if the tape is not read."""

    fqn: str
    place: int | None
    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def require_planned(tape: Tape, rerun: Rerun) -> None:
    """Raises AcplanError if the plan does not let a collective run again, and not all ranks of
    its group run it again without their plan."""
    place, items = rerun.place, tape.items
    is_other = place is not None and (place >= len(items) or items[place] is not rerun.func)
    if not (is_other or tape.has_dropped):
        return
    group = group_of(rerun.args, rerun.kwargs)
    if group is None or group.size() == 1 or dist.get_backend(group) == "fake":
        return
    if any(isinstance(tensor, FakeTensor) for tensor in tensors_of(rerun.args, rerun.kwargs)):
        return  # nothing is sent while a step is traced
    missing = _missing_ranks(group, f"acplan/{group.group_name}/{rerun.fqn}/{place}")
    if missing:
        why = tape.distrusted_for or "its saved results cannot be handed out"
        raise AcplanError(
            f"{rerun.fqn}: {rerun.func} would run again on rank {dist.get_rank()} and not on "
            f"rank {', '.join(map(str, missing))}, as this rank's step is not as planned "
            f"({why}): trace the step of the ranks that run these operators, or leave "
            f"{rerun.fqn} out of the plan"
        )


def _missing_ranks(group: dist.ProcessGroup, name: str) -> list[int]:
    """Asks the ranks of a group for a collective. Returns those that do not ask for it."""
    name, _request_counts[name] = f"{name}/{_request_counts[name]}", _request_counts[name] + 1
    store = vars(c10d)["_get_default_store"]()
    store.set(f"{name}/{group.rank()}", "")
    keys = [f"{name}/{rank}" for rank in range(group.size())]
    try:
        store.wait(keys, datetime.timedelta(seconds=SECONDS))
    except RuntimeError:  # the store's time-out
        ranks = dist.get_process_group_ranks(group)
        return [rank for rank, key in zip(ranks, keys) if not store.check([key])]
    return []
