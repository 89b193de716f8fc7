"""Backward passes within the forward pass, and which modules of such a step may be units.

`torch.autograd.grad` in a forward, a loss or a forward_fn, and a `backward()` before the last
one, run a pass of autograd while the forward pass of the step goes on. A checkpoint runs its
module again once for each pass that asks for something saved in it, and a plan is exact if that
is one pass, which begins after the call has ended. So a module is no unit if two passes ask for
tensors that a call of it saved, or one runs while it is called.

There is one exception: if `torch.autograd.grad(..., create_graph=True)` runs in the forward of
a module, and asks only for tensors that this call saved, it is a part of the module like any
other. The tensors that the call saves are kept until it ends (_apply/inner_gradients.py), so
that the pass makes nothing run again; and the recomputation, for which the last pass asks, runs
the inner pass again unchanged. Modules inside it from which the inner pass asks something are
then no units, as they would be asked twice; the tensors that other modules inside it save are
not kept.
"""

import dataclasses
import functools
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from types import FrameType
from typing import Protocol

import torch

from acplan._base.passes import current_pass, is_graph_kept
from acplan._base.source_lines import place_in_python


class Call(Protocol):
    module: int
    parent: int
    end: int
    no_grad: bool


class Saved(Protocol):
    call: int
    unpacked: int | None
    unpacks: int
    local_end: int | None
    released: int | None


@dataclasses.dataclass
class _Pass:
    """A pass that begins in the forward pass: the calls that are open when it begins, and those
    that are open later; whether it may be a part of a call; and what it asks for, and when."""

    begins_in: tuple[int, ...]
    makes_graph: bool
    runs_in: set[int] = dataclasses.field(default_factory=set)
    requests: list[tuple[Saved, int]] = dataclasses.field(default_factory=list)
    closed_in: int | None = None


class InnerPasses:
    """The passes within forward that a recorder sees."""

    def __init__(self) -> None:
        # Backward passes may come in parts (_apply/split_backward.py).
        self.are_split = False
        # Passes that keep their graph.
        self._keeping: set[int] = set()
        # The calls whose saved tensors several such passes ask for, and calls inside of them.
        self._joined: set[int] = set()
        self._place: str | None = None  # the line of Python that runs the first pass
        self._passes: dict[int, _Pass] = {}
        self._asking: dict[int, set[int]] = {}  # by call: all passes that ask
        self._borrowing: set[int] = set()
        self._excluded: set[int] = set()
        self._are_borrowing: set[int] = set()

    def borrows(self, call: int) -> None:
        """Notes a call with parameters that are not the module's own."""
        self._borrowing.add(call)

    def runs(self, open_calls: Sequence[int]) -> _Pass:
        """Notes an operator of a pass, or a request for a saved tensor. Returns the pass."""
        if self._place is None:
            self._place = place_in_python()
        current = self._passes.get(current_pass())
        if current is None:
            makes_graph = torch.is_grad_enabled() and not _accumulates()
            current = _Pass(tuple(open_calls), makes_graph)
            self._passes[current_pass()] = current
        current.runs_in.update(open_calls)
        return current

    def asks(self, saved: Saved, time: int, open_calls: Sequence[int] | None) -> None:
        """Notes a request for a saved tensor, with the open calls if it comes in forward."""
        self._asking.setdefault(saved.call, set()).add(current_pass())
        if self.are_split and is_graph_kept():
            self._keeping.add(current_pass())
        if open_calls is not None:
            self.runs(open_calls).requests.append((saved, time))
            return
        saved.unpacks += 1
        if saved.unpacked is None:
            saved.unpacked = time

    def settle(self, calls: Sequence[Call], saved: Sequence[Saved]) -> dict[int, bool]:
        """Marks the calls of modules that may be no units. Returns the modules of which passes
        are a part, with True, and the modules inside them from which these passes ask nothing,
        with False. Requests of other passes count like any request."""
        for one in self._passes.values():
            one.closed_in = _closed_in(one, calls)
            for entry, time in one.requests if one.closed_in is None else ():
                entry.unpacks += 1
                entry.unpacked = time if entry.unpacked is None else min(time, entry.unpacked)
        for one in self._passes.values():
            for entry, _ in one.requests:
                if entry.unpacked is None:
                    entry.local_end = None
        self._join_parts(calls, saved)
        self._excluded = _exclude(self._barred(calls), calls)
        self._are_borrowing = _exclude(self._borrowing, calls)
        return self._parts(calls, {entry.call for entry in saved})

    def _join_parts(self, calls: Sequence[Call], saved: Sequence[Saved]) -> None:
        """Counts as one the passes that ask for tensors of a call if the first of them keeps
        its graph: a unit runs again for that one, and its results stay until autograd
        releases them."""
        asking = self._asking_within(calls)
        for c, passes in enumerate(asking):
            is_inside = calls[c].parent in self._joined
            is_split = bool(passes) and min(passes) in self._keeping
            if is_inside or (is_split and not calls[c].no_grad):
                self._joined.add(c)
        for entry in saved:
            if entry.call in self._joined:
                entry.unpacks = min(entry.unpacks, 1)
                if entry.released is not None and entry.local_end is not None:
                    entry.local_end = max(entry.local_end, entry.released)

    def _asking_within(self, calls: Sequence[Call]) -> list[set[int]]:
        """Returns, for each call, the passes that ask for tensors saved in it or in calls
        inside of it."""
        asking = [set(self._asking.get(c, ())) for c in range(len(calls))]
        for c in reversed(range(len(calls))):
            if (parent := calls[c].parent) >= 0:
                asking[parent] |= asking[c]
        return asking

    def _parts(self, calls: Sequence[Call], saving: set[int]) -> dict[int, bool]:
        closed = [one for one in self._passes.values() if one.closed_in is not None]
        if not closed:
            return {}
        holding = {c for one in closed if (c := one.closed_in) is not None}
        asking_calls = {entry.call for one in closed for entry, _ in one.requests}
        asking_calls = holding | {
            outer for c in asking_calls for outer in _calls_around(c, calls)
        }
        saving = {outer for c in saving for outer in _calls_around(c, calls)}
        inner_calls = [
            c for c in saving if c not in holding and holding & {*_calls_around(c, calls)}
        ]
        busy = {calls[c].module for c in asking_calls}
        idle = {calls[c].module for c in inner_calls} - busy
        return dict.fromkeys(idle, False) | {calls[c].module: True for c in holding}

    def _barred(self, calls: Sequence[Call]) -> Iterator[int]:
        asking = self._asking_within(calls)
        closed: list[set[int]] = [set() for _ in calls]
        for number, one in self._passes.items():
            if one.closed_in is not None:
                closed[one.closed_in].add(number)
        for c in reversed(range(len(calls))):
            if (parent := calls[c].parent) >= 0:
                closed[parent] |= closed[c]
        running: list[set[int]] = [set() for _ in calls]
        for number, one in self._passes.items():
            for c in one.runs_in:
                running[c].add(number)
        of_others = {n for n, one in self._passes.items() if one.closed_in is not None}
        for c in range(len(calls)):
            remaining = asking[c] - closed[c]
            if remaining and min(remaining) in self._keeping:
                remaining = {min(remaining)}
            if running[c] - closed[c] or len(remaining) > 1 or remaining & of_others:
                yield c

    def notes(self) -> list[str]:
        """Returns the notes of the trace on modules that may be no units."""
        return [*self._notes_of_passes(), *self._notes_of_parameters()]

    def _notes_of_parameters(self) -> Iterator[str]:
        if self._are_borrowing:
            yield (
                f"{_units(self._are_borrowing)}, called with parameters that are not the "
                "module's own and do not exist in backward (torch.func.functional_call)"
            )

    def _notes_of_passes(self) -> Iterator[str]:
        if not self._excluded:
            return
        who = "a backward pass runs within the backward pass"
        if self._place is not None:
            who = f"{self._place or 'a forward'} computes gradients within the forward pass"
        yield (
            f"{who}: {_units(self._excluded)}, as more than one backward pass reads what is "
            "saved there, or one runs while the module is called"
        )


