"""The calls of a run of modules while they are made, in forward."""

import contextlib
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from acplan._apply.checkpoint import (
    arguments_held,
    start_of_call,
)
from acplan._apply.forward_mode import Forward
from acplan._apply.given_tensors import CallArguments
from acplan._apply.matching import Anything, InOrder, Matching
from acplan._apply.offload import Freight
from acplan._apply.outside_memory import version_of
from acplan._apply.policy import Policy
from acplan._apply.segment_frame import CallOfModule, Frame, MadeAgain, ValuePlace, results_of
from acplan._apply.tape import (
    Call,
    Choice,
    Saved,
    Skipped,
    Tape,
    Writes,
    memory_of,
    storage_of,
)
from acplan._apply.unit_call import making_all
from acplan._apply.unit_state import StateOfUnit
from acplan._base.call_arguments import Copies, tensors_given
from acplan._base.errors import AcplanError
from acplan._base.modules import FSDPModule
from acplan._base.object_parts import attributes_of, elements_of, is_a
from acplan._base.operators import Traits
from acplan._base.tensors import tensors_of

if TYPE_CHECKING:
    from acplan._apply.segment import Segment

# From PyTorch 2.14 on, a checkpoint distinguishes its own hooks from others when they are
# pushed.
_hooks_of_checkpoints = getattr(
    torch.utils.checkpoint,
    "_checkpoint_internal_hook",
    torch.autograd.graph.saved_tensors_hooks,
)
# The number of nodes that have none.
_NO_NUMBER = 1 << 63


def tell(policy: Policy, text: str) -> None:
    if policy.is_strict:
        raise AcplanError(
            f"{policy.fqn}: {text}; trace the model as it is trained and plan again"
        )
    policy.warn(
        f"{text}. The plan is for the modules of a run, called one right after another; "
        "losses and gradients equal those without the plan, but the peak may differ from the "
        "prediction"
    )


class Run:
    """The calls of a segment while they are made, in forward. A run is in `under_way` until it
    is recomputed, as nothing is added to it then."""

    def __init__(
        self,
        segment: "Segment",
        place: int,
        under_way: "list[Run]",
        args: Any,
        kwargs: Any,
    ) -> None:
        policy = segment.policy
        is_planned = place == 0 and bool(policy.decisions)
        self._segment = segment
        self.next = place
        self._under_way = under_way
        self.settings = settings_now()
        self._values = _KnownValues()
        tape = Tape(is_planned and policy.skips)
        tape.tell = policy.tell if is_planned else None
        tape.is_strict = policy.is_strict
        self._freight: Freight | None = None
        if segment.traffic is not None:
            offloads = policy.offloads or bool(segment.offloaded_arguments)
            self._freight = start_of_call(segment.traffic, policy, tape, offloads)
        self._matching: Matching = InOrder(policy, tape) if is_planned else Anything()
        if is_planned:
            tape.writes = Writes() if policy.leaves_out_writes else None
        self._frame = Frame(policy, tape, self)
        places = segment.offloaded_arguments if place == 0 else ()
        with arguments_held(
            self._freight, policy, CallArguments(args, kwargs), places
        ) as arguments:
            self._hooks = self._frame.make(arguments)
        if tape.may_skip:
            self._hooks = making_all(tape, self._hooks)
        self._forward = _Forward(tape, self._matching.choose, self._frame.sharded)
        self._values.note(-1, tensors_given(args, kwargs))

    def call(self, module: torch.nn.Module, args: Any, kwargs: Any) -> Any:
        if self._frame.tape.outputs_changed():
            self._frame.tape.drop()
        index = len(self._frame.calls)
        self._frame.add(
            CallOfModule(
                module,
                None if index == 0 else self._arguments(args, kwargs),
                self._values.alive(),
                self._frame.generator_states((args, kwargs)),
                StateOfUnit().now(module),
            )
        )
        self._forward.memory.state = self._frame.calls[-1].state
        self._forward.memory.forget_own(
            value for value in self._values.returned() if isinstance(value, torch.Tensor)
        )
        self.next += 1
        traffic = self._segment.traffic
        in_call = traffic.during_call() if traffic else contextlib.nullcontext()
        hooks = _hooks_of_checkpoints(*self._hooks)
        try:
            with in_call, hooks, self._forward:
                outputs = module(*args, **kwargs)
        except BaseException as error:
            self._frame.left_by = (type(error),)
            raise
        finally:
            self._frame.tape.watched = [
                (t, version_of(t)) for c in self._frame.calls for t in c.state.tensors
            ]
        self._values.note(index, results_of(outputs, args, kwargs))
        self._frame.tape.watch(self._values.returned())
        return outputs

    def end(self) -> None:
        self._leave()
        self._matching.end(self._frame.tape)
        if self._frame.tape.is_as_planned:
            self._forward.memory.let_go_of_copies()

    def _leave(self) -> None:
        self._under_way.clear()
        if self._segment.traffic is not None and self._freight is not None:
            self._segment.traffic.ended(self._freight)

    def end_early(self, why: str) -> None:
        """Ends the run before its last call. Results that the plan skips may be needed: the
        plan is for the whole run."""
        self.abandon(why)
        tell(self._segment.policy, why)

    def abandon(self, why: str) -> None:
        self._leave()
        self._frame.tape.distrust(why)
        if self._frame.tape.outputs_changed():
            self._frame.tape.drop()

    def settle(self) -> None:
        """Ends the run before it is recomputed."""
        if self not in self._under_way:
            return
        names = self._segment.names
        if self._frame.tape.is_open:
            self.end_early(f"a gradient is computed within {names[self.next - 1]}")
            return
        self.end_early(
            f"backward begins after {names[self.next - 1]}, but {names[self.next]} was expected"
        )

    def is_hidden_in(self, values: Any) -> bool:
        """Returns whether tensors of the run are in an object that cannot be made anew."""
        return self._values.is_hidden_in(values)

    def _arguments(self, args: Any, kwargs: Any) -> Any:
        return Copies(self._source, self._made_again).copy_of((args, kwargs))

    def _made_again(self, thing: Any) -> Any:
        entry = self._values.get(thing)
        return thing if entry is None else MadeAgain(entry.place)

    def _source(self, tensor: torch.Tensor) -> Any:
        entry = self._values.get(tensor)
        if entry is not None:
            if entry.place[0] < 0 or not entry.has_changed():
                return MadeAgain(entry.place)
            self._tell_of_tensor("that was written to since a module of the run made it")
        elif self._values.is_new(tensor):
            self._tell_of_tensor("that is computed between the modules of the run")
        return self._frame.hold(tensor)

    def _tell_of_tensor(self, what: str) -> None:
        name = self._segment.names[self.next]
        text = f"{name} receives a tensor {what}, which stays in memory until backward"
        tell(self._segment.policy, text)


