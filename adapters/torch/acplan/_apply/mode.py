"""A mode that sees the operators of one call of a unit."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from acplan._apply.tape import (
    Tape,
)
from acplan._base.modules import FSDPModule
from acplan._base.ring_attention import watch_ring_attention
from acplan._base.sharded_modules import Hook, gather_again, hooks_replaced
from acplan._base.sharding import watch_propagation
from acplan._base.triton_kernels import watch_launches

_EVAL_FRAME = torch._C._dynamo.eval_frame
CAN_LEAVE_OUT = hasattr(_EVAL_FRAME, "set_code_exec_strategy")


def leave_out_of_compiler(function: Any) -> None:
    """Keeps PyTorch's compiler from compiling a function, and what it calls."""
    skip = _EVAL_FRAME._FrameAction.SKIP
    strategy = _EVAL_FRAME._FrameExecStrategy(skip, skip)
    _EVAL_FRAME.set_code_exec_strategy(function.__code__, strategy)


# The modes of a checkpoint: in forward, and when it runs again.
Contexts = tuple[TorchDispatchMode, TorchDispatchMode]


class Mode(TorchDispatchMode):
    """A mode that ignores what fully_shard does around the forward of modules in a unit: it
    gathers parameters and casts inputs. This happens each time, also when the unit runs
    again."""

    supports_higher_order_operators = True
    sees_launches = True
    # True if a call runs again within the mode, in the backward pass.
    _runs_again = False

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True

    def __init_subclass__(cls, runs_again: bool = False, **kwargs: Any) -> None:
        cls._runs_again |= runs_again
        super().__init_subclass__(**kwargs)  # type: ignore[no-untyped-call]
        dispatch = cls.__dict__.get("__torch_dispatch__")
        if dispatch is not None and CAN_LEAVE_OUT:
            leave_out_of_compiler(dispatch)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Returns whether PyTorch has to call the dispatch through a function that stops its
        compiler meanwhile, which takes time at each operator. Marking the code, and the code
        that it calls, as not to be compiled serves as well."""
        return not CAN_LEAVE_OUT

    def __init__(self, tape: Tape, sharded: Sequence[FSDPModule]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._tape = tape
        self._sharded = sharded
        self._is_blind = False
        self._hooks = contextlib.ExitStack()

    def __enter__(self) -> "Mode":
        for module in self._sharded:
            replaced = hooks_replaced(module, self._gathering_in, self._looking_away_in)
            self._hooks.enter_context(replaced)
        watch_launches()
        watch_propagation()
        watch_ring_attention()
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        super().__exit__(kind, error, traceback)  # type: ignore[no-untyped-call]
        self._hooks.close()

    @contextlib.contextmanager
    def looking_away(self) -> Iterator[None]:
        """Ignores operators within the block: they belong to another call, which is
        recomputed."""
        was_blind, self._is_blind = self._is_blind, True
        try:
            yield
        finally:
            self._is_blind = was_blind

    def _looking_away_in(self, hook: Hook) -> Hook:
        def run(*args: Any) -> Any:
            with self.looking_away():
                return hook(*args)

        return run

    def _gathering_in(self, hook: Hook) -> Hook:
        def run(module: FSDPModule, *arguments: Any) -> Any:
            with self.looking_away():
                if self._runs_again:
                    gather_again(module)
                return hook(module, *arguments)

        return run
