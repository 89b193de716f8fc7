"""Code that torch.jit has compiled: functions and modules in TorchScript.

The executor of torch.jit watches the first calls of a function and then runs it in another way:
it fuses operators, and has a backward of its own that saves other tensors. A checkpoint that
begins before this change and runs again after it gives backward the wrong tensors, by their
order, and PyTorch's own checkpoint does so silently. The executor stays with the way that it
has once found, and looks for none in threads in which it may not optimize. So from the first
call of a unit on, it may not optimize in the thread of forward, nor where a unit runs again:
code in a unit runs in one way, optimized if it was before, else operator by operator.

Modes see the operators of both ways, and buffers that they write to in place are known like all
others. But attributes that such code sets are out of reach, so a module with code that sets
attributes is not a unit, nor is a module around it.
"""

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import torch


class _Last(threading.local):
    ending: BaseException | None = None
    is_wanted = False  # in a block of endings_kept


_LAST = _Last()


class Ending(BaseException):
    """The exception that ends a recomputation. The TorchScript interpreter turns each exception
    that passes through it into an error of its own: `endings_kept` finds this one again."""

    def __init__(self) -> None:
        super().__init__()
        # Elsewhere it would hold the tensors of a recomputation that is not a plan's.
        if _LAST.is_wanted:
            _LAST.ending = self


@contextlib.contextmanager
def endings_kept() -> Iterator[None]:
    """Lets the exception that ends a recomputation leave the block as it was raised."""
    _LAST.ending = None
    was_wanted, _LAST.is_wanted = _LAST.is_wanted, True
    try:
        yield
    except RuntimeError as error:
        if _LAST.ending is None or _OF_INTERPRETER not in str(error):
            raise
        # No frame may have the exception in a variable: that would be a cycle, which holds
        # tensors.
        raise _LAST.ending from None
    finally:
        _LAST.ending = None
        _LAST.is_wanted = was_wanted


_OF_INTERPRETER = "failed in the TorchScript interpreter"
_optimizes: Any = torch._C._get_graph_executor_optimize
let_optimize: Any = torch._C._set_graph_executor_optimize


def stop_optimizing() -> bool:
    """Makes this thread run operator by operator. Returns whether it was allowed to optimize
    before, for `let_optimize`."""
    before: bool = _optimizes()
    let_optimize(False)
    return before


@contextlib.contextmanager
def by_operators() -> Iterator[None]:
    """Runs TorchScript operator by operator in this thread within the block."""
    before = stop_optimizing()
    try:
        yield
    finally:
        let_optimize(before)


def is_scripted(module: torch.nn.Module) -> bool:
    return isinstance(module, torch.jit.ScriptModule)


class Attributes:
    """The parameters and buffers of a TorchScript module, by name. They are written to as
    attributes: the module's dictionaries cannot be written to."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module

    def items(self) -> list[tuple[str, Any]]:
        own: tuple[Any, Any] = (self._module._parameters, self._module._buffers)
        return [item for kind in own for item in kind.items()]

    def __setitem__(self, name: str, value: Any) -> None:
        setattr(self._module, name, value)


def holders_of(module: torch.nn.Module) -> tuple[Any, ...]:
    """Returns the dictionaries in which a module has tensors."""
    if is_scripted(module):
        return (Attributes(module),)
    return (vars(module), module._parameters, module._buffers)


def has_unknown_state(module: torch.nn.Module) -> bool:
    """Returns whether the module is, or contains, a module with code that sets attributes."""
    return any(
        is_scripted(submodule) and _sets_some(submodule) for submodule in module.modules()
    )


def _sets_some(module: Any) -> bool:
    methods = map(module._c._get_method, module._c._method_names())
    return any(method.graph.findNode("prim::SetAttr") is not None for method in methods)


def notes_of_scripts(model: torch.nn.Module) -> Iterator[str]:
    """Yields the notes of a trace on such code in the model."""
    modules = [*model.modules()]
    if count := sum(map(is_scripted, modules)):
        yield (
            f"{count} module{'s' * (count > 1)} compiled by torch.jit: traced operator by "
            "operator, as in units of a plan, unless optimized before; outside of units "
            "torch.jit may fuse operators, which then need less memory"
        )
    barred = [m for m in modules if not is_scripted(m) and has_unknown_state(m)]
    if barred:
        units = "modules cannot be units" if len(barred) > 1 else "module cannot be a unit"
        yield (
            f"{len(barred)} {units} of a plan: code inside that torch.jit has compiled sets "
            "attributes, which cannot be restored"
        )
