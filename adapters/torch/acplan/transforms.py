"""Transforms of functions: torch.func's, and forward-mode gradients.

What runs inside one is called as it is without a plan. A checkpoint keeps what autograd saves
of plain tensors; inside, tensors are wrapped ones without memory of their own, which end with
the transform, and their gradients are made there and then.
"""

from collections.abc import Callable

import torch
from torch.autograd import forward_ad

_peek: Callable[[], object] = torch._C._functorch.peek_interpreter_stack


def are_under_way() -> bool:
    """Whether vmap, grad, jvp and the like, or a level of dual numbers, are around what
    runs now in this thread."""
    return _peek() is not None or forward_ad._current_level >= 0
