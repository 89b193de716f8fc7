#!/usr/bin/env python3
"""published_schedules.py FOLDER: what `acplan schedule` finds on the graphs that
Moccasin's authors publish (github.com/haoming-codes/moccasin; FOLDER is its `data`), beside
published results. It prints docs/measured/published_schedules.csv. ACPLAN names the program.

Every schedule is run once more here, from the graph's file alone. `--runs FILE` adds what a run
of Moccasin itself came to: lines of `graph,share,increase in %,seconds,status`.
"""

import argparse
import csv
import json
import math
import os
import pathlib
import subprocess
import sys
from collections import defaultdict
from typing import Any

# By the graph's file name, in the order of the table: how it begins, its short name.
GRAPHS = {
    "random_layered_n100_": "random layered, 100",
    "random_layered_n250_": "random layered, 250",
    "random_layered_n500_": "random layered, 500",
    "random_layered_n1000_": "random layered, 1,000",
    "fcn_8_vgg (MLSys)_32_(416, 608, 3)_train": "FCN-8",
    "ResNet50 (MLSys)_256_(224, 224, 3)_train": "ResNet-50",
    "VGG16 (MLSys)_256_(224, 224, 3)_train": "VGG-16",
    "VGG19 (MLSys)_256_(224, 224, 3)_train": "VGG-19",
    "vgg_unet (MLSys)_32_(416, 608, 3)_train": "U-Net",
    "segnet (MLSys)_32_(416, 608, 3)_train": "SegNet",
    "MobileNet (MLSys)_512_(224, 224, 3)_train": "MobileNet",
}
SHARES = (0.9, 0.8, 0.7, 0.6, 0.5)
COLUMNS = ["graph", "share", "budget", "increase", "peak", "bound", "seconds"] + [
    "Moccasin",
    "Checkmate",
    "Moccasin run here",
]
# Increase of the total duration in % and seconds to it: Moccasin, then Checkmate's MILP, of the
# table of Bartan et al., ICML 2023 (16 cores, CP-SAT and Gurobi, limits of 1,800 and 3,600 s).
PUBLISHED = {
    ("random layered, 250", 0.9): ("0.9 in 55 s", "0.9 in 685 s"),
    ("random layered, 250", 0.8): ("4.9 in 639 s", ""),
    ("random layered, 1,000", 0.9): ("0.7 in 3,613 s", ""),
    ("random layered, 1,000", 0.8): ("3.4 in 3,612 s", ""),
    ("FCN-8", 0.9): ("0.0 in 3.1 s", "0.0 in 6.3 s"),
    ("FCN-8", 0.8): ("0.1 in 3.1 s", "0.1 in 5.6 s"),
    ("ResNet-50", 0.9): ("0.2 in 65 s", "0.1 in 434 s"),
    ("ResNet-50", 0.8): ("0.3 in 69 s", "0.3 in 485 s"),
}


def program() -> str:
    return os.environ.get("ACPLAN", "acplan")


def plan(path: pathlib.Path, budget: str, limit: float) -> dict[str, Any]:
    """The answer of the program; an infeasible one has no `sequence`."""
    command = [program(), "schedule", str(path), "--json"]
    ran = subprocess.run(
        [*command, "--budget", budget, "--time-limit", str(limit)],
        capture_output=True,
        text=True,
        check=False,
    )
    if ran.returncode not in (0, 3, 4):
        sys.exit(ran.stderr)
    return json.loads(ran.stdout)


def order_of(graph: dict[str, Any], links: list[tuple[int, int]]) -> list[int]:
    """The nodes in the order of their first runs: as given, or first in, first out."""
    if "order" in graph["graph"]:
        return graph["graph"]["order"]
    waits: dict[int, int] = defaultdict(int)
    readers = defaultdict(list)
    for source, target in links:
        waits[target] += 1
        readers[source].append(target)
    order = [n for n in range(len(graph["nodes"])) if waits[n] == 0]
    for node in order:
        for reader in readers[node]:
            waits[reader] -= 1
            if waits[reader] == 0:
                order.append(reader)
    return order


def replay(path: pathlib.Path, sequence: list[int]) -> tuple[int, float]:
    """The peak and the time of a schedule, from the file: by the last read of every copy."""
    graph = json.loads(path.read_text())
    links = [
        (link.get("source", link.get("0")), link.get("target", link.get("1")))
        for link in graph["links"]
    ]
    order = order_of(graph, links)
    reads = defaultdict(list)
    for source, target in links:
        reads[target].append(source)
    steps = [order[position] for position in sequence]
    last: dict[int, int] = {}
    ends = list(range(len(steps)))
    for step, node in enumerate(steps):
        for value in reads[node]:
            ends[last[value]] = step
        last[node] = step
    nodes = graph["nodes"]
    change = [0] * (len(steps) + 1)
    for step, node in enumerate(steps):
        size = nodes[node].get("cost_ram", nodes[node].get("out_cost"))
        change[step] += size
        change[ends[step] + 1] -= size
    live = peak = 0
    for step in range(len(steps)):
        live += change[step]
        peak = max(peak, live)
    time = sum(nodes[n].get("cost_cpu", nodes[n].get("duration")) for n in steps)
    return peak, time


def row(path: pathlib.Path, name: str, share: float, arguments: Any) -> list[str]:
    once = plan(path, "100%", 1)
    budget = math.ceil(once["baseline_peak_bytes"] * share)
    answer = plan(path, str(budget), arguments.seconds)
    cells = [name, f"{share:.0%}", str(budget)]
    if answer["status"] == "infeasible":
        cells += ["no schedule", f"{answer.get('least_bound_bytes', 0):,} needed", "", ""]
    elif "sequence" not in answer:
        cells += ["none found", "", "", ""]
    else:
        step = answer["step_time"]
        peak, time = replay(path, answer["sequence"])
        if peak != answer["peak_bytes"] or peak > budget:
            sys.exit(f"{name}: the schedule's peak is {peak}, not {answer['peak_bytes']}")
        if not math.isclose(time, step + answer["recomputed"], rel_tol=1e-12):
            sys.exit(f"{name}: the schedule takes {time}")
        cells += [
            f"{answer['recomputed'] / step:.3%}",
            f"{peak / once['baseline_peak_bytes']:.1%}",
            "optimal" if answer["status"] == "optimal" else f"{answer['bound'] / step:.3%}",
            f"{answer['seconds']:.2f}",
        ]
    return [*cells, *PUBLISHED.get((name, share), ("", ""))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--seconds", type=float, default=60, help="of each search (60)")
    parser.add_argument("--runs", type=pathlib.Path, help="of Moccasin itself, CSV")
    arguments = parser.parse_args()
    runs = {}
    if arguments.runs:
        for graph, share, *rest in csv.reader(arguments.runs.read_text().splitlines()):
            runs[graph, float(share)] = rest
    files = sorted(arguments.folder.glob("*.json"))
    table = csv.writer(sys.stdout, lineterminator="\n")
    table.writerow(COLUMNS)
    for start, name in GRAPHS.items():
        path = next((f for f in files if f.name.startswith(start)), None)
        if path is None:
            sys.exit(f"{arguments.folder}: expected a graph {start}*.json, found none")
        shares = SHARES if "train" in start else SHARES[:2]
        for share in shares:
            cells = row(path, name, share, arguments)
            increase, seconds, status = runs.get((name, share), ("", "", ""))
            cells.append(f"{increase} in {seconds} s, {status}" if status else "")
            table.writerow(cells)
            sys.stdout.flush()


if __name__ == "__main__":
    main()
