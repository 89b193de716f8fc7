"""Selective checkpoints: which operators of a unit are saved, by a plan's list."""

import contextlib
import dataclasses
import functools
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from acplan._apply.forward_mode import Forward
from acplan._apply.offload import Freight, Traffic
from acplan._apply.recompute_mode import Call, Recomputation, Stopped, run
from acplan._apply.tape import RUN, SAVE, SKIP, Choice, Offload, Tape, Writes
from acplan._apply.unit_state import UnitState
from acplan._base.call_arguments import copied, holds_nothing, tensors_given
from acplan._base.errors import AcplanError, PlanMismatchWarning
from acplan._base.modules import FSDPModule


class Decision(Protocol):
    """What a plan says of an operator, by any of the names that PyTorch gives it."""

    @property
    def name(self) -> str: ...

    @property
    def save(self) -> bool: ...

    @property
    def skip(self) -> bool:
        """Not run again, and not saved: nothing that runs again needs its results."""
        ...

    @property
    def results(self) -> tuple[int, ...] | None:
        """Of a saved operator, those of the tensors it makes that are kept; None: all."""
        ...

    @property
    def offload(self) -> bool:
        """Of a saved operator: what is kept waits in the host's memory."""
        ...


def _choice_of(decision: Decision) -> Choice:
    if decision.save:
        kept = SAVE if decision.results is None else decision.results
        return Offload(kept) if decision.offload else kept
    return SKIP if decision.skip else RUN


def _kept_of(choice: Choice) -> Choice:
    return choice.kept if isinstance(choice, Offload) else choice


