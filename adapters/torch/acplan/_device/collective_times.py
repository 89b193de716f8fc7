"""The time of a collective on a GPU's links.

The formula and the figures are those of the training cost model
(costmodel/training/layer/operation_times.cc, data/training/systems.json): rings inside of nodes
and between them. Inside, all but a rank's own part passes its link; between, the whole tensor
passes the network, over as many rails as the group has ranks in a node.
"""

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch.distributed as dist

from acplan._base.process_groups import group_of
from acplan._base.tensors import tensors_of
from acplan._device.gpu_table import accelerators, kernel_figure, software_figure
from acplan._device.product_times import bytes_of

_SOFTWARE = "torchtitan"


class Link(NamedTuple):
    """The links of a GPU, in bytes a second and seconds."""

    domain: int  # the GPUs that NVLink joins
    near_rate: float
    near_latency: float  # for each doubling of the ranks
    far_rate: float  # of the network, for each GPU
    far_latency: float


@functools.cache
def link_of(accelerator: str) -> Link:
    """Returns the links of a GPU of the table."""
    gpu = accelerators()[accelerator]
    network_share = software_figure(_SOFTWARE, "network_share")
    return Link(
        domain=int(gpu["nvlink_domain"]["value"]),
        near_rate=gpu["nvlink_gbs"]["value"] * 1e9 * gpu["nvlink_share"]["value"],
        near_latency=kernel_figure("nvlink_latency_us") * 1e-6,
        far_rate=gpu["network_gbs"]["value"] * 1e9 * network_share,
        far_latency=software_figure(_SOFTWARE, "network_latency_us") * 1e-6,
    )


def collective_seconds(
    func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any, link: Link
) -> float:
    """Returns the seconds of a collective. Nothing is sent in a group of one rank."""
    group = group_of(args, kwargs)
    ranks = [] if group is None else dist.get_process_group_ranks(group)
    if len(ranks) <= 1:
        return 0.0
    # The largest value is the whole one, of which each rank has a part.
    values = (*args, *kwargs.values(), out)
    whole = max(sum(map(bytes_of, tensors_of(value))) for value in values)
    seconds = _ring_seconds(whole, ranks, link)
    return (
        2 * seconds if "reduce" in func._opname and "scatter" not in func._opname else seconds
    )


def _ring_seconds(whole: int, ranks: Sequence[int], link: Link) -> float:
    size = len(ranks)
    nodes = len({rank // link.domain for rank in ranks})
    seconds = whole * (size - 1) / size / link.near_rate + link.near_latency * math.log2(size)
    if nodes > 1:
        rails = size / nodes
        steps = min(nodes - 1, 4 * math.log2(nodes))
        far = whole * (nodes - 1) / nodes / (rails * link.far_rate)
        seconds = max(seconds, far) + steps * link.far_latency
    return seconds
