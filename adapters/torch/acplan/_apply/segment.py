"""Runs of modules as one unit: one checkpoint around calls that follow each other.

A segment is a run of children of one module that its code calls one after the other. Nobody
calls the run as a whole, so each call is told by its wrapper which place in the run it has.
The first one makes a checkpoint's frame. PyTorch makes it, and it is left at once: what is
kept is the pair of hooks by which autograd saves into the frame. Each call of the run is
then made under these hooks and under the mode that writes the tape, and between two calls
nothing is left open: whatever the code around them does, and wherever it ends, there is
nothing to undo. A frame with some calls of the run is a checkpoint of a shorter run.

The recomputation calls the modules again in order, with what forward gave them. What an
earlier call of the run returned is what it returns now; all else is held as it was, tensors
apart from their graph, which would hold the frame that holds them.

So whatever is computed between two calls, and whoever writes to what they returned: the
next call is given forward's values, or the run ends before it. The plan is for the whole
run; where it is not called so, nothing is skipped, and one that begins in the middle is
recomputed as a whole.
"""

import contextlib
import copy
import dataclasses
import functools
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from acplan._apply.forward_mode import Forward
from acplan._apply.matching import (
    Decision,
    InOrder,
    Matching,
    Policy,
    has_compiled_call,
    sharded_in,
    start_of_call,
    whole_checkpoint_of,
)
from acplan._apply.offload import Freight, Traffic
from acplan._apply.outside_memory import version_of
from acplan._apply.recompute_mode import ENDS, Hooks, Recomputation, making_all, run
from acplan._apply.tape import (
    RUN,
    Call,
    Choice,
    Saved,
    Skipped,
    Tape,
    Writes,
    memory_of,
    storage_of,
)
from acplan._apply.unit_state import UnitState
from acplan._base import generators
from acplan._base.call_arguments import Copies, copied, holds_nothing, tensors_given
from acplan._base.errors import AcplanError
from acplan._base.object_parts import attributes_of, elements_of, is_a
from acplan._base.operators import Traits
from acplan._base.tensors import tensors_of
from acplan._base.torchscript import endings_kept

# A leaf of what the first call is given (call -1), or of what a call returned.
_Place = tuple[int, int]
_State = tuple[torch.Generator, torch.Tensor]
# Of nodes that have none.
_NO_NUMBER = 1 << 63
_top_hooks = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
# From PyTorch 2.14 on a checkpoint tells its own hooks from others, as they are pushed.
_hooks_of_checkpoints = getattr(
    torch.utils.checkpoint,
    "_checkpoint_internal_hook",
    torch.autograd.graph.saved_tensors_hooks,
)


