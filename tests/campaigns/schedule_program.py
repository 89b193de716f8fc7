"""The least recomputation of any schedule, as a mixed-integer program of a graph alone.

Written from problems/schedule/schedule_problem.h: between first runs every earlier node
may run again, once, in the order of the graph. Columns, of slots (s, i), node i in the
stage that the first run of s ends, in order:

    runs[s, i]     it runs
    live[b][k]     b is live at slot k: made or read there, or live at the next slot
                   and not made there
"""

from typing import Any

from programs import Program

Json = dict[str, Any]


class Steps:
    """Nodes in the order of first runs, each with its time, bytes of scratch, whether it may
    run again, and the values that it reads and makes; values with their bytes, and whether they
    are returned."""

    def __init__(self) -> None:
        self.held_bytes = 0
        self.ms: list[float] = []
        self.scratch: list[int] = []
        self.may_run_again: list[bool] = []
        self.reads: list[list[int]] = []
        self.makes: list[list[int]] = []
        self.bytes: list[int] = []
        self.is_returned: list[bool] = []

    def add(self, ms: float, reads: list[int], sizes: list[int], node: Json) -> list[int]:
        values = list(range(len(self.bytes), len(self.bytes) + len(sizes)))
        self.bytes += sizes
        self.is_returned += [False] * len(sizes)
        self.ms.append(ms)
        self.reads.append(reads)
        self.makes.append(values)
        self.scratch.append(node.get("scratch", 0))
        self.may_run_again.append(node.get("again", True))
        return values


def steps_of_node_link(graph: Json) -> Steps:
    """Returns the steps of a graph that has the order of its nodes."""
    steps = Steps()
    by_id = {node["id"]: node for node in graph["nodes"]}
    value: dict[str, int] = {}
    for name in graph["graph"]["order"]:
        reads = [value[link["source"]] for link in graph["links"] if link["target"] == name]
        node = by_id[name]
        (value[name],) = steps.add(node["cost_cpu"], reads, [node["cost_ram"]], {})
    return steps


def steps_of_joint(graph: Json) -> Steps:
    """Returns the steps of a graph. Inputs are held during the whole step; buffers that come
    with backward are made, once, in no time, before the first node of backward."""
    steps = Steps()
    steps.held_bytes = graph.get("held_bytes", 0)
    made_buffers = {b for node in graph["nodes"] for b in node["makes"]}
    begin = []
    for b, buffer in enumerate(graph["buffers"]):
        if b in made_buffers:
            continue
        if buffer.get("from") == "backward":
            begin.append(b)
        else:
            steps.held_bytes += buffer["bytes"]
    value: dict[int, int] = {}

    def sizes(buffers: list[int]) -> list[int]:
        return [graph["buffers"][b]["bytes"] for b in buffers]

    has_begun = False
    for node in graph["nodes"]:
        if node["stage"] == "backward" and not has_begun:
            has_begun = True
            if begin:
                value |= zip(begin, steps.add(0.0, [], sizes(begin), {"again": False}))
        reads = [value[b] for b in node["reads"] if b in value]
        makes = node["makes"]
        value |= zip(makes, steps.add(node["ms"], reads, sizes(makes), node))
    for b in (*graph["forward_outputs"], *graph["backward_outputs"]):
        if b in value:
            steps.is_returned[value[b]] = True
    return steps


class ScheduleProgram(Program):
    def __init__(self, steps: Steps, budget: int) -> None:
        super().__init__()
        count = len(steps.ms)
        slots = [(s, i) for s in range(count) for i in range(s + 1)]
        runs = [
            self.binary(lower=1)
            if i == s
            else self.binary(steps.ms[i], upper=steps.may_run_again[i])
            for s, i in slots
        ]
        loads: list[list[tuple[int, float]]] = [
            [(runs[k], steps.scratch[i])] for k, (_, i) in enumerate(slots)
        ]
        makers = {b: n for n, made_values in enumerate(steps.makes) for b in made_values}
        for b, size in enumerate(steps.bytes):
            later = None  # live at the next slot
            for k in reversed(range(len(slots))):
                node = slots[k][1]
                live = self.number()
                if node == makers[b] or b in steps.reads[node]:
                    self.at_least_all(live, [runs[k]])
                if later is None:
                    if steps.is_returned[b]:
                        self.row([(live, 1)], lower=1)
                elif slots[k + 1][1] == makers[b]:
                    self.row([(live, 1), (later, -1), (runs[k + 1], 1)], lower=0)
                else:
                    self.at_least_all(live, [later])
                loads[k].append((live, size))
                later = live
        for load in loads:
            self.row(load, upper=budget - steps.held_bytes)
