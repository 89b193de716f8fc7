"""Compares what torch.compile's partitioner saves at its memory budgets with acplan's plans at
the same peak.

    ACPLAN=... PYTHONPATH=. python tests/compare_compiled.py FOLDER

writes docs/measured/compiled.csv, compiled_least.csv and compiled_eager.csv; with names of
models after it, it prints only those. The folder keeps the results of each model, which are
not made twice. PyTorch's solver `ilp` needs SciPy.
"""

import dataclasses
import logging
import pathlib
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

from torch._functorch import config, partitioners
from torch.fx import Node

from acplan._device.devices import DEVICES
from acplan._files.json_files import read_json, write_json
from acplan._graphs.graph_memory import run_step
from acplan._graphs.joint_graph import JointGraph
from acplan._graphs.moved_values import move_values, moves_of
from acplan._graphs.pytorch_partitioner import choosing
from acplan._graphs.remat import plan_graph
from compare_compiled_eager import NAMES, rows_of
from joint_cases import Joint, joint_of
from models_compiled import MODELS
from tables import Table, print_versions

BUDGETS = (1.0, 0.8, 0.6, 0.4, 0.2, 0.0)
_SOLVERS = ("dp", "ilp", "greedy")
_TIME_LIMIT = 30.0
_KEPT_TIME_LIMIT = 10.0
_GIB = 2**30


@dataclasses.dataclass(frozen=True)
class Row:
    budget: float
    solver: str
    torch_seconds: float
    theirs: dict[str, Any]
    ours: dict[str, Any]
    is_as_predicted: bool


class Case:
    """A joint graph, and what PyTorch's partitioner says of its nodes."""

    def __init__(self, name: str, joint: Joint) -> None:
        self._joint = joint
        self._arguments: tuple[Any, Any] = (None, None)
        self._cuts: dict[Any, Any] = {}
        self._partition(self._look)
        self._graph = JointGraph(
            joint.module,
            self._arguments[1],
            joint.options["num_fwd_outputs"],
            DEVICES["a100"],
            is_fused=True,
        )
        self.data = self._graph.data(name)

    def _look(self, joint_graph: Any, node_info: Any) -> list[Node]:
        self._arguments = (joint_graph, node_info)
        return list(node_info.inputs)

    def _partition(self, choose: Callable[..., list[Node]]) -> tuple[Any, Any]:
        with choosing(choose):
            return partitioners.min_cut_rematerialization_partition(
                self._joint.module, self._joint.inputs, **self._joint.options
            )

    def default_saved(self) -> list[str]:
        """Returns the buffers that PyTorch saves without a budget, except those of nodes that
        are backward's here."""
        keepable = {*self._graph.keepable()}
        names = self._graph.names_of(self._torch_choice(1.0, _SOLVERS[0])[0])
        return [name for name in names if name in keepable]

    def rows(self) -> Iterator[Row]:
        for budget in BUDGETS:
            before: set[frozenset[str]] = set()
            for solver in _SOLVERS:
                saved, seconds, is_asked = self._torch_choice(budget, solver)
                names = frozenset(node.name for node in saved)
                if names not in before:
                    yield self._row(budget, solver if is_asked else "", seconds, saved)
                before.add(names)
                if not is_asked:
                    break

    def _torch_choice(self, budget: float, solver: str) -> tuple[list[Node], float, bool]:
        """Returns what PyTorch saves, its seconds, and whether it asked the solver."""
        calls: list[bool] = []
        solve = partitioners._optimize_runtime_with_given_memory

        def solving(*args: Any) -> Any:
            calls.append(True)
            return solve(*args)

        began = time.perf_counter()
        with (
            config.patch(activation_memory_budget_solver=solver),
            mock.patch.object(partitioners, solve.__name__, solving),
            mock.patch.object(partitioners, "solve_min_cut", self._min_cut),
        ):
            saved = partitioners.choose_saved_values_set(*self._arguments, memory_budget=budget)
        return saved, time.perf_counter() - began, bool(calls)

    def _min_cut(
        self, joint_graph: Any, node_info: Any, options: Any, dont_ban: Any = None
    ) -> Any:
        key = (repr(options), frozenset(dont_ban or ()))
        if key not in self._cuts:
            self._cuts[key] = _MIN_CUT(joint_graph, node_info, options, dont_ban)
        return self._cuts[key]

    def _row(self, budget: float, solver: str, seconds: float, saved: list[Node]) -> Row:
        theirs = self._run_of(saved)
        ours = plan_graph(self.data, theirs["peak_bytes"], _TIME_LIMIT)
        is_as_predicted = self.runs_as(ours)
        return Row(budget, solver, seconds, theirs, _figures(ours), is_as_predicted)

    def _run_of(self, saved: list[Node]) -> dict[str, Any]:
        """Returns what PyTorch's two graphs need, and what both of them run."""
        saved_names = set(self._graph.names_of(saved))
        forward, backward = self._graphs_saving(saved)
        first, second = run_step(forward, backward, self._num_fwd_outputs)
        twice = {step.name for step in first} & {step.name for step in second}
        return {
            "peak_bytes": max(step.live_bytes for step in (*first, *second)),
            "saved_bytes": sum(
                b["bytes"] for b in self.data["buffers"] if b["name"] in saved_names
            ),
            "recompute_ms": sum(
                node["ms"] for node in self.data["nodes"] if node["name"] in twice
            ),
        }

    @property
    def _num_fwd_outputs(self) -> int:
        return int(self._joint.options["num_fwd_outputs"])

    def _graphs_saving(self, saved: list[Node]) -> tuple[Any, Any]:
        names = {node.name for node in saved}

        def choose(joint_graph: Any, node_info: Any) -> list[Node]:
            return [node for node in joint_graph.nodes if node.name in names]

        return self._partition(choose)

    def runs_as(self, data: dict[str, Any]) -> bool:
        """Returns whether the graphs by acplan's plan run as it says."""
        forward, backward = self._graphs_saving(self._graph.saved_nodes(data["saved"]))
        backward = self._graph.order.applied(backward)
        listed = {node["name"] for node in self.data["nodes"]}
        move_values(forward, backward, self._num_fwd_outputs, moves_of(data), listed)
        moments = [
            (step.name, step.live_bytes)
            for steps in run_step(forward, backward, self._num_fwd_outputs)
            for step in steps
            if step.name in listed
        ]
        return moments == [(step["node"], step["bytes"]) for step in data["memory"]]


