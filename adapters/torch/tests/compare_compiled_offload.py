"""Compiled steps that move saved values, beside PyTorch's own pass that does so.

    ACPLAN=... PYTHONPATH=. python tests/compare_compiled_offload.py

writes docs/measured/compiled_offload.csv; with names of models after it, it prints only those.

PyTorch's pass (torch._functorch.config.enable_activation_offloading) moves saved values that are
marked for it. Here these are all that PyTorch saves and that may move: each leaves after its
last use in forward and comes back at its first one in backward, for which the step waits, as is
its default. acplan plans for the peak that this has, with and without a link.
"""

import logging
import sys
import warnings
from collections.abc import Iterator
from typing import Any

from acplan._graphs.remat import evaluate_graph, link_of, plan_graph
from compare_compiled import Case
from joint_cases import joint_of
from models_compiled import MODELS
from tables import Table, print_versions

_COUNT = 10  # of models, the first ones
_LINKS = {"12GB/s": 12e9, "25GB/s": 25e9, "100GB/s": 100e9}
_TIME_LIMIT = 30.0
_GIB = 2**30
_COLUMNS = (
    ["model", "link", "saved GiB", "peak GiB"]
    + ["all moved: peak GiB", "moved GiB", "waits ms"]
    + ["acplan there: moved GiB", "recomputed ms", "waits ms", "bound ms", "proven", "seconds"]
    + ["acplan, nothing moved: ms", "ran as predicted"]
)


def all_moved(data: dict[str, Any], plain: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the moves of all that is kept and may move: each leaves after its last use in
    forward, and is back at its first one in backward."""
    nodes = {node["name"]: node for node in data["nodes"]}
    number_of = {buffer["name"]: k for k, buffer in enumerate(data["buffers"])}
    forward = [s["node"] for s in plain["memory"] if s["pass"] == "forward"]
    backward = [s["node"] for s in plain["memory"] if s["pass"] == "backward"]
    moves = []
    for name in plain["saved"]:
        number = number_of[name]
        buffer = data["buffers"][number]
        reads = [n for n in backward if number in nodes[n]["reads"]]
        is_fixed = not buffer.get("move", True) or number in data["backward_outputs"]
        if is_fixed or not reads or not buffer["bytes"]:
            continue
        uses = [
            k
            for k, n in enumerate(forward)
            if number in nodes[n]["reads"] or number in nodes[n]["makes"]
        ]
        after = [*forward, None][uses[-1] + 1]
        moves.append({"buffer": name, "release_before": after, "fetch_before": reads[0]})
    return moves


def _rows(name: str) -> Iterator[list[str]]:
    with joint_of(*MODELS[name]) as joint:
        case = Case(name, joint)
        saved = case.default_saved()
        plain = evaluate_graph(case.data, saved)
        moves = all_moved(case.data, plain)
        alone: dict[str, Any] | None = None
        for link, rate in _LINKS.items():
            fields = {"moved": moves, "bytes_per_second": rate}
            theirs = evaluate_graph(case.data, saved, fields)
            peak = int(theirs["peak_bytes"])  # the same over each link
            alone = alone or plan_graph(case.data, peak, _TIME_LIMIT)
            ours = plan_graph(case.data, peak, _TIME_LIMIT, link=link_of(link, None, "a100"))
            yield [
                link,
                _gib(plain["saved_bytes"]),
                _gib(plain["peak_bytes"]),
                _gib(theirs["peak_bytes"]),
                _gib(theirs["moved_bytes"]),
                f"{theirs['stall_ms']:.2f}",
                _gib(ours["moved_bytes"]),
                f"{ours['recompute_ms']:.2f}",
                f"{ours['stall_ms']:.2f}",
                f"{ours['bound_ms']:.2f}",
                "yes" if ours["status"] == "optimal" else f"{ours['gap']:.1%}",
                f"{ours['seconds']:.1f}",
                f"{alone['recompute_ms']:.2f}" if "recompute_ms" in alone else "none",
                "yes" if case.runs_as(ours) and case.runs_as(theirs) else "no",
            ]


def _gib(size: int) -> str:
    return f"{size / _GIB:.2f}"


def _main(*names: str) -> None:
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    print_versions("transformers")
    table = Table("compiled_offload", _COLUMNS, is_partial=bool(names))
    for name in names or tuple(MODELS)[:_COUNT]:
        for cells in _rows(name):
            table.add(name, *cells)


if __name__ == "__main__":
    _main(*sys.argv[1:])
