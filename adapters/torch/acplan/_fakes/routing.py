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
from acplan._fakes.tensor_values import DISCRETE, MOST_DISCRETE, value_of

_TOPK = torch.ops.aten.topk.default
_ALL_TO_ALL = torch.ops._c10d_functional.all_to_all_single.default


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
            return _received(*args)
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
    tensor: torch.Tensor, outputs: Sequence[int], inputs: Sequence[int], group: str
) -> torch.Tensor | None:
    """Returns the numbers that a rank gets if all ranks of the group send the same ones."""
    value = value_of(tensor)
    if value is None or value.dtype not in DISCRETE:
        return None
    resolve: Any = vars(c10d)["_resolve_process_group"]
    rank = dist.get_rank(resolve(group))
    if [*outputs] != [inputs[rank]] * len(inputs):
        return None
    with no_dispatch():
        own: torch.Tensor = torch.split(value, [*inputs])[rank]
        return own.repeat(len(inputs), *[1] * (value.dim() - 1))
