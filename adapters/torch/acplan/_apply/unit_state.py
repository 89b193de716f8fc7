"""The Python state of a unit, which is restored for its recomputation.

A module's code may read and change more than tensors in place: attributes of its modules and
the objects, lists and dictionaries in them, buffers that are given another tensor, variables of
closures and of the file that the code is in, and the random states of Python and NumPy. If that
code runs once more, it must read what it read in forward, and none of its changes may be seen
afterwards.

`UnitState` notes all of it by identity when a call of a unit begins; as long as nothing has
changed, calls share the notes of an earlier one (`StateOfUnit`). For the recomputation it
restores every value, and at the end it restores the values from before the recomputation. So
the code runs on the state of its own call, whatever other calls, other modules or the training
loop have changed since, and a change happens once. Tensors that operators of the call have read
are held until the unit has run again; it is the same tensor object, so changes *in* it are for
_apply/outside_memory.py. Tensors that the call has not read are not held: an attribute that is
only written to, such as the last attention map, keeps no memory.

The state is found by a walk from the modules, through things that belong to the user: not
through objects of PyTorch and of other libraries in `_LIBRARIES`, which keep accounts of their
own (sharding, hooks that move weights), and not through parameters, which autograd watches.
Attributes of modules are noted for every class, also of libraries.
"""

import itertools
import operator
import types
import weakref
from collections.abc import Iterator
from typing import Any

import torch

from acplan._apply import state_walk
from acplan._apply.state_walk import COPIES, Before, Noted, Walk
from acplan._apply.tape import WITH_MEMORY, memory_of
from acplan._base.operators import MOVED_ON
from acplan._base.torchscript import is_scripted, let_optimize, stop_optimizing

# A noted tensor: what it is in, what is noted of that, the key there, and the tensor.
_Place = tuple[Any, Before, Any, weakref.ref[torch.Tensor]]
_cell_contents = operator.attrgetter("cell_contents")
# A walk reads these attributes of a module.
_DICTS = ("_parameters", "_buffers", "_modules", "_forward_hooks", "_forward_pre_hooks")
_of_module = operator.itemgetter("training", *_DICTS)


class StateOfUnit:
    """The state of a unit's modules, which all its calls note."""

    def __init__(self) -> None:
        self._notes: _Notes | None = None
        self._last_ids: list[int] | None = None

    def now(self, module: torch.nn.Module) -> "UnitState":
        notes = self._notes
        if notes is not None and notes.modules[0] is module and notes.are_as_now():
            return UnitState(notes, notes.states_now())
        notes = _Notes([*module.modules()])
        ids = notes.ids()
        # They are kept once nothing has changed between two calls. State that each call changes
        # would live longer than without a plan.
        self._notes = notes if ids is not None and ids == self._last_ids else None
        if self._notes is not None:
            notes.keep()
        self._last_ids = ids
        return UnitState(notes, notes.states)


class _Notes:
    """The state of some modules, as it is when this object is made. It holds no tensors."""

    def __init__(self, modules: list[torch.nn.Module]) -> None:
        walk = Walk()
        for module in modules:
            walk.add_module(module)
        self.modules = modules
        self.states = [noted for noted in walk.noted if noted[2] in state_walk.OF_GENERATORS]
        self.noted = [noted for noted in walk.noted if noted[2] not in state_walk.OF_GENERATORS]
        self._places: list[_Place] = []
        self.kinds: set[type] = set()
        # The tensors that each call holds, and those that it holds once it has read them.
        self.always: list[_Place] = []
        self.unread: list[_Place] = []
        for thing, before, key in walk.places:
            tensor = before[key]
            self.kinds.add(type(tensor))
            place = (thing, before, key, weakref.ref(tensor))
            is_on_host = tensor.device.type == "cpu"
            # Nothing shows whether Python reads it, by tolist() for example.
            is_held = is_on_host or (
                type(tensor) not in WITH_MEMORY and memory_of(tensor) is None
            )
            (self.always if is_held else self.unread).append(place)
        for _, before, key, _ in self.places:
            before[key] = None
        self._is_regular = walk.is_regular and not any(map(is_scripted, modules))
        self._ids: list[int] | None = None
        self._values: list[Any] = []
        # It is emptied when a tensor dies, whose id may then be another's.
        self._alive = [True]

    @property
    def places(self) -> list[_Place]:
        return self.always + self.unread

    def states_now(self) -> list[Noted]:
        return [(thing, COPIES[setter](thing), setter) for thing, _, setter in self.states]

    def ids(self) -> list[int] | None:
        """Returns the ids of all that the notes follow from, or None if too much does."""
        if not self._is_regular:
            return None
        by_setter: dict[Any, list[Any]] = {}
        for thing, _, setter in self.noted:
            by_setter.setdefault(setter, []).append(thing)
        if not by_setter.keys() <= _REGULAR:
            return None
        of_modules = [vars(m)[name] for m in self.modules for name in _DICTS]
        dicts = by_setter.get(state_walk.put_in_dict, [])
        self._sources = (
            of_modules + dicts,
            dicts,
            [*map(vars, self.modules)],
            by_setter.get(state_walk.put_in_list, []),
            by_setter.get(state_walk.put_in_cell, []),
            by_setter.get(state_walk.put_variables, []),
        )
        return [*map(id, self._current())]

    def _current(self) -> Iterator[Any]:
        """Yields what the notes follow from, as it is now."""
        dicts, with_keys, modules, lists, cells, codes = self._sources
        flat = itertools.chain.from_iterable
        return itertools.chain(
            flat(map(dict.values, dicts)),
            flat(map(dict.keys, with_keys)),
            flat(map(list.__iter__, lists)),
            map(_cell_contents, cells),
            flat(map(state_walk.values_of_variables, codes)),
            flat(map(_of_module, modules)),
            map(type, self.modules),
        )

    def keep(self) -> None:
        """Prepares for `are_as_now`."""
        values = [*self._current()]
        self._ids = [*map(id, values)]
        self._values = [value for value in values if not isinstance(value, torch.Tensor)]
        alive = self._alive
        self._values += [
            weakref.ref(value, lambda _: alive.clear())
            for value in values
            if isinstance(value, torch.Tensor)
        ]

    def are_as_now(self) -> bool:
        """Returns whether it is known that the state is as noted."""
        if self._ids is None or not self._alive:
            return False
        try:
            return [*map(id, self._current())] == self._ids
        except (KeyError, ValueError):  # a cell is empty, for example
            return False

    def restore(self) -> None:
        """Sets the state to what is noted, except the states of generators."""
        for thing, before, key, ref in self.places:
            tensor = ref()
            if tensor is None:
                # Nobody reads it: the current tensor is as good.
                is_mapping = isinstance(thing, dict) and key in thing
                tensor = dict.__getitem__(thing, key) if is_mapping else torch.empty(0)
            before[key] = tensor
        for thing, before, setter in self.noted:
            setter(thing, before)
        for _, before, key, _ in self.places:
            before[key] = None


