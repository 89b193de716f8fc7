"""The time of copies to the host's memory and back by acplan's own operators.

A step of an optimizer whose states wait on the host (_base/offloaded_states.py) has two
queues, one each way of the link. A copy begins when the device comes to its operator and the
copy before it has ended. It takes no time of the device, which waits where the program waits
for it. Plans have the same model of the link (graph/trace/link_time.h).
"""

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import torch

from acplan._base.host_copies import OFFLOAD, RELOAD, WAIT
from acplan._base.host_links import HostLink

_COPIES = (str(OFFLOAD), str(RELOAD))


def is_host_copy(func: Any) -> bool:
    return func in (OFFLOAD, RELOAD, WAIT)


def copy_ms(func: Any, outputs: Sequence[torch.Tensor], link: HostLink) -> float:
    """Returns the milliseconds on the link of an operator that copies `outputs`."""
    rates = {OFFLOAD: link.to_host, RELOAD: link.to_device}
    return sum(t.nbytes for t in outputs) / rates[func] * 1e3 if func in rates else 0.0


class _Operator(Protocol):
    name: str
    runtime_ms: float
    reads: list[int]
    outputs: list[int]


def let_waits_take_the_time(operators: Iterable[_Operator]) -> None:
    """Gives the time of copies, which is that on the link, to the operators that wait for
    them, as far as the device has to wait."""
    now_ms = 0.0
    free_ms = dict.fromkeys(_COPIES, 0.0)
    end_ms: dict[int, float] = {}  # of copies, by the storage that they fill
    for operator in operators:
        if operator.name in free_ms:
            end = max(now_ms, free_ms[operator.name]) + operator.runtime_ms
            free_ms[operator.name] = end
            end_ms |= dict.fromkeys(operator.outputs, end)
            operator.runtime_ms = 0.0
        elif operator.name == str(WAIT):
            ends = [end_ms.pop(s) for s in operator.reads if s in end_ms]
            operator.runtime_ms = max([0.0, *(end - now_ms for end in ends)])
        now_ms += operator.runtime_ms
