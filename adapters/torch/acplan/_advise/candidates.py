"""Combinations whose state a device has room for, and what is expected of them."""

import dataclasses
import os
from collections.abc import Iterator

from acplan._advise.bench import Bench
from acplan._advise.combinations import Combination, StateBytes, combinations
from acplan._advise.estimates import LITTLE, Estimate, Estimator
from acplan._advise.fits import Miss
from acplan._base.errors import reason_of


@dataclasses.dataclass(frozen=True)
class Clock:
    """The time since a search has begun, of so many seconds."""

    begin: float
    seconds: float

    @classmethod
    def started(cls, seconds: float) -> "Clock":
        return cls(_computed_seconds(), seconds)

    def is_over(self, more: float = 0) -> bool:
        """Returns whether the time is over in `more` seconds."""
        return _computed_seconds() - self.begin + more > self.seconds


def _computed_seconds() -> float:
    """Returns the seconds that this process and its programs have computed. On a busy machine
    the same settings are traced as on an idle one."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A combination whose state is less than the device has, and what is expected of it, if
    that is known."""

    combination: Combination
    state: StateBytes
    estimate: Estimate | None = None

    @property
    def order(self) -> tuple[int, float]:
        """The place in the order of traces: those that fit by estimate, the fastest first, then
        those without one, as combinations are ordered but those last whose state waits in the
        host's memory, then those that need least."""
        if self.estimate is None:
            return 1, self.state.host
        if self.estimate.fits:
            return 0, self.estimate.iteration_ms
        return 2, self.estimate.least_bytes


def candidates(bench: Bench, estimator: Estimator) -> Iterator[Candidate | Miss]:
    """Yields each combination, or why it is not tried: those without another loss first, and
    the mildest first. They have estimates, unless milder ones make these needless."""
    earlier: list[Candidate] = []
    by_loss = combinations(bench.step, bench.device)
    by_loss.sort(key=lambda c: bool(c.in_group("loss")))
    for combination in by_loss:
        try:
            state = bench.state_of(combination)
        except Exception as error:  # raised by the model, or by another library
            yield Miss(combination, reason_of(error, "tracing the step with it"))
            continue
        if state.device > bench.limit.total_bytes:
            why = "parameters, gradients and optimizer state do not fit"
            yield Miss(combination, why, state.device)
            continue
        may_trace = not _is_covered(combination, earlier)
        estimate = estimator.estimate(combination, state, may_trace)
        earlier.append(Candidate(combination, state, estimate))
        yield earlier[-1]


def _is_covered(combination: Combination, earlier: list[Candidate]) -> bool:
    """Returns whether a milder one fits by estimate, and adds next to nothing."""
    return any(
        other.combination.is_milder_than(combination)
        and other.estimate is not None
        and other.estimate.fits
        and other.estimate.added_share < LITTLE
        for other in earlier
    )
