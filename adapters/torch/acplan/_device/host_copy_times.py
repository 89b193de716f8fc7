"""The time of copies to the host's memory and back, and of operators in the host's memory.

A step of an optimizer whose states wait on the host (_base/offloaded_states.py) has two
queues, one each way of the link. A copy begins when the device comes to its operator and the
copy before it has ended. It takes no time of the device, which waits where the program waits
for it. Plans have the same model of the link (graph/trace/link_time.h).

A model whose parameters are in the host's memory (CPUOffloadPolicy of fully_shard) copies them
to the device and its gradients back by PyTorch's own operators. Each takes the time of the link
on the stream that runs it. The link's rates are those of pinned memory; copies of other memory
are slower. The model's optimizer runs on the CPU, at the bytes a second of a measured one.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import torch

from acplan._base.host_copies import OFFLOAD, RELOAD, WAIT
from acplan._base.host_links import HostLink
from acplan._base.operators import CAST
from acplan._base.process_groups import is_collective
from acplan._device.pinned_fakes import is_pinned

_COPIES = (str(OFFLOAD), str(RELOAD))
# Parameters that DeepSpeed's CPU-Adam updates in a second: 11.6 billion in 8.2 seconds
# (deepspeedai/DeepSpeed#735). Processors differ. PyTorch's fused AdamW is taken to be as fast:
# by its schema it reads four values of four bytes for each, and writes four.
UPDATED_ON_CPU = 11.6e9 / 8.2
_BYTES_ON_CPU = UPDATED_ON_CPU * 8 * 4
_COPYING = (CAST, torch.ops.aten.copy_.default)


def is_host_copy(func: Any) -> bool:
    return func in (OFFLOAD, RELOAD, WAIT)


def copy_ms(func: Any, outputs: Sequence[torch.Tensor], link: HostLink) -> float:
    """Returns the milliseconds on the link of an operator that copies `outputs`."""
    rates = {OFFLOAD: link.to_host, RELOAD: link.to_device}
    return sum(t.nbytes for t in outputs) / rates[func] * 1e3 if func in rates else 0.0


def host_seconds(
    func: Any,
    inputs: Sequence[torch.Tensor],
    outputs: Sequence[torch.Tensor],
    link: HostLink,
) -> float | None:
    """Returns the seconds of a copy between the host's memory and the device, or of an operator
    that the CPU runs; None for any other operator. `inputs` and `outputs` are the tensors that
    it reads and writes."""
    size = sum(t.nbytes for t in outputs)
    if direction := _direction(func, inputs, outputs):
        return size / (link.to_host if direction == "to host" else link.to_device)
    if not _runs_on_cpu(func, inputs, outputs):
        return None
    return (size + sum(t.nbytes for t in inputs)) / _BYTES_ON_CPU


def blocks_host(
    func: Any,
    kwargs: dict[str, Any],
    inputs: Sequence[torch.Tensor],
    outputs: Sequence[torch.Tensor],
) -> bool:
    """Returns whether the host goes on only when an operator has ended: the CPU runs it, or it
    copies between the device and memory that is not pinned. A copy to the host that is not to
    block has a pinned target."""
    direction = _direction(func, inputs, outputs)
    if direction == "to device":
        return not all(map(is_pinned, inputs))
    if direction == "to host":
        return not kwargs.get("non_blocking")
    return _runs_on_cpu(func, inputs, outputs)


def _runs_on_cpu(
    func: Any, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]
) -> bool:
    return bool(outputs) and not is_collective(func) and not _is_on_device(*inputs, *outputs)


def _direction(
    func: Any, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]
) -> str:
    """Returns where an operator copies to, or an empty text if it does not copy between the
    host's memory and the device."""
    # The second tensor of copy_ is the source.
    source, target = inputs[-1:], outputs[:1]
    if func not in _COPYING or not (source and target):
        return ""
    if _is_on_device(*source) == _is_on_device(*target):
        return ""
    return "to device" if _is_on_device(*target) else "to host"


def _is_on_device(*tensors: torch.Tensor) -> bool:
    """Returns whether any of these tensors is on the device."""
    return any(tensor.device.type == "cuda" for tensor in tensors)


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
