"""acplan.best_batch: the batch, or the sequence, that trains most in a second within a budget
or on a device, together with its plan.

The memory and the run-time of most operators are affine in the size. So a step of a size that
was not traced is interpolated between its neighbours that were: the same operators, with bytes
and milliseconds on the line between theirs. Plans of such steps steer the search. They are
never the answer: the size that is returned, and the largest one, are traced themselves, the
plan is made on that trace, and if it differs from the expected one, the search goes on with one
more trace. A size whose operators are not those of its neighbours is traced when it is needed.
Near a run-time that is far from the line between its neighbours, up to twelve sizes more are
traced.

The search. Without a plan nothing is recomputed, so among these sizes the fastest is found by
run-times alone. Beyond them a larger size recomputes no less: none of the sizes between a and b
is faster than its own run-time with the recomputation of a. Sizes that this bound excludes are
not planned.
"""

import collections
import dataclasses
import functools
import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import torch
from torch.utils._pytree import tree_leaves

from acplan._base.arguments import model_arguments, require_module, whole_number
from acplan._base.errors import AcplanError, first_line
from acplan._base.progress import progress_bar
from acplan._device.devices import Device
from acplan._files.plan_file import Plan
from acplan._files.trace_file import Trace
from acplan._program.budgets import Budget
from acplan._program.plan import PLAN_OPTIONS, plan, require_plannable
from acplan._program.visible_device import with_visible_device
from acplan._step.interpolation import Interpolation, added_ms_of, step_ms_of
from acplan._step.step_errors import StepError
from acplan._step.trace import trace

_LOGGER = logging.getLogger("acplan")
_INFEASIBLE = (3, 4)  # exit codes: proven infeasible, and nothing found in time
_MOST = 1 << 16
_LEAST_BEND = 0.05  # of a run-time that is not on the line between its neighbours
_MOST_BENDS = 12  # sizes that are traced for such run-times
_MOST_BYTES = 1 << 53  # the most bytes that a trace can have


@dataclasses.dataclass(frozen=True)
class Step:
    """A size with the best plan that was found for it, traced or interpolated."""

    size: int
    plan: Plan
    step_ms: float  # for a microbatch, with what the plan adds
    is_traced: bool

    @property
    def per_second(self) -> float:
        return 1000 * self.size / self.step_ms

    def __repr__(self) -> str:
        return f"<Step of {self.size}: {self.per_second:.2f} a second>"


@dataclasses.dataclass(frozen=True)
class BestBatch:
    """The answer of best_batch. `best` trains most in a second, `largest` is the largest size
    that fits; both are of traces of their own. `traced` are the sizes that were traced,
    `plan_count` is how many plans were made. `bound` is the rate that no size exceeds by the
    estimate of the search; `notes` say where memory is not affine in the size."""

    best: Step
    largest: Step
    bound: float
    traced: tuple[int, ...]
    plan_count: int
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = [
            f"highest rate    {self.best.size}: {self.best.per_second:,.2f} per second, step "
            f"{self.best.step_ms:,.2f} ms, {len(self.best.plan.modules)} units",
            f"largest         {self.largest.size}: {self.largest.per_second:,.2f} per "
            f"second, step {self.largest.step_ms:,.2f} ms, {len(self.largest.plan.modules)} "
            "units",
            f"traced          {len(self.traced)} sizes: "
            + ", ".join(map(str, self.traced))
            + f"; {self.plan_count} plans",
            *_device_lines(self.best, self.largest),
        ]
        return "\n".join(lines) + "\n"


def _device_lines(best: Step, largest: Step) -> Iterator[str]:
    """Yields a line about the device of each plan that is for one."""
    for name, step in (("highest rate", best), ("largest", largest)):
        device = step.plan.device
        if device is not None:
            yield (
                f"device          {name}: {device.reserved_bytes:,} bytes reserved, least "
                f"device {device.least_device_bytes:,} bytes"
                + (f"; needs {device.needs}" if device.needs else "")
            )


