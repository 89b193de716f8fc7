"""Tokens of experts in a rank's step: which experts they go to, and what other ranks send.

Choices follow from values that a trace does not compute, and other ranks do not exist. The
tokens are taken to be spread over the experts by shares, evenly by default, and every rank to
have as many for each expert as this one.
"""

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
from torch.utils._mode_utils import no_dispatch

from acplan._base.errors import AcplanError
from acplan._fakes.tensor_values import DISCRETE, MOST_DISCRETE, set_value, value_of

_TOPK = torch.ops.aten.topk.default
_ALL_TO_ALL = torch.ops._c10d_functional.all_to_all_single.default
_ALL_GATHER = torch.ops._c10d_functional.all_gather_into_tensor.default
# These write to their first argument, and are given a group.
_ALL_TO_ALL_INTO = torch.ops.c10d.alltoall_base_.default
_ALL_GATHER_INTO = torch.ops.c10d._allgather_base_.default


@dataclasses.dataclass
class Routing:
    """The shares of tokens that experts get; None: all get the same. `is_used`: a choice was
    taken from them."""

    shares: Sequence[float] | None = None
    is_used: bool = False

    def values(
        self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any
    ) -> tuple[torch.Tensor | None, ...] | torch.Tensor | None:
        """Returns the values of an operator's results that follow from these assumptions."""
        if func is _TOPK:
            return self._choices(args, kwargs, out[1])
        if func is _ALL_TO_ALL:
            tensor, outputs, inputs, group = args
            return _received(tensor, outputs, inputs, _rank_in(group))
        if func is _ALL_GATHER:
            return _gathered(args[0], args[1])
        if func is _ALL_TO_ALL_INTO or func is _ALL_GATHER_INTO:
            return _set_received(func, args)
        return None

    def _choices(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], indices: torch.Tensor
    ) -> tuple[torch.Tensor | None, ...] | None:
        scores = args[0]
        dim = args[2] if len(args) > 2 else kwargs.get("dim", -1)
        count = scores.shape[-1] if scores.dim() else 0
        if dim not in (-1, scores.dim() - 1) or not 0 < indices.shape[-1] < count:
            return None
        if indices.numel() > MOST_DISCRETE:
            return None
        self.is_used = True
        with no_dispatch():
            experts = _spread(indices.numel(), self._shares_of(count))
            return None, experts.view(indices.shape)

    def _shares_of(self, count: int) -> Sequence[float]:
        return (
            [1.0] * count if self.shares is None or len(self.shares) != count else self.shares
        )


def require_shares(shares: Any) -> None:
    """Refuses shares that are not numbers, none of them negative, with a sum above 0."""
    if shares is None:
        return
    is_list = isinstance(shares, (list, tuple)) and all(
        isinstance(share, (int, float)) and 0 <= share < math.inf for share in shares
    )
    if not is_list or not sum(shares):
        raise AcplanError(
            "expert_shares: expected a list of the relative numbers of tokens of each expert, "
            f"found {shares!r}"
        )


def _spread(tokens: int, shares: Sequence[float]) -> torch.Tensor:
    """Returns an expert for each token. Experts that have a token left take turns."""
    whole = sum(shares)
    ends = [round(tokens * end / whole) for end in itertools.accumulate(shares)]
    counts = torch.tensor([end - start for start, end in zip([0, *ends], ends)])
    experts = torch.arange(len(shares)).repeat_interleave(counts)
    starts = torch.tensor([0, *ends[:-1]])
    turns = torch.arange(tokens) - starts.repeat_interleave(counts)
    return experts[torch.argsort(turns, stable=True)]


def _received(
    tensor: torch.Tensor, outputs: Sequence[int], inputs: Sequence[int], rank: int
) -> torch.Tensor | None:
    """Returns the numbers that a rank gets if all ranks of the group send the same ones."""
    if (value := _whole_numbers(tensor)) is None or {*outputs} != {inputs[rank]}:
        return None
    with no_dispatch():
        own: torch.Tensor = torch.split(value, [*inputs])[rank]
        return own.repeat(len(inputs), *[1] * (value.dim() - 1))


def _gathered(tensor: torch.Tensor, ranks: int) -> torch.Tensor | None:
    """Returns the numbers of all ranks if they have the same ones."""
    if (value := _whole_numbers(tensor)) is None:
        return None
    with no_dispatch():
        return value.repeat(ranks, *[1] * (value.dim() - 1))


def _set_received(func: Any, args: Sequence[Any]) -> tuple[()] | None:
    """Gives the first argument, to which a collective writes, its value. Returns the values of
    the results, which are none, or None if the value is not known."""
    output, tensor, group = args[0], args[1], dist.ProcessGroup.unbox(args[2])
    ranks = dist.get_world_size(group)
    if func is _ALL_GATHER_INTO:
        value = _gathered(tensor, ranks)
    else:
        outputs, inputs = (
            [*sizes] or [len(whole) // ranks] * ranks
            for sizes, whole in ((args[3], output), (args[4], tensor))
        )
        value = _received(tensor, outputs, inputs, dist.get_rank(group))
    if value is None or value.shape != output.shape:
        return None
    set_value(output, value)
    return ()


def _whole_numbers(tensor: torch.Tensor) -> torch.Tensor | None:
    value = value_of(tensor)
    return None if value is None or value.dtype not in DISCRETE or not value.dim() else value


def _rank_in(group: str) -> int:
    resolve: Any = vars(c10d)["_resolve_process_group"]
    return dist.get_rank(resolve(group))
