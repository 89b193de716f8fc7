"""Calls of units that recompute everything, which run without a mode.

Such a unit needs a mode only for what it does beside its results: memory from outside that it
writes to, or reads and others write to later, and generators from which it draws. A unit is
*quiet* if a call of it, seen by a mode, read nothing but its arguments and its modules' tensors
and wrote to nothing but memory of its own. From then on its calls are only watched (watch.py),
and their recomputations, if nothing has changed since forward, run as they are.

This is how PyTorch's checkpoint runs a module, and takes little more time. If a watched call
writes to an argument or a tensor of its modules after all, the contents are copied before, its
recomputation has a mode, and the unit is quiet no more.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch._dynamo.utils import counters
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointWrapper

from acplan._apply.call_memory import CallMemory
from acplan._apply.forward_mode import Forward
from acplan._apply.matching import Matching
from acplan._apply.outside_memory import QUIET, Outside, copy_for_readers, version_of
from acplan._apply.tape import Tape, memory_of
from acplan._base import watch
from acplan._base.call_arguments import holds_nothing, tensors_given
from acplan._base.generators import generator_of
from acplan._base.modules import FSDPModule
from acplan._base.operators import STATISTICS, draws, statistics_of, traits_of, written_by
from acplan._base.triton_kernels import watch_launches

_PLAIN = frozenset([torch.Tensor, torch.nn.Parameter])


def memory_given(args: Iterable[Any], kwargs: Mapping[str, Any]) -> set[int] | None:
    """Returns the memory of the tensors among a call's arguments, or None if any tensor is of a
    class of its own."""
    values = [*args, *kwargs.values()]
    if not holds_nothing(values, {}):
        values = [*tensors_given(*values)]
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    if not _PLAIN.issuperset(map(type, tensors)):
        return None
    return {memory for tensor in tensors if (memory := memory_of(tensor)) is not None}


class Knowledge:
    """Holds whether a unit is quiet, as soon as a call of it has shown that."""

    def __init__(self) -> None:
        self.is_quiet: bool | None = None

    def may_be_quiet(self, tape: Tape) -> bool:
        """Returns whether a call can be watched, or, if no call has been seen so far, one like
        it."""
        state = tape.state
        if self.is_quiet is False or tape.argument_memory is None or state is None:
            return False
        # Units in units see each other's copies.
        if watch.is_watching() or any(isinstance(m, CheckpointWrapper) for m in state.modules):
            return False
        # Other modes change what runs, and compiled code depends on the watch.
        if torch._C._len_torch_dispatch_stack() or counters["frames"]["total"]:
            return False
        return _PLAIN.issuperset(state.kinds) and watch.can_watch()

    def learn(self, tape: Tape, memory: CallMemory) -> None:
        """Learns from the first call, which a mode has seen and which ends."""
        if self.is_quiet is not None or tape.state is None:
            return
        self.is_quiet = (
            memory.is_quiet
            and memory.has_read_only(tape.memory_in_reach())
            and tape.state.is_settled()
        )
        tape.is_quiet = self.is_quiet


class SeenForward(Forward):
    """The forward pass of a call that recomputes everything, which a mode sees. If there is
    `knowledge`, it learns from the call."""

    def __init__(
        self,
        tape: Tape,
        matching: Matching,
        knowledge: Knowledge | None,
        sharded: Sequence[FSDPModule],
        sees_all: bool,
    ) -> None:
        super().__init__(tape, matching.choose, matching.end, sharded, sees_all)
        self._knowledge = knowledge

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        super().__exit__(kind, error, traceback)
        if self._knowledge is not None and kind is None:
            self._knowledge.learn(self._tape, self.memory)


class QuietForward:
    """The forward pass of a call that is watched."""

    def __init__(self, tape: Tape, knowledge: Knowledge) -> None:
        self._tape = tape
        self._knowledge = knowledge

    def __enter__(self) -> None:
        tape = self._tape
        assert tape.state is not None
        tape.is_open = tape.is_quiet = True
        # It is not known which ones the call reads.
        tape.state.hold_all()
        QUIET.add(tape)
        watch_launches()
        watch.begin(self)

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        watch.end()
        tape = self._tape
        assert tape.state is not None
        tape.is_open = False
        if kind is None:
            tape.watched = [(t, version_of(t)) for t in tape.state.tensors]

    def see(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Notes what the recomputation needs to know of an operator that is about to run."""
        traits, tape = traits_of(func), self._tape
        if draws(traits, args, kwargs):
            generator = generator_of(args, kwargs)
            if generator is not None and generator is not torch.default_generator:
                tape.first_states.setdefault(generator, generator.get_state())
        if not traits.writes:
            return
        targets = written_by(func, args, kwargs) if traits.is_mutable else []
        statistics = statistics_of(func, args, kwargs)
        if not (statistics or traits.is_mutable):
            # Nothing counts later updates of statistics that it reads.
            names = [argument.name for argument in func._schema.arguments]
            pairs = [*zip(names, args), *kwargs.items()]
            statistics = [
                value for name, value in pairs if name in STATISTICS and value is not None
            ]
        for tensor in (*targets, *statistics):
            memory = memory_of(tensor)
            if memory is None or memory not in tape.memory_in_reach():
                continue
            copy_for_readers(tensor, tape)
            if memory not in tape.outside_memory:
                tape.outside_memory[memory] = Outside(tensor, 0)
            self._knowledge.is_quiet = False
