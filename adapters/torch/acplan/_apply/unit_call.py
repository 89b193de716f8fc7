"""The call of a unit, in forward and again: how it begins anew, and how it ends."""

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import checkpoint

from acplan._apply.given_tensors import CallArguments, put_back
from acplan._apply.tape import Tape
from acplan._base.stand_ins import (
    StandIn,
)
from acplan._base.torchscript import Ending, endings_kept

if TYPE_CHECKING:
    from acplan._apply.recompute_mode import Recomputation

# A hook for a tensor that autograd saves, and one that returns the tensor.
Hooks = tuple[Callable[[torch.Tensor], Any], Callable[[Any], torch.Tensor]]
# Attributes by which PyTorch tells hooks of checkpoints from others, from 2.14 on.
_OF_CHECKPOINTS = ("_checkpoint_internal", "_user_hooks")
# A group of backward passes that share what runs again; older versions of PyTorch have none.
_GROUP = getattr(checkpoint, "GraphExecGroup", None)


CAN_TELL_HOOKS = hasattr(torch._C._autograd, "_top_saved_tensors_default_hooks")


class StartAgain(Ending):
    """A recomputation runs other operators than forward did, and results have been skipped that
    it may need: all operators have to run."""

    def __init__(self, recomputation: "Recomputation") -> None:
        super().__init__()
        self.recomputation = recomputation


def run(module: Callable[..., Any], tape: Tape, /, *args: Any, **kwargs: Any) -> Any:
    """Runs a module, in forward and again. It begins anew at most once."""
    try:
        with _asking_again(tape):
            return module(*args, **kwargs)
    except StartAgain as start:
        # It may be that of a unit around this one.
        if start.recomputation.tape is not tape:
            raise
        start.recomputation.start_again()
    return module(*args, **kwargs)


@contextlib.contextmanager
def _asking_again(tape: Tape) -> Iterator[None]:
    """Pushes, in forward, hooks on top of the checkpoint's that make the tensors for which
    backward asks although the plan skips them."""
    hooks = top_hooks() if tape.is_open else None
    if hooks is None:
        yield
        return
    torch._C._autograd._push_saved_tensors_default_hooks(*making_all(tape, hooks))
    try:
        yield
    finally:
        torch._C._autograd._pop_saved_tensors_default_hooks()


def top_hooks() -> Hooks | None:
    """Returns the last saved-tensor hooks. Older versions of PyTorch have no function for
    that."""
    top = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
    return top(True) if top else None


def copy_marks(source: Any, target: Any) -> None:
    """Marks a hook as a checkpoint's if the hook that it replaces is marked so."""
    for name in _OF_CHECKPOINTS:
        if hasattr(source, name):
            setattr(target, name, getattr(source, name))


def making_all(tape: Tape, hooks: Hooks) -> Hooks:
    """Returns the hooks of a checkpoint for a unit that skips. If backward asks for more than
    in the trace, such as the gradient of an input, or a second gradient, it would get a
    stand-in: then the unit runs once more, and skips nothing."""
    save, unsave = hooks

    def unpack(packed: Any) -> torch.Tensor:
        tensor: torch.Tensor = unsave(packed)
        if not isinstance(tensor, StandIn) or tape.is_strict or _GROUP is None:
            return tensor
        if tape.tell is not None:
            tape.tell(
                "backward asks for more than in the trace (a gradient of an input, or a "
                "second gradient), so the whole unit runs again"
            )
        # For PyTorch this is a pass of its own, in which nothing has run again yet.
        task = torch._C._current_graph_task_id()
        if tape.exec_group is None or tape.exec_group[0] != task:
            tape.exec_group = (task, _GROUP())
            tape.drop()
        group = torch._C._get_graph_exec_group()
        torch._C._set_graph_exec_group(tape.exec_group[1])
        try:
            return unsave(packed)
        finally:
            torch._C._set_graph_exec_group(group)

    return save, unpack


class Call:
    """A module that is called with the caller's own arguments first, and from then on with
    copies of the arguments (_base/call_arguments.py). If an exception left the call in forward,
    such an exception leaves it when it runs again, and is suppressed."""

    def __init__(self, module: Callable[..., Any], arguments: CallArguments) -> None:
        self._module = module
        # They are released when the module is called.
        self._first: Any = (arguments.args, arguments.kwargs)
        self._put_first = len(arguments.first)
        self._left_by: tuple[type[BaseException], ...] = ()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._first is None:
            return self._run_again(*put_back(args, kwargs, self._put_first))
        (args, kwargs), self._first = self._first, None
        try:
            return self._module(*args, **kwargs)
        except BaseException as error:
            self._left_by = (type(error),)
            if isinstance(error, StopIteration):
                raise Stopped(error) from None
            raise

    def _run_again(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        try:
            with endings_kept():
                self._module(*args, **kwargs)
        except ENDS:
            raise
        except self._left_by:
            pass


class Stopped(Exception):
    """An exception in place of StopIteration, which cannot leave the generators of which
    checkpoints are made."""

    def __init__(self, error: StopIteration) -> None:
        super().__init__()
        self.error = error


class _End(Ending):
    """An exception in place of the one by which PyTorch ends a recomputation that has made all
    that is needed. Modules do not catch it like an error of their own, after which they would
    go on with something else."""


checkpoint._StopRecomputationError = _End  # type: ignore[misc, assignment]
# Exceptions that end a recomputation, or begin it again, and are no exceptions of the module's.
ENDS = (StartAgain, _End)
