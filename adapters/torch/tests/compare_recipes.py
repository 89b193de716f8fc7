"""Plans of `acplan plan` beside those of rules of thumb and of PyTorch's own planner,
all applied and re-traced in the same way.

    PYTHONPATH=. python tests/torch_planner.py torch_plans.json
    ACPLAN=... PYTHONPATH=. python tests/compare_recipes.py torch_plans.json

writes docs/measured/recipes.csv; with names of models after it, it prints only those.
"""

import dataclasses
import enum
import json
import pathlib
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

from acplan import AcplanError, Plan, PlannedModule, PlannedOperator, Trace
from measured import SAME, WITH_SKIP, WITHOUT_SKIP, Measured, Subject, subject
from models import MODELS
from recipes import operators_of, recipes
from tables import Table, print_versions

# How near the least budget with as little recomputation is sought: a share of the memory
# between the least and the recipe's.
_NEAR = 1e-3
# Operators that PyTorch's estimator leaves out, and policies see.
_LEFT_OUT = ("aten.clone.default", "aten.lift_fresh.default")


_COLUMNS = (
    "model",
    "recipe",
    "peak bytes",
    "recomputed ms",
    "without skip: ms",
    "without skip: of the recipe",
    "acplan: ms",
    "acplan: of the recipe",
    "least bytes with as much",
    "change of bytes",
)


class Outcome(enum.Enum):
    AS_GOOD = "where acplan recomputes no more"
    WORSE = "where it is worse"
    REFUSED = "without a plan that runs"


@dataclasses.dataclass(frozen=True)
class Comparison:
    """`with_skip` and `without_skip` are acplan's plans with the recipe's peak as their budget,
    `ours` and `ours_without` what was measured of them; `least` is the plan with the least
    memory that recomputes no more than the recipe."""

    theirs: Measured
    with_skip: Plan
    ours: Measured
    without_skip: Plan
    ours_without: Measured
    least: Plan

    @property
    def is_never_worse(self) -> bool:
        return all(
            ours.is_as_predicted
            and ours.peak_bytes <= self.theirs.peak_bytes
            and ours.recompute_ms <= self.theirs.recompute_ms * (1 + SAME)
            for ours in (self.ours, self.ours_without)
        )


def compare(at: Subject, theirs: Measured, near: float = _NEAR) -> Comparison:
    """Compares a recipe with acplan's plans at its peak. `near` says how near the least memory
    is sought, as a share of what there is to gain."""
    budget = theirs.peak_bytes
    with_skip = at.plan(budget, **WITH_SKIP)
    without_skip = at.plan(budget, **WITHOUT_SKIP)
    least = least_memory(at, with_skip, theirs.recompute_ms, near)
    measured = at.measured(with_skip), at.measured(without_skip)
    return Comparison(theirs, with_skip, measured[0], without_skip, measured[1], least)


def least_memory(at: Subject, plan: Plan, recompute_ms: float, near: float) -> Plan:
    """Bisects for the least memory, from a plan that recomputes no more than `recompute_ms`."""
    try:
        lower = at.least_with_skip
    except AcplanError as error:
        if error.exit_code != 4:
            raise
        return plan
    if lower.recompute_ms <= recompute_ms * (1 + SAME):
        return lower
    too_low = lower.budget_bytes
    nearness = max(512, round(near * (plan.peak_bytes - too_low)))
    while plan.peak_bytes - too_low > nearness:
        budget = (too_low + plan.peak_bytes) // 2
        candidate = at.plan(budget, **WITH_SKIP)
        if candidate.recompute_ms <= recompute_ms * (1 + SAME):
            plan = candidate
        else:
            too_low = budget
    return plan


def torch_plan(traced: Trace, units: dict[str, Any]) -> Plan:
    """Returns PyTorch's plan as one of acplan's. A unit for which PyTorch finds no policy is
    recomputed as a whole."""
    return Plan(
        tuple(
            PlannedModule(fqn, _decisions(_names(traced, fqn), unit))
            for fqn, unit in units.items()
        )
    )


def _names(traced: Trace, fqn: str) -> list[str]:
    return [operator["name"] for operator in operators_of(traced, fqn)]


def _decisions(names: list[str], unit: dict[str, Any]) -> tuple[PlannedOperator, ...]:
    if not unit["policy"]:
        return ()
    policy = iter(zip(unit["operators"], unit["policy"], strict=True))
    decisions = []
    for name in names:
        if name in _LEFT_OUT:
            decisions.append(PlannedOperator(name, False))
            continue
        expected, save = next(policy, ("no more", 0))
        if expected not in name.split("."):
            raise AcplanError(f"its policy has {expected} where the step runs {name}")
        decisions.append(PlannedOperator(name, bool(save)))
    return tuple(decisions)


def _plans(at: Subject, of_torch: list[dict[str, Any]]) -> Iterator[tuple[str, Plan | str]]:
    """Yields each recipe and plan of PyTorch, or the reason why there is none."""
    yield from recipes(at.example, at.traced)
    for torch_result in of_torch:
        label = "PyTorch's planner"
        if "share" in torch_result:
            label += f", {torch_result['share']:.0%}"
        if "units" not in torch_result:
            yield label, torch_result["failed"]
            continue
        try:
            yield label, torch_plan(at.traced, torch_result["units"])
        except AcplanError as error:
            yield label, str(error)


def _row(at: Subject, plan: Plan | str) -> tuple[Outcome, list[str]]:
    if isinstance(plan, str):
        return Outcome.REFUSED, [plan]
    try:
        theirs = at.measured(plan)
    except AcplanError as error:
        return Outcome.REFUSED, [str(error)]
    cells = [f"{theirs.peak_bytes:,}", f"{theirs.recompute_ms:.6g}"]
    try:
        comparison = compare(at, theirs)
    except AcplanError as error:
        return Outcome.WORSE, [*cells, f"worse: {error}"]
    least = comparison.least
    for ours in (comparison.without_skip, comparison.with_skip):
        gap = f" (gap {ours.gap:.1%})" if ours.gap else ""
        cells += [
            f"{ours.recompute_ms:.6g}{gap}",
            _share(ours.recompute_ms, theirs.recompute_ms),
        ]
    cells += [
        f"{least.peak_bytes:,}",
        f"{least.peak_bytes / theirs.peak_bytes - 1:+.1%}",
    ]
    if comparison.is_never_worse:
        return Outcome.AS_GOOD, cells
    return Outcome.WORSE, [*cells[:2], f"worse: {cells[2]}", *cells[3:]]


def _share(ours: float, theirs: float) -> str:
    return f"{ours / theirs:.1%}" if theirs else ("0" if ours == 0 else "more")


def _main(path: str, names: list[str]) -> None:
    of_torch = json.loads(pathlib.Path(path).read_text())
    print_versions("transformers")
    outcomes: Counter[Outcome] = Counter()
    table = Table("recipes", _COLUMNS, is_partial=bool(names))
    for name in names or MODELS:
        make, autocast = MODELS[name]
        with subject(make(), autocast) as at:
            for label, plan in _plans(at, of_torch.get(name, [])):
                outcome, cells = _row(at, plan)
                outcomes[outcome] += 1
                table.add(name, label, *cells)
    print(", ".join(f"{outcomes[o]} {o.value}" for o in Outcome))


if __name__ == "__main__":
    _main(sys.argv[1], sys.argv[2:])
