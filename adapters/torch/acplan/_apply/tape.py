"""What one call of a unit ran in forward, for its recomputation: what was saved, what is
skipped, and which of it can be handed out."""

import dataclasses
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves, tree_map

from acplan._base.stand_ins import (
    SHAPES,
    Origin,
    Shape,
    StandIn,
    can_be_stood_in_for,
    shape_of,
    stand_in,
)
from acplan._base.tensors import tensors_of

if TYPE_CHECKING:
    from acplan._apply.offload import Freight
    from acplan._apply.outside_memory import Outside
    from acplan._apply.unit_state import UnitState


@dataclasses.dataclass(frozen=True)
class Offload:
    """Saved, and what is `kept` waits in the host's memory."""

    kept: int | tuple[int, ...]


# What a plan decides of an operator. In place of SAVE stands a tuple where only some of
# its results are kept: their places among the tensors that it makes.
RUN, SAVE, SKIP = 0, 1, 2
Choice = int | tuple[int, ...] | Offload


# By far the most, of which it is known that they have memory of their own.
WITH_MEMORY = frozenset([torch.Tensor, torch.nn.Parameter, torch._subclasses.FakeTensor])


def storage_of(tensor: torch.Tensor) -> torch.UntypedStorage | None:
    """Returns the memory of a tensor, or None: one that consists of several has none of its
    own, such as sparse tensors and those that transforms of torch.func wrap, nor has one that
    stands in for another."""
    if type(tensor) not in WITH_MEMORY:
        if isinstance(tensor, StandIn) or is_traceable_wrapper_subclass(tensor):
            return None
    try:
        return tensor.untyped_storage()
    except NotImplementedError:
        return None


def memory_of(tensor: torch.Tensor) -> int | None:
    """Names its storage."""
    storage = storage_of(tensor)
    return None if storage is None else int(storage._cdata)


def each(values: Any, change: Callable[[Any], Any]) -> Any:
    """As tree_map, and quicker for what operators return."""
    kind = type(values)
    if kind is tuple or kind is list:
        return kind([each(value, change) for value in values])
    return change(values) if kind in _LEAVES else tree_map(change, values)


def _alias(value: Any) -> Any:
    """Returns the same memory, without the graph that autograd is about to hang on the tensor,
    and without its count of writes."""
    return value.detach() if isinstance(value, torch.Tensor) else value


