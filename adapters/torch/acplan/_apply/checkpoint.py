"""The checkpoint of a unit: how its module is called, in forward and again."""

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.utils.checkpoint import (
    checkpoint,
)

from acplan._apply.compiled_unit import contexts_in_compiler, saved_by_name
from acplan._apply.forward_mode import Forward
from acplan._apply.given_tensors import CallArguments, by_position, further_tensors
from acplan._apply.matching import Anything, InOrder, Matching, NothingSaved
from acplan._apply.mode import Contexts
from acplan._apply.offload import Freight, Traffic
from acplan._apply.policy import Decision, Policy
from acplan._apply.quiet_call import Knowledge, QuietForward, SeenForward, memory_given
from acplan._apply.recompute_mode import Recomputation
from acplan._apply.split_backward import in_parts, may_split
from acplan._apply.tape import Tape, Writes
from acplan._apply.unit_call import Call, Stopped, run
from acplan._apply.unit_state import StateOfUnit
from acplan._base.call_arguments import holds_nothing, tensors_given
from acplan._base.modules import FSDPModule


def checkpoint_of(
    fqn: str,
    decisions: Sequence[Decision],
    strict: bool = False,
    traffic: Traffic | None = None,
    offloaded_arguments: Sequence[int] = (),
) -> Callable[..., Any]:
    """Returns a function that calls a module in a checkpoint, for `checkpoint_wrapper`.
    `traffic` is that of all units, if the plan offloads anything.

    If the module runs other operators than the plan lists, the operators that the plan does not
    know, or skips, are recomputed, and a PlanMismatchWarning says so once; if strict,
    AcplanError is raised. Under torch.compile, which leaves out and rewrites operators, only
    the operators that the plan saves must run as often as the plan lists them.
    """
    policy = Policy.from_decisions(fqn, decisions, strict)
    saved = saved_by_name(decisions)
    offloads = policy.offloads or bool(offloaded_arguments)
    state = StateOfUnit()

    def call(module: torch.nn.Module, /, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            # A constant, by which the compiler knows which units may share code.
            in_compiler = functools.partial(contexts_in_compiler, saved, offloads, strict)
            return checkpoint(
                module, *args, use_reentrant=False, context_fn=in_compiler, **kwargs
            )
        tape = Tape(policy.skips)
        tape.state = state.now(module)
        tape.tell, tape.is_strict = policy.tell, strict
        context_fn = functools.partial(_contexts, module, policy, tape)
        with (
            freight_of_call(traffic, policy, tape, offloads) as freight,
            arguments_held(
                freight, policy, CallArguments(args, kwargs), offloaded_arguments
            ) as arguments,
        ):
            outputs = _checkpointed(module, arguments, context_fn, tape)
            # The call may have put tensors into its arguments.
            tape.watch(
                outputs
                if holds_nothing(args, kwargs)
                else (outputs, tensors_given(args, kwargs))
            )
        return outputs

    return call


def _checkpointed(
    module: torch.nn.Module,
    arguments: CallArguments,
    context_fn: Callable[[], Any],
    tape: Tape | None = None,
) -> Any:
    """Runs a module in a checkpoint that holds its arguments as they are now."""
    function: Callable[..., Any] = Call(module, arguments)
    if tape is not None and tape.may_skip:
        function = functools.partial(run, function, tape)
    if may_split():
        function = in_parts(function)
    args, kwargs = arguments.copies()
    try:
        return checkpoint(function, *args, use_reentrant=False, context_fn=context_fn, **kwargs)
    except Stopped as stopped:
        raise stopped.error from None


def whole_checkpoint_of(
    fqn: str,
    strict: bool = False,
    traffic: Traffic | None = None,
    offloaded_arguments: Sequence[int] = (),
    decisions: Sequence[Decision] = (),
) -> Callable[..., Any]:
    """Returns a function that calls a module in a checkpoint that saves nothing, for
    `checkpoint_wrapper`. If there are `decisions`, which then all recompute, a
    PlanMismatchWarning says if the calls that a mode sees run other operators."""

    knowledge, state = Knowledge(), StateOfUnit()
    policy = Policy.from_decisions(fqn, decisions, strict)
    offloads = bool(offloaded_arguments)

    def call(module: torch.nn.Module, /, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            if not (offloads or decisions):
                return checkpoint(module, *args, use_reentrant=False, **kwargs)
            in_compiler = functools.partial(contexts_in_compiler, "", offloads, strict)
            return checkpoint(
                module, *args, use_reentrant=False, context_fn=in_compiler, **kwargs
            )
        tape = Tape()
        tape.state = state.now(module)
        tape.argument_memory = memory_given(args, kwargs)
        if decisions:
            tape.tell = policy.tell
        context_fn = functools.partial(_contexts_of_whole, module, policy, tape, knowledge)
        with (
            freight_of_call(traffic, policy, tape, offloads) as freight,
            arguments_held(
                freight, policy, CallArguments(args, kwargs), offloaded_arguments
            ) as arguments,
        ):
            return _checkpointed(module, arguments, context_fn)

    return call


@contextlib.contextmanager
def freight_of_call(
    traffic: Traffic | None, policy: Policy, tape: Tape, offloads: bool
) -> Iterator[Freight | None]:
    """Counts the block as a call of a unit in forward, and yields its freight, if it has
    any."""
    if traffic is None:
        yield None
        return
    freight = start_of_call(traffic, policy, tape, offloads)
    with traffic.during_call():
        yield freight
    if freight is not None:
        traffic.ended(freight)


def start_of_call(
    traffic: Traffic, policy: Policy, tape: Tape, offloads: bool
) -> Freight | None:
    """Returns the freight of a call of a unit that begins, or None if it has none."""
    if not torch.is_grad_enabled():
        return None
    freight = traffic.start(tape, policy.offloads)
    if freight is None and offloads:
        policy.tell_that_nothing_is_offloaded("it is called inside another unit")
    return freight


@contextlib.contextmanager
def arguments_held(
    freight: Freight | None, policy: Policy, arguments: CallArguments, places: Sequence[int]
) -> Iterator[CallArguments]:
    """Sends, to the host, the arguments at these places of the checkpoint that begins in the
    block: places among the tensors by position, and after them among the memory of others.
    Yields the checkpoint's arguments."""
    if freight is None or not places:
        yield arguments
        return
    own = by_position(arguments.args)
    further = further_tensors(arguments.args, arguments.kwargs)
    count = len(own) + len(further)
    if places[-1] >= count:
        policy.tell_that_nothing_is_offloaded(
            f"it is given {count} tensors, and argument {places[-1]} is planned"
        )
    first = [
        tensor for place in places if len(own) <= place < count
        for tensor in further[place - len(own)]
    ]  # fmt: skip
    own = [own[place] for place in places if place < len(own)]
    with freight.holding([*own, *first]):
        yield CallArguments(arguments.args, arguments.kwargs, tuple(first))


def _contexts_of_whole(
    module: torch.nn.Module, policy: Policy, tape: Tape, knowledge: Knowledge
) -> tuple[Any, Recomputation]:
    assert tape.state is not None
    modules = tape.state.modules
    sharded = sharded_in(modules)
    is_compiled = any(map(has_compiled_call, modules))
    is_possible = not (sharded or is_compiled) and knowledge.may_be_quiet(tape)
    forward: Any = QuietForward(tape, knowledge)
    if not (is_possible and knowledge.is_quiet):
        has_list = policy.decisions and not is_compiled
        forward = SeenForward(
            tape,
            InOrder(policy, tape) if has_list else Anything(),
            knowledge if is_possible else None,
            sharded,
            not is_compiled,
        )
    return forward, Recomputation(tape, policy.fqn, module, sharded)


def sharded_in(modules: Iterable[torch.nn.Module]) -> list[FSDPModule]:
    return [m for m in modules if isinstance(m, FSDPModule)]


def _contexts(module: torch.nn.Module, policy: "Policy", tape: Tape) -> Contexts:
    modules = tape.state.modules if tape.state is not None else [*module.modules()]
    sharded = sharded_in(modules)
    is_compiled = any(map(has_compiled_call, modules))
    matching: Matching = NothingSaved(policy)
    if not is_compiled:
        matching = InOrder(policy, tape)
    tape.writes = Writes() if policy.leaves_out_writes else None
    return (
        Forward(tape, matching.choose, matching.end, sharded, not is_compiled),
        Recomputation(tape, policy.fqn, module, sharded),
    )


def has_compiled_call(module: torch.nn.Module) -> bool:
    return module._compiled_call_impl is not None or "_orig_mod" in module._modules
