"""`acplan remat`: the buffers of a joint graph to keep from forward to backward."""

import json
from collections.abc import Iterable
from typing import Any

from acplan._base.errors import AcplanError
from acplan._base.program import Outcome
from acplan._base.question import question_folder
from acplan._files.json_files import write_json
from acplan._program.budgets import Budget, size_value

_NOTHING_FITS = 3


def plan_graph(
    graph: dict[str, Any],
    budget: Budget | None,
    time_limit: float | None = None,
    kept_limit: Budget | None = None,
) -> dict[str, Any]:
    """Returns the plan that runs least again within the budget, and keeps at most `kept_limit`
    bytes: data of `acplan.remat`, with the memory node by node. `status` is "infeasible" if
    nothing fits."""
    sizes = {"budget": budget, "kept": kept_limit}
    limits = {k: size_value(k, v) for k, v in sizes.items() if v is not None}
    return _run(graph, {"time_limit": time_limit, **limits})


def evaluate_graph(graph: dict[str, Any], saved: Iterable[str]) -> dict[str, Any]:
    """Returns the same data for a choice that is made already: the names of the kept
    buffers."""
    return _run(graph, {}, {"saved": [*saved]})


def _run(
    graph: dict[str, Any], question: dict[str, Any], choice: dict[str, Any] | None = None
) -> dict[str, Any]:
    with question_folder() as folder:
        write_json(folder.path_of("graph"), graph)
        if choice is not None:
            write_json(folder.path_of("choice"), choice)
            question = {"of": "choice", **question}
        outcome = folder.ask(
            "remat", {"graph": "graph", **question, "json": True, "memory": True}
        )
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
