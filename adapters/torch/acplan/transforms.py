"""Transforms of functions (torch.func) and tangents (torch.autograd.forward_ad) in a step
that is recorded."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch

_DISABLES_HOOKS = "disable_saved_tensors_hooks"


def unwrapped(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the plain tensor that transforms have wrapped."""
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = torch._C._functorch.getunwrapped(tensor)
    return tensor


def is_transformed() -> bool:
    """Returns whether what runs now is run by a transform of torch.func, or with tangents, which
    are gone when backward runs something again."""
    return (
        torch._C._functorch.peek_interpreter_stack() is not None
        or torch.autograd.forward_ad._current_level >= 0
    )


@contextlib.contextmanager
def without_hooks_in_transforms(on_transform: Callable[[], None]) -> Iterator[None]:
    """While it lasts, no hook is called for what autograd saves where a transform of
    torch.func differentiates, or tangents are computed: some of these refuse hooks, and
    tensors that are known to be zero are no longer so. PyTorch's checkpoints have such
    hooks: what runs such a transform is no unit."""
    dual = torch.autograd.forward_ad.dual_level
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

    enters, leaves = dual.__enter__, dual.__exit__
    with (
        mock.patch.object(torch.autograd.graph, _DISABLES_HOOKS, disable),
        mock.patch.object(dual, "__enter__", enter),
        mock.patch.object(dual, "__exit__", leave),
    ):
        yield
