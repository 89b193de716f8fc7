"""The recomputation of a unit, which is read off the tape of its forward pass."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from acplan._apply.alone import Rerun, require_planned
from acplan._apply.forward_mode import cast_key
from acplan._apply.memory_again import HasModules, MemoryAgain, stale_origin
from acplan._apply.mode import CAN_LEAVE_OUT, Mode, leave_out_of_compiler
from acplan._apply.tape import Saved, Skipped, Tape
from acplan._apply.unit_call import StartAgain, copy_marks, top_hooks
from acplan._base import watch
from acplan._base.errors import AcplanError
from acplan._base.modules import FSDPModule
from acplan._base.operators import (
    CAST,
    EMPTY,
    HANDS_OUT,
    WAITS,
    Traits,
    is_kept_cast,
    is_of_nothing,
    traits_of,
)
from acplan._base.stand_ins import (
    Origin,
    StandIn,
    by_shape,
    is_run_inside,
    one_hot_as_in_forward,
    shape_of,
    stand_in,
)

# The ways to read the tape. OFF_TAPE: it is not read, and every operator runs; a call that was
# only watched has no other way. RUNS: saved
# results are handed out, and skipped operators run, too. SKIPS_AT_ONCE: operators are skipped,
# and the tape notes no writes. NO_MODE: operators are not seen.
_NO_MODE, _OFF_TAPE, _RUNS, _SKIPS, _SKIPS_AT_ONCE = range(5)
# Classes of tensors whose operators are their own.
_ALONE = frozenset([torch.Tensor, torch.nn.Parameter])


class Recomputation(Mode, runs_again=True):
    """A mode that reads the tape, operator by operator."""

    def __init__(
        self,
        tape: Tape,
        fqn: str,
        module: HasModules,
        sharded: Sequence[FSDPModule] = (),
    ) -> None:
        super().__init__(tape, sharded)
        self._fqn = fqn
        self._memory = MemoryAgain(tape, fqn, module)
        self._generators = _GeneratorsOfForward(tape)
        self._saves: _AutogradSaves | None = None
        self._undo = contextlib.ExitStack()
        self._place, self._reading = 0, _RUNS
        self._has_skipped = False

    @property
    def tape(self) -> Tape:
        return self._tape

    def __enter__(self) -> "Recomputation":
        tape = self._tape
        if tape.freight is not None:
            tape.freight.begin()
        tape.prepare()
        self._memory.begin()
        tape.use(self._memory.has_gone)
        self._place, self._has_skipped = 0, False
        self._generators.begin()
        self._undo.enter_context(_others_looking_away())
        may_skip, may_differ = tape.may_skip, self._memory.may_differ
        if tape.is_quiet and not may_differ:
            self._reading = _NO_MODE
            return self
        has_hooks = (may_skip or may_differ or CAN_LEAVE_OUT) and self._push_hooks()
        self._reading = _OFF_TAPE if tape.is_quiet else _RUNS
        if has_hooks and may_skip:
            self._reading = _SKIPS_AT_ONCE if tape.writes is None else _SKIPS
            self._generators.note_default()
            self._undo.enter_context(one_hot_as_in_forward())
        super().__enter__()
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        if self._reading != _NO_MODE:
            super().__exit__(kind, error, traceback)
        self._undo.close()
        if self._tape.freight is not None:
            self._tape.freight.end()
        self._saves = None
        self._generators.end()
        self._memory.end()

    def start_again(self) -> None:
        """Begins where forward began, with nothing skipped. Autograd has saved some tensors
        already, and does not save these twice: forward did run the operators before."""
        tape = self._tape
        tape.depart("a skipped result is needed")
        tape.skips_writes = False
        if any(type(cast) is Skipped for cast in tape.casts.values()):
            torch.clear_autocast_cache()
        self._generators.put_back()
        self._memory.begin_again()
        self._place, self._reading = 0, _RUNS
        if self._saves is not None:
            self._saves.start_again()

    def begin_again(self) -> None:
        """Raises StartAgain if a result has been skipped that may be needed."""
        if self._reading >= _SKIPS and self._has_skipped:
            raise StartAgain(self)

    def _push_hooks(self) -> bool:
        """Pushes hooks on top of the checkpoint's, which they call: saved-tensor hooks are
        called only if they are the last ones. Older versions of PyTorch do not have a function
        that returns hooks."""
        hooks = top_hooks()
        if hooks is None:
            if self._tape.may_skip:
                self._tape.distrust("")
            return False
        save, unsave = hooks
        self._saves = _AutogradSaves(self._memory)
        pack = self._saves.hook(save, self._place_to_save)
        torch._C._autograd._push_saved_tensors_default_hooks(pack, unsave)
        self._undo.callback(torch._C._autograd._pop_saved_tensors_default_hooks)
        return True

    def _place_to_save(self) -> int | None:
        """Returns the place on the tape of the operator whose arguments autograd saves."""
        return None if self._reading == _OFF_TAPE else self._place

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
        # Most skipped operators are handled first: one new tensor is made, whatever the
        # arguments are.
        if self._reading == _SKIPS_AT_ONCE and not self._is_blind and place < len(tape.items):
            item = tape.items[place]
            if (
                type(item) is Skipped
                and item.func is func
                and item.results is None
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
        if self._reading == _OFF_TAPE:
            return self._run(func, traits, args, kwargs)
        return self._read(func, traits, args, kwargs)

    def _read(
        self, func: Any, traits: Traits, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Reads an operator off the tape. Returns its saved results, stand-ins for them, or the
        results of another run."""
        tape, place = self._tape, self._place
        if traits.is_cast and type(args[0]) is not StandIn and is_kept_cast(args[0]):
            item = tape.casts.get(cast_key(args, kwargs), func)
        else:
            items = tape.items
            item = items[place] if place < len(items) else None
            if traits.is_view and isinstance(args[0], StandIn):
                if _is_made_anew(tape, place, item, func, args):
                    return by_shape(func, args, kwargs, args[0].origin)
            self._place = place + 1
            if tape.unwritten and _views_memory_written_later(tape, place, args):
                return self._run(func, traits, args, kwargs)
        if item is func:
            return self._run(func, traits, args, kwargs)
        kind = type(item)
        if (kind is not Skipped and kind is not Saved) or item.func is not func:
            self._lose(func)
            return self._run(func, traits, args, kwargs)
        is_there = self._reading >= _SKIPS if kind is Skipped else item.has_value
        if not is_there or (traits.writes and self._memory.replays(func, args, kwargs)):
            return self._run(func, traits, args, kwargs)
        if item.after:
            generator, state = item.after
            generator.set_state(state)
        if kind is Saved and not item.is_partial:
            value = item.take(tape.is_kept)
            # A view, or a tensor that was written to, may have memory from outside.
            is_made = not (traits.only_shows or traits.writes)
            return self._memory.note_own(value) if is_made else value
        origin = Origin(self._fqn, place, func, tape.made_at.get(place, place))
        if kind is Saved:
            self._has_skipped = True
            return self._memory.note_own(item.take_some(origin, (args, kwargs), tape.is_kept))
        if traits.is_mutable and not self._memory.write_to_nothing(item, origin, args, kwargs):
            return self._run(func, traits, args, kwargs)
        self._has_skipped = True
        return item.hand_out(origin, (args, kwargs))

    def _run(
        self, func: Any, traits: Traits, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if traits.is_view and isinstance(args[0], StandIn):
            return by_shape(func, args, kwargs, args[0].origin)
        memory = self._memory
        if memory.has_stale and not traits.only_shows:
            memory.refuse_stale(func, args, kwargs)
        place = None if self._reading == _OFF_TAPE else self._place - 1
        args, kwargs = memory.as_in_forward(func, traits, args, kwargs, place)
        if traits.communicates:
            require_planned(self._tape, Rerun(self._fqn, place, func, args, kwargs))
        out = func(*args, **kwargs)
        return out if traits.only_shows else memory.note_own(out)

    def _lose(self, func: Any) -> None:
        """Stops reading the tape, since forward ran another operator here."""
        self._tape.depart(f"forward ran another operator where {func} runs")
        self.begin_again()
        if self._tape.skips_writes:
            # Results that have been handed out may hold contents that are only written now.
            raise AcplanError(
                f"{self._fqn}: operator {self._place - 1} of the recomputation is {func}, "
                "but forward ran another one; a module that writes in place must run the "
                "same operators each time to be planned operator by operator"
            )
        self._reading = _OFF_TAPE


class _AutogradSaves:
    """The tensors that autograd saves in a recomputation, counted. In place of stale memory it
    gets a stand-in, and after a new start it gets nothing that it has already."""

    def __init__(self, memory: MemoryAgain) -> None:
        self._memory = memory
        self._count = 0
        self._to_ignore = 0

    def hook(
        self, save: Callable[[torch.Tensor], Any], place: Callable[[], int | None]
    ) -> Callable[[torch.Tensor], Any]:
        """Returns the hook to push on top of a checkpoint's. Nothing here holds the hook: the
        checkpoint's holds what it has saved."""

        def pack(tensor: torch.Tensor) -> Any:
            if self._to_ignore:
                self._to_ignore -= 1
                return tensor.detach()
            self._count += 1
            if type(tensor) in _ALONE and tensor.requires_grad:
                # The checkpoint does so, too, and the mode would see it.
                guard = torch._C._DisableTorchDispatch()
                tensor = tensor.detach()
                del guard
            if self._memory.has_stale and (origin := stale_origin(tensor)):
                tensor = stand_in(shape_of(tensor), origin)
            elif self._memory.may_differ:
                tensor = self._memory.saved_as_in_forward(tensor, place())
            return save(tensor)

        if CAN_LEAVE_OUT:
            leave_out_of_compiler(pack)
        copy_marks(save, pack)
        return pack

    def start_again(self) -> None:
        self._to_ignore, self._count = self._count, 0


class _GeneratorsOfForward:
    """The generators of random numbers from which a unit draws, set, while it runs again, to
    the states that they had when it was called. PyTorch restores its default generators
    itself."""

    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self._before: dict[torch.Generator, torch.Tensor] = {}
        self._default: torch.Tensor | None = None

    def begin(self) -> None:
        for generator, state in self._tape.first_states.items():
            self._before[generator] = generator.get_state()
            generator.set_state(state)

    def note_default(self) -> None:
        """Notes the state of PyTorch's own generator, for a new start."""
        self._default = torch.default_generator.get_state()

    def put_back(self) -> None:
        for generator, state in self._tape.first_states.items():
            generator.set_state(state)
        if self._default is not None:
            torch.default_generator.set_state(self._default)

    def end(self) -> None:
        self._default = None
        for generator, state in self._before.items():
            generator.set_state(state)
        self._before.clear()


@contextlib.contextmanager
def _others_looking_away() -> Iterator[None]:
    """Keeps calls that are not over from seeing operators. There are such calls if gradients
    are computed within forward."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(watch.looking_away())
        for mode in _get_current_dispatch_mode_stack():
            if isinstance(mode, Mode):
                stack.enter_context(mode.looking_away())
        yield


def _is_made_anew(tape: Tape, place: int, item: Any, func: Any, args: tuple[Any, ...]) -> bool:
    """Returns whether autograd makes a view of a stand-in once more: if a view is written to,
    it does so for tensors with their own dispatch; forward's have none."""
    if item is not func and getattr(item, "func", None) is not func:
        return True
    source = tape.views.get(place)
    return source is not None and source[::2] != (args[0].origin.made_at, args[1:])


def _views_memory_written_later(tape: Tape, place: int, args: tuple[Any, ...]) -> bool:
    """Returns whether this view, which the tape leaves out, must run after all, because a
    skipped operator should have written to its memory later. Running it keeps autograd's graph
    of views as it was in forward, and lets readers of the stale memory be refused. A view made
    after the last write is a stand-in, which refuses its readers itself."""
    source = tape.views.get(place)
    if source is None or not args:
        return False
    if place > tape.unwritten.get(source[:2], -1):
        return False
    item = tape.items[place]
    is_left_out = type(item) is Skipped or (type(item) is Saved and item.is_partial)
    return is_left_out and not isinstance(args[0], StandIn)


def _unseen(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Returns, for a stand-in, the result of an operator that no policy sees."""
    tensor = args[0]
    if func is torch.ops.aten.detach.default:
        return stand_in(shape_of(tensor), tensor.origin)
    if func is torch.ops.prim.device.default:
        return tensor.device
    if func is HANDS_OUT:
        return AsyncCollectiveTensor(tensor)
    if func is WAITS:
        return tensor
    return by_shape(func, args, kwargs, tensor.origin)
