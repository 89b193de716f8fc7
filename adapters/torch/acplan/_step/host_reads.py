"""Reads on the host by the step's own code, such as `.cpu().numpy()`, which no operator
shows."""

import dataclasses
from collections.abc import Iterator

from acplan._step.records import Saved
from acplan._step.step_log import StepLog


def _saved_by_host(log: StepLog, forward_end: int) -> Iterator[Saved]:
    """Yields the tensors that Python's own code reads, which must be there when the module runs
    again: as if the module's backward asked for them, when it asks for its other tensors, but
    for no longer. They have no bytes on the device."""
    for storage in log.read_on_host:
        born, tensor = log.storages[storage].born, log.latest_tensor_of(storage)
        if not 0 <= born < forward_end:
            continue
        later = [
            saved for saved in log.saved if saved.packed > born and saved.unpacked is not None
        ]
        call = log.operators[born].call
        while call >= 0:
            requests = [saved for saved in later if log.is_within(saved.call, call)]
            if requests:
                first = min(requests, key=lambda saved: saved.unpacked or 0)
                host = dataclasses.replace(first, storage=storage, tensor=tensor, call=call)
                host.packed, host.requires_grad = born + 1, False
                yield host
                break
            call = log.calls[call].parent


def with_reads_of_host(log: StepLog, forward_end: int) -> list[Saved]:
    """Returns the tensors that autograd saves and those that the host reads, in order."""
    records = [*log.saved, *_saved_by_host(log, forward_end)]
    return sorted(records, key=lambda saved: saved.packed)
