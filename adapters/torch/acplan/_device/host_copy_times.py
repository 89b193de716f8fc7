"""The time of copies to the host's memory and back by acplan's own operators.

A step of an optimizer whose states wait on the host (_base/offloaded_states.py) sends and
fetches the same bytes, at once, on the two ways of the link. The slower way counts: a copy to
the device takes its time, and one to the host what it takes longer.
"""

from collections.abc import Sequence
from typing import Any

import torch

from acplan._base.host_copies import OFFLOAD, RELOAD, WAIT
from acplan._base.host_links import HostLink


def is_host_copy(func: Any) -> bool:
    return func in (OFFLOAD, RELOAD, WAIT)


def copy_ms(func: Any, outputs: Sequence[torch.Tensor], link: HostLink) -> float:
    """Returns the milliseconds of an operator that copies `outputs`."""
    size = sum(t.nbytes for t in outputs)
    fetch = size / link.to_device * 1e3
    if func is RELOAD:
        return fetch
    return max(0.0, size / link.to_host * 1e3 - fetch) if func is OFFLOAD else 0.0
