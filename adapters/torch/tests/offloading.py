"""Plans that offload, and a link to the host that copies as late as it may."""

import contextlib
import ctypes
import dataclasses
import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from acplan import Plan, PlannedModule
from acplan._apply import offload
from acplan._base.host_link import Copy, Link, Queues, Streams


def with_offload(
    plan: Plan,
    chance: random.Random,
    share: float = 0.7,
    arguments: Mapping[str, int] | int = 0,
) -> Plan:
    """Returns the plan with a share of what it saves sent to the host, and of the arguments:
    `arguments` has how many each unit is given by position, or all are given."""
    modules = []
    for module in plan.modules:
        count = arguments if isinstance(arguments, int) else arguments[module.fqn]
        modules.append(_offloading(module, chance, share, count))
    return Plan(tuple(modules))


def _offloading(
    module: PlannedModule, chance: random.Random, share: float, arguments: int
) -> PlannedModule:
    operators = tuple(
        dataclasses.replace(op, offload=op.save and chance.random() < share)
        for op in module.operators
    )
    places = tuple(place for place in range(arguments) if chance.random() < share)
    return dataclasses.replace(module, operators=operators, offloaded_arguments=places)


def arguments_of(data: dict[str, Any]) -> dict[str, int]:
    """Returns how many places of tensors each module of a trace has in all calls."""
    counts: dict[str, int] = {}
    for call in data["calls"]:
        fqn = data["modules"][call["module"]]["fqn"]
        count = len(call.get("arguments", ())) + len(call.get("further_inputs", ()))
        counts[fqn] = min(counts.get(fqn, count), count)
    return counts


class LateCopy:
    """Is made when it is waited for: whatever is there by then is what it copies."""

    def __init__(
        self, log: list[str], name: str, pair: tuple[torch.Tensor, torch.Tensor] | None
    ) -> None:
        self._log, self._name = log, name
        self._pair = pair
        log.append(name)

    def wait(self, memory: torch.Tensor) -> None:
        pair, self._pair = self._pair, None
        if pair is not None:
            pair[1].copy_(pair[0])
            self._log.append(f"{self._name} ends")


class LateQueues:
    """Tell what they are asked for, and what is waited for."""

    def __init__(self, log: list[str], is_late: bool) -> None:
        self._log = log
        self._is_late = is_late

    def send(self, source: torch.Tensor, host: torch.Tensor, after: Copy | None) -> Copy:
        return self._copy(f"send {len(host)}", source, host)

    def fetch(self, host: torch.Tensor, target: torch.Tensor, after: Copy | None) -> Copy:
        return self._copy(f"fetch {len(host)}", host, target)

    def _copy(self, name: str, source: torch.Tensor, target: torch.Tensor) -> Copy:
        if not self._is_late:
            target.copy_(source)
            return LateCopy(self._log, name, None)
        # The copy holds other bytes until it arrives.
        target.fill_(0xAB)
        return LateCopy(self._log, name, (source, target))

    def new_buffer(self, size: int) -> torch.Tensor:
        return torch.empty(size, dtype=torch.uint8)


class Device:
    """The streams of PyTorch's module of a kind of device. Computations end at once; copies on
    other streams are made at some time, by chance, between being asked for and being waited
    for, with whatever is in memory then."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.streams: list[FakeStream] = []
        self.computing = FakeStream(self)
        self._current = self.computing

    def Stream(self, device: torch.device) -> "FakeStream":
        return FakeStream(self)

    def current_stream(self, device: torch.device) -> "FakeStream":
        return self._current

    @contextlib.contextmanager
    def stream(self, stream: "FakeStream") -> Iterator[None]:
        before, self._current = self._current, stream
        yield
        self._current = before


class FakeEvent:
    def __init__(self, stream: "FakeStream") -> None:
        self._stream, self._place = stream, stream.action_count

    def arrive(self) -> None:
        self._stream.run_until(self._place)


class FakeStream:
    def __init__(self, device: Device) -> None:
        self._device = device
        self._pending: list[Callable[[], None]] = []
        self.action_count = 0
        self.waits = False
        device.streams.append(self)

    def record_event(self) -> FakeEvent:
        return FakeEvent(self)

    def wait_event(self, event: FakeEvent) -> None:
        if self is self._device.computing:
            event.arrive()
        else:
            self.add(event.arrive)

    def wait_stream(self, other: "FakeStream") -> None:
        assert other is self._device.computing
        self.waits = True

    def copy(self, source: torch.Tensor, target: torch.Tensor) -> None:
        # It reads what was computed by then, and writes to memory given out by then.
        assert self.waits
        self.waits = False
        memory = [StorageWeakRef(t.untyped_storage()) for t in (source, target)]
        target_pointer, source_pointer, size = target.data_ptr(), source.data_ptr(), len(source)

        def run() -> None:
            assert not any(m.expired() for m in memory), "a copy of memory let go of"
            ctypes.memmove(target_pointer, source_pointer, size)

        target.fill_(0xAB)
        self.add(run)
        for stream in self._device.streams:
            stream.run_until(self._device.chance.randint(0, stream.action_count))

    def add(self, action: Callable[[], None]) -> None:
        self.action_count += 1
        self._pending.append(action)

    def run_until(self, place: int) -> None:
        while self._pending and self.action_count - len(self._pending) < place:
            self._pending.pop(0)()


class FakeStreams(Streams):
    """The streams of a device that is the CPU."""

    def __init__(self, device: torch.device, streams: Device, log: list[str]) -> None:
        super().__init__(device, streams)
        self._log = log

    def start(self, source: torch.Tensor, target: torch.Tensor) -> None:
        self._log.append(f"copy {len(source)}")
        self._streams.current_stream(self._device).copy(source, target)

    def new_buffer(self, size: int) -> torch.Tensor:
        return torch.empty(size, dtype=torch.uint8)


class Links:
    """The links that were made meanwhile: `late`, `early`, or with `streams`."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.kind = "late"
        self.list: list[Link] = []

    @property
    def request_count(self) -> int:
        return sum("ends" not in line for line in self.log)

    @property
    def used_bytes(self) -> int:
        return sum(link.used_bytes for link in self.list)

    @property
    def pool_bytes(self) -> int:
        return sum(link.pool_bytes for link in self.list)

    def make(self, tensor: torch.Tensor) -> Queues:
        if self.kind == "streams":
            return FakeStreams(tensor.device, Device(len(self.list)), self.log)
        return LateQueues(self.log, self.kind == "late")

    def new_link(self, queues: Any) -> Link:
        self.list.append(Link(queues))
        return self.list[-1]


def other_links() -> Iterator[Links]:
    """Makes copies on the CPU happen at other times, within its block."""
    links = Links()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(offload, "queues_of", links.make)
        patch.setattr(offload, "Link", links.new_link)
        yield links
