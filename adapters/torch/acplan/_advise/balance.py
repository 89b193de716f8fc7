"""acplan.balance_stages: the split of layers over the ranks of a pipeline with which the
slowest rank is fastest within a budget.

A rank's time is that of all its passes in a step, and of what its plan recomputes within the
budget with the microbatches that its schedule holds in flight. Nothing is interpolated: each
number of layers that the search asks for is traced and planned for its rank.

The search. Let T be the time of the slowest rank, s. As long as some other rank with one layer
more takes less than T, s gives it a layer. The search ends where every other rank with one
layer more takes at least T. Any other split has as many layers on s as this one, or more, or it
has more layers on another rank. So if more layers never make a rank faster, no split takes less
than the least of what s takes now and each other rank takes with one layer more, each with the
bound of its plan in place of the plan. A rank whose budget no plan keeps takes forever.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

from acplan._base.arguments import whole_number
from acplan._base.errors import AcplanError, first_line
from acplan._base.progress import progress_bar
from acplan._files.plan_file import Plan
from acplan._files.trace_file import Trace
from acplan._program.budgets import Budget
from acplan._program.plan import PLAN_OPTIONS, plan, refuse_device, require_plannable

# Returns the trace of a rank with so many layers.
TraceRank = Callable[[int, int], Trace]

_INFEASIBLE = (3, 4)  # exit codes: proven infeasible, and nothing found in time
_GIB = 1 << 30
_HEAD = "rank  layers    passes ms  recomputed ms     total ms       peak GiB"


@dataclasses.dataclass(frozen=True)
class RankTime:
    """A rank with a number of layers, and its plan.

    passes_ms:  the forward and the backward passes of all microbatches, without the plan.
    plain_peak_bytes: the peak without the plan.
    plan:       None if no plan was found that keeps the budget; `refusal` then says why.
    least_ms:   no plan's time is below this number, proven.
    """

    rank: int
    layers: int
    passes_ms: float
    plain_peak_bytes: int
    plan: Plan | None
    least_ms: float
    refusal: str = ""

    @property
    def added_ms(self) -> float:
        """The milliseconds that the plan recomputes and waits for the host's memory."""
        if self.plan is None:
            return math.inf
        return self.plan.recompute_ms + (self.plan.stall_ms or 0)

    @property
    def ms(self) -> float:
        return self.passes_ms + self.added_ms

    def __str__(self) -> str:
        text = f"{self.rank:4} {self.layers:7} {self.passes_ms:12,.2f} "
        if self.plan is None:
            return text + "no plan keeps the budget"
        peak = self.plan.peak_bytes / _GIB
        return text + f"{self.added_ms:14,.2f} {self.ms:12,.2f} {peak:14,.3f}"


@dataclasses.dataclass(frozen=True)
class Balance:
    """The answer of balance_stages: the ranks with today's layers, and with those of the best
    split.

    bound_ms:    no split has a slowest rank that is faster than this, if more layers never make
                 a rank faster.
    trace_count: how many traces and plans were made.
    """

    today: tuple[RankTime, ...]
    best: tuple[RankTime, ...]
    bound_ms: float
    trace_count: int

    @property
    def layers(self) -> tuple[int, ...]:
        """The number of layers of each rank in the best split."""
        return tuple(one.layers for one in self.best)

    @property
    def today_ms(self) -> float:
        """The time of today's slowest rank; infinite if one has no plan."""
        return _slowest(self.today).ms

    @property
    def best_ms(self) -> float:
        """The time of the slowest rank of the best split."""
        return _slowest(self.best).ms

    def __str__(self) -> str:
        lines = ["today", *_table(self.today)]
        if self.best == self.today:
            lines.append("no move of layers makes the slowest rank faster")
        else:
            lines += ["proposed", *_table(self.best)]
        lines.append(
            f"no split takes less than {self.bound_ms:,.2f} ms; {self.trace_count} traces and "
            "plans"
        )
        return "\n".join(lines) + "\n"


def _table(ranks: Sequence[RankTime]) -> list[str]:
    slowest = _slowest(ranks)
    text = "has no plan" if slowest.plan is None else f"is the slowest, {slowest.ms:,.2f} ms"
    return [_HEAD, *map(str, ranks), f"rank {slowest.rank} {text}"]


def _slowest(ranks: Sequence[RankTime]) -> RankTime:
    return max(ranks, key=lambda one: one.ms)


def balance_stages(
    trace_rank: TraceRank,
    layers: Sequence[int],
    budget: Budget | Sequence[Budget],
    *,
    progress: bool | None = None,
    **options: Any,
) -> Balance:
    """Returns the split of layers over the ranks of a pipeline with which the slowest rank
    takes the least time within its budget, beside today's split.

    trace_rank: a function of a rank and its number of layers that returns the rank's trace, as
                acplan.trace(..., schedule=...) makes it. Layers are taken to be alike. If a
                rank has several stages, the function divides the layers among them.
    layers:     today's number of layers of each rank.
    budget:     the bytes that a rank may use, such as "60GiB"; or a list of them, one a rank.
    options:    those of acplan.plan, such as time_limit and offload.
    progress:   shows how many traces there are, if tqdm is installed, beyond two seconds; by
                default if somebody watches.

    A rank keeps at least one layer, or none if it has none today. If no split is found that
    keeps all budgets, it raises AcplanError.
    """
    if not callable(trace_rank):
        raise AcplanError(
            "trace_rank: expected a function of a rank and its number of layers, found "
            f"{type(trace_rank).__name__}"
        )
    today = _numbers(layers)
    budgets = _budgets(budget, len(today), options)
    with progress_bar(progress, unit="trace") as phase:
        search = _Search(trace_rank, budgets, options, phase("balance", None))
        return search.from_split(today)


