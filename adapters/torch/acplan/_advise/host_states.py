"""The optimizer's states on the host beside recomputation, within a budget."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Protocol

from acplan._base.errors import AcplanError
from acplan._device.host_copy_times import UPDATED_ON_CPU
from acplan._files.display import size
from acplan._files.trace_file import Trace
from acplan._program.plan import plan
from acplan._step.interpolation import added_ms_of

LEVER = "optimizer: state on the host"
_COPIES = "acplan."  # the operators of acplan._base.host_copies
_SHARES_TRIED = 3
_INFEASIBLE = (3, 4)  # exit codes: proven infeasible, and nothing found in time


@dataclasses.dataclass(frozen=True)
class Side:
    """An iteration within the budget, without the states on the host or with them. `added_ms`
    is what its plan adds, None if none was found; `iteration_ms` is without a plan."""

    iteration_ms: float
    added_ms: float | None

    @property
    def total_ms(self) -> float:
        return float("inf") if self.added_ms is None else self.iteration_ms + self.added_ms


@dataclasses.dataclass(frozen=True)
class HostStates:
    """The plans for a budget, and what moves: the bytes by which the peak without a plan falls,
    and the milliseconds of an iteration that copies take. `of_shares` are the plans with some
    of the states on the host, by percent. `cpu_ms` is what an update on the CPU would take,
    None if the optimizer is no Adam."""

    budget_bytes: int
    freed_bytes: int
    copies_ms: float
    plain: Side
    on_host: Side
    of_shares: Mapping[int, Side] = dataclasses.field(default_factory=dict)
    cpu_ms: float | None = None

    @property
    def best_percent(self) -> int:
        """The percentage of the states, among those tried, with which an iteration is shortest;
        the lowest if several are."""
        sides = {0: self.plain, **self.of_shares, 100: self.on_host}
        return min(sorted(sides), key=lambda percent: sides[percent].total_ms)

    @property
    def pays(self) -> bool:
        return self.best_percent > 0

    def __str__(self) -> str:
        start = (
            f"the optimizer's states on the host free {size(self.freed_bytes)} of the peak; "
            f"their copies take {self.copies_ms:,.1f} ms of an iteration.\n"
        )
        budget = size(self.budget_bytes)
        if self.on_host.added_ms is None and self.plain.added_ms is None:
            return f"{start}No plan fits in {budget}, with them or without.\n"
        verdict = "pay" if self.on_host.total_ms < self.plain.total_ms else "do not pay"
        text = (
            f"{start}In {budget}, an iteration takes {_text(self.on_host)} with them, "
            f"{_text(self.plain)} without: they {verdict}.\n"
        )
        if (best := self.best_percent) in self.of_shares:
            text += (
                f"{best}% of them pay most: with offload_states(..., share={best / 100:g}) it "
                f"takes {_text(self.of_shares[best])}.\n"
            )
        if self.pays and self.cpu_ms is not None:
            text += (
                f"An update on the CPU instead takes about {self.cpu_ms:,.1f} ms at the rate "
                "of DeepSpeed's CPU-Adam.\n"
            )
        return text


def _text(side: Side) -> str:
    if side.added_ms is None:
        return "nothing that fits"
    return f"{side.total_ms:,.1f} ms ({side.added_ms:,.1f} by the plan)"


class Shares(Protocol):
    """Returns the trace of a step with a share of the optimizer's states on the host; 1: all.
    `updated_on_cpu` are the parameters that a CPU would update, None if the optimizer is no
    Adam."""

    updated_on_cpu: int | None

    def __call__(self, share: float) -> Trace: ...


def compare(
    plain: Trace, with_share: Shares, budget_bytes: int, options: dict[str, Any]
) -> HostStates:
    """Plans a step without states on the host, and with shares of them there, for a budget."""
    updated_on_cpu = with_share.updated_on_cpu
    on_host = with_share(1)
    result = HostStates(
        budget_bytes,
        max(0, plain.peak_bytes - on_host.peak_bytes),
        on_host.accumulate * sum(_times(on_host, _COPIES)),
        _side(plain, budget_bytes, options),
        _side(on_host, budget_bytes, options),
        cpu_ms=None if updated_on_cpu is None else 1e3 * updated_on_cpu / UPDATED_ON_CPU,
    )
    if result.plain.added_ms == 0 or result.on_host.added_ms is None:
        return result  # fewer copies gain nothing, or fewer bytes do not fit either
    for _ in range(_SHARES_TRIED):
        percent = _next_percent(result)
        side = _side(with_share(percent / 100), budget_bytes, options)
        result = dataclasses.replace(result, of_shares={**result.of_shares, percent: side})
    return result


def _next_percent(states: HostStates) -> int:
    """Returns the middle of the larger gap beside the best share so far."""
    percents = sorted({0, 100, *states.of_shares})
    place = percents.index(states.best_percent)
    gaps = [*zip(percents, percents[1:])]
    low, high = max(gaps[max(0, place - 1) : place + 1], key=lambda gap: gap[1] - gap[0])
    return (low + high) // 2


def _side(traced: Trace, budget_bytes: int, options: dict[str, Any]) -> Side:
    iteration_ms = traced.accumulate * sum(_times(traced, ""))
    try:
        own_plan = plan(traced, budget_bytes, progress=False, **options)
    except AcplanError as error:
        if error.exit_code not in _INFEASIBLE:
            raise
        return Side(iteration_ms, None)
    return Side(iteration_ms, traced.accumulate * added_ms_of(own_plan))


def _times(traced: Trace, start: str) -> list[float]:
    """Returns the run-times of operators whose names start so."""
    return [
        operator["runtime_ms"]
        for operator in traced.data["operators"]
        if operator["name"].startswith(start)
    ]
