"""The recomputation of a unit, which is read off the tape of its forward pass."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

import torch
from torch._subclasses.fake_tensor import is_fake
from torch.utils import checkpoint
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from acplan._apply.forward_mode import Mode, cast_key
from acplan._apply.outside_memory import set_versions, version_of
from acplan._apply.tape import Saved, Skipped, Tape, each, memory_of, storage_of
from acplan._base.call_arguments import copied
from acplan._base.errors import AcplanError
from acplan._base.operators import (
    CAST,
    EMPTY,
    Traits,
    is_kept_cast,
    is_of_nothing,
    statistics_of,
    traits_of,
    written_by,
)
from acplan._base.stand_ins import (
    Origin,
    StandIn,
    by_shape,
    is_run_inside,
    one_hot_as_in_forward,
    reshape,
    shape_of,
    stand_in,
)
from acplan._base.tensors import tensors_of
from acplan._base.torchscript import Ending, endings_kept

# For what autograd saves, and to hand it out.
Hooks = tuple[Callable[[torch.Tensor], Any], Callable[[Any], torch.Tensor]]
# By which PyTorch tells hooks of checkpoints from others, from 2.14 on.
_OF_CHECKPOINTS = ("_checkpoint_internal", "_user_hooks")


# Of backward passes that share what runs again; older versions of PyTorch have none.
_GROUP = getattr(checkpoint, "GraphExecGroup", None)


class StartAgain(Ending):
    """A recomputation runs other operators than forward did, and results have been
    skipped that it may need: all of it is to run."""

    def __init__(self, recomputation: "Recomputation") -> None:
        super().__init__()
        self.recomputation = recomputation


def run(module: Callable[..., Any], tape: Tape, /, *args: Any, **kwargs: Any) -> Any:
    """Calls a module, in forward and again. It begins anew at most once."""
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
    """In forward, puts hooks on top of the checkpoint's that make what backward asks for
    and the plan skips."""
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
    """Of saved-tensor hooks the last ones. Older versions of PyTorch do not tell them."""
    top = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
    return top(True) if top else None


def copy_marks(of: Any, to: Any) -> None:
    """Marks a hook as a checkpoint's where the one that it stands for is marked so."""
    for name in _OF_CHECKPOINTS:
        if hasattr(of, name):
            setattr(to, name, getattr(of, name))


def making_all(tape: Tape, hooks: Hooks) -> Hooks:
    """The hooks of a checkpoint, for a unit that skips. Where backward asks for more than
    in the trace, as for the gradient of an input, or for a second one, what it is given is
    a stand-in: then the unit runs once more, and skips nothing."""
    save, unsave = hooks

    def unpack(held: Any) -> torch.Tensor:
        tensor: torch.Tensor = unsave(held)
        if not isinstance(tensor, StandIn) or tape.is_strict or _GROUP is None:
            return tensor
        if tape.tell is not None:
            tape.tell(
                "backward asks for more than in the trace (a gradient of an input, or a "
                "second one): all of it runs again"
            )
        # To PyTorch it is a pass of its own, in which nothing has run again yet.
        task = torch._C._current_graph_task_id()
        if tape.again is None or tape.again[0] != task:
            tape.again = (task, _GROUP())
            tape.drop()
        group = torch._C._get_graph_exec_group()
        torch._C._set_graph_exec_group(tape.again[1])
        try:
            return unsave(held)
        finally:
            torch._C._set_graph_exec_group(group)

    return save, unpack


