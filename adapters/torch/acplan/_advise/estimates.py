"""Estimates of what a combination needs, from traces of the model with few of its repeated
layers.

Each layer more adds the same bytes and milliseconds, so the needs of the whole model are on the
line through those of two short ones. Memory has three such lines, as a short model peaks for
other reasons than a long one: the passes with the loss, the passes without what the loss alone
needs, and the update. If plans save as many bytes in each layer, each recomputes as much as one
of the short model does. Estimates decide what is traced first, and stand beside the settings
that are not traced.
"""

import dataclasses
import logging
import time
from collections.abc import Callable
from typing import Any

from acplan._advise.bench import Bench, Case
from acplan._advise.combinations import Combination, StateBytes
from acplan._advise.shortened import repeated_count, repeated_lists, shortened
from acplan._files.plan_file import Plan
from acplan._files.trace_file import Trace
from acplan._step.interpolation import step_ms_of
from acplan._step.training_step import TrainingStep

_LOGGER = logging.getLogger("acplan")
_OF_DEVICE = 0.97  # of a device; the allocator loses the rest
_SEARCH = {"time_limit": 0.3}  # seconds: estimates need no proofs
# The layers that are traced. The first and the last one differ from those between; FSDP
# gathers a layer while another one runs, and scatters gradients while a third one does.
_COUNTS = (2, 3)
_COUNTS_OF_SHARDS = (4, 5)
_MOST_MODULES = 500  # of a short model
LITTLE = 0.05  # of an iteration: less than this is not worth another trace


@dataclasses.dataclass(frozen=True)
class Estimate:
    """The expected needs of a combination with so many parts of the microbatch: bytes under the
    plan that fits, without any and at least, and milliseconds of an iteration."""

    parts: int
    peak_bytes: int
    plain_bytes: int
    least_bytes: int
    step_ms: float  # without a plan
    added_ms: float
    fits: bool

    @property
    def added_share(self) -> float:
        return self.added_ms / self.step_ms

    @property
    def iteration_ms(self) -> float:
        return self.step_ms + self.added_ms


@dataclasses.dataclass(frozen=True)
class _Peak:
    """The most bytes of a part of an iteration beside the optimizer's state, parameters and
    gradients, without a plan and with the best one."""

    plain_bytes: float
    least_bytes: float


@dataclasses.dataclass(frozen=True)
class _Needs:
    """The needs of an iteration, whatever the optimizer's state: peaks of both passes, of both
    without what the loss alone needs, and of the update; milliseconds, and seconds of
    tracing."""

    peaks: tuple[_Peak, ...]
    step_ms: float
    trace_seconds: float

    @property
    def plain_bytes(self) -> float:
        return max(peak.plain_bytes for peak in self.peaks)

    @property
    def least_bytes(self) -> float:
        return max(peak.least_bytes for peak in self.peaks)

    def on_line(self, other: "_Needs", distance: float) -> "_Needs":
        """Returns the needs at so many times the distance from these to the other ones."""

        def between(a: float, b: float) -> float:
            return a + (b - a) * distance

        peaks = tuple(
            _Peak(
                between(own.plain_bytes, others.plain_bytes),
                between(own.least_bytes, others.least_bytes),
            )
            for own, others in zip(self.peaks, other.peaks, strict=True)
        )
        seconds = between(self.trace_seconds, other.trace_seconds)
        return _Needs(peaks, between(self.step_ms, other.step_ms), max(0.0, seconds))


@dataclasses.dataclass(frozen=True)
class _Family:
    """Combinations that differ in the optimizer alone: needs of the whole model, and the trace
    of the longer one of the short models with the memory of its layers alone."""

    needs: _Needs
    layers: Trace


_Key = tuple[tuple[str, ...], int]