def best_batch(
    model: torch.nn.Module | Callable[[], torch.nn.Module],
    inputs_of: Callable[[int], Any],
    *,
    budget: Budget | None = None,
    sizes: Sequence[int] | None = None,
    tolerance: float = 0.001,
    device: str | Device = "a100",
    progress: bool | None = None,
    **kwargs: Any,
) -> BestBatch:
    """Returns the size that trains most samples in a second within the budget, its plan, and
    the largest size that fits at all. With device_memory in place of a budget, a size fits if
    training with its plan ends on that device.

    inputs_of: a function of a size that returns the model's inputs: a dict of keyword
               arguments, a tuple of arguments, or one tensor. The function decides what a size
               is: a batch, a sequence.
    budget:    a size in bytes or such as "40GiB".
    sizes:     the sizes to choose from, ascending; by default 1, 2, 3, ...
    tolerance: sizes are not searched that can be faster by at most this share.
    kwargs:    options of acplan.plan and of acplan.trace. For a device: device_memory (bytes or
               such as "24GiB", all that PyTorch can have of it), allocator, torch_version and
               optimizer_state, as acplan.plan has them. The plans of `best` and of `largest`
               were run on the device, by PyTorch's allocator, for a trace of that size.

    A size of a parallel model, which a function makes as for acplan.trace, is the rank's own.

    Memory is taken to grow with the size: if the smallest does not fit, AcplanError says so,
    and no size is tried beyond one that does not fit.
    """
    if kwargs.get("schedule") is not None:
        raise AcplanError(
            "best_batch: schedule: expected a model without a pipeline, whose schedule fixes "
            "the microbatches"
        )
    if kwargs.get("mesh") is None:
        require_module(model)
    if not callable(inputs_of):
        raise AcplanError(
            f"inputs_of: expected a function of a size, found {type(inputs_of).__name__}"
        )
    is_number = isinstance(tolerance, (int, float))
    if not is_number or not tolerance >= 0:
        raise AcplanError(f"tolerance: expected a number of at least 0, found {tolerance!r}")
    options = {name: kwargs.pop(name) for name in PLAN_OPTIONS if name in kwargs}
    budget, options = with_visible_device(budget, options)
    require_plannable(budget, options, "best_batch")
    candidates = _candidates(sizes)
    if isinstance(budget, str) and (budget.strip() == "min" or "%" in budget):
        raise AcplanError(
            f"budget: expected a size such as '40GiB', which is the same for every "
            f"batch, found {budget!r}"
        )

    def traced(size: int) -> Trace:
        inputs = inputs_of(size)
        _require_growth(inputs_of, candidates, size, inputs)
        args, own_kwargs = model_arguments(inputs)
        return trace(model, *args, device=device, progress=False, **own_kwargs, **kwargs)

    with progress_bar(progress, unit="plan") as phase:
        of_size = functools.partial(_of_size, traced)
        make_plan = functools.partial(plan, budget=budget, progress=False, **options)
        search = _Search(candidates, of_size, make_plan, tolerance, phase("best batch", None))
        return search.run()


def _candidates(sizes: Sequence[int] | None) -> Sequence[int]:
    if sizes is None:
        return range(1, _MOST)
    if not isinstance(sizes, range):
        if isinstance(sizes, str) or not isinstance(sizes, Iterable):
            raise AcplanError(f"sizes: expected numbers above 0, ascending, found {sizes!r}")
        sizes = [whole_number(size, "sizes", 1) for size in sizes]
    if not sizes or sizes[0] < 1 or any(a >= b for a, b in _neighbours(sizes)):
        raise AcplanError("sizes: expected numbers above 0, ascending")
    return sizes


def _neighbours(sizes: Sequence[int]) -> Iterable[tuple[int, int]]:
    if isinstance(sizes, range):  # all are like its first two
        return itertools.pairwise(sizes[:2])
    return itertools.pairwise(sizes)


_T = TypeVar("_T")


