"""Plans that offload, and a link to the host that copies as late as it may."""

import dataclasses
import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from acplan import Plan, PlannedModule, offloading
from acplan.host_link import Copy, Link


def with_offload(plan: Plan, chance: random.Random, share: float = 0.7) -> Plan:
    """Of what is saved, a part goes to the host."""
    return Plan(tuple(_offloading(module, chance, share) for module in plan.modules))


def _offloading(
    module: PlannedModule, chance: random.Random, share: float
) -> PlannedModule:
    operators = tuple(
        dataclasses.replace(op, offload=op.save and chance.random() < share)
        for op in module.operators
    )
    return dataclasses.replace(module, operators=operators)


class LateCopy:
    """Is made when it is waited for: whatever is there by then is what it copies."""

    def __init__(
        self,
        told: list[str],
        name: str,
        pair: tuple[torch.Tensor, torch.Tensor] | None,
    ) -> None:
        self._told, self._name = told, name
        self._pair = pair
        told.append(name)

    def wait(self, memory: torch.Tensor) -> None:
        pair, self._pair = self._pair, None
        if pair is not None:
            pair[1].copy_(pair[0])
            self._told.append(f"{self._name} ends")


class LateQueues:
    """Tell what they are asked for, and what is waited for."""

    def __init__(self, told: list[str], are_late: bool) -> None:
        self._told = told
        self._are_late = are_late
        self._buffers: list[torch.Tensor] = []

    def copy(
        self, source: torch.Tensor, target: torch.Tensor, after: Copy | None
    ) -> Copy:
        is_out = any(target.data_ptr() == b.data_ptr() for b in self._buffers)
        # What has not arrived is not what it will be.
        target.copy_(source) if not self._are_late else target.fill_(0xAB)
        kind = "send" if is_out else "fetch"
        pair = (source, target) if self._are_late else None
        return LateCopy(self._told, f"{kind} {len(target)}", pair)

    def new_buffer(self, size: int) -> torch.Tensor:
        self._buffers.append(torch.empty(size, dtype=torch.uint8))
        return self._buffers[-1]


class Links:
    """Those that were made meanwhile."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.are_late = True
        self.list: list[Link] = []

    @property
    def asked(self) -> int:
        return sum("ends" not in line for line in self.told)

    @property
    def used_bytes(self) -> int:
        return sum(link.used_bytes for link in self.list)

    @property
    def pool_bytes(self) -> int:
        return sum(link.pool_bytes for link in self.list)

    def make(self, tensor: torch.Tensor) -> LateQueues:
        return LateQueues(self.told, self.are_late)

    def of(self, queues: Any) -> Link:
        self.list.append(Link(queues))
        return self.list[-1]


def late_links() -> Iterator[Links]:
    """While it lasts, copies on the CPU are late."""
    links = Links()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(offloading, "queues_of", links.make)
        patch.setattr(offloading, "Link", links.of)
        yield links