class UnitState:
    """The state that some modules read, as it is when this object is made."""

    __slots__ = (
        "_notes",
        "_optimized",
        "_present",
        "_states",
        "_statistics",
        "_unread",
        "tensors",
    )

    def __init__(self, notes: _Notes, states: list[Noted]) -> None:
        self._notes = notes
        self._states = states
        self._present: list[Noted] | None = None
        self._optimized = False
        # Noted tensors that the call has not read, indexed by memory, once it is asked for.
        self._unread: dict[int, list[_Place]] | None = None
        self._statistics: set[int | None] | None = None
        # The tensors that the call has read.
        self.tensors = [t for *_, ref in notes.always if (t := ref()) is not None]

    @property
    def modules(self) -> list[torch.nn.Module]:
        return self._notes.modules

    @property
    def unread(self) -> dict[int, list[_Place]]:
        if self._unread is None:
            self._unread = {}
            for place in self._notes.unread:
                tensor = place[3]()
                memory = None if tensor is None else memory_of(tensor)
                if memory is not None:
                    self._unread.setdefault(memory, []).append(place)
        return self._unread

    @property
    def statistics(self) -> set[int | None]:
        """The memory of running statistics and of the counts of their updates."""
        if self._statistics is None:
            tensors = (ref() for _, _, key, ref in self._notes.places if key in MOVED_ON)
            self._statistics = {memory_of(t) for t in tensors if t is not None}
        return self._statistics

    @property
    def kinds(self) -> set[type]:
        """The classes of the noted tensors."""
        return self._notes.kinds

    def memory(self) -> set[int]:
        """Returns the memory of all noted tensors."""
        read = {memory for t in self.tensors if (memory := memory_of(t)) is not None}
        return read | self.unread.keys()

    def is_settled(self) -> bool:
        """Returns whether all tensors that the call has not read are where they were: none is
        made anew by each call."""
        return all(
            thing is before or _value_in(thing, key) is ref()
            for places in self.unread.values()
            for thing, before, key, ref in places
        )

    def hold(self, memory: int) -> None:
        """Holds the noted tensors that have this memory, which the call reads."""
        for *_, ref in self.unread.pop(memory, ()):
            tensor = ref()
            if tensor is not None:
                self.tensors.append(tensor)

    def hold_all(self) -> None:
        """Holds all noted tensors, as it is not known which ones the call reads."""
        if self._unread is None:
            self._unread = {}
            self.tensors += [t for *_, ref in self._notes.unread if (t := ref()) is not None]
        for memory in [*self._unread]:
            self.hold(memory)

    def put_back(self) -> None:
        """Restores the state from when this object was made. The first call remembers the
        present state, for `restore`."""
        notes = self._notes
        is_other = not notes.are_as_now()
        if self._present is None:
            self._optimized = stop_optimizing()
            noted = notes.noted + self._states if is_other else self._states
            self._present = [
                (thing, COPIES[setter](thing), setter) for thing, _, setter in noted
            ]
        if is_other:
            notes.restore()
        for thing, before, setter in self._states:
            setter(thing, before)

    def restore(self) -> None:
        """Restores the state from the first call of `put_back`."""
        present, self._present = self._present, None
        if present is None:
            return
        let_optimize(self._optimized)
        if len(present) == len(self._states) and not self._notes.are_as_now():
            # It was as noted.
            self._notes.restore()
        for thing, before, setter in reversed(present):
            setter(thing, before)


def _value_in(thing: Any, key: Any) -> Any:
    """Returns the value at the place of a noted tensor."""
    if isinstance(thing, types.CellType):
        return thing.cell_contents
    try:
        return thing[key]
    except (KeyError, IndexError):
        return None


_REGULAR = frozenset(
    [state_walk.put_in_dict, state_walk.put_training, state_walk.put_in_list]
    + [state_walk.put_in_cell, state_walk.put_variables]
)
