"""acplan.report: a page that shows where the memory of a step goes."""

import os
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from acplan._base.errors import AcplanError
from acplan._base.question import QuestionFolder, question_folder
from acplan._files.json_files import path_of
from acplan._files.plan_file import Plan
from acplan._files.plan_table import PlanTable
from acplan._files.profile_file import Profile
from acplan._files.trace_file import Trace
from acplan._program.lengths import Batches, Traces
from acplan._program.plan import add_source

PathLike = str | os.PathLike[str]


def report(
    source: Trace | Profile | PathLike | Traces,
    output: PathLike,
    plans: Plan | PlanTable | PathLike | Mapping[str, Plan | PathLike] | None = None,
    *,
    lengths: Any = None,
    points: int = 8,
    time_limit: float | str | None = None,
) -> pathlib.Path:
    """Writes a page that any browser shows, without a network: `acplan report`.

    source:     a trace, a profile, or the path of a file with either; or traces of several
                lengths, as for acplan.plan: the page is then about the run of all batches.
    output:     the page's file, written whole or not at all. It is returned.
    plans:      the plans that are shown beside no plan: a plan, or several by name; for
                several lengths a table of plans.
    lengths:    the lengths of the batches, as for acplan.plan.
    points:     the number of budgets of the frontier; 0: no frontier.
    time_limit: seconds for the frontier, or "none"; ten by default.
    """
    page = path_of(output, "output")
    if isinstance(source, (Mapping, Sequence)) and not isinstance(source, str):
        batches = Batches.from_arguments(source, lengths)
        return _report_of_batches(batches, page, plans)
    if lengths is not None or isinstance(plans, PlanTable):
        raise AcplanError("report: a table of plans needs several traces and lengths")
    plans_by_name = plans if isinstance(plans, Mapping) else {"plan": plans}
    with question_folder() as folder:
        question = {
            "profile": add_source(folder, source, "report"),
            "plan": list(_plan_files(plans_by_name, folder)),
            "points": points,
            "time_limit": time_limit,
            "output": os.path.abspath(page),
        }
        folder.ask("report", question).require_success()
    return page


def _report_of_batches(batches: Batches, page: pathlib.Path, table: Any) -> pathlib.Path:
    if isinstance(table, Mapping):
        raise AcplanError("report: several traces take one table of plans, found several")
    with question_folder() as folder:
        name = "plan" if isinstance(table, Plan) else "table"
        question = {
            **batches.question(folder),
            "plan": None if table is None else folder.add(name, table),
            "output": os.path.abspath(page),
        }
        folder.ask("lengths report", question).require_success()
    return page


def _plan_files(
    plans: Mapping[str, Plan | PathLike | None], folder: QuestionFolder
) -> Iterator[str]:
    """Yields a file for each plan, with the name that the page is to show."""
    for name, plan in plans.items():
        if isinstance(plan, Plan):
            if not name or pathlib.PurePath(name).name != name:
                raise AcplanError(f"report: plans: expected a name, found {name!r}")
            yield folder.add(f"plans/{name}", plan)
        elif isinstance(plan, (str, os.PathLike)):
            yield folder.add(name, plan)
        elif plan is not None:
            raise AcplanError(
                f"report: plans: expected a Plan or a path, found {type(plan).__name__}"
            )
