"""The record of one call of a unit in forward, for its recomputation: the results that are
saved, the operators that are skipped, and whether the saved results can be handed out."""

import dataclasses
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves, tree_map

from acplan._base.passes import is_graph_kept
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
    """The choice to save an operator's results in the host's memory: all (SAVE), or those at
    some places."""

    results: int | tuple[int, ...]


# A plan's decision for an operator. A tuple in place of SAVE means that only some results are
# saved: those at these places among the tensors that the operator makes.
RUN, SAVE, SKIP = 0, 1, 2
Choice = int | tuple[int, ...] | Offload


# The types of nearly all tensors, which always have memory of their own.
WITH_MEMORY = frozenset([torch.Tensor, torch.nn.Parameter, torch._subclasses.FakeTensor])


def storage_of(tensor: torch.Tensor) -> torch.UntypedStorage | None:
    """Returns the memory of a tensor, or None. A tensor that consists of several others has no
    memory of its own, such as a sparse tensor or one that a transform of torch.func wraps; nor
    has a stand-in."""
    if type(tensor) not in WITH_MEMORY:
        if isinstance(tensor, StandIn) or is_traceable_wrapper_subclass(tensor):
            return None
    try:
        return tensor.untyped_storage()
    except NotImplementedError:
        return None


def memory_of(tensor: torch.Tensor) -> int | None:
    """Returns a number that identifies a tensor's memory, or None if it has none."""
    if type(tensor) not in WITH_MEMORY:
        storage = storage_of(tensor)
        return None if storage is None else int(storage._cdata)
    # Nearly always. It is asked several times for each operator.
    try:
        memory: int = tensor.untyped_storage()._cdata
    except NotImplementedError:
        return None
    return memory


def each(values: Any, change: Callable[[Any], Any]) -> Any:
    """Applies `change` to each leaf of `values`; faster than tree_map for the results of
    operators."""
    kind = type(values)
    if kind is tuple or kind is list:
        return kind([each(value, change) for value in values])
    return change(values) if kind in _LEAVES else tree_map(change, values)


def _alias(value: Any) -> Any:
    """Returns the same memory, without the graph that autograd is about to hang on the tensor,
    and without its count of writes."""
    return value.detach() if isinstance(value, torch.Tensor) else value


