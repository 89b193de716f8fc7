"""Runs of modules as one unit: one checkpoint around calls that follow each other.

A segment is a run of children of one module that its code calls one after the other. Nobody
calls the run as a whole, so the wrapper of each module knows the module's place in the run. The
first call makes a checkpoint's frame. PyTorch makes the frame, which is left at once: the pair
of hooks by which autograd saves into the frame is kept. Each call of the run is then made under
these hooks and under the mode that writes the tape, and between two calls nothing is left open:
whatever the code around them does, and wherever it ends, there is nothing to undo. A frame with
some calls of the run is a checkpoint of a shorter run.

The recomputation calls the modules again in order, with forward's arguments. An argument that
an earlier call of the run returned is the one that this call returns now; all others are held
as they were, tensors without their graph, which would hold the frame that holds them.

So whatever is computed between two calls, and whoever writes to the tensors that they returned:
the next call is given forward's values, or the run ends before it. The plan is for the whole
run; if the run is not called so, nothing is skipped, and a run that begins in the middle is
recomputed as a whole.
"""

import copy
import dataclasses
import functools
import threading
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from acplan._apply.checkpoint import (
    has_compiled_call,
    whole_checkpoint_of,
)
from acplan._apply.offload import Traffic
from acplan._apply.policy import Policy
from acplan._apply.segment_run import Run, settings_now, tell
from acplan._apply.unit_call import CAN_TELL_HOOKS
from acplan._base.errors import AcplanError
from acplan._files.plan_file import PlannedModule


class Segment:
    """A run of modules that is one unit, and which of its calls is next."""

    def __init__(
        self,
        unit_plan: PlannedModule,
        names: Sequence[str],
        strict: bool,
        traffic: Traffic | None = None,
    ) -> None:
        """Makes one unit of the modules `names`. Without operators, all is recomputed."""
        fqn = unit_plan.fqn
        if not CAN_TELL_HOOKS:
            raise AcplanError(
                f"plan: {fqn} is a run of modules, which needs a PyTorch that returns the "
                f"current saved-tensor hooks; {torch.__version__} does not"
            )
        self._made_of = (unit_plan, tuple(names), strict, traffic)
        self._policy = Policy.from_decisions(fqn, unit_plan.operators_seen, strict)
        self._thread = threading.local()

    def __reduce__(self) -> Any:
        # A copy of the model has runs of its own.
        return Segment, self._made_of

    def __deepcopy__(self, memo: dict[int, Any]) -> "Segment":
        unit_plan, names, strict, traffic = self._made_of
        return Segment(unit_plan, names, strict, copy.deepcopy(traffic, memo))

    def places(self) -> list["Place"]:
        """Returns functions that call its modules, for `checkpoint_wrapper`."""
        return [Place(self, place) for place in range(len(self.names))]

    @property
    def names(self) -> tuple[str, ...]:
        return self._made_of[1]

    @property
    def policy(self) -> Policy:
        return self._policy

    @property
    def traffic(self) -> Traffic | None:
        return self._made_of[3]

    @property
    def offloaded_arguments(self) -> tuple[int, ...]:
        return self._made_of[0].offloaded_arguments

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
            current = Run(self, place, self._under_way, args, kwargs)
            self._under_way.append(current)
        try:
            outputs = current.call(module, args, kwargs)
        except BaseException:
            # The user must not be told twice.
            current.abandon("an exception ended the call")
            raise
        if current.next == len(self.names) and current in self._under_way:
            current.end()
        return outputs

    def call_alone(
        self, place: int, why: str, module: torch.nn.Module, args: Any, kwargs: Any
    ) -> Any:
        """Runs a module as a unit of its own, all of which is recomputed."""
        self._end_early(f"{self.names[place]} {why}")
        self._tell(f"{self.names[place]} {why}")
        name = f"{self.policy.fqn}: {self.names[place]}"
        whole = whole_checkpoint_of(name, traffic=self.traffic)
        return whole(module, *args, **kwargs)

    def _current_before(self, place: int, args: Any, kwargs: Any) -> "Run | None":
        """Returns the run that this call continues."""
        current = self._current()
        if current is None:
            return None
        name = self.names[place]
        if current.next != place:
            self._end_early(f"{name} is called, but {self.names[current.next]} was expected")
        elif current.settings != settings_now():
            self._end_early(
                f"{name} is called under another autocast than the module before it"
            )
        elif current.is_hidden_in((args, kwargs)):
            self._end_early(f"{name} receives an object that holds tensors of the run")
        return self._current()

    @property
    def _under_way(self) -> "list[Run]":
        """The runs of this thread: none or one."""
        runs: list[Run] | None = getattr(self._thread, "runs", None)
        if runs is None:
            runs = self._thread.runs = []
        return runs

    def _current(self) -> "Run | None":
        runs = self._under_way
        return runs[0] if runs else None

    def _end_early(self, why: str) -> None:
        current = self._current()
        if current is not None:
            current.end_early(why)

    def _tell(self, text: str) -> None:
        """Tells the user that the segment is not called as planned."""
        tell(self._policy, text)


@dataclasses.dataclass(frozen=True)
class Place:
    """The function that calls one module of a segment."""

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
        """Runs the module as a unit of its own: its parameters exist only while it is called
        itself."""
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
        Policy.from_decisions(fqn, (), strict),
        "runs of modules are not supported under torch.compile: each module is recomputed as "
        "a whole",
    )

    def policy(*_: Any, **__: Any) -> CheckpointPolicy:
        return CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)
