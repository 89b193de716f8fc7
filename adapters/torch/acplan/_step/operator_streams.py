"""The streams of the operators that a recorder logs."""

from collections.abc import Iterable
from typing import Any

from acplan._base.operators import WAITS
from acplan._base.process_groups import group_of, is_collective
from acplan._device.devices import OperatorRun
from acplan._device.fake_streams import current_stream_number, group_stream_number
from acplan._device.stream_waits import StreamWaits, waits_at_once


def add_operator(
    waits: StreamWaits, run: OperatorRun, reads: list[int], results: list[int]
) -> tuple[int, list[int]]:
    """Returns the stream of the next operator, whose storages are given, and the operators for
    which it waits."""
    stream = current_stream_number()
    if not is_collective(run.func):
        return stream, waits.add(stream, reads)
    group = group_of(run.args, run.kwargs)
    name = "" if group is None else group.group_name
    if waits_at_once(run.func, run.args, run.kwargs):
        return stream, waits.add_collective(stream, name, reads, [])
    of_group = group_stream_number(name)
    waits.wait(of_group, waits.mark(stream))
    return of_group, waits.add_collective(of_group, name, reads, results)


def wait_for_results(waits: StreamWaits, func: Any, storages: Iterable[int]) -> None:
    """Lets the current stream wait for the collectives that make these storages, if an operator
    is the one that waits."""
    for storage in storages if func is WAITS else ():
        waits.wait_for_result(current_stream_number(), storage)
