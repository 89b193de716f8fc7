"""`acplan remat`: what of a joint graph to keep from forward to backward."""

import json
import pathlib
import tempfile
from collections.abc import Iterable
from typing import Any

from acplan._base.errors import AcplanError
from acplan._base.program import Outcome, call_acplan
from acplan._files.json_files import write_json
from acplan._program.plan import Budget, size_text

_NOTHING_FITS = 3


def plan_graph(
    graph: dict[str, Any],
    budget: Budget | None,
    time_limit: float | None = None,
    kept: Budget | None = None,
) -> dict[str, Any]:
    """The plan that runs least again within the budget, and keeps at most so many bytes:
    data of `acplan.remat`, with the memory node by node. `status` is "infeasible" where
    nothing fits."""
    flags = [] if time_limit is None else ["--time-limit", f"{time_limit}"]
    if budget is not None:
        flags += ["--budget", size_text("budget", budget)]
    if kept is not None:
        flags += ["--kept", size_text("kept", kept)]
    return _run(graph, flags)


def evaluate_graph(graph: dict[str, Any], saved: Iterable[str]) -> dict[str, Any]:
    """The same of a choice that is made already: the names of the buffers kept."""
    return _run(graph, [], {"saved": [*saved]})


def _run(
    graph: dict[str, Any], flags: list[str], choice: dict[str, Any] | None = None
) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="acplan-") as name:
        folder = pathlib.Path(name)
        write_json(folder / "graph.json", graph)
        if choice is not None:
            write_json(folder / "choice.json", choice)
            flags = ["--of", f"{folder}/choice.json", *flags]
        outcome = call_acplan(["remat", f"{folder}/graph.json", *flags, "--json", "--memory"])
    return _data(outcome)


def _data(outcome: Outcome) -> dict[str, Any]:
    if outcome.exit_code not in (0, _NOTHING_FITS) or not outcome.out:
        outcome.require_success()
    try:
        data = json.loads(outcome.out)
    except ValueError:
        raise AcplanError(outcome.message, outcome.exit_code or 1) from None
    assert isinstance(data, dict)
    return data
