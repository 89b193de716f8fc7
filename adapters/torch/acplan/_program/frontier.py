"""acplan.frontier and acplan.compare: several plans side by side."""

import dataclasses
import json
import os
from collections.abc import Iterable, Sequence
from typing import Any

from acplan._base.errors import AcplanError
from acplan._base.progress import progress_bar
from acplan._base.question import question_folder
from acplan._files import display
from acplan._files.charts import figure, made_of, remember
from acplan._files.json_files import path_of, read_json
from acplan._files.plan_file import Plan
from acplan._program.budgets import Budget, size_value
from acplan._program.plan import Source, add_source, plan_options, refuse_device

_INFEASIBLE = 3


@dataclasses.dataclass(frozen=True)
class Frontier:
    """The optimal plans at many budgets. `data` is described in docs/file_formats.md,
    `acplan.frontier`."""

    data: dict[str, Any] = dataclasses.field(repr=False)
    text: str = dataclasses.field(default="", repr=False, compare=False)

    @property
    def plans(self) -> list[Plan]:
        """The plans by ascending budget, without the budgets that have none."""
        statuses = ("optimal", "feasible")
        return [Plan.from_data(p) for p in self.data["plans"] if p["status"] in statuses]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """A row for each budget."""
        keys = ("budget_bytes", "status", "peak_bytes", "recompute_ms", "bound_ms", "gap")
        return [
            {key: plan.get(key) for key in keys}
            | {"units": len(plan["modules"]) if plan.get("modules") is not None else None}
            for plan in self.data["plans"]
        ]

    def to_pandas(self) -> Any:
        return display.to_pandas(self.rows)

    def __repr__(self) -> str:
        model, plans = display.plain(self.data["model"]), self.data["plans"]
        return f"<Frontier of {model}: {len(plans)} budgets>"

    def __str__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        points = [(p.recompute_ms, float(p.peak_bytes)) for p in self.plans]
        plain = display.chart("peak by ms recomputed", {"plans": sorted(points)}, None)
        step = made_of(self)
        return display.page(
            f"Frontier of {self.data['model']}",
            {"budgets": len(self.data["plans"])},
            figure(["frontier"], step[0], plain, frontier=self.data) if step else plain,
            display.table(self.rows),
        )


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Several plans side by side. `data` is what `acplan show TRACE PLAN... --json` prints."""

    data: dict[str, Any] = dataclasses.field(repr=False)
    text: str = dataclasses.field(default="", repr=False, compare=False)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The baseline, if the program has it, and a row for each plan."""
        return [dict(row) for row in self.data["plans"]]

    def to_pandas(self) -> Any:
        return display.to_pandas(self.rows)

    def __repr__(self) -> str:
        return f"<Comparison of {len(self.data['plans'])} plans>"

    def __str__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        return display.page("Comparison", {}, display.table(self.rows))


def frontier(
    source: Source,
    *,
    points: int | None = None,
    budgets: Sequence[Budget] | None = None,
    progress: bool | None = None,
    **options: Any,
) -> Frontier:
    """Returns the optimal plan at each of many budgets: `acplan frontier`.

    points:  the number of budgets, evenly spaced from the least that any plan needs to what the
             model needs without one; or
    budgets: the budgets, as acplan.plan takes them.
    options: the options of acplan.plan, except those for a device.
    """
    refuse_device(options, "frontier")
    with question_folder() as folder, progress_bar(progress, unit="s") as phase:
        question = {
            "profile": add_source(folder, source, "frontier"),
            "points": points,
            "budgets": None if budgets is None else _budgets(budgets),
            **plan_options(options),
            "output": "frontier",
        }
        outcome = folder.ask("frontier", question, phase("frontier", None))
        file = folder.path_of("frontier")
        if outcome.exit_code != _INFEASIBLE or not file.exists():
            outcome.require_success()
        result: Frontier = remember(Frontier(read_json(file), outcome.out), source)
        return result


def _budgets(budgets: Any) -> list[int | str]:
    is_one = isinstance(budgets, str) or not isinstance(budgets, Iterable)
    values = [size_value("budgets", b) for b in ([budgets] if is_one else budgets)]
    if not values:
        raise AcplanError("budgets: expected one or more, found none")
    return values


def compare(source: Source, *plans: Plan | str | os.PathLike[str]) -> Comparison:
    """Returns the step without a plan and with each of these plans, side by side: `acplan
    show`."""
    if not plans:
        raise AcplanError("compare: expected plans, found none")
    with question_folder() as folder:
        values = [plan if isinstance(plan, Plan) else path_of(plan, "plans") for plan in plans]
        paths = [folder.add(f"plan-{place}", value) for place, value in enumerate(values)]
        question = {"profile": add_source(folder, source, "compare"), "plan": paths}
        text = folder.ask("show", question).require_success().out
        data = folder.ask("show", {**question, "json": True}).require_success().out
    return Comparison(json.loads(data), text)