def _of_size(traced: Callable[[int], _T], size: int) -> _T:
    """Runs a function of a size. Errors name the size."""
    try:
        return traced(size)
    except AcplanError as error:
        ways = " (give the possible sizes as sizes=)" if isinstance(error, StepError) else ""
        raise AcplanError(f"size {size}: {error}{ways}", error.exit_code) from error
    except Exception as error:  # raised by the model, PyTorch, or inputs_of
        raise AcplanError(
            f"size {size}: {type(error).__name__}: {first_line(error)} (give the possible "
            "sizes as sizes=)"
        ) from error


def _require_growth(
    inputs_of: Callable[[int], Any], sizes: Sequence[int], size: int, inputs: Any
) -> None:
    """Raises AcplanError if the inputs of a size are those of the size before, such as slices
    of data that have ended: the rate would seem to grow with the size."""
    place = sizes.index(size)
    if place == 0:
        return
    before = sizes[place - 1]
    if _described(inputs_of(before)) == _described(inputs):
        raise AcplanError(
            f"inputs_of: expected inputs that grow with the size, found those of {before} "
            "again; give the possible sizes as sizes="
        )


def _described(inputs: Any) -> list[Any]:
    """Returns shapes and values; objects that have neither equal nothing."""
    return [
        (leaf.shape, leaf.dtype)
        if isinstance(leaf, torch.Tensor)
        else (type(leaf), leaf)
        if leaf is None or isinstance(leaf, (bool, int, float, str))
        else object()
        for leaf in tree_leaves(model_arguments(inputs))
    ]


