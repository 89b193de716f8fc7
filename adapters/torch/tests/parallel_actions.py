"""Lists of actions of pipelines as users write them in CSV files: no schedule of PyTorch."""

import csv
import dataclasses
import io
from typing import Any

from torch.distributed.pipelining.schedules import (
    _Action,
    _add_reduce_grad,
    _add_send_recv,
)

Actions = dict[int, list[Any]]


@dataclasses.dataclass
class _Rank:
    """A rank of a pipeline in the shape of a V, with two stages, and what it has done."""

    stages: tuple[int, int]
    most_in_flight: int
    own_actions: list[str]

    def next_action(self, microbatches: int, ended_by_all: set[str]) -> str:
        """Returns the action that the rank begins now, or "" if it waits. `ended_by_all`: the
        actions that have ended."""
        ready = [
            action
            for action in self._actions(microbatches)
            if action not in self.own_actions
            and _inputs_of(action, self.stages) <= ended_by_all
        ]
        # Backward passes come first, then forward passes, then gradients of weights.
        return min(ready, key=lambda action: "BIFW".index(_parts(action)[1]), default="")

    def _actions(self, microbatches: int) -> list[str]:
        ends = [f"{self.stages[0]}{_backward(k)}{k}" for k in range(microbatches)]
        starts = [f"{self.stages[0]}F{k}" for k in range(microbatches)]
        in_flight = sum(f in self.own_actions for f in starts) - sum(
            b in self.own_actions for b in ends
        )
        if in_flight >= self.most_in_flight:
            starts = []
        return [
            *(
                f"{stage}{_backward(k)}{k}"
                for k in range(microbatches)
                for stage in self.stages
            ),
            *(f"{self.stages[1]}F{k}" for k in range(microbatches)),
            *starts,
            *(f"{stage}W{k}" for k in range(1, microbatches, 2) for stage in self.stages),
        ]


def _backward(microbatch: int) -> str:
    """Returns the kind of a microbatch's backward passes: those of every second one come in
    parts."""
    return "I" if microbatch % 2 else "B"


def _parts(action: str) -> tuple[int, str, int]:
    kind = next(c for c in action if c.isalpha())
    stage, microbatch = action.split(kind)
    return int(stage), kind, int(microbatch)


def _inputs_of(action: str, stages: tuple[int, int]) -> set[str]:
    """Returns the actions that must have ended before an action of a rank with these stages,
    the second of which ends the V on the first rank."""
    stage, kind, k = _parts(action)
    last = sum(stages)
    if kind == "F":
        return {f"{stage - 1}F{k}"} if stage else set()
    if kind == "W":
        return {f"{stage}I{k}"}
    before = set() if stage == last else {f"{stage + 1}{kind}{k}"}
    return before | {f"{stage}F{k}"}


def actions_in_v(ranks: int, microbatches: int) -> Actions:
    """Returns the actions that compute, by rank, with None where a rank waits."""
    of_ranks = [_Rank((r, 2 * ranks - 1 - r), 2 * ranks - r, []) for r in range(ranks)]
    total = ranks * 2 * (2 * microbatches + microbatches // 2)
    rows: Actions = {r: [] for r in range(ranks)}
    ended: set[str] = set()
    while len(ended) < total:
        begun = [rank.next_action(microbatches, ended) for rank in of_ranks]
        for r, action in enumerate(begun):
            rows[r].append(_Action.from_str(action))
            if action:
                of_ranks[r].own_actions.append(action)
                ended.add(action)
    return rows


def with_early_receives(actions: Actions, microbatches: int) -> Actions:
    """Returns the actions with those that communicate, where each receive begins before the
    computation before it."""
    ranks = len(actions)
    own: Any = {
        r: _add_reduce_grad([a for a in row if a is not None], microbatches)
        for r, row in actions.items()
    }
    rows = _add_send_recv(own, lambda s: min(s, 2 * ranks - 1 - s), 2 * ranks)
    result: Actions = {}
    for r, row in rows.items():
        early: list[Any] = []
        for action in row:
            is_receive = "RECV" in str(action)
            place = len(early) - (is_receive and bool(early) and early[-1].is_compute_op)
            early.insert(place, action)
        result[r] = early
    return result


def csv_text(actions: Actions) -> str:
    """Returns the rows as `_load_csv` reads them, one a rank."""
    text = io.StringIO()
    writer = csv.writer(text)
    for rank in sorted(actions):
        writer.writerow(["" if action is None else str(action) for action in actions[rank]])
    return text.getvalue()