_MIN_CUT = partitioners.solve_min_cut


def _cells(row: Row, same_saved: dict[str, Any]) -> list[str]:
    theirs, ours = row.theirs, row.ours
    return [
        f"{row.budget:g}",
        row.solver,
        f"{theirs['saved_bytes'] / _GIB:.2f}",
        f"{theirs['peak_bytes'] / _GIB:.2f}",
        f"{theirs['recompute_ms']:.2f}",
        f"{ours['saved_bytes'] / _GIB:.2f}",
        f"{ours['peak_bytes'] / _GIB:.2f}",
        f"{ours['recompute_ms']:.2f}",
        f"{ours['bound_ms']:.2f}",
        "yes" if ours["status"] == "optimal" else f"{ours['gap']:.1%}",
        f"{row.torch_seconds:.1f} / {ours['seconds']:.2f}",
        "yes" if row.is_as_predicted else "no",
        _kept_cell(same_saved),
    ]


def _kept_cell(plan: dict[str, Any]) -> str:
    if "recompute_ms" not in plan:
        return "none" if plan["status"] == "infeasible" else "?"
    suffix = "" if plan["status"] == "optimal" else f" ({plan['gap']:.1%})"
    return f"{plan['recompute_ms']:.2f}{suffix}"


_COLUMNS = (
    ["model", "budget", "solver"]
    + ["PyTorch: saved GiB", "PyTorch: peak GiB", "PyTorch: recomputed ms"]
    + ["acplan: saved GiB", "acplan: peak GiB", "acplan: recomputed ms", "bound ms", "proven"]
    + ["seconds (PyTorch / acplan)", "ran as predicted", "same saved: recomputed ms"]
)
_LEAST_COLUMNS = ["model", "all saved GiB", "least GiB", "recomputed ms"] + [
    "PyTorch: least peak GiB",
    "forward ms",
    "seconds",
]


def _figures_of(name: str, folder: pathlib.Path) -> tuple[list[Row], dict[str, Any]]:
    """Returns the rows of the model, and its least budget. Makes them if the folder has
    none."""
    file = folder / ("".join(c if c.isalnum() else "_" for c in name) + ".json")
    if not file.exists():
        with joint_of(*MODELS[name]) as joint:
            case = Case(name, joint)
            rows = [dataclasses.asdict(row) for row in case.rows()]
            least = plan_graph(case.data, "min", _TIME_LIMIT)
        write_json(file, {"rows": rows, "least": _figures(least)})
    data = read_json(file)
    return [Row(**row) for row in data["rows"]], data["least"]


