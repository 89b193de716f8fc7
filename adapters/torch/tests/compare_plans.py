"""Plans of `acplan plan` on the traces of models of real sizes, applied and re-traced,
and those made on the derived profile beside them.

    ACPLAN=... PYTHONPATH=. python tests/compare_plans.py

writes docs/measured/plans_on_traces.csv and plans_on_profiles.csv; with names of models after
it, it prints only those.
"""

import dataclasses
import sys
import time
from collections.abc import Iterator

from acplan import AcplanError, Plan
from measured import WITHOUT_SKIP, Measured, Subject, same_ms, subject
from models import MODELS
from tables import Table, print_versions

# Shares of the way from the least that any plan needs to what the step needs without one.
SHARES = (0.9, 0.6, 0.3, 0.1, 0.0)


@dataclasses.dataclass(frozen=True)
class Result:
    model: str
    share: float
    budget: int
    plan: Plan
    seconds: float
    measured: Measured
    snapshot: Plan | None
    snapshot_peak: int | None

    @property
    def is_as_promised(self) -> bool:
        return self.measured.is_as_promised(self.plan, self.budget)


def _results(name: str, at: Subject, least: int) -> Iterator[Result]:
    most = at.traced.peak_bytes
    for share in SHARES:
        budget = least + round(share * (most - least))
        started = time.monotonic()
        plan = at.plan(budget, **WITHOUT_SKIP)
        seconds = time.monotonic() - started
        snapshot = _on_the_profile(at, budget)
        yield Result(
            name,
            share,
            budget,
            plan,
            seconds,
            at.measured(plan),
            snapshot,
            at.simulated_bytes(snapshot) if snapshot else None,
        )


def _on_the_profile(at: Subject, budget: int) -> Plan | None:
    try:
        return at.plan(budget, memory_model="snapshot")
    except AcplanError as error:
        if error.exit_code not in (3, 4):
            raise
        return None


def _plan_row(result: Result) -> list[object]:
    plan, measured = result.plan, result.measured
    return [
        result.model,
        f"{result.share:.0%}",
        result.budget,
        plan.status,
        len(plan.modules),
        f"{plan.recompute_ms:.6g}",
        f"{plan.bound_ms:.6g}",
        f"{plan.gap:.2%}" if plan.gap else "0",
        f"{plan.data['solver']['seconds']:.3f}",
        f"{result.seconds:.2f}",
        measured.peak_bytes,
        f"as predicted at all {measured.operators:,}"
        if result.is_as_promised
        else f"not as predicted: {measured}",
    ]


def _snapshot_row(result: Result) -> list[str]:
    ours = result.plan.recompute_ms
    cells = [result.model, f"{result.share:.0%}", f"{ours:.6g}"]
    if result.snapshot is None or result.snapshot_peak is None:
        return [*cells, "none found"]
    theirs = result.snapshot.recompute_ms
    over = result.snapshot_peak - result.budget
    return [
        *cells,
        f"{theirs:.6g}",
        _more(ours, theirs),
        f"over by {over:,} bytes" if over > 0 else "kept",
    ]


def _more(ours: float, theirs: float) -> str:
    if same_ms(ours, theirs):
        return "the same"
    return f"{theirs / ours - 1:+.1%}" if ours else "not 0"


_COLUMNS = [
    "model",
    "budget",
    "budget bytes",
    "status",
    "units",
    "recomputed ms",
    "bound ms",
] + ["gap", "solver s", "command s", "re-traced bytes", "operators"]
_PROFILE_COLUMNS = [
    "model",
    "budget",
    "on the trace: ms",
    "on the profile: ms",
    "more",
    "budget kept",
]


def _main(names: list[str]) -> None:
    results = []
    print_versions("transformers")
    table = Table("plans_on_traces", _COLUMNS, is_partial=bool(names))
    for name in names or MODELS:
        make, autocast = MODELS[name]
        with subject(make(), autocast) as at:
            try:
                least = at.least.budget_bytes
            except AcplanError as error:
                table.add(name, "min", error)
                continue
            for result in _results(name, at, least):
                results.append(result)
                table.add(*_plan_row(result))
    optimal = sum(result.plan.status == "optimal" for result in results)
    promised = sum(result.is_as_promised for result in results)
    print(
        f"{len(results)} plans: {optimal} optimal, {promised} re-traced as predicted, "
        f"within the budget; at most "
        f"{max(r.plan.data['solver']['seconds'] for r in results):.2f} s in the "
        f"solver, {max(r.seconds for r in results):.2f} s in all"
    )
    profiles = Table("plans_on_profiles", _PROFILE_COLUMNS, is_partial=bool(names))
    for result in results:
        profiles.add(*_snapshot_row(result))


if __name__ == "__main__":
    _main(sys.argv[1:])