def _units(modules: Collection[int]) -> str:
    count = len(modules)
    units = "modules cannot be units" if count > 1 else "module cannot be a unit"
    return f"{count} {units} of a plan"


def _exclude(barred: Iterable[int], calls: Sequence[Call]) -> set[int]:
    """Marks all calls of the modules of these calls. Returns those modules that might have been
    units."""
    modules = {calls[c].module for c in barred}
    excluded = {call.module for call in calls if call.module in modules and not call.no_grad}
    for call in calls:
        call.no_grad |= call.module in modules
    return excluded


def _accumulates() -> bool:
    """Returns whether the pass adds to the gradients of leaves, which it must not do twice."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code in _ENTRIES:
            return frame.f_code is not torch.autograd.grad.__code__
        frame = frame.f_back
    return True


_ENTRIES = (torch.autograd.grad.__code__, torch.autograd.backward.__code__)


def _calls_around(call: int, calls: Sequence[Call]) -> Iterator[int]:
    """Yields the call and those around it."""
    while call >= 0:
        yield call
        call = calls[call].parent


def _closed_in(one: _Pass, calls: Sequence[Call]) -> int | None:
    """Returns the innermost call of which a pass, with all that it asks for, is a part."""
    if not one.makes_graph:
        return None
    asking_calls = {saved.call for saved, _ in one.requests}
    common = functools.reduce(
        set.intersection,
        (set(_calls_around(c, calls)) for c in asking_calls),
        set(one.begins_in),
    )
    return max((c for c in common if not calls[c].no_grad), default=None)


def held_until(calls: Sequence[Call], parts: Mapping[int, bool]) -> list[int | None]:
    """Returns, for each call, until when its saved tensors are kept: until the end of the
    outermost call around it of which a pass is a part. None: they are not kept."""
    ends: list[int | None] = []
    apart_flags: list[bool] = []
    for call in calls:
        above = ends[call.parent] if call.parent >= 0 else None
        is_apart = call.parent >= 0 and apart_flags[call.parent]
        kind = parts.get(call.module)
        apart_flags.append(kind is False or (is_apart and kind is None))
        ends.append(call.end if above is None and kind else above)
    return [None if is_apart else end for end, is_apart in zip(ends, apart_flags)]