def _same_saved(name: str, folder: pathlib.Path, rows: list[Row]) -> dict[str, dict[str, Any]]:
    """Returns the best plans that keep at most as many bytes as PyTorch's choices, indexed by
    these bytes."""
    file = folder / ("".join(c if c.isalnum() else "_" for c in name) + ".kept.json")
    if not file.exists():
        with joint_of(*MODELS[name]) as joint:
            data = Case(name, joint).data
        sizes = {int(row.theirs["saved_bytes"]) for row in rows}
        plans = {f"{s}": plan_graph(data, None, _KEPT_TIME_LIMIT, kept_limit=s) for s in sizes}
        write_json(file, {s: _figures(plan) for s, plan in plans.items()})
    data_of_file = read_json(file)
    assert isinstance(data_of_file, dict)
    return data_of_file


def _figures(plan: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in plan.items() if isinstance(v, (int, float, str))}


def _main(folder: str, *names: str) -> None:
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    print_versions("transformers")
    table = Table("compiled", _COLUMNS, is_partial=bool(names))
    figures = {}
    for name in names or MODELS:
        figures[name] = _figures_of(name, pathlib.Path(folder))
        rows = figures[name][0]
        plans = _same_saved(name, pathlib.Path(folder), rows)
        for row in rows:
            same = plans[f"{row.theirs['saved_bytes']}"]
            table.add(name, *_cells(row, same))
    least_budgets = Table("compiled_least", _LEAST_COLUMNS, is_partial=bool(names))
    for name, (rows, least) in figures.items():
        least_budgets.add(name, *_least_cells(least, _least_of(rows)))
    _summarise(figures)
    eager_names = [n for n in NAMES if n in figures]
    _write_eager(eager_names, pathlib.Path(folder), is_partial=bool(names))


def _write_eager(names: list[str], folder: pathlib.Path, *, is_partial: bool) -> None:
    if not names:
        return
    columns = ["model", "plan of", "peak GiB", "recomputed ms", "status", "runs again"]
    table = Table("compiled_eager", columns, is_partial=is_partial)
    for name in names:
        for row in rows_of(name, folder):
            peak, ms = f"{row['peak_bytes'] / _GIB:.2f}", f"{row['ms']:.2f}"
            reruns = f"{row['count']}: {row['named']}"
            table.add(name, row["way"], peak, ms, row["status"], reruns)


def _least_of(rows: list[Row]) -> int:
    return min(int(row.theirs["peak_bytes"]) for row in rows)


def _least_cells(least: dict[str, Any], theirs: int) -> list[str]:
    return [
        f"{least['baseline_peak_bytes'] / _GIB:.2f}",
        f"{least['peak_bytes'] / _GIB:.2f}",
        f"{least['recompute_ms']:.2f}",
        f"{theirs / _GIB:.2f}",
        f"{least['forward_ms']:.1f}",
        f"{least['seconds']:.2f}",
    ]


def _summarise(figures: dict[str, tuple[list[Row], dict[str, Any]]]) -> None:
    rows = [row for rows, _ in figures.values() for row in rows]
    proven = sum(row.ours["status"] == "optimal" for row in rows)
    slowest = max(row.ours["seconds"] for row in rows)
    worse = sum(
        row.ours["recompute_ms"] > row.theirs["recompute_ms"] * (1 + 1e-9) for row in rows
    )
    factors = sorted(
        row.theirs["recompute_ms"] / row.ours["recompute_ms"]
        for row in rows
        if 0 < row.budget <= 0.6 and row.ours["recompute_ms"] > 0
    )
    run = sum(row.is_as_predicted for row in rows)
    lower = sum(least["peak_bytes"] < _least_of(rows) for rows, least in figures.values())
    print(
        f"{len(rows)} rows: {proven} plans proven optimal, {worse} recompute more than "
        f"PyTorch's choice at its peak, the slowest took {slowest:.2f} s. At budgets from .2 "
        f"to .6 PyTorch's choice recomputes {factors[0]:.2f} to {factors[-1]:.1f} times what "
        f"the plan does at the same peak, {factors[len(factors) // 2]:.2f} in the middle. "
        f"{run} of {len(rows)} plans ran with the bytes predicted at every node. The least "
        f"budget is below PyTorch's least peak for {lower} of {len(figures)} models."
    )


if __name__ == "__main__":
    _main(*sys.argv[1:])
