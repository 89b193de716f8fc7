"""acplan.what_fits: the settings with which a training step fits a device.

Combinations of levers are tried from the mildest on. The state that one needs whatever its plan
is computed from its parameters; if that is more than the device has, it is not traced. One that
has all levers of another that fits, and whose plan adds next to nothing, has nothing to gain,
and is not traced either. A combination that does not fit with the whole
microbatch is traced again with as many parts of it as its least budget says. Figures are those
of traces; estimates only decide what is traced.
"""

import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from acplan._advise.bench import Attempt, Bench, Case, Limit
from acplan._advise.combinations import Combination, StateBytes, combinations
from acplan._advise.fits import Fit, Fits, Miss
from acplan._advise.levers import CHANGES
from acplan._advise.sharding import sharded_step
from acplan._base.arguments import require_module, whole_number
from acplan._base.errors import AcplanError, reason_of
from acplan._base.progress import progress_bar
from acplan._device.devices import DEVICES, Device, find_device
from acplan._files.display import size
from acplan._program.budgets import Budget, require_budget, size_bytes
from acplan._program.plan import DEVICE_OPTIONS, PLAN_OPTIONS, plan
from acplan._step.trace import trace
from acplan._step.training_step import TrainingStep

_LITTLE = 0.05  # of an iteration: less than this is not worth another trace
_MOST_GPUS = 1024
_LOGGER = logging.getLogger("acplan")


def what_fits(
    model: torch.nn.Module,
    *args: Any,
    device: str | Device = "a100",
    device_memory: Budget | None = None,
    budget: Budget | None = None,
    gpus: int = 1,
    seconds: float = 60,
    progress: bool | None = None,
    **kwargs: Any,
) -> Fits:
    """Returns settings with which the training step of `model(*args, **kwargs)` fits, the
    mildest first: parts of the microbatch, the optimizer and the precision of its state, the
    precision of weights, a loss in chunks, adapters (LoRA, QLoRA), each with its plan.

    device:        the GPU that is there, a name of acplan.DEVICES.
    device_memory: all that PyTorch can have of it, if that is not what such a card offers.
    budget:        a size in bytes or such as "60GiB", in place of a device's memory: live bytes
                   alone are counted.
    gpus:          the number of GPUs; the model is sharded over several by fully_shard.
    seconds:       no further settings are traced after so many, except that some are of each
                   kind of change.
    kwargs:        options of acplan.trace, of acplan.plan, and the model's own arguments.

    The model is left unchanged. Each answer is traced with exactly its settings, and its plan
    is for that trace; with device_memory training with it ends on the device. Rates are those
    of the trace's run-times.
    """
    require_module(model)
    count = whole_number(gpus, "gpus", 1)
    options = {name: kwargs.pop(name) for name in PLAN_OPTIONS if name in kwargs}
    workspaces = kwargs.pop("workspaces", True)
    target = find_device(device)
    step = TrainingStep.from_arguments(model, args, kwargs)
    if step.parallel is not None:
        raise AcplanError("what_fits: mesh: expected the model of one GPU; gpus= shards it")
    _ = step.update  # refuses wrong options
    limit = _limit_of(target, device_memory, budget, options)
    if count > 1:
        step = sharded_step(step, count)
    bench = Bench(step, target, limit, options, workspaces)
    with _quietly(), progress_bar(progress, unit="trace") as phase:
        search = _Search(bench, time.monotonic() + seconds, phase("what fits", None))
        search.run()
        advice = "" if search.fits else _advice(bench, search.closest)
    return Fits(
        _title(bench, type(model).__name__),
        limit.total_bytes,
        tuple(search.ranked()),
        tuple(search.misses),
        advice,
        "samples/s" if bench.batch else "steps/s",
    )


def _title(bench: Bench, model: str) -> str:
    count = "one" if bench.gpus == 1 else f"{bench.gpus} x"
    each = "" if bench.gpus == 1 else " on each"
    batch = f", {bench.batch} samples a step{each}" if bench.batch else ""
    memory = size(bench.limit.total_bytes)
    return f"{model} on {count} {bench.device.name}, {memory} for PyTorch{batch}"


