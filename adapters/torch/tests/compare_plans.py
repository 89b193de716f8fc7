"""Plans of `acplan plan` on the traces of models of real sizes, applied and re-traced,
and those made on the derived profile beside them.

    ACPLAN=... PYTHONPATH=. python tests/compare_plans.py

prints docs/measured/plans_on_traces.md; with names of models after it, only those.
"""

import dataclasses
import sys
import time
from collections.abc import Iterator

from acplan import AcplanError, Plan
from measured import WITHOUT_SKIP, Measured, Subject, same_ms, subject
from models import MODELS
from pages import start_page

_PAGE = """
`acplan plan TRACE` has the simulation of the step, operator by operator, as its memory model
(`--memory-model trace`). Here its plans are applied to the models (`acplan.apply`), and a step
of each is traced again on fake tensors, as in [exactness](exactness.md): nothing here ran on a
GPU, and run-times are the roofline of an A100. They save and recompute (`--decisions
save,recompute`); those that skip are [beside any schedule](any_schedule.md).

Budgets lie between the least that any plan needs (0%) and what the step needs without one
(100%). *As predicted*: the peak is the predicted one to the byte, as are the bytes in use at
every operator, and the run-time of the operators that ran again is the one that was predicted,
to 1e-9. Times are of two cores that others used too.
"""

_PROFILES = """
## On the trace, and on the profile derived from it

The same budgets with `--memory-model snapshot`, which knows modules, not operators. *Budget*:
whether the plan, simulated, keeps it. Where the plan on the profile recomputes less, it does
not keep the budget, or the plan on the trace is not proven optimal.
"""

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


def _plan_row(result: Result) -> str:
    plan, measured = result.plan, result.measured
    return _row(
        result.model,
        f"{result.share:.0%}",
        f"{result.budget:,}",
        plan.status,
        str(len(plan.modules)),
        f"{plan.recompute_ms:.6g}",
        f"{plan.bound_ms:.6g}",
        f"{plan.gap:.2%}" if plan.gap else "0",
        f"{plan.data['solver']['seconds']:.3f}",
        f"{result.seconds:.2f}",
        f"{measured.peak_bytes:,}",
        f"as predicted at all {measured.operators:,}"
        if result.is_as_promised
        else f"**not** as predicted: {measured}",
    )


def _snapshot_row(result: Result) -> str:
    ours = result.plan.recompute_ms
    cells = [result.model, f"{result.share:.0%}", f"{ours:.6g}"]
    if result.snapshot is None or result.snapshot_peak is None:
        return _row(*cells, "none found", "", "")
    theirs = result.snapshot.recompute_ms
    over = result.snapshot_peak - result.budget
    return _row(
        *cells,
        f"{theirs:.6g}",
        _more(ours, theirs),
        f"over by {over:,} bytes" if over > 0 else "kept",
    )


def _more(ours: float, theirs: float) -> str:
    if same_ms(ours, theirs):
        return "the same"
    return f"{theirs / ours - 1:+.1%}" if ours else "not 0"


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _main(names: list[str]) -> None:
    results = []
    start_page("Plans on traces, re-traced", _PAGE, "transformers")
    print(
        "| model | budget | bytes | status | units | recomputed ms | bound | gap "
        "| solver s | command s | re-traced peak | operators |\n"
        "|---|---:|---:|---|---:|---:|---:|---:|---:|---:|---:|---|"
    )
    for name in names or MODELS:
        make, autocast = MODELS[name]
        with subject(make(), autocast) as at:
            try:
                least = at.least.budget_bytes
            except AcplanError as error:
                print(_row(name, "min", str(error), *[""] * 9))
                continue
            for result in _results(name, at, least):
                results.append(result)
                print(_plan_row(result), flush=True)
    optimal = sum(result.plan.status == "optimal" for result in results)
    promised = sum(result.is_as_promised for result in results)
    print(
        f"\n{len(results)} plans: {optimal} optimal, {promised} re-traced as predicted, "
        f"within the budget; at most "
        f"{max(r.plan.data['solver']['seconds'] for r in results):.2f} s in the "
        f"solver, {max(r.seconds for r in results):.2f} s in all\n{_PROFILES}\n"
        "| model | budget | on the trace, ms | on the profile, ms | more | budget |\n"
        "|---|---:|---:|---:|---:|---|"
    )
    for result in results:
        print(_snapshot_row(result))


if __name__ == "__main__":
    _main(sys.argv[1:])
