"""Operators that PyTorch composes of others on every device. One of them is one operator for
autograd and for policies of checkpointing, but it runs several kernels, and has memory between
them that neither its arguments nor its results show."""

from collections.abc import Mapping
from typing import Any

import torch

_KEYS = (
    torch._C.DispatchKey.CompositeExplicitAutogradNonFunctional,
    torch._C.DispatchKey.CompositeExplicitAutograd,
)

# PyTorch's list of operators (native_functions.yaml) has no kernel of CUDA's for them, and they
# allocate more than their results, or run more than one kernel over their arguments.
_NAMES = """_euclidean_dist _safe_softmax _trilinear _unsafe_masked_index
    _unsafe_masked_index_put_accumulate binary_cross_entropy_with_logits dist isinf ldexp
    logsumexp masked_fill masked_scatter masked_scatter_backward mvlgamma soft_margin_loss
    soft_margin_loss_backward""".split()


def _composed() -> dict[Any, Any]:
    packets = [getattr(torch.ops.aten, name, None) for name in _NAMES]
    overloads = [
        getattr(packet, name)
        for packet in packets
        if packet is not None  # in versions that have it
        for name in packet.overloads()
    ]
    return {
        overload: key
        for overload in overloads
        if torch._C._dispatch_has_kernel(overload.name())  # else TorchScript's alone
        for key in _KEYS
        if torch._C._dispatch_has_kernel_for_dispatch_key(overload.name(), key)
    }


COMPOSED: Mapping[Any, Any] = _composed()
"""Each operator, and where PyTorch's dispatcher has its composition."""


def run_parts(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Runs one of COMPOSED such that modes see the operators in it."""
    return func._op_dk(COMPOSED[func], *args, **kwargs)
