"""`acplan remat`: the buffers of a joint graph to keep from forward to backward."""

import dataclasses
import json
from collections.abc import Iterable, Mapping
from typing import Any

from acplan._base.errors import AcplanError
from acplan._base.program import Outcome
from acplan._base.question import question_folder
from acplan._files.json_files import write_json
from acplan._program.budgets import Budget, size_bytes, size_value
from acplan._program.links import require_link

_NOTHING_FITS = 3
_NO_PLAN = 4  # was found that fits


@dataclasses.dataclass(frozen=True)
class Link:
    """The link on which kept values may move, and the room at its other end."""

    offload: str
    host_memory: int | str | None = None

    def question(self) -> dict[str, Any]:
        return {k: v for k, v in dataclasses.asdict(self).items() if v is not None}


def link_of(
    offload: str | bool | None, host_memory: int | str | None, device: str
) -> Link | None:
    """Returns the link that options name; True is that of the device. Raises AcplanError if
    they do not name one."""
    if offload is True:
        offload = device
    if offload is None or offload is False:
        if host_memory is not None:
            raise AcplanError("host_memory: needs offload")
        return None
    require_link(offload)
    if host_memory is not None:
        size_bytes("host_memory", host_memory)
    return Link(offload, host_memory)


def plan_graph(
    graph: dict[str, Any],
    budget: Budget | None,
    time_limit: float | None = None,
    kept_limit: Budget | None = None,
    link: Link | None = None,
) -> dict[str, Any]:
    """Returns the plan that runs least again within the budget, and keeps at most `kept_limit`
    bytes: data of `acplan.remat`, with the memory node by node. `status` is "infeasible" if
    nothing fits. With a link, what is kept may move, and waiting counts as running again."""
    sizes = {"budget": budget, "kept": kept_limit}
    limits = {k: size_value(k, v) for k, v in sizes.items() if v is not None}
    moves = {} if link is None else link.question()
    return _run(graph, {"time_limit": time_limit, **limits, **moves})


def evaluate_graph(
    graph: dict[str, Any], saved: Iterable[str], moves: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Returns the same data for a choice that is made already: the names of the kept
    buffers, and the fields of `acplan.remat` about moves."""
    return _run(graph, {}, {"saved": [*saved], **(moves or {})})


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
    if outcome.exit_code not in (0, _NOTHING_FITS, _NO_PLAN) or not outcome.out:
        outcome.require_success()
    try:
        data = json.loads(outcome.out)
    except ValueError:
        raise AcplanError(outcome.message, outcome.exit_code or 1) from None
    assert isinstance(data, dict)
    return data
