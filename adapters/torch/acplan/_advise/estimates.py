"""Estimates of what a combination needs, from traces of the model with one and with two of its
repeated layers.

Each layer more adds the same bytes and milliseconds, so the needs of the whole model are on the
line through both. A share of what plans can save costs the same recomputation per layer.
Estimates decide what is traced first, and stand beside the settings that are not traced.
"""

import dataclasses
import time

from acplan._advise.bench import Bench, Case
from acplan._advise.combinations import Combination, StateBytes
from acplan._advise.shortened import repeated_count, shortened
from acplan._files.trace_file import Trace
from acplan._step.interpolation import step_ms_of

_OF_DEVICE = 0.97  # of a device; the allocator loses the rest
_SEARCH = {"time_limit": 1}  # seconds: estimates need no proofs
_COUNTS = (1, 2)  # layers that are traced
_MOST_PARTS = 8  # of the microbatch: with more, kernels would be too short for estimates
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


@dataclasses.dataclass(frozen=True)
class _Needs:
    """The needs of a forward and a backward pass, whatever the optimizer's state: bytes beside
    that state without a plan and with the best one, milliseconds, and seconds of tracing."""

    plain_bytes: float
    least_bytes: float
    step_ms: float
    trace_seconds: float

    def on_line(self, other: "_Needs", distance: float) -> "_Needs":
        """Returns the needs at so many times the distance from these to the other ones."""
        pairs = zip(dataclasses.astuple(self), dataclasses.astuple(other))
        return _Needs(*(max(0.0, a + (b - a) * distance) for a, b in pairs))


@dataclasses.dataclass(frozen=True)
class _Family:
    """Combinations that differ in the optimizer alone: needs of the whole model, and the longer
    one of the short models, with the bytes of its state."""

    needs: _Needs
    longest: _Needs
    traced: Trace
    state_bytes: int


class Estimator:
    """Estimates of combinations for the step of a bench. There are none of models in which no
    layers repeat."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._count = repeated_count(bench.step.model)
        self._short: dict[int, Bench] = {}
        self._families: dict[tuple[str, ...], _Family | None] = {}
        self._added_ms_by_key: dict[tuple[tuple[str, ...], float], float] = {}
        # Traces of the short models divide the microbatch, so that gradients exist throughout.
        # Memory that does not depend on the batch is overrated in fewer parts, not underrated.
        self._parts = max(n for n in bench.parts if n <= _MOST_PARTS)

    @property
    def how(self) -> str:
        """Says from what estimates are."""
        return f"traces of {' and '.join(map(str, _COUNTS))} of {self._count} layers"

    def is_known(self, combination: Combination) -> bool:
        """Returns whether an estimate needs no further trace."""
        return self._count is None or _key(combination) in self._families

    def trace_seconds(self, combination: Combination) -> float:
        """Returns how long a trace of the whole model is expected to take; 0 if unknown."""
        family = self._families.get(_key(combination))
        return 0.0 if family is None else family.needs.trace_seconds

    def estimate(self, combination: Combination, state: StateBytes) -> Estimate | None:
        """Returns what the combination needs with the parts of the microbatch that are best, or
        None if that is unknown."""
        best: Estimate | None = None
        for parts in self._bench.parts:
            estimate = self.estimate_in(combination, state, parts)
            if estimate is None:
                return None
            # With more parts a step needs less.
            if best is None or not best.fits or estimate.added_ms < best.added_ms:
                best = estimate
            if best.fits and best.added_share < LITTLE:
                break
        return best

    def estimate_in(
        self, combination: Combination, state: StateBytes, parts: int
    ) -> Estimate | None:
        """Returns what the combination needs in so many parts, or None if that is unknown."""
        family = self._family(combination)
        if family is None:
            return None
        needs, share = family.needs, self._parts / parts
        of_device = "device_memory" in self._bench.limit.options
        total = self._bench.limit.total_bytes * (_OF_DEVICE if of_device else 1)
        # The room for what the traced part of the microbatch needs.
        room = (total - state.device) / share
        plain = state.device + needs.plain_bytes * share
        least = state.device + needs.least_bytes * share
        fits = room >= needs.least_bytes
        added_ms = 0.0
        if fits and room < needs.plain_bytes:
            of_saved = (room - needs.least_bytes) / (needs.plain_bytes - needs.least_bytes)
            added_ms = self._added_ms(family, _key(combination), of_saved)
        step_ms = needs.step_ms + self._bench.paging_ms(state)
        peak = min(plain, total) if fits else least
        return Estimate(parts, round(peak), round(plain), round(least), step_ms, added_ms, fits)

    def _added_ms(self, family: _Family, key: tuple[str, ...], of_saved: float) -> float:
        """Returns what plans add to an iteration that leave this share of what they can
        save."""
        place = key, round(of_saved, 3)
        if place not in self._added_ms_by_key:
            needs = family.longest
            saved = of_saved * (needs.plain_bytes - needs.least_bytes)
            budget = round(family.state_bytes + needs.least_bytes + saved)
            bench = self._short[_COUNTS[-1]]
            own_plan = bench.plan_within(family.traced, {"budget": budget, **_SEARCH})
            ms = 0.0 if own_plan is None else own_plan.recompute_ms
            layers = (self._count or 0) / _COUNTS[-1]
            self._added_ms_by_key[place] = ms * layers * family.traced.accumulate
        return self._added_ms_by_key[place]

    def _family(self, combination: Combination) -> _Family | None:
        key = _key(combination)
        if self._count is None:
            return None
        if key not in self._families:
            try:
                self._families[key] = self._traced(combination)
            except Exception:  # it may not run with fewer layers: then there is no estimate
                self._families[key] = None
        return self._families[key]

    def _traced(self, combination: Combination) -> _Family:
        needs: list[_Needs] = []
        for count in _COUNTS:
            bench = self._bench_of(count)
            state = bench.state_of(combination)
            start = time.process_time()
            traced = bench.traced(Case(combination, self._parts, state))
            seconds = time.process_time() - start
            least = bench.plan_within(traced, {"budget": "min", **_SEARCH})
            least_bytes = traced.peak_bytes if least is None else least.peak_bytes
            ms = traced.accumulate * step_ms_of(traced)
            plain_bytes = traced.peak_bytes - state.device
            needs.append(_Needs(plain_bytes, least_bytes - state.device, ms, seconds))
        low, high = _COUNTS
        distance = ((self._count or high) - low) / (high - low)
        return _Family(needs[0].on_line(needs[1], distance), needs[1], traced, state.device)

    def _bench_of(self, count: int) -> Bench:
        if count not in self._short:
            step = shortened(self._bench.step, count)
            self._short[count] = dataclasses.replace(self._bench, step=step)
        return self._short[count]


def _key(combination: Combination) -> tuple[str, ...]:
    """Returns what the forward and the backward pass depend on, and whether the update has
    temporary tensors of all parameters."""
    own = tuple(combination.in_group(group) for group in ("precision", "method", "loss"))
    return (*own, "" if combination.in_group("optimizer") else "plain")
