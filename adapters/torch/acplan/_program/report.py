"""acplan.report: a page that shows where the memory of a step goes."""

import os
import pathlib
from collections.abc import Iterator, Mapping

from acplan._base.errors import AcplanError
from acplan._base.question import QuestionFolder, question_folder
from acplan._files.json_files import path_of
from acplan._files.plan_file import Plan
from acplan._files.profile_file import Profile
from acplan._files.trace_file import Trace
from acplan._program.plan import add_source

PathLike = str | os.PathLike[str]


def report(
    source: Trace | Profile | PathLike,
    output: PathLike,
    plans: Plan | PathLike | Mapping[str, Plan | PathLike] | None = None,
    *,
    points: int = 8,
    time_limit: float | str | None = None,
) -> pathlib.Path:
    """Writes a page that any browser shows, without a network: `acplan report`.

    source:     a trace, a profile, or the path of a file with either.
    output:     the page's file, written whole or not at all. It is returned.
    plans:      the plans that are shown beside no plan: a plan, or several by name.
    points:     the number of budgets of the frontier; 0: no frontier.
    time_limit: seconds for the frontier, or "none"; ten by default.
    """
    page = path_of(output, "output")
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
