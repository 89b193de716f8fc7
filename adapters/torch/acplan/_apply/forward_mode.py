"""A selective checkpoint: forward writes its decisions on a tape, and the recomputation reads
them.

Under any policy, losses and gradients are those without it:

- Forward's saved results are handed out at the same place of the recomputation, and only as
  long as it runs the operators of forward. From the first difference on, every operator runs.
- If a saved operator drew random numbers, its generators are set to the state in which forward
  left them, so that later numbers are drawn again as they were.
- A saved result that has been written to in place since is not handed out: it is recomputed.
- Everything that a call reads, other than its arguments, is as it was in forward, or there is
  an error: Python's state is restored (_apply/unit_state.py), memory that the call writes to is
  copied before (_apply/outside_memory.py), and writes of others are counted.
- An operator that the plan skips is skipped only as long as forward runs the operators of the
  plan and all saved results can be handed out; else it is recomputed. Nothing computes with the
  stand-in of a result: that is an error (_base/stand_ins.py).
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from acplan._apply.call_memory import CallMemory
from acplan._apply.mode import Mode
from acplan._apply.outside_memory import version_of
from acplan._apply.tape import (
    RUN,
    SAVE,
    SKIP,
    Call,
    CastKey,
    Choice,
    Offload,
    Saved,
    Skipped,
    Tape,
    can_all_be_stood_in_for,
    memory_of,
)
from acplan._base.generators import generator_of
from acplan._base.modules import FSDPModule
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

_COUNTS = torch.ops.aten.add_.Tensor
_PACKS = torch.ops.aten._pack_padded_sequence.default

# The arguments of an operator that returns none of them.
_ANY_CALL: Call = ((), {})

Decide = Callable[[Any], Choice]


class Forward(Mode):
    """A mode that writes the tape. It asks `decide` once for each operator, in order."""

    def __init__(
        self,
        tape: Tape,
        decide: Decide,
        on_end: Callable[[Tape], None],
        sharded: Sequence[FSDPModule] = (),
        sees_all: bool = True,
    ) -> None:
        super().__init__(tape, sharded)
        self._decide = decide
        self._on_end = on_end
        self._minds_reads = False
        self._saved = _SavedResults(tape)
        self.memory = CallMemory(tape)
        if tape.state is not None and not sees_all:
            tape.state.hold_all()

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
            if tape.is_as_planned and tape.outside_memory:
                self.memory.let_go_of_copies()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if types and any(map(is_run_inside, types)):
            self.memory.is_quiet = False
            return NotImplemented
        kwargs = kwargs or {}
        traits = traits_of(func)
        tape = self._tape
        is_unseen = self._is_blind or traits.is_ignored
        if is_unseen or (traits.may_be_of_nothing and is_of_nothing(func, args)):
            out = func(*args, **kwargs)
            # A tensor's device says nothing about the tensor's contents.
            if tape.writes and func is not torch.ops.prim.device.default:
                result_memory = [*map(memory_of, tensors_of(out))]
                _note_writes(tape, traits, (args, kwargs), result_memory, func)
            return out
        choice = self._decide(func)
        if not traits.is_plain or tape.writes:
            return self._run_with_care(func, traits, choice, args, kwargs)
        out = func(*args, **kwargs)
        if not traits.only_shows:
            self.memory.note_own(out)
        item = func
        if choice != RUN:
            is_given = traits.is_view and args and out is args[0]
            # The most frequent case first.
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
            self.memory.note_read(args, kwargs, len(tape.items) if item is func else None)
        tape.items.append(item)
        return out

    def _mind_reads(
        self, func: Any, traits: Traits, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> None:
        """Notes that an operator runs again. It is called if `_minds_reads`."""

    def _left_out(
        self, func: Any, traits: Traits, choice: Choice, out: Any, *call: Call
    ) -> Any:
        """Returns the tape's entry for an operator that does not run again."""
        tape = self._tape
        is_offloaded = isinstance(choice, Offload)
        if isinstance(choice, Offload):
            choice = choice.results
        if func is _PACKS and choice != RUN:
            packed = _saved_packed(choice == SAVE or not tape.may_skip, choice, out)
            self._saved.add(packed, is_offloaded=False)
            return packed
        if choice != SAVE:
            if not can_all_be_stood_in_for(out):
                tape.distrust(f"{func} makes a tensor that has no stand-in")
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
        self._saved.add(saved, is_offloaded)
        return saved

    def _run_with_care(
        self,
        func: Any,
        traits: Traits,
        choice: Choice,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        tape = self._tape
        targets: list[torch.Tensor] = []
        statistics = statistics_of(func, args, kwargs) if traits.writes else []
        if traits.is_mutable:
            targets = written_by(func, args, kwargs)
            choice = self._choice_of_write(func, choice, targets)
            if func is _COUNTS and self.memory.is_moved_on(args[0]):
                statistics = targets
        self.memory.note_written(targets, statistics)
        generator = generator_of(args, kwargs) if draws(traits, args, kwargs) else None
        if generator is not None and generator is not torch.default_generator:
            # PyTorch may restore the generator when the unit runs again, or may not.
            if generator not in tape.first_states:
                tape.first_states[generator] = generator.get_state()
        out = func(*args, **kwargs)
        if not (traits.only_shows or traits.is_mutable):
            self.memory.note_own(out)
        if choice == SKIP and traits.is_cast and _comes_to_the_host(args[0], out):
            choice = SAVE
        item = func
        if choice != RUN:
            is_given = traits.is_mutable or (traits.is_view and out is args[0])
            call = ((args, kwargs),) if is_given else ()
            item = self._left_out(func, traits, choice, out, *call)
        if traits.is_mutable and type(item) is Saved:
            self._saved.send_again(targets)
        if item is not func and generator is not None:
            item.after = (generator, generator.get_state())
        if tape.writes:
            result_memory = [*map(memory_of, tensors_of(out))]
            _note_writes(tape, traits, (args, kwargs), result_memory, item)
            if tape.may_skip:
                if type(item) is Skipped and targets:
                    _note_left_out(tape, item, targets)
                _note_memory(tape, traits, args, result_memory, item)
        if traits.is_cast and is_kept_cast(args[0]):
            if item is not func:
                tape.casts[cast_key(args, kwargs)] = item
        else:
            if item is func and self._minds_reads:
                self._mind_reads(func, traits, args, kwargs)
            if not traits.only_shows:
                place = len(tape.items) if item is func else None
                read = [a for a in args if not any(a is s for s in statistics)]
                self.memory.note_read(read, kwargs, place)
            tape.items.append(item)
        return out

    def _choice_of_write(
        self, func: Any, choice: Choice, targets: list[torch.Tensor]
    ) -> Choice:
        """Returns the choice for an operator that writes in place. It is left out only if the
        memory to which it writes is then as in forward, or is not there; else it runs again, on
        the contents that forward had there before."""
        tape = self._tape
        if choice not in (RUN, SKIP):
            if tape.writes and tape.writes.may_skip(targets):
                tape.skips_writes = True
                return choice
            choice = RUN
        if tape.writes is None:
            if choice == SKIP:
                tape.distrust(
                    f"{func} is skipped and writes in place, which the plan does not expect"
                )
            for saved in self._saved.take_written(targets):
                tape.distrust(f"{func} writes to memory of a result that the plan saves")
                tape.has_dropped = True
                saved.drop()
            return choice
        is_skipped = choice == SKIP and tape.may_skip
        if tape.writes.must_forget(targets, is_skipped):
            tape.distrust(f"{func} writes to memory of a result that the plan saves or skips")
            tape.drop()
        return choice


def _saved_packed(is_whole: bool, choice: Choice, out: Any) -> Saved:
    """Returns the saved part of packed sequences. It always has the sizes of their batches:
    PyTorch reads their memory."""
    places = (0, 1) if is_whole or choice == (0,) else (1,)
    saved = Saved.some(_PACKS, out, places)
    saved.value = (saved.value[0], out[1])
    return saved


class _SavedResults:
    """The results that a call has saved, indexed by their memory."""

    def __init__(self, tape: Tape) -> None:
        freight = tape.freight
        self._freight = freight if freight is not None and freight.sends else None
        # They are not yet indexed by memory, which is needed only if something is written to.
        self._latest: list[Saved] = []
        self._saved_in: dict[int | None, list[Saved]] = {}

    def add(self, saved: Saved, is_offloaded: bool) -> None:
        """Adds an operator's results, and sends them to the host if they are offloaded."""
        self._latest.append(saved)
        if self._freight:
            self._index()
            if is_offloaded:
                self._freight.send(saved)

    def send_again(self, targets: list[torch.Tensor]) -> None:
        """Sends to the host once more the memory of these tensors, to which has been written
        since."""
        if self._freight:
            self._freight.send_again(targets)

    def take_written(self, targets: list[torch.Tensor]) -> list[Saved]:
        """Removes and returns the results that are saved in the memory of these tensors."""
        self._index()
        return [
            saved for tensor in targets for saved in self._saved_in.pop(memory_of(tensor), ())
        ]

    def _index(self) -> None:
        for saved in self._latest:
            for tensor in tensors_of(saved.value):
                self._saved_in.setdefault(memory_of(tensor), []).append(saved)
        self._latest.clear()


def _note_writes(
    tape: Tape, traits: Traits, call: Call, result_memory: list[int | None], item: Any
) -> None:
    """Notes an operator's effect on memory, on a tape that leaves out writes. `result_memory`:
    the memory of its results."""
    assert tape.writes is not None
    kind = (traits.only_shows, traits.is_mutable)
    tape.writes.note(len(tape.items), kind, tensors_of(call), result_memory, item)


def _note_left_out(tape: Tape, item: Skipped, targets: list[torch.Tensor]) -> None:
    """Notes a skipped operator that writes to these tensors."""
    assert tape.writes is not None
    item.leaves_stale = tape.writes.leaves_stale(targets)
    tape.leaves_stale |= item.leaves_stale
    place = len(tape.items)
    for memory in map(memory_of, targets):
        tape.unwritten[tape.writes.made_at(memory), memory] = place


def _note_memory(
    tape: Tape, traits: Traits, args: Sequence[Any], result_memory: list[int | None], item: Any
) -> None:
    """Notes what the recomputation needs to know of memory if writes are left out."""
    assert tape.writes is not None
    place = len(tape.items)
    made_at = tape.writes.made_at(result_memory[0]) if result_memory else place
    if type(item) in (Skipped, Saved):
        tape.made_at[place] = made_at
    if traits.is_view or (result_memory and made_at != place and not traits.is_mutable):
        tape.views[place] = (made_at, result_memory[0], tuple(args[1:]))


def _comes_to_the_host(tensor: torch.Tensor, out: torch.Tensor) -> bool:
    """Returns whether an operator copies a tensor to the host, where the program may read it
    past PyTorch's dispatcher, as lists and arrays; it takes no memory of the device."""
    return bool(out.device.type == "cpu" != tensor.device.type)


def cast_key(args: tuple[Any, ...], kwargs: dict[str, Any]) -> CastKey:
    return id(args[0]), kwargs.get("dtype")
