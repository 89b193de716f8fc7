"""Operators that copy a tensor to the host's memory and back, for compiled graphs.

    host = acplan.offload(tensor)               queues the copy to the host
    host = acplan.wait(host, tensor)            waits for it; `tensor` is needed until here
    tensor = acplan.reload(host, device)        new memory, and queues the copy back
    tensor = acplan.wait(tensor, host)          waits for that

The copies are those of _base/host_link.py, on a stream for each direction; the device waits
for them, the host never does. PyTorch 2.13 has such operators too (`ao::offload`, private),
with one stream for both directions, for contiguous tensors, and not for the CPU; so compiled
graphs of all versions have these.
"""

import functools
import threading

import torch
from torch.fx.node import has_side_effect

from acplan._base.host_link import Copy, Plain, Queues, queues_of

_LIBRARY = torch.library.Library("acplan", "FRAGMENT")  # noqa: TOR901 - for good
_LIBRARY.define("offload(Tensor tensor) -> Tensor")
_LIBRARY.define("reload(Tensor host, Device device) -> Tensor")
_LIBRARY.define("wait(Tensor(a) copied, Tensor source) -> Tensor(a)")

# The copies that nothing has waited for, by the address of the memory that they fill.
_pending: dict[int, Copy] = {}
_lock = threading.Lock()


@functools.cache
def _queues_on(device: torch.device) -> Queues:
    return queues_of(torch.empty(0, device=device))


def _on_host(tensor: torch.Tensor, *, is_pinned: bool = False) -> torch.Tensor:
    """Returns memory of the host for a tensor, with its strides."""
    return torch.empty_strided(
        tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu", pin_memory=is_pinned
    )


def _start(source: torch.Tensor, target: torch.Tensor, *, is_fetch: bool) -> None:
    device = target.device if is_fetch else source.device
    queues = _queues_on(device)
    copy = (queues.fetch if is_fetch else queues.send)(source, target, None)
    if not isinstance(queues, Plain):
        with _lock:
            _pending[target.data_ptr()] = copy


def _offload(tensor: torch.Tensor) -> torch.Tensor:
    host = _on_host(tensor, is_pinned=tensor.device.type != "cpu")
    _start(tensor, host, is_fetch=False)
    return host


def _reload(host: torch.Tensor, device: torch.device) -> torch.Tensor:
    tensor = _like_host(host, device)
    _start(host, tensor, is_fetch=True)
    return tensor


def _wait(copied: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    with _lock:
        copy = _pending.pop(copied.data_ptr(), None)
    if copy is not None:
        copy.wait(copied if source.device.type == "cpu" else source)
    return copied


def _like_host(host: torch.Tensor, device: torch.device) -> torch.Tensor:
    return torch.empty_strided(host.shape, host.stride(), dtype=host.dtype, device=device)


for _name, _kernel, _on_fakes in (
    ("offload", _offload, _on_host),
    ("reload", _reload, _like_host),
    ("wait", _wait, lambda copied, source: copied),
):
    _LIBRARY.impl(_name, _kernel, "CompositeExplicitAutograd")
    torch.library.register_fake(f"acplan::{_name}", _on_fakes, lib=_LIBRARY)

OFFLOAD = torch.ops.acplan.offload.default
RELOAD = torch.ops.acplan.reload.default
WAIT = torch.ops.acplan.wait.default
# Nothing may leave it out, though it returns what it is given.
has_side_effect(WAIT)
