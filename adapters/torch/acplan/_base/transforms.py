"""Transforms of functions: torch.func's, and forward-mode gradients.

A unit that is called inside a transform runs as it does without a plan. A checkpoint keeps what
autograd saves of plain tensors; inside a transform, tensors are wrapped ones without memory of
their own, which end with the transform, and their gradients are made at once.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.autograd import forward_ad

from acplan._base.patching import set_attribute

_DISABLES_HOOKS = "disable_saved_tensors_hooks"
_peek: Callable[[], object] = torch._C._functorch.peek_interpreter_stack


def are_under_way() -> bool:
    """Returns whether the current code of this thread runs inside vmap, grad, jvp and the like,
    or inside a level of dual numbers."""
    return _peek() is not None or forward_ad._current_level >= 0


def unwrapped(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the plain tensor that transforms have wrapped."""
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor


@contextlib.contextmanager
def without_hooks(on_transform: Callable[[], None]) -> Iterator[None]:
    """Keeps hooks on saved tensors from being called, within the block, while a transform of
    torch.func differentiates or tangents are computed: some of these refuse hooks, and with
    hooks, tensors that are known to be zero are no longer known to be so. PyTorch's checkpoints
    have such hooks: a module that runs such a transform is not a unit."""
    dual = forward_ad.dual_level
    entered: dict[int, bool] = {}

    @contextlib.contextmanager
    def disable(message: str) -> Iterator[None]:
        on_transform()
        before = torch._C._autograd._saved_tensors_hooks_set_tracing(True)
        try:
            yield
        finally:
            torch._C._autograd._saved_tensors_hooks_set_tracing(before)

    def enter(self: Any) -> Any:
        on_transform()
        before = torch._C._autograd._saved_tensors_hooks_set_tracing(True)
        entered[id(self)] = before
        return enters(self)

    def leave(self: Any, *raised: Any) -> Any:
        torch._C._autograd._saved_tensors_hooks_set_tracing(entered.pop(id(self)))
        return leaves(self, *raised)

    enters: Any = dual.__enter__
    leaves: Any = dual.__exit__
    with (
        set_attribute(torch.autograd.graph, _DISABLES_HOOKS, disable),
        set_attribute(dual, "__enter__", enter),
        set_attribute(dual, "__exit__", leave),
    ):
        yield