class _Search:
    def __init__(
        self,
        sizes: Sequence[int],
        traced: Callable[[int], Trace],
        make_plan: Callable[[Trace], Plan],
        tolerance: float,
        tick: Callable[[], object],
    ) -> None:
        self._sizes = sizes
        self._steps = Interpolation(traced)
        self._make_plan = make_plan
        self._tolerance = tolerance
        self._tick = tick
        self._plan_count = 0
        # The key has the number of traces, as an interpolation depends on its neighbours.
        self._steps_by_key: dict[tuple[int, int], Step | None] = {}

    def run(self) -> BestBatch:
        self._steps.trace_of(self._sizes[0])
        if self._step(0) is None:
            _of_size(
                lambda size: self._plan_of(self._steps.trace_of(size)), self._sizes[0]
            )  # raises an error with the reason
        # A size of one broadcasts, others do not.
        for place in (1, 3):
            if place < len(self._sizes):
                self._steps.trace_of(self._sizes[place])
        largest = self._largest()
        self._trace_bends(self._sizes.index(largest.size))
        while True:
            best, bound = self._best(self._sizes.index(largest.size))
            if best.is_traced:
                break
            self._steps.trace_of(best.size)
        return BestBatch(
            best,
            largest,
            bound,
            tuple(self._steps.sizes),
            self._plan_count,
            tuple(f"{size}: {what}" for size, what in self._steps.off.items()),
        )

    def _trace_bends(self, last: int) -> None:
        """Traces sizes up to `last` between those whose run-times are not on a line, such as
        those of a model that pads its inputs, if one of them can be the fastest: none takes
        less time than a smaller size."""
        steps = [step for step in self._steps_by_key.values() if step and step.is_traced]
        rate = max(step.per_second for step in steps)
        open_intervals = collections.deque(
            itertools.pairwise(
                place for place in map(self._sizes.index, self._steps.sizes) if place <= last
            )
        )
        traces = 0
        while open_intervals and traces < _MOST_BENDS:
            low, high = open_intervals.popleft()
            off = [self._steps.off_ms.get(self._sizes[place], 0.0) for place in (low, high)]
            if high - low < 2 or max(off) <= _LEAST_BEND:
                continue
            if 1000 * self._sizes[high - 1] / self._steps.ms(self._sizes[low]) <= rate:
                continue
            middle = (low + high) // 2
            self._steps.trace_of(self._sizes[middle])
            traces += 1
            if self._steps.off_ms[self._sizes[middle]] > _LEAST_BEND:
                open_intervals += [(low, middle), (middle, high)]

    def _plan_of(self, size_trace: Trace) -> Plan:
        self._plan_count += 1
        self._tick()
        return self._make_plan(size_trace)

    def _step(self, place: int) -> Step | None:
        """Returns the step of a size, or None if nothing fits."""
        size = self._sizes[place]
        size_trace = self._steps.estimate_or_trace(size)
        is_traced = self._steps.is_traced(size)
        key = (size, -1 if is_traced else len(self._steps.sizes))
        if key not in self._steps_by_key:
            self._steps_by_key[key] = self._planned_step(size, size_trace, is_traced)
        return self._steps_by_key[key]

    def _planned_step(self, size: int, size_trace: Trace, is_traced: bool) -> Step | None:
        if not is_traced and size_trace.peak_bytes > _MOST_BYTES:
            return None  # a size far beyond those that were traced
        try:
            size_plan = self._plan_of(size_trace)
        except AcplanError as error:
            if error.exit_code not in _INFEASIBLE:
                raise
            return None
        step_ms = step_ms_of(size_trace) + added_ms_of(size_plan)
        return Step(size, size_plan, step_ms, is_traced)

    def _largest(self) -> Step:
        """Returns the step of the largest size, by its own trace; the next size does not fit by
        its own trace."""
        fits, too_large = 0, len(self._sizes)
        reach = 8
        while True:
            # Larger sizes than those that were traced may fit.
            while too_large == len(self._sizes) and fits < len(self._sizes) - 1:
                place = min(fits + reach, len(self._sizes) - 1)
                fits, too_large = self._narrowed(place, fits, too_large)
                reach *= 2
            while too_large - fits > 1:
                middle = (fits + too_large) // 2
                fits, too_large = self._narrowed(middle, fits, too_large)
            # Both are traced themselves; if that changes anything, the search is repeated.
            self._steps.trace_of(self._sizes[fits])
            if too_large < len(self._sizes):
                self._steps.trace_of(self._sizes[too_large])
            step = self._step(fits)
            next_step = None if too_large == len(self._sizes) else self._step(too_large)
            if step is not None and next_step is None:
                return step
            if step is None:
                fits, too_large = 0, fits
            else:
                fits, too_large, reach = too_large, len(self._sizes), 1

    def _narrowed(self, place: int, fits: int, too_large: int) -> tuple[int, int]:
        if self._step(place) is None:
            return fits, place
        return place, too_large

    def _best(self, last: int) -> tuple[Step, float]:
        """Returns the fastest step of the sizes up to `last`, and the rate that none
        exceeds."""
        free = self._last_without_a_plan(last)
        fastest = max(range(free + 1), key=self._rate_without_a_plan)
        ends = {place: self._step(place) for place in {0, fastest, free, last}}
        best = max((s for s in ends.values() if s), key=lambda s: s.per_second)
        bound = best.per_second
        open_intervals = [(free, last)] if free < last else []
        while open_intervals:
            low, high = open_intervals.pop()
            if high - low < 2:
                continue
            of_low = self._step(low)
            added_ms = of_low.step_ms - self._steps.ms(of_low.size) if of_low else 0.0
            most = max(self._rate(place, added_ms) for place in range(low + 1, high))
            if most <= best.per_second * (1 + self._tolerance):
                bound = max(bound, most)
                continue
            middle = (low + high) // 2
            step = self._step(middle)
            if step is not None and step.per_second > best.per_second:
                best = step
            open_intervals += [(low, middle), (middle, high)]
        return best, max(bound, best.per_second)

    def _rate(self, place: int, added_ms: float) -> float:
        size = self._sizes[place]
        return 1000 * size / (self._steps.ms(size) + added_ms)

    def _rate_without_a_plan(self, place: int) -> float:
        return self._rate(place, 0)

    def _last_without_a_plan(self, last: int) -> int:
        """Returns the last place up to which plans recompute nothing."""
        low, high = 0, last + 1
        while high - low > 1:
            middle = (low + high) // 2
            step = self._step(middle)
            is_free = step is not None and not step.plan.modules
            low, high = (middle, high) if is_free else (low, middle)
        return low
