"""Times of collectives, beside figures worked out by hand."""

import math

import pytest
import torch
from torch import nn

from acplan import DEVICES, trace
from acplan._device.collective_times import Link, _ring_seconds, link_of

parallel = pytest.importorskip("torch.distributed.tensor.parallel")

_LINK = Link(8, near_rate=300e9, near_latency=6e-6, far_rate=40e9, far_latency=15e-6)


def test_a_ring_inside_of_a_node_sends_all_but_its_own_part() -> None:
    seconds = _ring_seconds(8 << 30, range(8), _LINK)
    assert seconds == pytest.approx((7 << 30) / 300e9 + 3 * 6e-6)


def test_rings_between_nodes_pass_the_network() -> None:
    # Four ranks of each of four nodes, which have four rails together.
    ranks = [8 * node + k for node in range(4) for k in range(4)]
    seconds = _ring_seconds(8 << 30, ranks, _LINK)
    assert seconds == pytest.approx((6 << 30) / (4 * 40e9) + 3 * 15e-6)
    # One rank of each node.
    seconds = _ring_seconds(8 << 30, range(0, 32, 8), _LINK)
    assert seconds == pytest.approx((6 << 30) / 40e9 + 3 * 15e-6)


def test_links_are_those_of_the_cost_model() -> None:
    links = {name: link_of(device.accelerator) for name, device in DEVICES.items()}
    assert links["h100"].domain == 8 and links["rtx4090"].domain == 1
    assert links["gb200"].domain == 72
    assert 300e9 < links["h100"].near_rate < 450e9
    assert all(link.near_rate > 0 for link in links.values())


def test_collectives_of_a_rank_take_time() -> None:
    def make() -> nn.Module:
        with torch.device("meta"):
            return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))

    def split(model: nn.Module, mesh: torch.distributed.DeviceMesh) -> None:
        plan = {"0": parallel.ColwiseParallel(), "2": parallel.RowwiseParallel()}
        parallel.parallelize_module(model, mesh["tp"], plan)

    inputs = torch.empty(16, 64, device="meta")
    data = trace(make, inputs, mesh={"tp": 4}, parallelize=split, device="h100").data
    sums = [op["runtime_ms"] for op in data["operators"] if "all_reduce" in op["name"]]
    one = 16 * 64 * 4 * 3 / 4 / link_of("H100-SXM5").near_rate + 6e-6 * math.log2(4)
    assert sums and sums == [pytest.approx(2e3 * one)] * len(sums)
