"""A compiled model's first call with gradients, before which its step is planned."""

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from acplan._compile.step_plan import Compilation

PlanStep = Callable[[Compilation, tuple[Any, ...], dict[str, Any]], None]


def plan_at_first_call(
    compiled: torch.nn.Module, plan_step: PlanStep, compilation: Compilation
) -> None:
    """Lets `plan_step` be called with the arguments of the first call of `compiled` that makes
    gradients. If it raises, or is interrupted, it is called again at the next call."""
    hook = _Hook(plan_step, compilation)
    hook.handle = compiled.register_forward_pre_hook(hook, with_kwargs=True)


class _Hook:
    """The hook before the first call. A copy, or one that was pickled, does nothing: copied
    blocks are not compiled, and the plan is for a step of the original."""

    def __init__(self, plan_step: PlanStep, compilation: Compilation) -> None:
        self.handle: torch.utils.hooks.RemovableHandle | None = None
        self._plan_step = plan_step
        self._compilation = compilation
        # Other threads wait for the plan; the step that is planned calls the model, too.
        self._lock = threading.RLock()
        self._is_planning = False

    def __call__(self, module: torch.nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        with self._lock:
            handle = self.handle
            if handle is None or self._is_planning:
                return
            if not self._makes_gradients(args, kwargs):
                return
            self._is_planning = True
            try:
                self._plan_step(self._compilation, args, kwargs)
            finally:
                self._is_planning = False
            handle.remove()
            self.handle = None

    def _makes_gradients(self, args: Any, kwargs: dict[str, Any]) -> bool:
        tensors = [*self._compilation.model.parameters(), *tree_leaves((args, kwargs))]
        return torch.is_grad_enabled() and any(
            isinstance(t, torch.Tensor) and t.requires_grad for t in tensors
        )

    def __reduce__(self) -> tuple[Any, tuple[()]]:
        return _Nothing, ()


class _Nothing:
    def __call__(self, module: Any, args: Any, kwargs: dict[str, Any]) -> None:
        pass