class Call:
    """A module, called with what its caller gave, and from then on with copies of what it
    is called with (_base/call_arguments.py). Where an exception left it in forward, one such
    leaves it when it runs again, and nobody hears of it."""

    def __init__(
        self, module: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        self._module = module
        # Let go of when it is called.
        self._first: Any = (args, kwargs)
        self._left_by: tuple[type[BaseException], ...] = ()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._first is None:
            return self._again(*copied((args, kwargs)))
        (args, kwargs), self._first = self._first, None
        try:
            return self._module(*args, **kwargs)
        except BaseException as error:
            self._left_by = (type(error),)
            if isinstance(error, StopIteration):
                raise Stopped(error) from None
            raise

    def _again(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        try:
            with endings_kept():
                self._module(*args, **kwargs)
        except ENDS:
            raise
        except self._left_by:
            pass


class Stopped(Exception):
    """In place of StopIteration, which does not leave the generators that checkpoints are
    made of."""

    def __init__(self, error: StopIteration) -> None:
        super().__init__()
        self.error = error


class _End(Ending):
    """In place of the exception by which PyTorch ends a recomputation that has made all that
    is needed: one that modules do not catch as an error of their own, of which they would
    go on with something else."""


checkpoint._StopRecomputationError = _End  # type: ignore[misc, assignment]
# What ends a recomputation, or begins it again, and is no end of the module's.
ENDS = (StartAgain, _End)


class HasModules(Protocol):
    def modules(self) -> Iterable[torch.nn.Module]: ...


class Recomputation(Mode):
    """Reads the tape."""

    def __init__(
        self,
        tape: Tape,
        fqn: str,
        module: HasModules,
        sharded: Sequence[torch.nn.Module] = (),
    ) -> None:
        super().__init__(tape, sharded)
        self._fqn = fqn
        self._module = module
        self._own: set[int] = set()  # memory that the recomputation has made
        self._changed: set[int] = set()  # memory that others have written to since forward
        self._versions: list[tuple[torch.Tensor, int]] = []
        self._place = 0
        self._is_lost = False
        self._may_skip = False
        self._skips_at_once = False
        self._has_stale = False
        self._has_skipped = False
        self._has_hooks = False
        self._saves = 0  # of autograd
        self._saves_to_ignore = 0
        self._first_state: torch.Tensor | None = None
        self._states: dict[torch.Generator, torch.Tensor] = {}
        self._others = contextlib.ExitStack()

    @property
    def tape(self) -> Tape:
        return self._tape

    def __enter__(self) -> "Recomputation":
        if self._tape.freight is not None:
            self._tape.freight.begin()
        self._tape.prepare()
        self._begin_with_state()
        self._place = self._saves = 0
        self._is_lost = self._has_stale = self._has_skipped = False
        for generator, state in self._tape.first_states.items():
            self._states[generator] = generator.get_state()
            generator.set_state(state)
        self._has_hooks = self._tape.may_skip and self._push_hooks()
        self._may_skip = self._has_hooks
        self._skips_at_once = self._has_hooks and self._tape.writes is None
        if self._may_skip:
            self._first_state = torch.default_generator.get_state()
        if self._has_hooks:
            self._others.enter_context(one_hot_as_in_forward())
        # Of calls that are not over, where gradients are computed within forward.
        for mode in _get_current_dispatch_mode_stack():
            if isinstance(mode, Mode):
                self._others.enter_context(mode.looking_away())
        super().__enter__()
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        super().__exit__(kind, error, traceback)
        self._others.close()
        if self._tape.freight is not None:
            self._tape.freight.end()
        if self._has_hooks:
            torch._C._autograd._pop_saved_tensors_default_hooks()
        self._first_state = None
        for generator, state in self._states.items():
            generator.set_state(state)
        self._states.clear()
        self._end_with_state()

    def _begin_with_state(self) -> None:
        tape = self._tape
        if tape.state is not None:
            tape.state.put_back()
        self._own.clear()
        self._versions = [(tensor, version_of(tensor)) for tensor, _ in tape.watched]
        self._changed = {
            memory
            for (tensor, before), (_, now) in zip(tape.watched, self._versions)
            if before != now and (memory := memory_of(tensor)) is not None
        }

    def _end_with_state(self) -> None:
        tape = self._tape
        if tape.state is not None:
            tape.state.restore()
        for outside in tape.outside.values():
            outside.end()
        set_versions(self._versions)
        self._versions = []

    def start_again(self) -> None:
        """From where forward began, with nothing skipped. Autograd has saved something
        already, which it does not save twice: forward did run what came before."""
        tape = self._tape
        tape.distrust("")
        tape.skips_writes = False
        if any(type(cast) is Skipped for cast in tape.casts.values()):
            torch.clear_autocast_cache()
        for generator, state in tape.first_states.items():
            generator.set_state(state)
        if self._first_state is not None:
            torch.default_generator.set_state(self._first_state)
        if tape.state is not None:
            tape.state.put_back()
        for outside in tape.outside.values():
            outside.end()
        self._place = 0
        self._is_lost = self._may_skip = self._has_stale = False
        self._skips_at_once = False
        self._saves_to_ignore, self._saves = self._saves, 0

    def _push_hooks(self) -> bool:
        """Counts what autograd saves, which is given a stand-in in place of memory that
        is not as it was. Of saved-tensor hooks only the last ones are called, so these
        call the checkpoint's. Older versions of PyTorch do not tell them."""
        hooks = top_hooks()
        if hooks is None:
            self._tape.distrust("")
            return False
        save, unsave = hooks

        def pack(tensor: torch.Tensor) -> Any:
            if self._saves_to_ignore:
                self._saves_to_ignore -= 1
                return tensor.detach()
            self._saves += 1
            if self._has_stale and (origin := _stale(tensor)):
                tensor = stand_in(shape_of(tensor), origin)
            return save(tensor)

        copy_marks(save, pack)
        torch._C._autograd._push_saved_tensors_default_hooks(pack, unsave)
        return True

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if types and any(map(is_run_inside, types)):
            return NotImplemented
        tape, place = self._tape, self._place
        # By far the most of what is skipped, at once: one new tensor is made, whatever
        # it is called with.
        if self._skips_at_once and not self._is_blind and place < len(tape.items):
            item = tape.items[place]
            if (
                type(item) is Skipped
                and item.func is func
                and item.made is None
                and item.after is None
                and func is not CAST
                and func is not EMPTY
            ):
                self._place = place + 1
                self._has_skipped = True
                return stand_in(item, Origin(self._fqn, place, func, place))
        kwargs = kwargs or {}
        traits = traits_of(func)
        is_unseen = self._is_blind or traits.is_ignored
        if is_unseen or (traits.may_be_of_nothing and is_of_nothing(func, args)):
            if args and isinstance(args[0], StandIn):
                return _unseen(func, args, kwargs)
            return func(*args, **kwargs)
        if self._is_lost:
            return self._run(func, traits, args, kwargs)
        if traits.is_cast and type(args[0]) is not StandIn and is_kept_cast(args[0]):
            item = tape.casts.get(cast_key(args, kwargs), func)
        else:
            items = tape.items
            item = items[place] if place < len(items) else None
            if traits.is_view and isinstance(args[0], StandIn):
                if self._is_made_anew(func, item, args):
                    return by_shape(func, args, kwargs, args[0].origin)
            self._place = place + 1
            if tape.unwritten and self._is_of_unwritten(place, args):
                return self._run(func, traits, args, kwargs)
        if item is func:
            return self._run(func, traits, args, kwargs)
        kind = type(item)
        if (kind is not Skipped and kind is not Saved) or item.func is not func:
            self._lose(func)
            return self._run(func, traits, args, kwargs)
        if not (self._may_skip if kind is Skipped else item.has_value):
            return self._run(func, traits, args, kwargs)
        if tape.outside and traits.writes and self._replays(func, args, kwargs):
            return self._run(func, traits, args, kwargs)
        if item.after:
            generator, state = item.after
            generator.set_state(state)
        if kind is Saved and not item.is_partial:
            # A view, or what was written to, may be of memory from outside.
            is_made = not (traits.only_shows or traits.writes)
            return self._note_own(item.take()) if is_made else item.take()
        origin = Origin(self._fqn, place, func, tape.made_at.get(place, place))
        if kind is Saved:
            self._has_skipped = True
            return self._note_own(item.take_some(origin, (args, kwargs)))
        if traits.is_mutable:
            if not self._writes_to_nothing(item, origin, args, kwargs):
                return self._run(func, traits, args, kwargs)
        self._has_skipped = True
        return item.hand_out(origin, (args, kwargs))

    def _is_made_anew(self, func: Any, item: Any, args: tuple[Any, ...]) -> bool:
        """Whether autograd views a stand-in once more: where a view is written to, it
        does so if tensors have a dispatch of their own; forward's have none."""
        if item is not func and getattr(item, "func", None) is not func:
            return True
        of = self._tape.views.get(self._place)
        return of is not None and of[::2] != (args[0].origin.made_at, args[1:])

    def _is_of_unwritten(self, place: int, args: tuple[Any, ...]) -> bool:
        """Whether a view is left out of memory that is there, and that is written to
        later. It must be a view as forward's was: autograd looks, and who reads that
        memory must be told that it is not as it was. Of a view made after the last
        write a stand-in says so."""
        of = self._tape.views.get(place)
        if of is None or not args:
            return False
        if place > self._tape.unwritten.get(of[:2], -1):
            return False
        item = self._tape.items[place]
        is_left_out = type(item) is Skipped or (type(item) is Saved and item.is_partial)
        return is_left_out and not isinstance(args[0], StandIn)

    def _writes_to_nothing(
        self,
        item: Skipped,
        origin: Origin,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> bool:
        """Marks what should have been written to; false where an operator must run that
        writes to a shape."""
        if traits_of(origin.func).changes_shape:
            if not isinstance(args[0], StandIn):
                return False
            reshape(origin.func, args, kwargs)
        if item.leaves_stale:
            for tensor in written_by(origin.func, args, kwargs):
                storage: Any = storage_of(tensor)
                if storage is None:
                    origin.refuse(origin.func)
                self._has_stale = True
                # It is gone with the memory.
                storage.acplan_stale = origin
        return True

    def _run(
        self,
        func: Any,
        traits: Traits,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        if traits.is_view and isinstance(args[0], StandIn):
            return by_shape(func, args, kwargs, args[0].origin)
        if self._has_stale and not traits.only_shows:
            for tensor in tensors_of((args, kwargs)):
                if origin := _stale(tensor):
                    origin.refuse(func)
        if self._changed or self._tape.outside or traits.writes:
            args, kwargs = self._apart(func, traits, args, kwargs)
        out = func(*args, **kwargs)
        return out if traits.only_shows else self._note_own(out)

    def _note_own(self, out: Any) -> Any:
        for tensor in tensors_of(out):
            memory = memory_of(tensor)
            if memory is not None:
                self._own.add(memory)
        return out

    def _apart(
        self,
        func: Any,
        traits: Traits,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Returns the arguments with which an operator reads memory from outside as it
        was in forward, and writes to copies of it. Raises AcplanError where what it
        reads is gone."""
        if traits.only_shows:
            return args, kwargs
        statistics = statistics_of(func, args, kwargs)
        written = {id(tensor) for tensor in written_by(func, args, kwargs) + statistics}

        def change(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            memory = memory_of(value)
            if memory is None:
                return value
            if memory in self._own and memory not in self._tape.outside:
                return value
            return self._as_in_forward(func, value, memory, id(value) in written)

        return each(args, change), {n: each(v, change) for n, v in kwargs.items()}

    def _as_in_forward(
        self, func: Any, tensor: torch.Tensor, memory: int, is_written: bool
    ) -> torch.Tensor:
        outside = self._tape.outside.get(memory)
        place = None if self._is_lost else self._place - 1
        is_replayed = outside is not None and not outside.is_of_end
        if outside is not None and (is_replayed or not is_written):
            if outside.is_for(place):
                return outside.private(tensor)
        if is_written:
            # Nothing is written to fake tensors, and the copy would be counted.
            return tensor if is_fake(tensor) else tensor.clone()
        is_before = outside is not None and (place is None or place <= outside.last)
        if is_before or memory in self._changed:
            raise AcplanError(
                f"{self._fqn}: in backward {func} reads {self._name_of(memory)}, which "
                "has been written to in place since forward: what forward read is gone. "
                "Trace a step in which that happens and plan anew, or write to it after "
                "backward"
            )
        return tensor

    def _replays(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Returns whether an operator writes to memory from outside of which there is a
        copy, so that what reads the copy later finds what was written."""
        outside = self._tape.outside
        tensors = (*written_by(func, args, kwargs), *statistics_of(func, args, kwargs))
        written = map(memory_of, tensors)
        found = (outside[m] for m in written if m is not None and m in outside)
        return any(known.is_kept and not known.is_of_end for known in found)

    def _name_of(self, memory: int) -> str:
        for module in self._module.modules():
            held = {**module._parameters, **module._buffers, **vars(module)}
            for name, value in held.items():
                if isinstance(value, torch.Tensor) and memory_of(value) == memory:
                    return f"{type(module).__name__}.{name}"
        return "a tensor from outside of the unit"

    def begin_again(self) -> None:
        """Raises StartAgain, if something has been skipped that may be needed."""
        if self._may_skip and self._has_skipped:
            raise StartAgain(self)

    def _lose(self, func: Any) -> None:
        self.begin_again()
        if self._tape.skips_writes:
            # What has been handed out may hold what is only written now.
            raise AcplanError(
                f"{self._fqn}: operator {self._place - 1} of the recomputation is "
                f"{func}, forward ran another one; a module that writes in place must "
                "run the same operators each time to be planned operator by operator"
            )
        self._is_lost = True
        self._skips_at_once = False


def _unseen(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Of a stand-in, what no policy sees."""
    given = args[0]
    if func is torch.ops.aten.detach.default:
        return stand_in(shape_of(given), given.origin)
    if func is torch.ops.prim.device.default:
        return given.device
    return by_shape(func, args, kwargs, given.origin)


def _stale(tensor: torch.Tensor) -> Origin | None:
    """What should have written to its memory, and was skipped."""
    storage = storage_of(tensor)
    if storage is None:
        return None
    origin: Origin | None = storage.__dict__.get("acplan_stale")
    return origin