class Estimator:
    """Estimates of combinations for the step of a bench. There are none of models in which no
    layers repeat, or so much beside them that few layers are not traced faster than all."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._counts = _COUNTS if bench.gpus == 1 else _COUNTS_OF_SHARDS
        self._count = _worthwhile_count(bench.step, self._counts[-1])
        # The ends of the names of repeated layers.
        self._layers = tuple(
            f".{name}.{place}"
            for name in repeated_lists(bench.step.model)
            for place in range(self._counts[-1])
        )
        self._short: dict[int, Bench] = {}
        self._families: dict[_Key, _Family | None] = {}
        self._smallest_plans: dict[_Key, Plan | None] = {}
        self._added_ms_by_excess: dict[tuple[_Key, int], float] = {}

    @property
    def how(self) -> str:
        """Says from what estimates are."""
        return f"traces of {' and '.join(map(str, self._counts))} of {self._count} layers"

    def trace_seconds(self, combination: Combination) -> float:
        """Returns how long a trace of the whole model is expected to take: as long as the
        longest of others if nothing is known of it, 0 if of none."""
        family = self._families.get((combination.kind, 1))
        families = [family] if family is not None else self._families.values()
        return max((other.needs.trace_seconds for other in families if other), default=0.0)

    def estimate(
        self, combination: Combination, state: StateBytes, may_trace: bool = True
    ) -> Estimate | None:
        """Returns what the combination needs with the parts of the microbatch that are best, or
        None if that is unknown. Without `may_trace`, from traces that were made for others."""
        best: Estimate | None = None
        parts: int | None = 1
        while parts is not None and (may_trace or (combination.kind, parts) in self._families):
            estimate = self.estimate_in(combination, state, parts)
            if estimate is None:
                break
            # With more parts a step needs less, and its kernels run less well.
            if best is not None and best.fits and best.iteration_ms <= estimate.iteration_ms:
                break
            best = estimate
            if best.fits and best.added_share < LITTLE:
                break
            # If it fits, only those are tried with which no plan is needed.
            size = best.plain_bytes if best.fits else best.least_bytes
            parts = self._bench.parts_after(parts, size, state)
        return best

    def estimate_in(
        self, combination: Combination, state: StateBytes, parts: int
    ) -> Estimate | None:
        """Returns what the combination needs in so many parts, or None if that is unknown."""
        key = combination.kind, parts
        family = self._family(combination, key)
        if family is None:
            return None
        needs = family.needs
        of_device = "device_memory" in self._bench.limit.options
        total = self._bench.limit.total_bytes * (_OF_DEVICE if of_device else 1)
        room = total - state.device
        plain, least = state.device + needs.plain_bytes, state.device + needs.least_bytes
        fits = needs.least_bytes <= room
        added_ms = self._added_ms(family, key, needs.plain_bytes - room) if fits else 0.0
        step_ms = needs.step_ms + self._bench.paging_ms(state)
        peak = min(plain, total) if fits else least
        return Estimate(parts, round(peak), round(plain), round(least), step_ms, added_ms, fits)

    def _added_ms(self, family: _Family, key: _Key, excess_bytes: float) -> float:
        """Returns what plans add to an iteration that save so many bytes in all layers."""
        if excess_bytes <= 0 or self._count is None:
            return 0.0
        traced, longest = family.layers, self._counts[-1]
        excess = round(excess_bytes * longest / self._count)
        if (key, excess) not in self._added_ms_by_excess:
            # A layer that runs again needs more in a short model, so that less can be saved.
            own_plan = self._smallest_plan(family, key)
            if own_plan is not None and own_plan.peak_bytes < traced.peak_bytes - excess:
                limits = {"budget": traced.peak_bytes - excess, **_SEARCH}
                own_plan = self._bench_of(longest).plan_within(traced, limits) or own_plan
            ms = 0.0
            saved = 0 if own_plan is None else traced.peak_bytes - own_plan.peak_bytes
            if own_plan is not None and saved > 0:
                share = excess / min(saved, excess)
                ms = own_plan.recompute_ms * share * self._count / longest
            self._added_ms_by_excess[key, excess] = ms * traced.accumulate
        return self._added_ms_by_excess[key, excess]

    def _smallest_plan(self, family: _Family, key: _Key) -> Plan | None:
        """Returns the plan with the least memory of the layers."""
        if key not in self._smallest_plans:
            bench, limits = self._bench_of(self._counts[-1]), {"budget": "min", **_SEARCH}
            self._smallest_plans[key] = bench.plan_within(family.layers, limits)
        return self._smallest_plans[key]

    def _family(self, combination: Combination, key: _Key) -> _Family | None:
        if self._count is None:
            return None
        if key not in self._families:
            try:
                self._families[key] = self._traced(combination, key[1])
            except Exception as error:  # it may not run with fewer layers
                _LOGGER.debug("no estimate from few layers: %s", error)
                self._families[key] = None
        return self._families[key]

    def _traced(self, combination: Combination, parts: int) -> _Family:
        needs: list[_Needs] = []
        for count in self._counts:
            bench = self._bench_of(count)
            state = bench.state_of(combination)
            start = time.process_time()
            traced = bench.traced(Case(combination, parts, state))
            seconds = time.process_time() - start
            passes = self._passes_of(traced)
            update = max(traced.live_bytes[traced.data["backward_end"] :]) - state.device
            peaks = [self._peak(bench, part, state) for part in passes]
            peaks.append(_Peak(update, update))
            ms = traced.accumulate * step_ms_of(traced)
            needs.append(_Needs(tuple(peaks), ms, seconds))
        low, high = self._counts
        distance = ((self._count or high) - low) / (high - low)
        whole = needs[0].on_line(needs[1], distance)
        return _Family(whole, self._layers_of(traced))

    def _peak(self, bench: Bench, part: Trace, state: StateBytes) -> _Peak:
        least = bench.plan_within(part, {"budget": "min", **_SEARCH})
        least_bytes = part.peak_bytes if least is None else least.peak_bytes
        return _Peak(part.peak_bytes - state.device, least_bytes - state.device)

    def _passes_of(self, traced: Trace) -> tuple[Trace, ...]:
        """Returns the trace with the memory of both passes alone, and without what the loss
        alone needs."""
        update = traced.data["backward_end"]
        start, end = self._loss_of(traced)

        def is_of_passes(storage: dict[str, Any]) -> bool:
            return bool(storage["born"] < update)

        def is_of_layers(storage: dict[str, Any]) -> bool:
            born, freed = storage["born"], storage["freed"]
            return born < start or (born < update and (freed is None or freed > end))

        return _with_memory(traced, is_of_passes), _with_memory(traced, is_of_layers)

    def _layers_of(self, traced: Trace) -> Trace:
        """Returns the trace with the memory alone that the forward pass of layers takes."""
        calls = self._calls_of(traced)
        start = min((call["start"] for call in calls), default=0)
        end = max((call["end"] for call in calls), default=0)
        return _with_memory(traced, lambda storage: start <= storage["born"] < end)

    def _loss_of(self, traced: Trace) -> tuple[int, int]:
        """Returns the operators between the forward and the backward pass of the last repeated
        layer."""
        end = traced.data["forward_end"]
        last = max(self._calls_of(traced), key=lambda call: call["end"], default=None)
        return (end, end) if last is None else (last["end"], last["backward_start"])

    def _calls_of(self, traced: Trace) -> list[dict[str, Any]]:
        """Returns the calls of repeated layers that have a backward pass."""
        modules = traced.data["modules"]
        return [
            call
            for call in traced.data["calls"]
            if call["backward_start"] is not None
            and modules[call["module"]]["fqn"].endswith(self._layers)
        ]

    def _bench_of(self, count: int) -> Bench:
        if count not in self._short:
            step = shortened(self._bench.step, count)
            self._short[count] = dataclasses.replace(self._bench, step=step)
        return self._short[count]


def _worthwhile_count(step: TrainingStep, count: int) -> int | None:
    """Returns how many layers repeat, or None if none do, or a model with `count` of them would
    take about as long to trace as the whole one."""
    layers = repeated_count(step.model)
    if layers is None:
        return None
    modules = sum(1 for _ in shortened(step, count).model.modules())
    return None if modules > _MOST_MODULES else layers


def _with_memory(traced: Trace, counts: Callable[[dict[str, Any]], bool]) -> Trace:
    """Returns the trace with the memory of some storages alone."""
    storages = [s if counts(s) else {**s, "bytes": 0} for s in traced.data["storages"]]
    part = Trace({**traced.data, "storages": storages})
    part.data["measured"] = {"peak_bytes": max(part.live_bytes, default=0)}
    return part