class Segment:
    """A run of modules, of which one unit is made, and which of its calls is next."""

    def __init__(
        self,
        fqn: str,
        names: Sequence[str],
        decisions: Sequence[Decision],
        strict: bool,
        traffic: Traffic | None = None,
    ) -> None:
        """`names` are those of the modules; without decisions all is recomputed."""
        if _top_hooks is None:
            raise AcplanError(
                f"plan: {fqn} is a run of modules, for which PyTorch must tell the "
                f"hooks of autograd; {torch.__version__} does not"
            )
        self._made_of = (fqn, tuple(names), tuple(decisions), strict, traffic)
        self._policy = Policy.of(fqn, decisions, strict)
        self._thread = threading.local()

    def __reduce__(self) -> Any:
        # A copy of the model has runs of its own.
        return Segment, self._made_of

    def __deepcopy__(self, memo: dict[int, Any]) -> "Segment":
        fqn, names, decisions, strict, traffic = self._made_of
        return Segment(fqn, names, decisions, strict, copy.deepcopy(traffic, memo))

    def places(self) -> list["Place"]:
        """What calls its modules, for `checkpoint_wrapper`."""
        return [Place(self, place) for place in range(len(self.names))]

    @property
    def names(self) -> tuple[str, ...]:
        return self._made_of[1]

    @property
    def policy(self) -> Policy:
        return self._policy

    @property
    def traffic(self) -> Traffic | None:
        return self._made_of[4]

    def call(self, place: int, module: torch.nn.Module, args: Any, kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return module(*args, **kwargs)
        if any(map(has_compiled_call, module.modules())):
            return self.call_alone(
                place, "is compiled, and part of a run", module, args, kwargs
            )
        current = self._current_before(place, args, kwargs)
        if current is None:
            if place > 0:
                before = self.names[place - 1]
                self._tell(f"{self.names[place]} is called without {before}")
            current = _Run(self, place, self._under_way, args, kwargs)
            self._under_way.append(current)
        try:
            outputs = current.call(module, args, kwargs)
        except BaseException:
            # Nobody is to be told twice.
            current.abandon("it was left by an exception")
            raise
        if current.next == len(self.names) and current in self._under_way:
            current.end()
        return outputs

    def call_alone(
        self, place: int, why: str, module: torch.nn.Module, args: Any, kwargs: Any
    ) -> Any:
        """As a unit of its own, all of which is recomputed."""
        self._end_early(f"{self.names[place]} {why}")
        self._tell(f"{self.names[place]} {why}")
        name = f"{self.policy.fqn}: {self.names[place]}"
        whole = whole_checkpoint_of(name, self.traffic)
        return whole(module, *args, **kwargs)

    def _current_before(self, place: int, args: Any, kwargs: Any) -> "_Run | None":
        """The run that this call goes on with."""
        current = self._current()
        if current is None:
            return None
        name = self.names[place]
        if current.next != place:
            self._end_early(f"{name} is called, and {self.names[current.next]} was due")
        elif current.settings != _settings():
            self._end_early(f"{name} is called under another autocast than before it")
        elif current.is_hidden_in((args, kwargs)):
            self._end_early(f"{name} is given an object with tensors of the run")
        return self._current()

    @property
    def _under_way(self) -> "list[_Run]":
        """In this thread: none or one."""
        found: list[_Run] | None = getattr(self._thread, "runs", None)
        if found is None:
            found = self._thread.runs = []
        return found

    def _current(self) -> "_Run | None":
        runs = self._under_way
        return runs[0] if runs else None

    def _end_early(self, why: str) -> None:
        current = self._current()
        if current is not None:
            current.end_early(why)

    def _tell(self, text: str) -> None:
        """That it is not called as planned."""
        tell(self._policy, text)


def tell(policy: Policy, text: str) -> None:
    if policy.is_strict:
        raise AcplanError(
            f"{policy.fqn}: {text}; trace the model as it is trained and plan anew"
        )
    policy.warn(
        f"{text}. The plan is for the modules of a run, called one after the other; "
        "losses and gradients are those without the plan, but the peak may be another "
        "one than predicted"
    )


@dataclasses.dataclass(frozen=True)
class Place:
    """Calls a module of a segment."""

    segment: Segment
    place: int

    def __call__(self, module: torch.nn.Module, /, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return _call_in_compiler(
                self.segment.policy.fqn,
                self.segment.policy.is_strict,
                module,
                args,
                kwargs,
            )
        return self.segment.call(self.place, module, args, kwargs)

    def alone(self, module: torch.nn.Module, /, *args: Any, **kwargs: Any) -> Any:
        """Calls it where its parameters are there only while it is called itself."""
        if torch.compiler.is_compiling() or not torch.is_grad_enabled():
            return self(module, *args, **kwargs)
        why = "is sharded by itself, and part of a run"
        return self.segment.call_alone(self.place, why, module, args, kwargs)


def _call_in_compiler(
    fqn: str, strict: bool, module: torch.nn.Module, args: Any, kwargs: Any
) -> Any:
    in_compiler = functools.partial(_contexts_in_compiler, fqn, strict)
    return checkpoint(module, *args, use_reentrant=False, context_fn=in_compiler, **kwargs)


def _contexts_in_compiler(fqn: str, strict: bool) -> Any:
    tell(
        Policy.of(fqn, (), strict),
        "a run of modules is not planned under torch.compile, and each of them is "
        "recomputed as a whole",
    )

    def policy(*_: Any, **__: Any) -> CheckpointPolicy:
        return CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


class _Run:
    """The calls of a segment while they are made, in forward: it is among those
    `under_way` until it is recomputed, as nothing is added to it then."""

    def __init__(
        self,
        segment: Segment,
        place: int,
        under_way: "list[_Run]",
        args: Any,
        kwargs: Any,
    ) -> None:
        policy = segment.policy
        is_planned = place == 0 and bool(policy.decisions)
        self._segment = segment
        self.next = place
        self._under_way = under_way
        self.settings = _settings()
        self._began = torch._C._autograd._get_sequence_nr()
        self._tape = tape = Tape(is_planned and policy.skips)
        tape.tell = policy.tell if is_planned else None
        tape.is_strict = policy.is_strict
        self._traffic = traffic = segment.traffic
        self._freight: Freight | None = None
        if traffic is not None:
            self._freight = start_of_call(traffic, policy, tape)
        self._matching: Matching = InOrder(policy, tape) if is_planned else _Whole()
        if is_planned:
            tape.writes = Writes() if policy.leaves_out_writes else None
        self._frame = _Frame(policy, tape, self)
        self._hooks = self._frame.make(args, kwargs)
        if tape.may_skip:
            self._hooks = making_all(tape, self._hooks)
        self._forward = _Forward(tape, self._matching.choose, self._frame.sharded)
        # What the calls are given and return, by identity.
        self._known: dict[int, _Known] = {}
        self._note(-1, tensors_given(args, kwargs))

    def call(self, module: torch.nn.Module, args: Any, kwargs: Any) -> Any:
        if self._tape.outputs_changed():
            self._tape.drop()
        index = len(self._frame.calls)
        self._frame.add(
            _CallOfModule(
                module,
                None if index == 0 else self._arguments(args, kwargs),
                frozenset(k.place for k in self._known.values() if k.is_alive()),
                self._frame.generator_states((args, kwargs)),
                UnitState(module.modules()),
            )
        )
        self._forward.state = self._frame.calls[-1].state
        self._forward.forget_own(
            value
            for known in self._known.values()
            if isinstance(value := known.ref(), torch.Tensor) and known.place[0] >= 0
        )
        self.next += 1
        inside = self._traffic.inside() if self._traffic else contextlib.nullcontext()
        hooks = _hooks_of_checkpoints(*self._hooks)
        try:
            with inside, hooks, self._forward:
                outputs = module(*args, **kwargs)
        except BaseException as error:
            self._frame.left_by = (type(error),)
            raise
        finally:
            self._tape.watched = [
                (t, version_of(t)) for c in self._frame.calls for t in c.state.tensors
            ]
        self._note(index, _results(outputs, args, kwargs))
        self._tape.watch([k.ref() for k in self._known.values() if k.place[0] >= 0])
        return outputs

    def end(self) -> None:
        self._leave()
        self._matching.end(self._tape)
        if self._tape.is_as_planned:
            self._forward.let_go_of_copies()

    def _leave(self) -> None:
        self._under_way.clear()
        if self._traffic is not None and self._freight is not None:
            self._traffic.ended(self._freight)

    def end_early(self, why: str) -> None:
        """What the plan skips may be needed: it is for the whole run."""
        self.abandon(why)
        tell(self._segment.policy, why)

    def abandon(self, why: str) -> None:
        self._leave()
        self._tape.distrust(why)
        if self._tape.outputs_changed():
            self._tape.drop()

    def settle(self) -> None:
        """Before it is recomputed."""
        if self not in self._under_way:
            return
        names = self._segment.names
        if self._tape.is_open:
            self.end_early(f"a gradient is computed within {names[self.next - 1]}")
            return
        self.end_early(
            f"backward begins after {names[self.next - 1]}, and {names[self.next]} was due"
        )

    def is_hidden_in(self, values: Any) -> bool:
        """Whether tensors of the run are in an object that cannot be made anew."""
        others: list[Any] = []
        Copies(of_other=others.append).of(values)
        return any(
            self._is_new(tensor)
            for other in others
            if id(other) not in self._known
            for tensor in _tensors_within(other)
        )

    def _is_new(self, tensor: torch.Tensor) -> bool:
        """Whether its graph is one of the run, or of what was computed since."""
        node = tensor.grad_fn
        return node is not None and self._began <= node._sequence_nr() < _NO_NUMBER

    def _note(self, call: int, leaves: Sequence[Any]) -> None:
        for place, leaf in enumerate(leaves):
            ref = _reference(leaf)
            if ref is not None:
                self._known[id(leaf)] = _Known((call, place), ref)
        # What the modules of the run write to, they write to again.
        dead = []
        for key, known in self._known.items():
            value = known.ref()
            if value is None:
                dead.append(key)
            elif isinstance(value, torch.Tensor):
                known.facts = _facts(value)
        for key in dead:
            del self._known[key]

    def _arguments(self, args: Any, kwargs: Any) -> Any:
        return Copies(self._source, self._again).of((args, kwargs))

    def _again(self, thing: Any) -> Any:
        known = self._known.get(id(thing))
        return thing if known is None or known.ref() is not thing else _Again(known.place)

    def _source(self, tensor: torch.Tensor) -> Any:
        known = self._known.get(id(tensor))
        if known is not None and known.ref() is tensor:
            if known.place[0] < 0 or not known.has_changed():
                return _Again(known.place)
            self._tell_of_tensor("that was written to since a module of the run made it")
        elif self._is_new(tensor):
            self._tell_of_tensor("that is computed between the modules of the run")
        return self._frame.hold(tensor)

    def _tell_of_tensor(self, what: str) -> None:
        name = self._segment.names[self.next]
        text = f"{name} is given a tensor {what}, which is held until backward"
        tell(self._segment.policy, text)


class _Forward(Forward):
    """Writes the tape, and sees to it that nothing runs again on what is not made again:
    the modules run the operators of the plan, and the code that calls them may hand on
    another result than it did in the trace."""

    def __init__(
        self,
        tape: Tape,
        decide: Callable[[Any], Choice],
        sharded: Sequence[torch.nn.Module],
    ) -> None:
        super().__init__(tape, decide, lambda tape: None, sharded)
        self._mark = object()
        self._minds_reads = tape.may_skip

    def _mind_reads(
        self, func: Any, traits: Traits, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> None:
        if traits.is_view or not self._tape.may_skip:
            return
        if any(map(self._is_absent, tensors_of((args, kwargs)))):
            self._tape.distrust(f"{func} reads what the plan skips")

    def _left_out(
        self, func: Any, traits: Traits, choice: Choice, out: Any, *call: Call
    ) -> Any:
        item = super()._left_out(func, traits, choice, out, *call)
        if type(item) is Skipped and not call and not traits.is_view:
            self._set_mark(out, self._mark)
        elif type(item) is Saved:
            if item.is_partial:
                self._set_mark(out, self._mark)
            self._set_mark(item.value, None)
        return item

    def _set_mark(self, values: Any, mark: object | None) -> None:
        for tensor in tensors_of(values):
            storage: Any = storage_of(tensor)
            if storage is not None:
                storage.acplan_absent = mark

    def _is_absent(self, tensor: torch.Tensor) -> bool:
        storage = storage_of(tensor)
        if storage is None:
            return False
        return storage.__dict__.get("acplan_absent") is self._mark


class _Whole:
    """Nothing is saved."""

    def choose(self, func: Any) -> Choice:
        return RUN

    def end(self, tape: Tape) -> None:
        pass


class _Known:
    """A value that a call was given or returned, as long as it lives."""

    __slots__ = ("place", "ref", "facts")

    def __init__(self, place: _Place, ref: Callable[[], Any]) -> None:
        self.place = place
        self.ref = ref
        self.facts: Any = None

    def is_alive(self) -> bool:
        return self.ref() is not None

    def has_changed(self) -> bool:
        value = self.ref()
        return isinstance(value, torch.Tensor) and self.facts != _facts(value)


@dataclasses.dataclass(frozen=True, slots=True)
class _Again:
    """An argument that is made again, or given to the first call."""

    place: _Place


@dataclasses.dataclass(frozen=True, slots=True)
class _ByPosition:
    """An argument of the first call."""

    index: int


@dataclasses.dataclass(frozen=True, slots=True)
class _Held:
    """An argument as forward had it, and its count of writes."""

    tensor: torch.Tensor
    version: int
    of: Callable[[], Any]


@dataclasses.dataclass(frozen=True, slots=True)
class _CallOfModule:
    """The first one is given what PyTorch gives the recomputation."""

    module: torch.nn.Module
    arguments: Any
    # What of the calls before was still there.
    alive: frozenset[_Place]
    states: list[_State]
    state: UnitState

    def make(self, index: int, args: Any, kwargs: Any) -> dict[_Place, Any]:
        outputs = self.module(*args, **kwargs)
        return _numbered(index, _results(outputs, args, kwargs))


def _numbered(call: int, leaves: Sequence[Any]) -> dict[_Place, Any]:
    return {(call, place): leaf for place, leaf in enumerate(leaves)}


def _results(outputs: Any, args: Any, kwargs: Any) -> list[Any]:
    """What a call returned, and what is in what it was given, where it may have put some."""
    given = [] if holds_nothing(args, kwargs) else tensors_given(args, kwargs)
    return _leaves(outputs) + given


def _leaves(values: Any) -> list[Any]:
    """Those of a pytree, and after them the fields of leaves that are dataclasses."""
    leaves = tree_leaves(values)
    fields = [
        [getattr(leaf, field.name) for field in dataclasses.fields(leaf)]
        for leaf in leaves
        if dataclasses.is_dataclass(leaf) and not isinstance(leaf, type)
    ]
    return leaves + _leaves(fields) if fields else leaves


def _reference(leaf: Any) -> Callable[[], Any] | None:
    """Of what a value is told by. What is as good as any other of its kind has none."""
    try:
        return weakref.ref(leaf)
    except TypeError:
        return None


def _facts(tensor: torch.Tensor) -> tuple[Any, ...]:
    """What changes where a tensor is made another one."""
    node = tensor.grad_fn
    # PyTorch 2.9 has another object for the same node each time that none is held.
    number = None if node is None else node._sequence_nr()
    shape = (tensor.shape, tensor.dtype, tensor.requires_grad)
    return (version_of(tensor), memory_of(tensor), number, shape)


def _tensors_within(value: Any, depth: int = 3) -> Iterator[torch.Tensor]:
    if is_a(value, torch.Tensor):
        yield value
    elif depth == 0 or is_a(value, (type, torch.nn.Module)):
        return
    else:
        attributes = attributes_of(value) or {}
        for entry in (*(elements_of(value) or ()), *attributes.values()):
            yield from _tensors_within(entry, depth - 1)


def _settings() -> tuple[Any, ...]:
    """What PyTorch gives back to the recomputation as it was at the run's beginning."""
    return torch.is_inference_mode_enabled(), *(
        (torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind))
        for kind in ("cpu", "cuda", "xpu")
    )


class _Frame:
    """What the recomputation needs: the calls of a run, and what they were given."""

    def __init__(self, policy: Policy, tape: Tape, of: _Run) -> None:
        self.calls: list[_CallOfModule] = []
        self.sharded: list[torch.nn.Module] = []
        self.tape = tape
        self._fqn = policy.fqn
        self._run = weakref.ref(of)
        self._held: dict[int, _Held] = {}
        self._first: Any = None
        # The exception that ended the last call, if one did.
        self.left_by: tuple[type[BaseException], ...] = ()

    def make(self, args: Any, kwargs: Any) -> Hooks:
        """As PyTorch makes frames; returns the hooks by which autograd saves into it."""
        by_position = {id(a): index for index, a in enumerate(args)}

        def source(tensor: torch.Tensor) -> Any:
            # Those by position are held by PyTorch, which looks after them.
            place = by_position.get(id(tensor))
            return self._hold_as_it_is(tensor) if place is None else _ByPosition(place)

        self._first = Copies(source).of((args, kwargs))
        args, kwargs = copied((args, kwargs))
        found: list[Hooks] = []
        is_forward = True

        def run_again(*args: Any, **kwargs: Any) -> None:
            if is_forward:
                assert _top_hooks is not None
                found.append(_top_hooks(True))
            else:
                run(self._call_again, self.tape, args)

        checkpoint(run_again, *args, use_reentrant=False, context_fn=self._contexts, **kwargs)
        is_forward = False
        # It is not to be held by what it holds.
        return found.pop()

    def _contexts(self) -> Any:
        again = _Recomputation(self.tape, self._fqn, self, self.sharded)
        return contextlib.nullcontext(), again

    def settle(self) -> None:
        """Nothing is added to it any more."""
        current = self._run()
        if current is not None:
            current.settle()
        for held in self._held.values():
            if held.version != version_of(held.tensor):
                raise AcplanError(
                    f"{self._fqn}: a tensor of shape {tuple(held.tensor.shape)} that a "
                    "module of the run was given has been written to in place before "
                    "the run is recomputed"
                )

    def add(self, call: _CallOfModule) -> None:
        self.calls.append(call)
        self.sharded += sharded_in(call.module)

    def hold(self, tensor: torch.Tensor) -> _Held:
        """Without its graph, which may be of what holds this frame."""
        held = self._held.get(id(tensor))
        if held is None or held.of() is not tensor:
            kept = tensor
            if tensor.grad_fn is not None:
                kept = tensor.detach().requires_grad_()
            held = _Held(kept, version_of(kept), weakref.ref(tensor))
            self._held[id(tensor)] = held
        return held

    def _hold_as_it_is(self, tensor: torch.Tensor) -> _Held:
        held = _Held(tensor, version_of(tensor), weakref.ref(tensor))
        return self._held.setdefault(id(tensor), held)

    def modules(self) -> Iterator[torch.nn.Module]:
        for call in self.calls:
            yield from call.module.modules()

    def generator_states(self, given: Any) -> list[_State]:
        """Of all that may have been drawn from since the call before."""
        if not self.calls:
            return []  # PyTorch looks after them.
        devices = {t.device for t in tree_leaves(given) if isinstance(t, torch.Tensor)}
        drawn_from = [torch.default_generator, *self.tape.first_states]
        drawn_from += filter(None, map(generators.default_generator, devices))
        return [(g, g.get_state()) for g in dict.fromkeys(drawn_from)]

    def _call_again(self, given: Sequence[Any]) -> None:
        made: dict[_Place, Any] = {}

        def source(leaf: Any) -> Any:
            if isinstance(leaf, _ByPosition):
                return given[leaf.index]
            if isinstance(leaf, _Again):
                return made[leaf.place]
            return leaf.tensor if isinstance(leaf, _Held) else leaf

        before = {g: g.get_state() for call in self.calls for g, _ in call.states}
        try:
            for index, call in enumerate(self.calls):
                for generator, state in call.states:
                    generator.set_state(state)
                call.state.put_back()
                for place in [place for place in made if place not in call.alive]:
                    del made[place]
                arguments = self._first if index == 0 else call.arguments
                args, kwargs = Copies(of_other=source).of(arguments)
                if index == 0:
                    made |= _numbered(-1, tensors_given(args, kwargs))
                with endings_kept():
                    made |= call.make(index, args, kwargs)
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
        frame: _Frame,
        sharded: Sequence[torch.nn.Module],
    ) -> None:
        super().__init__(tape, fqn, frame, sharded)
        self._frame = frame

    def __enter__(self) -> "_Recomputation":
        self._frame.settle()
        super().__enter__()
        return self
