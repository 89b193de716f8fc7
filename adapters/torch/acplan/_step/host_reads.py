"""What a step's own code reads on the host, `.cpu().numpy()` say, where no operator tells."""

import dataclasses
from collections.abc import Iterator

from acplan._step.records import Saved
from acplan._step.step_log import StepLog


def _saved_by_host(log: StepLog, forward_end: int) -> Iterator[Saved]:
    """Yields what Python's own code reads, which has to be there when the module runs again: as
    if its backward asked for it, when it asks for the rest, but for no longer. It has no bytes
    on the device."""
    for storage in log.read_on_host:
        born, tensor = log.storages[storage].born, log.latest_tensor_of(storage)
        if not 0 <= born < forward_end:
            continue
        later = [
            saved for saved in log.saved if saved.packed > born and saved.unpacked is not None
        ]
        call = log.operators[born].call
        while call >= 0:
            asked = [saved for saved in later if log.is_within(saved.call, call)]
            if asked:
                first = min(asked, key=lambda saved: saved.unpacked or 0)
                host = dataclasses.replace(first, storage=storage, tensor=tensor, call=call)
                host.packed, host.requires_grad = born + 1, False
                yield host
                break
            call = log.calls[call].parent


def with_reads_of_host(log: StepLog, forward_end: int) -> list[Saved]:
    """Returns what autograd saves, and what the host reads, in order."""
    found = [*log.saved, *_saved_by_host(log, forward_end)]
    return sorted(found, key=lambda saved: saved.packed)
