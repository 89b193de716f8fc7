"""The optimizer's states on the host beside recomputation, within a budget."""

import dataclasses
from typing import Any

from acplan._base.errors import AcplanError
from acplan._files.display import size
from acplan._files.trace_file import Trace
from acplan._program.plan import plan

LEVER = "optimizer: state on the host"
_COPIES = "acplan."  # the operators of acplan._base.host_copies
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
    """The two plans for a budget, and what moves: the bytes by which the peak without a plan
    falls, and the milliseconds of an iteration that copies take."""

    budget_bytes: int
    freed_bytes: int
    copies_ms: float
    plain: Side
    on_host: Side

    @property
    def pays(self) -> bool:
        return self.on_host.total_ms < self.plain.total_ms

    def __str__(self) -> str:
        start = (
            f"the optimizer's states on the host free {size(self.freed_bytes)} of the peak; "
            f"their copies take {self.copies_ms:,.1f} ms of an iteration.\n"
        )
        budget = size(self.budget_bytes)
        if self.on_host.added_ms is None and self.plain.added_ms is None:
            return f"{start}No plan fits in {budget}, with them or without.\n"
        return (
            f"{start}In {budget}, an iteration takes {_text(self.on_host)} with them, "
            f"{_text(self.plain)} without: they {'pay' if self.pays else 'do not pay'}.\n"
        )


def _text(side: Side) -> str:
    if side.added_ms is None:
        return "nothing that fits"
    return f"{side.total_ms:,.1f} ms ({side.added_ms:,.1f} by the plan)"


def compare(
    plain: Trace, on_host: Trace, budget_bytes: int, options: dict[str, Any]
) -> HostStates:
    """Plans both traces, which differ in where the states are, within the budget."""
    return HostStates(
        budget_bytes,
        max(0, plain.peak_bytes - on_host.peak_bytes),
        on_host.accumulate * sum(_times(on_host, _COPIES)),
        _side(plain, budget_bytes, options),
        _side(on_host, budget_bytes, options),
    )


def _side(traced: Trace, budget_bytes: int, options: dict[str, Any]) -> Side:
    iteration_ms = traced.accumulate * sum(_times(traced, ""))
    try:
        own_plan = plan(traced, budget_bytes, progress=False, **options)
    except AcplanError as error:
        if error.exit_code not in _INFEASIBLE:
            raise
        return Side(iteration_ms, None)
    added_ms = own_plan.recompute_ms + (own_plan.stall_ms or 0)
    return Side(iteration_ms, traced.accumulate * added_ms)


def _times(traced: Trace, start: str) -> list[float]:
    """Returns the run-times of operators whose names start so."""
    return [
        operator["runtime_ms"]
        for operator in traced.data["operators"]
        if operator["name"].startswith(start)
    ]