class Given:
    """In place of a result that is an argument: of an operator that writes in place, or
    that has nothing to do."""

    __slots__ = ("place",)

    def __init__(self, place: int | str) -> None:
        self.place = place

    def among(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        of: Any = args if isinstance(self.place, int) else kwargs
        return of[self.place]

    @staticmethod
    def find(value: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> "Given | None":
        if args and args[0] is value:
            return _FIRST
        arguments: list[tuple[int | str, Any]] = [*enumerate(args), *kwargs.items()]
        for place, argument in arguments:
            if argument is value:
                return Given(place)
        return None


_FIRST = Given(0)
_ONLY_FIRST = (_FIRST,)
_LEAVES = frozenset(
    [torch.Tensor, torch._subclasses.FakeTensor, *SHAPES, Given, StandIn, type(None)]
    + [int, float, bool]
)
Call = tuple[Sequence[Any], Mapping[str, Any]]
_NO_CALL: Call = ((), {})


class Saved:
    """A saved result, until it is handed out."""

    __slots__ = ("func", "has_value", "value", "after", "is_partial")

    def __init__(self, func: Any, out: Any) -> None:
        self.func = func
        self.has_value = True
        is_tensor = isinstance(out, torch.Tensor)
        self.value = out.detach() if is_tensor else each(out, _alias)
        self.after: tuple[torch.Generator, torch.Tensor] | None = None
        self.is_partial = False

    @classmethod
    def some(cls, func: Any, out: Any, kept: Sequence[int], call: Call = _NO_CALL) -> "Saved":
        """Of its results those at these places are kept."""
        places = iter(range(len(tensors_of(out))))

        def change(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            given = Given.find(value, *call)
            if given is not None:
                return given
            return _alias(value) if next(places) in kept else shape_of(value)

        saved = cls(func, None)
        saved.value = each(out, change)
        saved.is_partial = True
        return saved

    def take(self, is_kept: bool) -> Any:
        """Returns the value, which stays here too if `is_kept`."""
        value = self.value
        if is_kept:
            return each(value, _alias)
        self.drop()
        return value

    def take_some(self, origin: Origin, call: Call, is_kept: bool) -> Any:
        """Returns what is kept of the results, and stand-ins in place of the rest."""
        return _handed_out(self.take(is_kept), origin, call)

    def drop(self) -> None:
        self.has_value = False
        self.value = None


class Skipped(Shape):
    """An operator that does not run again, and what stands in for its results: for one
    that is new, by far the most, it is itself the shape."""

    __slots__ = ("func", "made", "after", "leaves_stale")

    def __init__(self, func: Any, out: Any, call: Call = _NO_CALL) -> None:
        """`call` is what an operator that may return it was given."""
        self.func = func
        self.made: Any = None
        self.after: tuple[torch.Generator, torch.Tensor] | None = None
        self.leaves_stale = False
        if isinstance(out, torch.Tensor):
            if call is _NO_CALL:
                self.size = out.shape
                self.stride = out.stride()
                self.dtype = out.dtype
                self.device = out.device
                return
            if call[0] and call[0][0] is out:
                self.made = _ONLY_FIRST
                return

        def change(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            return Given.find(value, *call) or shape_of(value)

        # In a tuple, as it may be None.
        self.made = (each(out, change),)

    def hand_out(self, origin: Origin, call: Call) -> Any:
        if self.made is None:
            return stand_in(self, origin)
        return _handed_out(self.made[0], origin, call)


def _handed_out(made: Any, origin: Origin, call: Call) -> Any:
    kind = type(made)
    if kind in SHAPES:
        return stand_in(made, origin)
    if kind is Given:
        return made.among(*call)

    def change(value: Any) -> Any:
        if type(value) in SHAPES:
            return stand_in(value, origin)
        return value.among(*call) if type(value) is Given else value

    return each(made, change)


# Returns whether the backward pass that is under way keeps its graph, and so what is saved.
_is_graph_kept: Callable[[], bool] = getattr(
    torch._C._autograd, "_get_current_graph_task_keep_graph", lambda: False
)
CastKey = tuple[int, torch.dtype | None]
# The place of the operator that made the memory, the memory, and the arguments but for
# the first.
ViewOf = tuple[int, int | None, tuple[Any, ...]]


class Tape:
    """What one call of a unit ran, and saved.

    It `may_skip` as long as all is as the plan says: where an operator is another one,
    or something saved cannot be handed out, more is needed than the plan knows, and what
    it skips is recomputed. That is known before a recomputation begins.
    """

    def __init__(self, may_skip: bool = False) -> None:
        self.items: list[Any] = []
        self.casts: dict[CastKey, Saved | Skipped] = {}
        self.first_states: dict[torch.Generator, torch.Tensor] = {}
        self.writes: Writes | None = None
        self.skips_writes = False
        self.leaves_stale = False
        # Where writes are left out, by place: which operator made the memory of what is
        # left out, and what views are of, and with what; and the memory not written to,
        # with the last place where it should be. Memory is told by what made it, too: its
        # address may have been that of other memory before.
        self.made_at: dict[int, int] = {}
        self.views: dict[int, ViewOf] = {}
        self.unwritten: dict[tuple[int, int | None], int] = {}
        self.may_skip = may_skip
        self.distrusted_for = ""
        # What it has with the host, where the plan offloads anything.
        self.freight: Freight | None = None
        # What its modules had for state, tensors that they may read with their counts of
        # writes when the call ended, and memory from outside that it wrote to.
        self.state: UnitState | None = None
        self.watched: list[tuple[torch.Tensor, int]] = []
        self.outside: dict[int, Outside] = {}
        # Forward ran the operators of the plan, and all that is saved can be handed out.
        self.is_as_planned = False
        self.has_dropped = False
        # The saved results have been handed out, and let go of.
        self.is_used = False
        # Saved results that are handed out stay here too, for the next recomputation.
        self.is_kept = False
        # Backward has let go of the graph: nothing asks for the unit again.
        self.is_done = False
        # Forward is being written.
        self.is_open = False
        # Says to the user that the unit is not called as planned.
        self.tell: Callable[[str], object] | None = None
        # Nothing is made that the plan skips: who computes with it is told.
        self.is_strict = False
        # Where backward asked for what was skipped: in which pass, and the group of
        # PyTorch's in which all runs again for it.
        self.again: tuple[int, Any] | None = None
        self._outputs: list[tuple[torch.Tensor, int]] = []
        self._saved_memory: set[int | None] = set()
        self._watched = 0

    def saved(self) -> Iterator[Saved]:
        yield from (item for item in self.items if type(item) is Saved)
        yield from (cast for cast in self.casts.values() if type(cast) is Saved)

    def saved_bytes(self) -> int:
        sizes = {
            storage._cdata: storage.nbytes()
            for saved in self.saved()
            for tensor in tensors_of(saved.value)
            if memory_of(tensor) is not None
            for storage in (tensor.untyped_storage(),)
        }
        return sum(sizes.values())

    def watch(self, outputs: Any) -> None:
        """The unit's outputs, which may be written to in place and be saved; those of
        earlier calls as they are now."""
        self._saved_memory |= {
            memory_of(tensor)
            for saved in self._saved_since_watched()
            for tensor in tensors_of(saved.value)
        }
        self._outputs = [(tensor, tensor._version) for tensor, _ in self._outputs]
        if not self._saved_memory:
            return
        with torch.no_grad():
            self._outputs += [
                (tensor.detach(), tensor._version)
                for tensor in tree_leaves(outputs)
                if isinstance(tensor, torch.Tensor)
                and memory_of(tensor) in self._saved_memory
                and not tensor.is_inference()
            ]

    def _saved_since_watched(self) -> Iterator[Saved]:
        new, self._watched = self.items[self._watched :], len(self.items)
        yield from (item for item in new if type(item) is Saved)
        yield from (cast for cast in self.casts.values() if type(cast) is Saved)

    def forget_outputs(self, memory: Container[int | None]) -> None:
        """Writes to what lies there change nothing that is saved."""
        self._outputs = [o for o in self._outputs if memory_of(o[0]) not in memory]

    def outputs_changed(self) -> bool:
        """Returns whether one was written to in place since."""
        return any(tensor._version != count for tensor, count in self._outputs)

    def prepare(self) -> None:
        """Forgets what cannot be handed out (again)."""
        changed = self.outputs_changed()
        if self.is_open and self.tell is not None:
            self.tell("a gradient is computed within its forward pass: all of it runs again")
        if changed or self.is_used or self.is_open:
            self.drop()

    def use(self, has_gone: bool) -> None:
        """Begins to hand out what is saved. It is kept for the next recomputation if backward
        keeps its graph (`retain_graph`) and not all can run again, because memory that forward
        read `has_gone`."""
        is_graph_kept = _is_graph_kept()
        self.is_kept = is_graph_kept and has_gone and not self.is_open
        self.is_used = not self.is_kept
        self.is_done = not is_graph_kept
        if self.is_used:
            self._outputs.clear()

    def drop(self) -> None:
        """Everything runs again."""
        self.may_skip = False
        self.has_dropped = True
        if self.writes is not None:
            self.writes.forget()
        for saved in self.saved():
            saved.drop()
        if self.freight is not None:
            self.freight.drop()

    def distrust(self, reason: str) -> None:
        """What the plan skips runs again: of what it reads, not all may have been kept
        as it was."""
        if not self.may_skip:
            return
        self.distrusted_for = reason
        if self.writes is not None:
            self.drop()
            return
        self.may_skip = False
        for saved in self.saved():
            if saved.is_partial:
                saved.drop()


class Writes:
    """Which saved memory may be written to in place by an operator that is left out of
    the recomputation: what was made by a saved operator, as long as nothing that runs
    again has read it, if that operator is saved too; and what is not there at all."""

    _CLEAN, _READ, _RUNS, _SHOWN, _ABSENT = range(5)

    def __init__(self) -> None:
        self._made: dict[int, int] = {}
        self._made_at: dict[int, int] = {}

    def made_at(self, memory: int | None) -> int:
        """Returns the place of the operator that made it; -1: it is from outside."""
        return -1 if memory is None else self._made_at.get(memory, -1)

    def may_skip(self, written: list[torch.Tensor]) -> bool:
        """Returns whether the operator that writes to these may be left out."""
        keys = _keys(written)
        return None not in keys and all(
            self._made.get(key, self._CLEAN) == self._CLEAN for key in keys if key is not None
        )

    def must_forget(self, written: list[torch.Tensor], is_skipped: bool = False) -> bool:
        """Returns whether what is written to, running again or skipped, has been saved, or is
        not there where it runs again."""
        fine = (self._RUNS, self._ABSENT) if is_skipped else (self._RUNS,)
        return any(
            key is None or self._made.get(key, self._RUNS) not in fine for key in _keys(written)
        )

    def leaves_stale(self, written: list[torch.Tensor]) -> bool:
        """Returns whether what is written to is made in the recomputation, and is not as in
        forward where the write is skipped."""
        return any(key is None or self._made.get(key) == self._RUNS for key in _keys(written))

    def forget(self) -> None:
        self._made = dict.fromkeys(self._made, self._RUNS)

    def note(
        self,
        place: int,
        shows_or_writes: tuple[bool, bool],
        read: list[torch.Tensor],
        made: list[int | None],
        item: Any,
    ) -> None:
        """`made` is the memory of its results, and `item` what the tape has of the
        operator."""
        only_shows, is_mutable = shows_or_writes
        is_saved, is_skipped = type(item) is Saved, type(item) is Skipped
        keys = {*map(memory_of, read)}
        if not (is_saved or is_skipped or only_shows):
            for key in keys:
                if key is not None and self._made.get(key) == self._CLEAN:
                    self._made[key] = self._READ
        kept = set(map(memory_of, tensors_of(item.value))) if is_saved else ()
        for key in made:
            if key is None:
                continue
            if key not in keys:
                self._made_at[key] = place
                left = self._ABSENT if is_saved or is_skipped else self._RUNS
                self._made[key] = self._CLEAN if key in kept else left
            elif key in kept and not is_mutable:
                if self._made.get(key, self._RUNS) in (self._RUNS, self._ABSENT):
                    self._made[key] = self._SHOWN


def _keys(tensors: list[torch.Tensor]) -> list[int | None]:
    """Of their memory, where there is any: nothing is written to stand-ins."""
    return [memory_of(tensor) for tensor in tensors if not isinstance(tensor, StandIn)]


def can_all_be_stood_in_for(out: Any) -> bool:
    """Returns whether something can stand in for all tensors that an operator returned."""
    if isinstance(out, torch.Tensor):
        return can_be_stood_in_for(out)
    return all(map(can_be_stood_in_for, tensors_of(out)))
