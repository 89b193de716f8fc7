"""A selective checkpoint: forward writes a tape of what it decided, and the
recomputation is read off it.

Whatever the policy says, losses and gradients are those without it:

- What forward saved is handed out at the same place of the recomputation, and only as
  long as that runs the operators of forward. From the first difference on, all runs.
- Where a saved operator drew random numbers, its generators are set to where forward
  left them, so that all that is drawn later is drawn again.
- What was written to in place since it was saved is not handed out: it is recomputed.
- What a call reads that is not its argument is as it was in forward, or there is an
  error: Python's state is put back (_apply/unit_state.py), memory that the call writes to is
  copied before (_apply/outside_memory.py), and writes of others are counted.
- What the plan skips is skipped only as long as forward runs the operators of the plan
  and all that it saves can be handed out; else it is recomputed. Nothing computes with
  what stands in for a result: that is an error (_base/stand_ins.py).
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from acplan._apply.outside_memory import Outside, copy_for_readers, note_reader, version_of
from acplan._apply.tape import (
    RUN,
    SAVE,
    SKIP,
    WITH_MEMORY,
    Call,
    CastKey,
    Choice,
    Offload,
    Saved,
    Skipped,
    Tape,
    Writes,
    can_all_be_stood_in_for,
    memory_of,
    storage_of,
)
from acplan._base import generators
from acplan._base.operators import (
    Traits,
    draws,
    is_kept_cast,
    is_of_nothing,
    statistics_of,
    traits_of,
    written_by,
)
from acplan._base.stand_ins import has_plain_shape, is_run_inside
from acplan._base.tensors import tensors_of
from acplan._base.triton_kernels import watch_launches

_EVAL_FRAME = torch._C._dynamo.eval_frame

_PACKS = torch.ops.aten._pack_padded_sequence.default

# Of an operator that returns nothing that it is given.
_ANY_CALL: Call = ((), {})

Decide = Callable[[Any], Choice]
_NO_PLACE = 1 << 62  # after all


def _generator(args: Sequence[Any], kwargs: dict[str, Any]) -> torch.Generator | None:
    """What the operator draws from."""
    given = kwargs.get("generator")
    if given is not None and isinstance(given, torch.Generator):
        return given
    tensor = args[0] if args else None
    if not isinstance(tensor, torch.Tensor):
        tensor = next(iter(tensors_of((args, kwargs))), None)
    if tensor is not None:
        return generators.default_generator(tensor.device)
    return generators.default_generator(torch.device(kwargs.get("device") or "cpu"))


_CPU = torch.device("cpu")


class Mode(TorchDispatchMode):
    """Sees nothing of what fully_shard does around the forward of modules in a unit:
    gathering parameters, casting inputs. That happens each time in its own way, when
    the unit runs again too.
    """

    supports_higher_order_operators = True
    sees_launches = True

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)  # type: ignore[no-untyped-call]
        dispatch = cls.__dict__.get("__torch_dispatch__")
        if dispatch is not None and not cls._should_skip_dynamo():
            skip = _EVAL_FRAME._FrameAction.SKIP
            strategy = _EVAL_FRAME._FrameExecStrategy(skip, skip)
            _EVAL_FRAME.set_code_exec_strategy(dispatch.__code__, strategy)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Whether PyTorch is to call the dispatch through a function that stops its
        compiler meanwhile, which takes time at each operator. It is as good to mark the
        code as not to be compiled, nor what it calls."""
        return not hasattr(_EVAL_FRAME, "set_code_exec_strategy")

    def __init__(self, tape: Tape, sharded: Sequence[torch.nn.Module]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._tape = tape
        self._sharded = sharded
        self._is_blind = False
        self._handles: list[torch.utils.hooks.RemovableHandle] = []

    def __enter__(self) -> "Mode":
        for module in self._sharded:
            # As the first hook and the last one, before forward and after it.
            self._handles += [
                module.register_forward_pre_hook(self._close_eyes, prepend=True),
                module.register_forward_pre_hook(self._open_eyes),
                module.register_forward_hook(self._close_eyes, prepend=True),
                module.register_forward_hook(self._open_eyes),
            ]
        watch_launches()
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        super().__exit__(kind, error, traceback)  # type: ignore[no-untyped-call]
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    @contextlib.contextmanager
    def looking_away(self) -> Iterator[None]:
        """What runs meanwhile is none of this call: another one is recomputed."""
        was_blind, self._is_blind = self._is_blind, True
        try:
            yield
        finally:
            self._is_blind = was_blind

    def _close_eyes(self, *_: Any) -> None:
        self._is_blind = True

    def _open_eyes(self, *_: Any) -> None:
        self._is_blind = False


class Forward(Mode):
    """Writes the tape. `decide` is asked once for each operator, in order."""

    def __init__(
        self,
        tape: Tape,
        decide: Decide,
        on_end: Callable[[Tape], None],
        sharded: Sequence[torch.nn.Module] = (),
        sees_all: bool = True,
    ) -> None:
        super().__init__(tape, sharded)
        self._decide = decide
        self._on_end = on_end
        self._minds_reads = False
        self._saved: list[Saved] = []
        self._saved_in: dict[int | None, list[Saved]] = {}
        freight = tape.freight
        self._freight = freight if freight is not None and freight.sends else None
        # The memory that the call has made, and other memory that it has read: the first
        # place at which an operator did that runs again, or None.
        self._own: set[int] = set()
        self._moved: dict[int, int] = {}  # running statistics, and where
        self._read: dict[int, int | None] = {}
        self.state = tape.state
        if self.state is not None and not sees_all:
            self.state.hold_all()

    def __enter__(self) -> "Forward":
        self._tape.is_open = True
        super().__enter__()
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        super().__exit__(kind, error, traceback)
        tape = self._tape
        tape.is_open = False
        if tape.state is not None and kind is None:
            tape.watched = [(t, version_of(t)) for t in tape.state.tensors]
        if kind is None:
            self._on_end(tape)
            if tape.is_as_planned and tape.outside:
                self.let_go_of_copies()

    def forget_own(self, alive: Iterable[torch.Tensor]) -> None:
        """Forgets the memory that the call has made, but for what these tensors have:
        others may have been given it since."""
        self._own = {m for m in map(memory_of, alive) if m is not None}

    def let_go_of_copies(self) -> None:
        """Forgets copies that nothing reads if the call is recomputed as planned."""
        for memory, outside in self._tape.outside.items():
            place = self._read.get(memory)
            is_written = outside.last >= 0 and not outside.is_of_end
            if is_written and (place is None or place >= outside.last):
                outside.let_go()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if types and any(map(is_run_inside, types)):
            return NotImplemented
        kwargs = kwargs or {}
        traits = traits_of(func)
        tape = self._tape
        is_unseen = self._is_blind or traits.is_ignored
        if is_unseen or (traits.may_be_of_nothing and is_of_nothing(func, args)):
            out = func(*args, **kwargs)
            # A tensor's device says nothing of what is in it.
            if tape.writes and func is not torch.ops.prim.device.default:
                made = [*map(memory_of, tensors_of(out))]
                self._note(tape.writes, traits, (args, kwargs), made, func)
            return out
        choice = self._decide(func)
        if not traits.is_plain or tape.writes:
            return self._run_with_care(func, traits, choice, args, kwargs)
        out = func(*args, **kwargs)
        if not traits.only_shows:
            self._note_own(out)
        item = func
        if choice != RUN:
            is_given = traits.is_view and args and out is args[0]
            # By far the most, at once.
            if (
                choice == SKIP
                and tape.may_skip
                and not is_given
                and has_plain_shape(out, traits.is_view)
            ):
                item = Skipped(func, out)
            else:
                call = ((args, kwargs),) if is_given else ()
                item = self._left_out(func, traits, choice, out, *call)
        elif self._minds_reads:
            self._mind_reads(func, traits, args, kwargs)
        if not traits.only_shows:
            self._note_read(args, kwargs, len(tape.items) if item is func else None)
        tape.items.append(item)
        return out

    def _note_own(self, out: Any) -> None:
        for tensor in tensors_of(out):
            memory = memory_of(tensor)
            if memory is not None:
                self._own.add(memory)

    def _note_read(
        self, args: Iterable[Any], kwargs: dict[str, Any], place: int | None
    ) -> None:
        own = self._own
        for value in (*args, *kwargs.values()) if kwargs else args:
            if type(value) in WITH_MEMORY:
                storage = storage_of(value)
                if storage is None:
                    continue
                memory = storage._cdata
                if memory in own:
                    continue
                if memory not in self._read:
                    note_reader(storage, self._tape)
                    if self.state is not None:
                        self.state.hold(memory)
                        if memory in self.state.statistics:
                            # Nothing counts who moves them on.
                            self._copy_statistics(memory, value)
                if self._read.get(memory) is None:
                    self._read[memory] = place
            elif type(value) in (list, tuple) and value:
                self._note_read(value, {}, place)

    def _copy_statistics(self, memory: int, tensor: torch.Tensor) -> None:
        """Copies running statistics where they are read: as they are at the end of what
        has moved them on, if the call has."""
        moved_at = self._moved.get(memory, -1)
        copy = Outside(tensor, moved_at, is_of_end=moved_at >= 0)
        self._tape.outside.setdefault(memory, copy)

    def _note_outside(
        self, written: Sequence[torch.Tensor], statistics: Sequence[torch.Tensor]
    ) -> None:
        """Copies memory from outside before its first write; statistics, which are only
        written to, where something else has read them."""
        tape, place = self._tape, len(self._tape.items)
        for tensor in (*written, *statistics):
            memory = memory_of(tensor)
            if memory is None or memory in self._own:
                continue
            copy_for_readers(tensor, tape)
            is_moved_on = any(tensor is moved for moved in statistics)
            if is_moved_on and memory not in self._read:
                self._moved[memory] = place
                continue
            known = tape.outside.get(memory)
            if known is None:
                tape.outside[memory] = Outside(tensor, place)
            else:
                known.last = _NO_PLACE if known.is_of_end else place

    def _mind_reads(
        self, func: Any, traits: Traits, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> None:
        """Is told of what runs again, if it `_minds_reads`."""

    def _left_out(
        self, func: Any, traits: Traits, choice: Choice, out: Any, *call: Call
    ) -> Any:
        """What the tape has of an operator that does not run again."""
        tape = self._tape
        is_offloaded = isinstance(choice, Offload)
        if isinstance(choice, Offload):
            choice = choice.kept
        if func is _PACKS and choice != RUN:
            return self._left_packed(choice, out)
        if choice != SAVE:
            if not can_all_be_stood_in_for(out):
                tape.distrust(f"{func} makes a tensor that nothing can stand in for")
            if not tape.may_skip:
                choice = RUN if choice == SKIP else SAVE
            elif choice == SKIP:
                return Skipped(func, out, *(call or (_ANY_CALL,)))
        if choice == RUN:
            return func
        if isinstance(choice, tuple):
            saved = Saved.some(func, out, choice, *call)
        else:
            saved = Saved(func, out)
        self._saved.append(saved)
        if self._freight:
            self._index_saved()
            if is_offloaded:
                self._freight.send(saved)
        return saved

    def _left_packed(self, choice: Choice, out: Any) -> Any:
        """Whatever is kept of packed sequences, the sizes of their batches are there: what
        reads them reads their memory."""
        is_whole = choice == SAVE or not self._tape.may_skip
        kept = (0, 1) if is_whole or choice == (0,) else (1,)
        saved = Saved.some(_PACKS, out, kept)
        saved.value = (saved.value[0], out[1])
        self._saved.append(saved)
        return saved

    def _index_saved(self) -> None:
        """By memory, which is asked for only where something is written to."""
        for saved in self._saved:
            for tensor in tensors_of(saved.value):
                self._saved_in.setdefault(memory_of(tensor), []).append(saved)
        self._saved.clear()

    def _run_with_care(
        self,
        func: Any,
        traits: Traits,
        choice: Choice,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        tape = self._tape
        written: list[torch.Tensor] = []
        statistics = statistics_of(func, args, kwargs) if traits.writes else []
        if traits.is_mutable:
            written = written_by(func, args, kwargs)
            choice = self._choice_of_write(func, choice, written)
        self._note_outside(written, statistics)
        is_random = draws(traits, args, kwargs)
        generator = _generator(args, kwargs) if is_random else None
        if generator is not None and generator is not torch.default_generator:
            # PyTorch may restore it when the unit runs again, and may not.
            if generator not in tape.first_states:
                tape.first_states[generator] = generator.get_state()
        out = func(*args, **kwargs)
        if not (traits.only_shows or traits.is_mutable):
            self._note_own(out)
        if choice == SKIP and traits.is_cast and _comes_to_the_host(args[0], out):
            choice = SAVE
        item = func
        if choice != RUN:
            is_given = traits.is_mutable or (traits.is_view and out is args[0])
            call = ((args, kwargs),) if is_given else ()
            item = self._left_out(func, traits, choice, out, *call)
        if self._freight and traits.is_mutable and type(item) is Saved:
            self._freight.send_again(written)
        if item is not func and generator is not None:
            item.after = (generator, generator.get_state())
        if tape.writes:
            made = [*map(memory_of, tensors_of(out))]
            self._note(tape.writes, traits, (args, kwargs), made, item)
            if tape.may_skip:
                if type(item) is Skipped and written:
                    self._note_left_out(tape.writes, item, written)
                self._note_memory(tape.writes, traits, args, made, item)
        if traits.is_cast and is_kept_cast(args[0]):
            if item is not func:
                tape.casts[cast_key(args, kwargs)] = item
        else:
            if item is func and self._minds_reads:
                self._mind_reads(func, traits, args, kwargs)
            if not traits.only_shows:
                place = len(tape.items) if item is func else None
                read: Sequence[Any] = args
                if statistics:
                    read = [a for a in args if not any(a is s for s in statistics)]
                self._note_read(read, kwargs, place)
            tape.items.append(item)
        return out

    def _note(
        self,
        writes: Writes,
        traits: Traits,
        call: Call,
        made: list[int | None],
        item: Any,
    ) -> None:
        place = len(self._tape.items)
        kind = (traits.only_shows, traits.is_mutable)
        writes.note(place, kind, tensors_of(call), made, item)

    def _note_left_out(
        self, writes: Writes, item: Skipped, written: list[torch.Tensor]
    ) -> None:
        tape = self._tape
        item.leaves_stale = writes.leaves_stale(written)
        tape.leaves_stale |= item.leaves_stale
        place = len(tape.items)
        for memory in map(memory_of, written):
            tape.unwritten[writes.made_at(memory), memory] = place

    def _note_memory(
        self,
        writes: Writes,
        traits: Traits,
        args: Sequence[Any],
        made: list[int | None],
        item: Any,
    ) -> None:
        """What the recomputation needs to know where writes are left out."""
        tape, place = self._tape, len(self._tape.items)
        made_at = writes.made_at(made[0]) if made else place
        if type(item) in (Skipped, Saved):
            tape.made_at[place] = made_at
        if traits.is_view or (made and made_at != place and not traits.is_mutable):
            tape.views[place] = (made_at, made[0], tuple(args[1:]))

    def _choice_of_write(
        self, func: Any, choice: Choice, written: list[torch.Tensor]
    ) -> Choice:
        """It is left out only where what it writes to is then as in forward, or not
        there; else it will run again, on what forward had there before."""
        tape = self._tape
        if choice not in (RUN, SKIP):
            if tape.writes and tape.writes.may_skip(written):
                tape.skips_writes = True
                return choice
            choice = RUN
        if tape.writes is None:
            if choice == SKIP:
                tape.distrust(f"{func} is skipped, which writes in place unnamed")
            self._index_saved()
            for tensor in written:
                for saved in self._saved_in.pop(memory_of(tensor), ()):
                    tape.distrust(f"{func} writes to what the plan saves")
                    tape.has_dropped = True
                    saved.drop()
            return choice
        is_skipped = choice == SKIP and tape.may_skip
        if tape.writes.must_forget(written, is_skipped):
            tape.distrust(f"{func} writes to what the plan saves, or skips")
            tape.drop()
        return choice


def _comes_to_the_host(tensor: torch.Tensor, out: torch.Tensor) -> bool:
    """Whether the program may read it past PyTorch's dispatcher, as lists and arrays are;
    it takes no memory of the device."""
    return bool(out.device.type == "cpu" != tensor.device.type)


def cast_key(args: tuple[Any, ...], kwargs: dict[str, Any]) -> CastKey:
    return id(args[0]), kwargs.get("dtype")
