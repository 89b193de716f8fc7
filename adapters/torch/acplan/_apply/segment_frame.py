"""The parts that the recomputation of a run of modules needs: its calls, and their
arguments."""

import contextlib
import dataclasses
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import torch
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import (
    checkpoint,
)

from acplan._apply.checkpoint import (
    sharded_in,
)
from acplan._apply.given_tensors import CallArguments
from acplan._apply.outside_memory import version_of
from acplan._apply.policy import Policy
from acplan._apply.recompute_mode import Recomputation
from acplan._apply.split_backward import kept_between_parts, may_split
from acplan._apply.tape import (
    Tape,
)
from acplan._apply.unit_call import ENDS, Hooks, run, top_hooks
from acplan._apply.unit_state import UnitState
from acplan._base import generators
from acplan._base.call_arguments import Copies, holds_nothing, tensors_given
from acplan._base.errors import AcplanError
from acplan._base.modules import FSDPModule
from acplan._base.torchscript import endings_kept

# A leaf of the first call's arguments (call -1), or of what a call returned.
ValuePlace = tuple[int, int]


_State = tuple[torch.Generator, torch.Tensor]


@dataclasses.dataclass(frozen=True, slots=True)
class MadeAgain:
    """An argument that is made again, or given to the first call."""

    place: ValuePlace


@dataclasses.dataclass(frozen=True, slots=True)
class _ByPosition:
    """An argument of the first call."""

    index: int


@dataclasses.dataclass(frozen=True, slots=True)
class _Held:
    """An argument as forward had it, and its count of writes."""

    tensor: torch.Tensor
    version: int
    source: Callable[[], Any]


@dataclasses.dataclass(frozen=True, slots=True)
class CallOfModule:
    """A call of a module. The first call of a run gets the arguments that PyTorch passes to the
    recomputation."""

    module: torch.nn.Module
    arguments: Any
    # The leaves of earlier calls that were still alive.
    alive: frozenset[ValuePlace]
    states: list[_State]
    state: UnitState

    def make(self, index: int, args: Any, kwargs: Any) -> dict[ValuePlace, Any]:
        outputs = self.module(*args, **kwargs)
        return _numbered(index, results_of(outputs, args, kwargs))


def _numbered(call: int, leaves: Sequence[Any]) -> dict[ValuePlace, Any]:
    return {(call, place): leaf for place, leaf in enumerate(leaves)}


def results_of(outputs: Any, args: Any, kwargs: Any) -> list[Any]:
    """Returns what a call returned, and the tensors in its arguments, into which it may have
    put some."""
    tensors = [] if holds_nothing(args, kwargs) else tensors_given(args, kwargs)
    return _leaves(outputs) + tensors


def _leaves(values: Any) -> list[Any]:
    """Returns the leaves of a pytree, and after them the fields of leaves that are
    dataclasses."""
    leaves = tree_leaves(values)
    fields = [
        [getattr(leaf, field.name) for field in dataclasses.fields(leaf)]
        for leaf in leaves
        if dataclasses.is_dataclass(leaf) and not isinstance(leaf, type)
    ]
    return leaves + _leaves(fields) if fields else leaves


class Settles(Protocol):
    """A run under way, to which nothing is added once it is recomputed."""

    def settle(self) -> None: ...