def _limit_of(
    device: Device,
    device_memory: Budget | None,
    budget: Budget | None,
    options: Mapping[str, Any],
) -> Limit:
    if budget is not None:
        if device_memory is not None:
            raise AcplanError("what_fits: expected a budget or device_memory, found both")
        require_budget(budget)
        return Limit({"budget": budget}, size_bytes("budget", budget))
    memory = device.name if device_memory is None else device_memory
    # The program knows what a card offers PyTorch, and says it with any plan.
    smallest = trace(torch.nn.Linear(1, 1), torch.zeros(1, 1), source=False, progress=False)
    of_device = {k: v for k, v in options.items() if k in (*DEVICE_OPTIONS, "reserve")}
    some_plan = plan(smallest, device_memory=memory, progress=False, **of_device)
    return Limit({"device_memory": memory}, some_plan.budget_bytes)


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Keeps warnings of traces and plans that are only tried from the log, in the block."""
    level = _LOGGER.level
    _LOGGER.setLevel(logging.ERROR)
    try:
        yield
    finally:
        _LOGGER.setLevel(level)


class _Search:
    def __init__(self, bench: Bench, deadline: float, tick: Callable[[], object]) -> None:
        self._bench = bench
        self._deadline = deadline
        self._tick = tick
        self.fits: dict[Combination, Attempt] = {}
        self.misses: list[Miss] = []
        # The case with the least budget, of those that do not fit.
        self.closest: Attempt | None = None
        # The bytes that whole microbatches add to the state at least, of those seen.
        self._activation_bytes: list[int] = []

    def run(self) -> None:
        queues = {change: deque[Combination]() for change in CHANGES}
        for combination in combinations(self._bench.step, self._bench.device):
            queues[combination.change].append(combination)
        served: set[str] = set()
        while any(queues.values()):
            for change, queue in queues.items():
                # The first of a kind is tried even if time is over.
                if queue and self._is_tried(queue.popleft(), change not in served):
                    served.add(change)
        if not self.fits and self.closest is None:
            self._trace_smallest()
        self._refine()

    def ranked(self) -> list[Fit]:
        """Returns what fits, the mildest first, and then by rate."""
        fits = [attempt.fit for attempt in self.fits.values() if attempt.fit is not None]
        return sorted(fits, key=lambda fit: (CHANGES.index(fit.change), -fit.per_second))

    def _is_over(self) -> bool:
        return time.monotonic() > self._deadline

    def _is_tried(self, combination: Combination, is_first: bool) -> bool:
        """Returns whether the combination was traced."""
        if self._is_over() and not is_first:
            self._skip(combination, "the time was over")
            return False
        if self._is_covered(combination):
            self._skip(combination, "milder ones fit already")
            return False
        try:
            state = self._bench.state_of(combination)
            if state.device > self._bench.limit.total_bytes:
                why = "parameters, gradients and optimizer state do not fit"
                self.misses.append(Miss(combination, why, state.device))
                return False
            return self._find_parts(Case(combination, self._first_parts(state), state))
        except Exception as error:  # raised by the model, or by another library
            why = reason_of(error, "tracing the step with it")
            self.misses.append(Miss(combination, why))
            return True

    def _skip(self, combination: Combination, why_not: str) -> None:
        self.misses.append(Miss(combination, why_not, is_skipped=True))

    def _is_covered(self, combination: Combination) -> bool:
        """Returns whether a milder one fits, and adds so little that more memory could bring
        nothing."""
        return any(
            fit.added_share < _LITTLE and other.is_milder_than(combination)
            for other, attempt in self.fits.items()
            if (fit := attempt.fit) is not None
        )

    def _attempt(self, case: Case) -> Attempt:
        attempt = self._bench.attempt(case)
        self._tick()
        if attempt.least_bytes and (
            self.closest is None or attempt.least_bytes < self.closest.least_bytes
        ):
            self.closest = attempt
        return attempt

    def _first_parts(self, state: StateBytes) -> int:
        """Returns the fewest parts of a microbatch that may fit, by what others have shown."""
        return self._parts_for(min(self._activation_bytes, default=0), state, 0)

    def _parts_for(self, activation_bytes: int, state: StateBytes, above: int) -> int:
        """Returns the fewest parts, more than `above`, with which so many bytes beside the
        state may fit; all parts, if none do."""
        room = max(self._bench.limit.total_bytes - state.device, 1)
        more = [n for n in self._bench.parts if n > above]
        return next((n for n in more if activation_bytes / n <= room), more[-1])

    def _find_parts(self, case: Case) -> bool:
        """Traces the case with more parts until it fits, or has no more. Returns True."""
        while True:
            attempt = self._attempt(case)
            if attempt.fit is not None:
                self.fits[case.combination] = attempt
                return True
            # A microbatch needs memory beside the state about in proportion to its size.
            activation_bytes = case.parts * max(attempt.least_bytes - case.state.device, 0)
            self._activation_bytes.append(activation_bytes)
            if case.parts == self._bench.parts[-1]:
                break
            parts = self._parts_for(activation_bytes, case.state, case.parts)
            case = Case(case.combination, parts, case.state)
        fit = self._bench.offloaded(attempt)
        if fit is not None:
            self.fits[case.combination] = Attempt(case, attempt.traced, fit)
            return True
        size_text = (
            "" if self._bench.batch is None else f" of {self._bench.batch // case.parts}"
        )
        why = f"the best plan with microbatches{size_text} needs {size(attempt.least_bytes)}"
        self.misses.append(Miss(case.combination, why, attempt.least_bytes, True))
        return True

    def _trace_smallest(self) -> None:
        """Traces the combination with the smallest state, so that there is a figure if nothing
        fits."""
        misses = [miss for miss in self.misses if miss.least_bytes is not None]
        if not misses:
            return
        smallest = min(misses, key=lambda miss: miss.least_bytes or 0).combination
        try:
            state = self._bench.state_of(smallest)
            self._attempt(Case(smallest, self._bench.parts[-1], state))
        except Exception as error:  # raised by the model, or by another library
            why = reason_of(error, "tracing the step with it")
            self.misses.append(Miss(smallest, why))

    def _refine(self) -> None:
        """Traces more parts of the microbatch where a plan adds much, as long as that is
        faster."""
        for combination, attempt in list(self.fits.items()):
            best = attempt
            while not self._is_over() and (faster := self._faster(best)) is not None:
                self.fits[combination] = best = faster

    def _faster(self, attempt: Attempt) -> Attempt | None:
        """Returns the case in more parts if its plan adds much and that is faster."""
        fit, case = attempt.fit, attempt.case
        more = [n for n in self._bench.parts if n > case.parts]
        if fit is None or fit.added_share <= _LITTLE or not more:
            return None
        try:
            in_parts = self._attempt(Case(case.combination, more[0], case.state))
        except Exception:  # of a model that does not run with so few samples: the fit remains
            return None
        is_faster = in_parts.fit is not None and in_parts.fit.per_second > fit.per_second
        return in_parts if is_faster else None


def _advice(bench: Bench, closest: Attempt | None) -> str:
    """Returns what would fit where nothing does: the least that is needed, and the smallest
    card or the number of cards that has it."""
    if closest is None:
        return "no settings could be traced"
    names = ", ".join(closest.case.combination.names) or "the step as it is"
    total = bench.limit.total_bytes
    missing = closest.least_bytes - total
    parts = [
        f"{names} needs least, {size(closest.least_bytes)}, "
        + (f"{size(missing)} too much" if missing > 0 else "and the allocator's holes")
    ]
    cards = sorted(DEVICES.values(), key=lambda card: card.memory)
    larger = [c.name for c in cards if c.memory > max(closest.least_bytes, total)]
    card = next((name for name in larger if bench.ends_on(closest.traced, name)), None)
    parts.append(
        "no card of the table is large enough"
        if card is None
        else f"the smallest card of the table on which it ends is the {card}"
    )
    state = closest.case.state.device
    other_bytes = closest.least_bytes - state
    gpus = 2 * bench.gpus
    while gpus <= _MOST_GPUS and state * bench.gpus / gpus + other_bytes > total:
        gpus *= 2
    if gpus <= _MOST_GPUS:
        parts.append(f"sharded over {gpus} GPUs it may fit (gpus={gpus})")
    return "; ".join(parts)