def checkpoint_of(
    fqn: str,
    decisions: Sequence[Decision],
    strict: bool = False,
    traffic: Traffic | None = None,
) -> Callable[..., Any]:
    """Calls a module in a checkpoint, for `checkpoint_wrapper`. `traffic` is that of all
    units, where the plan offloads anything.

    Where the module runs other operators than the plan lists, what the plan does not
    know is recomputed, and what it skips, and a PlanMismatchWarning says so once; if
    strict, AcplanError is raised. Under torch.compile, which leaves out and rewrites
    operators, only what the plan saves must be there as often as the plan lists it.
    """
    policy = Policy.of(fqn, decisions, strict)
    saved = _saved_by_name(decisions)

    def call(module: torch.nn.Module, /, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            # A constant, by which the compiler knows what may share its code.
            in_compiler = functools.partial(
                _contexts_in_compiler, saved, policy.offloads, strict
            )
            return checkpoint(
                module, *args, use_reentrant=False, context_fn=in_compiler, **kwargs
            )
        tape = Tape(policy.skips)
        tape.state = UnitState(module.modules())
        tape.tell, tape.is_strict = policy.tell, strict
        context_fn = functools.partial(_contexts, module, policy, tape)
        with freight_of_call(traffic, policy, tape):
            outputs = _checkpointed(module, args, kwargs, context_fn, tape)
            # It may have put some into what it was given.
            tape.watch(
                outputs
                if holds_nothing(args, kwargs)
                else (outputs, tensors_given(args, kwargs))
            )
        return outputs

    return call


def _checkpointed(
    module: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    context_fn: Callable[[], Any],
    tape: Tape | None = None,
) -> Any:
    """Calls a module in a checkpoint that holds what it is given as it is now."""
    called: Callable[..., Any] = Call(module, args, kwargs)
    if tape is not None and tape.may_skip:
        called = functools.partial(run, called, tape)
    if not holds_nothing(args, kwargs):
        args, kwargs = copied((args, kwargs))
    try:
        return checkpoint(called, *args, use_reentrant=False, context_fn=context_fn, **kwargs)
    except Stopped as stopped:
        raise stopped.error from None


def whole_checkpoint_of(fqn: str, traffic: Traffic | None = None) -> Callable[..., Any]:
    """Calls a module in a checkpoint that saves nothing, for `checkpoint_wrapper`."""

    def call(module: torch.nn.Module, /, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return checkpoint(module, *args, use_reentrant=False, **kwargs)
        tape = Tape()
        tape.state = UnitState(module.modules())
        with freight_of_call(traffic, None, tape):
            context_fn = functools.partial(_contexts_of_whole, module, fqn, tape)
            return _checkpointed(module, args, kwargs, context_fn)

    return call


@contextlib.contextmanager
def freight_of_call(
    traffic: Traffic | None, policy: "Policy | None", tape: Tape
) -> Iterator[None]:
    """Around a call of a unit in forward."""
    if traffic is None:
        yield
        return
    freight = start_of_call(traffic, policy, tape)
    with traffic.inside():
        yield
    if freight is not None:
        traffic.ended(freight)


def start_of_call(traffic: Traffic, policy: "Policy | None", tape: Tape) -> Freight | None:
    """What a call of a unit that begins has with the host."""
    if not torch.is_grad_enabled():
        return None
    offloads = policy is not None and policy.offloads
    freight = traffic.start(tape, offloads)
    if freight is None and policy is not None and offloads:
        policy.tell_that_nothing_is_offloaded("it is called inside another unit")
    return freight


def _contexts_of_whole(module: torch.nn.Module, fqn: str, tape: Tape) -> "Contexts":
    sharded = sharded_in(module)
    is_compiled = any(map(has_compiled_call, module.modules()))
    return (
        Forward(tape, lambda func: RUN, lambda tape: None, sharded, not is_compiled),
        Recomputation(tape, fqn, module, sharded),
    )


def sharded_in(module: torch.nn.Module) -> list[torch.nn.Module]:
    return [m for m in module.modules() if isinstance(m, FSDPModule)]


Contexts = tuple[TorchDispatchMode, TorchDispatchMode]


def _contexts(module: torch.nn.Module, policy: "Policy", tape: Tape) -> Contexts:
    sharded = sharded_in(module)
    is_compiled = any(map(has_compiled_call, module.modules()))
    matching: Matching = _NothingSaved(policy)
    if not is_compiled:
        matching = InOrder(policy, tape)
    tape.writes = Writes() if policy.leaves_out_writes else None
    return (
        Forward(tape, matching.choose, matching.end, sharded, not is_compiled),
        Recomputation(tape, policy.fqn, module, sharded),
    )


def has_compiled_call(module: torch.nn.Module) -> bool:
    return module._compiled_call_impl is not None or "_orig_mod" in module._modules


def _writes_in_place(name: str) -> bool:
    parts = name.split(".")
    return (parts[1] if len(parts) > 1 else name).endswith("_")


def _may_write(name: str) -> bool:
    """Whether an operator of this name writes to what it is given."""
    packet, _, overload = name.removeprefix("aten.").partition(".")
    func = getattr(getattr(torch.ops.aten, packet, None), overload or "default", None)
    schema = getattr(func, "_schema", None)
    return _writes_in_place(name) or bool(schema and schema.is_mutable)


def _leaves_out_a_write(decision: Decision) -> bool:
    if decision.save:
        return _writes_in_place(decision.name)
    return decision.skip and _may_write(decision.name)


def _names(func: Any) -> tuple[str, ...]:
    packet = getattr(func, "_overloadpacket", None)
    name = getattr(func, "__name__", str(func))
    return str(func), name, getattr(packet, "__name__", name)


def _is_attention(name: str) -> bool:
    """Of which there is a kernel for each device, mask and data type."""
    return "_scaled_dot_product_" in name and "backward" not in name


@dataclasses.dataclass
class Policy:
    """A plan for a unit, its names numbered, and what has been warned of."""

    fqn: str
    decisions: Sequence[Decision]
    is_strict: bool
    leaves_out_writes: bool
    skips: bool
    offloads: bool
    order: tuple[int, ...]
    choices: tuple[Choice, ...]
    numbers: dict[str, int]
    # RUN, or what it comes to where the plan's place is lost.
    saves_of: tuple[tuple[Choice, ...], ...]
    # Of each place, the operator that was found there to be the plan's.
    found: list[Any]
    has_warned: bool = False
    _known: dict[Any, tuple[int, ...]] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, fqn: str, decisions: Sequence[Decision], strict: bool) -> "Policy":
        numbers: dict[str, int] = {}
        saves_of: list[list[Choice]] = []
        order = []
        for decision in decisions:
            number = numbers.setdefault(decision.name, len(numbers))
            if number == len(saves_of):
                saves_of.append([])
            whole = Offload(SAVE) if decision.offload else SAVE
            saves_of[number].append(whole if decision.save else RUN)
            order.append(number)
        choices = tuple(map(_choice_of, decisions))
        return cls(
            fqn,
            decisions,
            strict,
            any(map(_leaves_out_a_write, decisions)),
            any(_kept_of(choice) not in (RUN, SAVE) for choice in choices),
            any(decision.offload for decision in decisions),
            tuple(order),
            choices,
            numbers,
            tuple(map(tuple, saves_of)),
            [None] * len(order),
        )

    def numbers_of(self, func: Any) -> tuple[int, ...]:
        """Of the plan's names, those that the operator has."""
        known = self._known.get(func)
        if known is None:
            found = (self.numbers.get(name) for name in _names(func))
            known = tuple(dict.fromkeys(n for n in found if n is not None))
            self._known[func] = known
        return known

    def kin_of(self, func: Any) -> tuple[int, ...]:
        """What the plan knows under the name of another kernel."""
        if not _is_attention(str(func)):
            return ()
        return tuple(n for name, n in self.numbers.items() if _is_attention(name))

    def warn(self, text: str) -> None:
        if not self.has_warned:
            self.has_warned = True
            # Where it is called from says nothing: it is the module that counts.
            warnings.warn(f"{self.fqn}: {text}", PlanMismatchWarning, stacklevel=2)

    def tell(self, text: str) -> None:
        """Warns, or raises, of a call that is not as planned."""
        if self.is_strict:
            raise AcplanError(
                f"{self.fqn}: {text}; trace the model as it is trained and plan anew"
            )
        self.warn(
            f"{text}; losses and gradients are those without the plan, but the peak may be "
            "another one than predicted"
        )

    def tell_that_nothing_is_offloaded(self, why: str) -> None:
        text = f"{why}: what the plan offloads stays on the device"
        if self.is_strict:
            raise AcplanError(f"{self.fqn}: {text}")
        self.warn(f"{text}, and the peak may be another one than predicted")


class Matching(Protocol):
    """Of one call of a unit."""

    def choose(self, func: Any) -> Choice: ...

    def end(self, tape: Tape) -> None: ...


class _NothingSaved:
    """What runs in compiled code is not seen operator by operator, and its memory may
    be written to unseen."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    def choose(self, func: Any) -> Choice:
        return RUN

    def end(self, tape: Tape) -> None:
        text = (
            "a part of it is compiled, and the plan is for single operators; all of it "
            "is recomputed: compile the whole module after acplan.apply"
        )
        if self._policy.is_strict:
            raise AcplanError(f"{self._policy.fqn}: {text}")
        self._policy.warn(text)


class InOrder:
    """By position, and from the first difference on by name and occurrence, where
    nothing is skipped."""

    def __init__(self, policy: Policy, tape: Tape) -> None:
        self._policy = policy
        self._tape = tape
        self._order = policy.order
        self._choices = policy.choices
        self._found_before = policy.found
        self._place = 0
        # As long as there is no difference.
        self._end = len(policy.order)
        self._difference = ""
        self._seen: Counter[int] = Counter()
        self._found = 0

    def choose(self, func: Any) -> Choice:
        place = self._place
        if place < self._end and self._found_before[place] is func:
            self._place = place + 1
            return self._choices[place]
        numbers = self._policy.numbers_of(func)
        if not self._difference:
            if place < self._end and self._order[place] in numbers:
                self._found_before[place] = func
                self._place = place + 1
                return self._choices[place]
            self._part(str(func))
        return self._choice_by_name(numbers or self._policy.kin_of(func))

    def _choice_by_name(self, numbers: tuple[int, ...]) -> Choice:
        for number in numbers:
            times = self._policy.saves_of[number]
            occurrence = self._seen[number]
            self._seen[number] += 1
            if occurrence < len(times) and times[occurrence] != RUN:
                self._found += 1
                return times[occurrence]
        return RUN

    def end(self, tape: Tape) -> None:
        policy = self._policy
        if not self._difference and self._place < len(self._order):
            self._part("missing")
        if not self._difference:
            tape.is_as_planned = not (tape.distrusted_for or tape.has_dropped)
            self._tell_distrust(tape.distrusted_for)
        elif not policy.has_warned:
            count = sum(decision.save for decision in policy.decisions)
            policy.warn(
                f"{self._difference}. What the plan does not know is recomputed; "
                "losses and gradients are those without the plan, but the peak may be "
                f"another one than predicted: of {count} operators that the "
                f"plan saves here {self._found} were found, and "
                f"{tape.saved_bytes():,} bytes are saved"
            )

    def _tell_distrust(self, reason: str) -> None:
        if not reason:
            return
        text = f"{reason}: what the plan skips is recomputed"
        if self._policy.is_strict:
            raise AcplanError(f"{self._policy.fqn}: {text}")
        self._policy.warn(
            f"{text}, and the peak may be another one than predicted; losses and "
            "gradients are those without the plan"
        )

    def _part(self, found: str) -> None:
        place = self._place
        is_inside = place < len(self._order)
        expected = self._policy.decisions[place].name if is_inside else "no more operators"
        self._difference = f"operator {place} is {found}, the plan expects {expected}"
        self._end = 0
        if self._policy.is_strict:
            raise AcplanError(
                f"{self._policy.fqn}: {self._difference}; trace the model as it is "
                "trained and plan anew"
            )
        self._seen.update(self._order[:place])
        self._found = sum(d.save for d in self._policy.decisions[:place])
        self._tape.distrust(self._difference)


def _contexts_in_compiler(saved: str, offloads: bool, strict: bool) -> Contexts:
    plan = _ByName(saved, strict)
    if offloads:
        _tell_compiler_keeps(strict)

    def policy(context: Any, func: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        if plan.saves(func):
            return CheckpointPolicy.MUST_SAVE
        return CheckpointPolicy.PREFER_RECOMPUTE

    forward, recomputation = create_selective_checkpoint_contexts(
        policy, allow_cache_entry_mutation=True
    )
    return (
        _InCompiler(forward, plan.start, plan.end),
        _InCompiler(recomputation, plan.start, lambda: None),
    )


def _tell_compiler_keeps(strict: bool) -> None:
    text = "under torch.compile, what the plan offloads is saved on the device"
    if strict:
        raise AcplanError(f"{text}: plan without offload, or train it without")
    warnings.warn(
        f"{text}, and the peak is another one than predicted",
        PlanMismatchWarning,
        stacklevel=2,
    )


def _saved_by_name(decisions: Sequence[Decision]) -> str:
    """Of operators that are saved at all, which times: `aten.mm.default 01`."""
    times: dict[str, str] = defaultdict(str)
    for decision in decisions:
        times[decision.name] += str(int(decision.save))
    return "\n".join(f"{name} {at}" for name, at in times.items() if "1" in at)


class _ByName:
    def __init__(self, saved: str, strict: bool) -> None:
        self._times = dict(line.split(" ") for line in saved.splitlines())
        self._is_strict = strict
        self._seen: Counter[str] = Counter()

    def start(self) -> None:
        self._seen.clear()

    def saves(self, func: Any) -> bool:
        name = next((n for n in _names(func) if n in self._times), None)
        if name is None:
            return False
        place = self._seen[name]
        self._seen[name] += 1
        times = self._times[name]
        if place == len(times):
            self._part(name, "more often")
        return place < len(times) and times[place] == "1"

    def end(self) -> None:
        for name, times in self._times.items():
            if self._seen[name] < len(times):
                self._part(name, f"{self._seen[name]} times")

    def _part(self, name: str, found: str) -> None:
        difference = (
            f"a compiled unit runs {name} {found}, the plan, which saves some, "
            f"expects {len(self._times[name])}"
        )
        if self._is_strict:
            raise AcplanError(
                f"{difference}; trace the model as it is trained and plan anew, or "
                "train it without torch.compile"
            )
        warnings.warn(
            f"{difference}; what the plan does not know is recomputed, and the peak may "
            "be another one than predicted",
            PlanMismatchWarning,
            stacklevel=2,
        )


class _InCompiler(TorchDispatchMode):
    """One of torch's modes of a selective checkpoint, with a beginning and an end."""

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True

    def __init__(
        self,
        mode: TorchDispatchMode,
        on_start: Callable[[], None],
        on_end: Callable[[], None],
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._mode = mode
        self._on_start = on_start
        self._on_end = on_end

    @property
    def ac_graph_id(self) -> Any:
        return getattr(self._mode, "ac_graph_id", None)

    @ac_graph_id.setter
    def ac_graph_id(self, value: Any) -> None:
        # torch.compile numbers its checkpoints here.
        self._mode.ac_graph_id = value  # type: ignore[attr-defined]

    def __enter__(self) -> "_InCompiler":
        self._on_start()
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        super().__exit__(kind, error, traceback)  # type: ignore[no-untyped-call]
        if kind is None:
            self._on_end()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        return self._mode.__torch_dispatch__(func, types, args, kwargs)