class Frame:
    """The calls of a run and their arguments, which the recomputation needs."""

    def __init__(self, policy: Policy, tape: Tape, owner: "Settles") -> None:
        self.calls: list[CallOfModule] = []
        self.sharded: list[FSDPModule] = []
        self.tape = tape
        self._fqn = policy.fqn
        self._run = weakref.ref(owner)
        self._held_tensors: dict[int, _Held] = {}
        self._first: Any = None
        # The exception that ended the last call, if there was one.
        self.left_by: tuple[type[BaseException], ...] = ()

    def make(self, arguments: CallArguments) -> Hooks:
        """Makes a checkpoint's frame with PyTorch. Returns the hooks by which autograd saves
        into it."""
        by_position = {
            id(a): index for index, a in enumerate((*arguments.first, *arguments.args))
        }

        def source(tensor: torch.Tensor) -> Any:
            # PyTorch holds and checks arguments by position.
            place = by_position.get(id(tensor))
            return self._hold_as_it_is(tensor) if place is None else _ByPosition(place)

        self._first = Copies(source).copy_of((arguments.args, arguments.kwargs))
        args, kwargs = arguments.copies()
        hooks_made: list[Hooks] = []
        is_forward = True

        def run_again(*args: Any, **kwargs: Any) -> None:
            if is_forward:
                hooks = top_hooks()
                assert hooks is not None
                hooks_made.append(kept_between_parts(hooks) if may_split() else hooks)
            else:
                run(self._call_again, self.tape, args)

        checkpoint(run_again, *args, use_reentrant=False, context_fn=self._contexts, **kwargs)
        is_forward = False
        # The frame must not be held by what it holds.
        return hooks_made.pop()

    def _contexts(self) -> Any:
        recomputation = _Recomputation(self.tape, self._fqn, self, self.sharded)
        return contextlib.nullcontext(), recomputation

    def settle(self) -> None:
        """Ends the run, to which nothing is added any more, and refuses held tensors that were
        written to."""
        current = self._run()
        if current is not None:
            current.settle()
        for entry in self._held_tensors.values():
            if entry.version != version_of(entry.tensor):
                raise AcplanError(
                    f"{self._fqn}: a tensor of shape {tuple(entry.tensor.shape)}, an "
                    "argument of a module of the run, was written to in place before the run "
                    "is recomputed"
                )

    def add(self, call: CallOfModule) -> None:
        self.calls.append(call)
        self.sharded += sharded_in(call.module.modules())

    def hold(self, tensor: torch.Tensor) -> _Held:
        """Holds a tensor without its graph, which may belong to something that holds this
        frame."""
        entry = self._held_tensors.get(id(tensor))
        if entry is None or entry.source() is not tensor:
            plain = tensor
            if tensor.grad_fn is not None:
                plain = tensor.detach().requires_grad_()
            entry = _Held(plain, version_of(plain), weakref.ref(tensor))
            self._held_tensors[id(tensor)] = entry
        return entry

    def _hold_as_it_is(self, tensor: torch.Tensor) -> _Held:
        entry = _Held(tensor, version_of(tensor), weakref.ref(tensor))
        return self._held_tensors.setdefault(id(tensor), entry)

    def modules(self) -> Iterator[torch.nn.Module]:
        for call in self.calls:
            yield from call.module.modules()

    def generator_states(self, arguments: Any) -> list[_State]:
        """Returns the states of all generators that may have been drawn from since the call
        before."""
        if not self.calls:
            return []  # PyTorch restores them
        devices = {t.device for t in tree_leaves(arguments) if isinstance(t, torch.Tensor)}
        drawn_from = [torch.default_generator, *self.tape.first_states]
        drawn_from += filter(None, map(generators.default_generator, devices))
        return [(g, g.get_state()) for g in dict.fromkeys(drawn_from)]

    def _call_again(self, inputs: Sequence[Any]) -> None:
        values: dict[ValuePlace, Any] = {}

        def source(leaf: Any) -> Any:
            if isinstance(leaf, _ByPosition):
                return inputs[leaf.index]
            if isinstance(leaf, MadeAgain):
                return values[leaf.place]
            return leaf.tensor if isinstance(leaf, _Held) else leaf

        before = {g: g.get_state() for call in self.calls for g, _ in call.states}
        try:
            for index, call in enumerate(self.calls):
                for generator, state in call.states:
                    generator.set_state(state)
                call.state.put_back()
                for place in [place for place in values if place not in call.alive]:
                    del values[place]
                arguments = self._first if index == 0 else call.arguments
                args, kwargs = Copies(of_other=source).copy_of(arguments)
                if index == 0:
                    values |= _numbered(-1, tensors_given(args, kwargs))
                with endings_kept():
                    values |= call.make(index, args, kwargs)
                del args, kwargs
        except ENDS:
            raise
        except self.left_by:
            pass
        finally:
            for generator, state in before.items():
                generator.set_state(state)
            for call in reversed(self.calls):
                call.state.restore()


class _Recomputation(Recomputation):
    def __init__(
        self,
        tape: Tape,
        fqn: str,
        frame: Frame,
        sharded: Sequence[FSDPModule],
    ) -> None:
        super().__init__(tape, fqn, frame, sharded)
        self._frame = frame

    def __enter__(self) -> "_Recomputation":
        self._frame.settle()
        super().__enter__()
        return self