class _Search:
    def __init__(
        self,
        trace_rank: TraceRank,
        budgets: Sequence[Budget],
        options: dict[str, Any],
        tick: Callable[[], object],
    ) -> None:
        self._trace_rank = trace_rank
        self._budgets = budgets
        self._options = options
        self._tick = tick
        self._times: dict[tuple[int, int], RankTime] = {}

    def from_split(self, today: Sequence[int]) -> Balance:
        """Returns the best split that moves of layers reach."""
        split = tuple(self._time(rank, count) for rank, count in enumerate(today))
        begin = split
        least = [min(1, count) for count in today]
        while True:
            slowest = _slowest(split)
            can_give = slowest.layers > least[slowest.rank]
            others = [one for one in split if one is not slowest] if can_give else []
            larger = self._faster_with_more(others, slowest.ms)
            if larger is None:
                break
            changes = {larger.rank: larger}
            changes[slowest.rank] = self._time(slowest.rank, slowest.layers - 1)
            split = tuple(changes.get(one.rank, one) for one in split)
        if slowest.plan is None:
            raise AcplanError(
                f"balance_stages: found no split that keeps the budget: rank {slowest.rank} "
                f"with {slowest.layers} layers: {slowest.refusal}",
                _INFEASIBLE[0],
            )
        ends = [slowest, *(self._time(one.rank, one.layers + 1) for one in others)]
        return Balance(begin, split, min(one.least_ms for one in ends), len(self._times))

    def _faster_with_more(self, others: Sequence[RankTime], ms: float) -> RankTime | None:
        """Returns a rank with one layer more that takes less than `ms`, or None. The fastest
        ranks are tried first."""
        for one in sorted(others, key=lambda one: one.ms):
            larger = self._time(one.rank, one.layers + 1)
            if larger.ms < ms:
                return larger
        return None

    def _time(self, rank: int, count: int) -> RankTime:
        if (rank, count) not in self._times:
            self._times[rank, count] = self._time_with_plan(rank, count)
            self._tick()
        return self._times[rank, count]

    def _time_with_plan(self, rank: int, count: int) -> RankTime:
        trace = self._trace(rank, count)
        operators = trace.data["operators"][: trace.data["backward_end"]]
        passes_ms = float(sum(operator["runtime_ms"] for operator in operators))
        figures = (rank, count, passes_ms, trace.peak_bytes)
        try:
            own_plan = plan(trace, self._budgets[rank], progress=False, **self._options)
        except AcplanError as error:
            if error.exit_code not in _INFEASIBLE:
                raise
            is_proven = error.exit_code == _INFEASIBLE[0]
            return RankTime(*figures, None, math.inf if is_proven else passes_ms, str(error))
        return RankTime(*figures, own_plan, passes_ms + own_plan.bound_ms)

    def _trace(self, rank: int, count: int) -> Trace:
        place = f"balance_stages: rank {rank} with {count} layers"
        try:
            trace = self._trace_rank(rank, count)
        except AcplanError as error:
            raise AcplanError(f"{place}: {error}", error.exit_code) from error
        except Exception as error:  # raised by the user's function, the model or PyTorch
            raise AcplanError(
                f"{place}: {type(error).__name__}: {first_line(error)}"
            ) from error
        if not isinstance(trace, Trace):
            raise AcplanError(f"{place}: expected a Trace, found {type(trace).__name__}")
        return trace


def _numbers(layers: Any) -> list[int]:
    if isinstance(layers, str) or not isinstance(layers, Sequence) or len(layers) < 2:
        raise AcplanError(
            f"layers: expected the numbers of layers of two ranks or more, found {layers!r}"
        )
    return [whole_number(count, "layers", 0) for count in layers]


def _budgets(budget: Any, count: int, options: dict[str, Any]) -> list[Budget]:
    """Returns the budget of each rank."""
    refuse_device(options, "balance_stages")
    if unknown := sorted({*options} - {*PLAN_OPTIONS}):
        raise AcplanError(
            f"balance_stages: {unknown[0]}: expected an option of acplan.plan; those of "
            "acplan.trace belong into trace_rank"
        )
    budgets = [*budget] if isinstance(budget, (list, tuple)) else [budget] * count
    if len(budgets) != count:
        raise AcplanError(
            f"budget: expected one, or one for each of {count} ranks, found {len(budgets)}"
        )
    for one in budgets:
        require_plannable(one, options, "balance_stages")
        if isinstance(one, str) and (one.strip() in ("min", "device") or "%" in one):
            raise AcplanError(
                f"budget: expected a size such as '40GiB', which is the same for every number "
                f"of layers, found {one!r}"
            )
    return budgets
