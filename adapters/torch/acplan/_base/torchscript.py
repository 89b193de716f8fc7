"""Code that torch.jit has compiled: functions and modules in TorchScript.

Its executor watches the first calls of a function and then runs it in another way: fuses
operators, and has a backward of its own that saves other tensors. A checkpoint that begins
before and runs again after gives backward the wrong ones, by their order, and PyTorch's own
does so without a word. The executor stays with the way that it has once found, and looks for
none in threads where it may not optimize. So from the first call of a unit on it may not, in
the thread of forward, and where a unit runs again: code that runs in a unit runs in one way,
optimized if it was before, else operator by operator.

Modes see the operators of both, and buffers that they write to in place are known as any. But
attributes that such code sets are out of reach, so a module with code that sets some is no
unit, nor is one around it.
"""

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import torch


class _Last(threading.local):
    ending: BaseException | None = None


_LAST = _Last()


class Ending(BaseException):
    """What ends a recomputation. The interpreter of such code makes an error of its own of
    each exception that passes through it: `endings_kept` finds this one again."""

    def __init__(self) -> None:
        super().__init__()
        _LAST.ending = self


@contextlib.contextmanager
def endings_kept() -> Iterator[None]:
    """Around a recomputation: what ends it leaves it as it was raised."""
    _LAST.ending = None
    try:
        yield
    except RuntimeError as error:
        if _LAST.ending is None or _OF_INTERPRETER not in str(error):
            raise
        # No frame may have it for a variable: that would be a cycle, which holds tensors.
        raise _LAST.ending from None
    finally:
        _LAST.ending = None


_OF_INTERPRETER = "failed in the TorchScript interpreter"
_optimizes: Any = torch._C._get_graph_executor_optimize
let_optimize: Any = torch._C._set_graph_executor_optimize


def stop_optimizing() -> bool:
    """Lets this thread run operator by operator; returns whether it did not until now, for
    `let_optimize`."""
    before: bool = _optimizes()
    let_optimize(False)
    return before


@contextlib.contextmanager
def by_operators() -> Iterator[None]:
    """While it lasts, such code runs operator by operator in this thread."""
    before = stop_optimizing()
    try:
        yield
    finally:
        let_optimize(before)


def is_scripted(module: torch.nn.Module) -> bool:
    return isinstance(module, torch.jit.ScriptModule)


class Attributes:
    """Parameters and buffers of such a module, by name. They are written to as attributes:
    its dictionaries cannot be."""

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
    """Returns whether it is, or has inside, a module with code that sets attributes."""
    return any(is_scripted(inside) and _sets_some(inside) for inside in module.modules())


def _sets_some(module: Any) -> bool:
    methods = map(module._c._get_method, module._c._method_names())
    return any(method.graph.findNode("prim::SetAttr") is not None for method in methods)


def notes_of_scripts(model: torch.nn.Module) -> Iterator[str]:
    """Yields what a trace says of such code in the model."""
    modules = [*model.modules()]
    if count := sum(map(is_scripted, modules)):
        yield (
            f"{count} module{'s' * (count > 1)} compiled by torch.jit: traced as in units of a "
            "plan, operator by operator unless optimized before; outside of these torch.jit "
            "may fuse operators, which then need less memory"
        )
    barred = [m for m in modules if not is_scripted(m) and has_unknown_state(m)]
    if barred:
        yield (
            f"{len(barred)} module{'s' * (len(barred) > 1)} may be no unit"
            f"{'s' * (len(barred) > 1)} of a plan: code inside that torch.jit has compiled "
            "sets attributes, which nothing puts back"
        )