class _KnownValues:
    """The values that the calls of a run are given and return, by identity."""

    def __init__(self) -> None:
        self._by_id: dict[int, _Known] = {}
        self._began = torch._C._autograd._get_sequence_nr()

    def note(self, call: int, leaves: Sequence[Any]) -> None:
        """Notes the values that a call returned, or, with -1, those that the first call is
        given."""
        for place, leaf in enumerate(leaves):
            ref = _reference(leaf)
            if ref is not None:
                self._by_id[id(leaf)] = _Known((call, place), ref)
        # Memory to which the modules of the run write is written to again.
        dead = []
        for key, entry in self._by_id.items():
            value = entry.ref()
            if value is None:
                dead.append(key)
            elif isinstance(value, torch.Tensor):
                entry.facts = _facts(value)
        for key in dead:
            del self._by_id[key]

    def get(self, thing: Any) -> "_Known | None":
        entry = self._by_id.get(id(thing))
        return None if entry is None or entry.ref() is not thing else entry

    def alive(self) -> frozenset[ValuePlace]:
        return frozenset(k.place for k in self._by_id.values() if k.is_alive())

    def returned(self) -> list[Any]:
        """Returns the values that calls returned; None in place of those that are gone."""
        return [k.ref() for k in self._by_id.values() if k.place[0] >= 0]

    def is_hidden_in(self, values: Any) -> bool:
        """Returns whether tensors of the run are in an object that cannot be made anew."""
        others: list[Any] = []
        Copies(of_other=others.append).copy_of(values)
        return any(
            self.is_new(tensor)
            for other in others
            if id(other) not in self._by_id
            for tensor in _tensors_within(other)
        )

    def is_new(self, tensor: torch.Tensor) -> bool:
        """Returns whether a tensor's graph belongs to the run, or to what was computed
        since."""
        node = tensor.grad_fn
        return node is not None and self._began <= node._sequence_nr() < _NO_NUMBER


class _Forward(Forward):
    """A mode that writes the tape, and makes sure that no operator runs again on a tensor that
    is not made again: the modules run the operators of the plan, and the code that calls them
    may pass on another result than it did in the trace."""

    def __init__(
        self,
        tape: Tape,
        decide: Callable[[Any], Choice],
        sharded: Sequence[FSDPModule],
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
            self._tape.distrust(f"{func} reads the result of a skipped operator")

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


class _Known:
    """A value that a call was given or returned, as long as it lives."""

    __slots__ = ("place", "ref", "facts")

    def __init__(self, place: ValuePlace, ref: Callable[[], Any]) -> None:
        self.place = place
        self.ref = ref
        self.facts: Any = None

    def is_alive(self) -> bool:
        return self.ref() is not None

    def has_changed(self) -> bool:
        value = self.ref()
        return isinstance(value, torch.Tensor) and self.facts != _facts(value)


def _reference(leaf: Any) -> Callable[[], Any] | None:
    """Returns a weak reference that identifies a value, or None for a value that is as good as
    any equal one."""
    try:
        return weakref.ref(leaf)
    except TypeError:
        return None


def _facts(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Returns properties that change if a tensor is replaced in place."""
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


def settings_now() -> tuple[Any, ...]:
    """Returns the settings that PyTorch restores for the recomputation as they were at the
    run's beginning."""
    return torch.is_inference_mode_enabled(), *(
        (torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind))
        for kind in ("cpu", "cuda", "xpu")
    )
