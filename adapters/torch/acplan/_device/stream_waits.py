"""The streams of a recorded step: which stream runs an operator, and which operators of other
streams it waits for.

A stream runs its operators in order. An operator also waits for what its stream has been told
to wait for since the operator before it: events, other streams, results of collectives.
- A collective for which the program waits at once runs on the current stream. Any other one
  runs on the stream of its process group, which waits for the current stream first.
- Collectives of one group run one after the other, whatever their streams, as NCCL runs those
  of a communicator.
- An operator that reads the result of a collective on a group's stream waits for it, also when
  it runs again without the operator that waited first.
- When the host waits, every operator that it queues from then on waits for the same.
"""

from collections.abc import Iterable
from typing import Any


class StreamWaits:
    """The streams and waits of the operators that a recorder logs."""

    def __init__(self) -> None:
        self._streams: list[int] = []  # indexed by operator
        self._last: dict[int, int] = {}  # by stream: its last operator
        self._pending: dict[int, Operators] = {}  # by stream: what its next operator waits for
        self._collectives: dict[str, int] = {}  # by group: its last collective
        self._results: dict[int, int] = {}  # by storage: the collective on a group's stream
        self._ended: Operators = {}  # what the host has waited for

    def mark(self, stream: int) -> "Operators":
        """Returns the operators that have ended when a stream has run all that it has now."""
        mark = dict(self._pending.get(stream, {}))
        if stream in self._last:
            mark[stream] = self._last[stream]
        return mark

    def wait(self, stream: int, operators: "Operators") -> None:
        """Lets a stream wait for operators before it runs another one."""
        _add(self._pending.setdefault(stream, {}), operators)

    def wait_on_host(self, operators: "Operators") -> None:
        """Lets the host wait for operators before it queues others."""
        _add(self._ended, operators)
        for stream in self._last:
            self.wait(stream, operators)

    def wait_for_result(self, stream: int, storage: int) -> None:
        """Lets a stream wait for the collective that makes a storage, if any does."""
        if storage in self._results:
            self.wait(stream, self._alone(self._results[storage]))

    def add(self, stream: int, storages: Iterable[int]) -> list[int]:
        """Adds an operator that uses these storages. Returns the operators of other streams
        for which it waits, in ascending order."""
        waits = self._pending.pop(stream, {})
        if stream not in self._last:
            _add(waits, self._ended)
        for storage in storages:
            if storage in self._results:
                _add(waits, self._alone(self._results[storage]))
        self._last[stream] = len(self._streams)
        self._streams.append(stream)
        return sorted(operator for other, operator in waits.items() if other != stream)

    def add_collective(
        self, stream: int, group: str, storages: Iterable[int], results: Iterable[int]
    ) -> list[int]:
        """Adds a collective of a group. `results`: the storages that it makes, if the program
        goes on without waiting for them."""
        if group in self._collectives:
            self.wait(stream, self._alone(self._collectives[group]))
        waits = self.add(stream, storages)
        number = self._last[stream]
        self._collectives[group] = number
        self._results |= dict.fromkeys(results, number)
        return waits

    def _alone(self, operator: int) -> "Operators":
        return {self._streams[operator]: operator}


# The last operators of streams, by stream.
Operators = dict[int, int]


def _add(operators: Operators, others: Operators) -> None:
    for stream, operator in others.items():
        operators[stream] = max(operator, operators.get(stream, operator))


# The recordings under way, the innermost last.
open_waits: list[StreamWaits] = []

# Operators that have ended, in the numbers of a recording.
Mark = tuple[StreamWaits, Operators]


def mark_of(stream: int) -> Mark | None:
    """Returns what a stream has to run now, or None if nothing is recorded."""
    return (open_waits[-1], open_waits[-1].mark(stream)) if open_waits else None


def wait_for(stream: int, mark: Mark | None) -> None:
    """Lets a stream wait for a mark. A mark of an earlier recording has ended."""
    if mark is not None and open_waits and mark[0] is open_waits[-1]:
        mark[0].wait(stream, mark[1])


def wait_on_host(mark: Mark | None) -> None:
    """Lets the host wait for a mark. A mark of an earlier recording has ended."""
    if mark is not None and open_waits and mark[0] is open_waits[-1]:
        mark[0].wait_on_host(mark[1])


def waits_at_once(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Returns whether a collective runs on the current stream: its argument `async_op` is
    False."""
    for place, argument in enumerate(func._schema.arguments):
        if argument.name == "async_op":
            value = args[place] if place < len(args) else kwargs.get("async_op", True)
            return not value
    return False