class Given:
    """A placeholder for a result that is one of the arguments, as of an operator that writes in
    place or has nothing to do."""

    __slots__ = ("place",)

    def __init__(self, place: int | str) -> None:
        self.place = place

    def among(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        arguments: Any = args if isinstance(self.place, int) else kwargs
        return arguments[self.place]

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
    def some(cls, func: Any, out: Any, places: Sequence[int], call: Call = _NO_CALL) -> "Saved":
        """Saves only the results at these places."""
        numbers = iter(range(len(tensors_of(out))))

        def change(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            argument = Given.find(value, *call)
            if argument is not None:
                return argument
            return _alias(value) if next(numbers) in places else shape_of(value)

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
        """Returns the results that are kept, and stand-ins in place of the others."""
        return _handed_out(self.take(is_kept), origin, call)

    def drop(self) -> None:
        self.has_value = False
        self.value = None


class Skipped(Shape):
    """An operator that does not run again, with the shapes of its results. If the result is a
    single new tensor, as nearly always, this object itself is the shape of it, and `results`
    is None."""

    __slots__ = ("func", "results", "after", "leaves_stale")

    def __init__(self, func: Any, out: Any, call: Call = _NO_CALL) -> None:
        """Records the shapes of `out`. `call` has the arguments if `out` may contain some."""
        self.func = func
        self.results: Any = None
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
                self.results = _ONLY_FIRST
                return

        def change(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            return Given.find(value, *call) or shape_of(value)

        # In a tuple, as it may be None.
        self.results = (each(out, change),)

    def hand_out(self, origin: Origin, call: Call) -> Any:
        if self.results is None:
            return stand_in(self, origin)
        return _handed_out(self.results[0], origin, call)


def _handed_out(results: Any, origin: Origin, call: Call) -> Any:
    kind = type(results)
    if kind in SHAPES:
        return stand_in(results, origin)
    if kind is Given:
        return results.among(*call)

    def change(value: Any) -> Any:
        if type(value) in SHAPES:
            return stand_in(value, origin)
        return value.among(*call) if type(value) is Given else value

    return each(results, change)


CastKey = tuple[int, torch.dtype | None]
# The place of the operator that made the memory, the memory, and all arguments but the first.
ViewOf = tuple[int, int | None, tuple[Any, ...]]


class Tape:
    """The operators that one call of a unit ran, and the results that it saved.

    It `may_skip` as long as the call follows the plan. If another operator ran, or a saved
    result cannot be handed out, the recomputation needs more than the plan assumes, and runs
    the skipped operators too. This is known before a recomputation begins.
    """

    def __init__(self, may_skip: bool = False) -> None:
        self.items: list[Any] = []
        self.casts: dict[CastKey, Saved | Skipped] = {}
        self.first_states: dict[torch.Generator, torch.Tensor] = {}
        self.writes: Writes | None = None
        self.skips_writes = False
        self.leaves_stale = False
        # These three are filled if writes are left out. `made_at` has, for the place of an
        # operator that is left out, the place of the operator that made its memory; `views`
        # has the source of the view at a place; and `unwritten` has the last place at which
        # some memory should have been written to. Memory is identified by the operator that
        # made it too, since its address may have been that of other memory before.
        self.made_at: dict[int, int] = {}
        self.views: dict[int, ViewOf] = {}
        self.unwritten: dict[tuple[int, int | None], int] = {}
        self.may_skip = may_skip
        self.distrusted_for = ""
        # The unit's copies in the host's memory, if the plan offloads any result.
        self.freight: Freight | None = None
        # The state of the unit's modules, the tensors that they may read, each with its count
        # of writes when the call ended, and the memory from outside that the unit wrote to.
        self.state: UnitState | None = None
        self.watched: list[tuple[torch.Tensor, int]] = []
        self.outside_memory: dict[int, Outside] = {}
        # The call writes to nothing but memory of its own, as far as is known, and has nothing
        # saved; the memory of its arguments, and all memory in its reach once it is asked for.
        self.is_quiet = False
        self.argument_memory: set[int] | None = None
        self._in_reach: set[int] | None = None
        # Forward ran the operators of the plan, and all saved results can be handed out.
        self.is_as_planned = False
        self.has_dropped = False
        # The saved results have been handed out and released.
        self.is_used = False
        # Saved results that are handed out stay here too, for the next recomputation.
        self.is_kept = False
        # Backward has released the graph, so the unit does not run again.
        self.is_done = False
        # Forward has not ended.
        self.is_open = False
        # Warns the user that the unit is not called as planned.
        self.tell: Callable[[str], object] | None = None
        # Skipped operators never run again: an error names whoever computes with their results.
        self.is_strict = False
        # The backward pass that asked for a skipped result, and PyTorch's group of hooks in
        # which the whole unit runs again for that pass.
        self.exec_group: tuple[int, Any] | None = None
        self._outputs: list[tuple[torch.Tensor, int]] = []
        self._saved_memory: set[int | None] = set()
        self._watched = 0

    def memory_in_reach(self) -> set[int]:
        """Returns the memory of the arguments and of the tensors in the unit's state."""
        if self._in_reach is None:
            of_state = self.state.memory() if self.state is not None else set()
            self._in_reach = of_state | (self.argument_memory or set())
        return self._in_reach

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
        """Watches for writes to outputs of the unit that share memory with saved results. For
        the outputs of earlier calls, only writes from now on count."""
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
        """Stops watching the outputs in `memory`: writes to them change no saved result."""
        self._outputs = [o for o in self._outputs if memory_of(o[0]) not in memory]

    def forget_arguments(self, memory: Iterable[int | None]) -> None:
        """Forgets the memory of arguments, which may be given to others from now on."""
        if self.argument_memory is not None:
            self.argument_memory.difference_update(m for m in memory if m is not None)
            self._in_reach = None

    def outputs_changed(self) -> bool:
        """Returns whether a watched output has been written to in place."""
        return any(tensor._version != count for tensor, count in self._outputs)

    def prepare(self) -> None:
        """Drops the saved results if they cannot be handed out (again)."""
        changed = self.outputs_changed()
        if self.is_open and self.tell is not None:
            self.tell(
                "a gradient is computed within its forward pass, so the whole unit runs again"
            )
        if changed or self.is_used or self.is_open:
            self.drop()

    def use(self, has_gone: bool) -> None:
        """Begins to hand out the saved results. They stay for the next recomputation if
        backward keeps its graph (`retain_graph`) and some operators cannot run again, because
        memory that forward read `has_gone`."""
        keeps_graph = is_graph_kept()
        self.is_kept = keeps_graph and has_gone and not self.is_open
        self.is_used = not self.is_kept
        self.is_done = not keeps_graph
        if self.is_used:
            self._outputs.clear()

    def drop(self) -> None:
        """Drops all saved results, so that every operator runs again."""
        self.may_skip = False
        self.has_dropped = True
        if self.writes is not None:
            self.writes.forget()
        for saved in self.saved():
            saved.drop()
        if self.freight is not None:
            self.freight.drop()

    def depart(self, reason: str) -> None:
        """Makes skipped operators run again, and notes that other ones may run than planned."""
        self.distrust(reason)
        self.has_dropped = True
        self.distrusted_for = self.distrusted_for or reason

    def distrust(self, reason: str) -> None:
        """Makes skipped operators run again. Results that are saved in part are dropped, since
        the operators that run now may read the parts that were not kept."""
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
    """The state of each piece of memory, which says whether an operator that writes to it in
    place may be left out of the recomputation. A saved operator may be, if a saved operator
    made the memory and no operator that runs again has read it. A skipped one may be, if the
    memory is made again, or does not exist in the recomputation."""

    _CLEAN, _READ, _RUNS, _SAVED_VIEW, _ABSENT = range(5)

    def __init__(self) -> None:
        self._states: dict[int, int] = {}
        self._made_at: dict[int, int] = {}

    def made_at(self, memory: int | None) -> int:
        """Returns the place of the operator that made the memory, or -1 if it is from
        outside."""
        return -1 if memory is None else self._made_at.get(memory, -1)

    def may_skip(self, targets: list[torch.Tensor]) -> bool:
        """Returns whether a saved operator that writes to these may be left out."""
        keys = _keys(targets)
        return None not in keys and all(
            self._states.get(key, self._CLEAN) == self._CLEAN for key in keys if key is not None
        )

    def must_forget(self, targets: list[torch.Tensor], is_skipped: bool = False) -> bool:
        """Returns whether the operator that writes to these, skipped or running again, would
        have changed saved memory, or would run on memory that does not exist then."""
        fine = (self._RUNS, self._ABSENT) if is_skipped else (self._RUNS,)
        return any(
            key is None or self._states.get(key, self._RUNS) not in fine
            for key in _keys(targets)
        )

    def leaves_stale(self, targets: list[torch.Tensor]) -> bool:
        """Returns whether skipping a write to these leaves memory of the recomputation with
        other contents than in forward."""
        return any(key is None or self._states.get(key) == self._RUNS for key in _keys(targets))

    def forget(self) -> None:
        self._states = dict.fromkeys(self._states, self._RUNS)

    def note(
        self,
        place: int,
        shows_or_writes: tuple[bool, bool],
        read: list[torch.Tensor],
        result_memory: list[int | None],
        item: Any,
    ) -> None:
        """Notes an operator's effect on memory. `item`: its entry on the tape."""
        only_shows, is_mutable = shows_or_writes
        is_saved, is_skipped = type(item) is Saved, type(item) is Skipped
        keys = {*map(memory_of, read)}
        if not (is_saved or is_skipped or only_shows):
            for key in keys:
                if key is not None and self._states.get(key) == self._CLEAN:
                    self._states[key] = self._READ
        saved_memory = set(map(memory_of, tensors_of(item.value))) if is_saved else ()
        for key in result_memory:
            if key is None:
                continue
            if key not in keys:
                self._made_at[key] = place
                other = self._ABSENT if is_saved or is_skipped else self._RUNS
                self._states[key] = self._CLEAN if key in saved_memory else other
            elif key in saved_memory and not is_mutable:
                if self._states.get(key, self._RUNS) in (self._RUNS, self._ABSENT):
                    self._states[key] = self._SAVED_VIEW


def _keys(tensors: list[torch.Tensor]) -> list[int | None]:
    """Returns the memory of these tensors, except stand-ins: nothing is written to them."""
    return [memory_of(tensor) for tensor in tensors if not isinstance(tensor, StandIn)]


def can_all_be_stood_in_for(out: Any) -> bool:
    """Returns whether stand-ins can replace all tensors that an operator returned."""
    if isinstance(out, torch.Tensor):
        return can_be_stood_in_for(out)
    return all(map(can_be_stood_in_for, tensors_of(out)))
