#!/usr/bin/env python3
"""device_plans.py PROGRAM [TRACE...]: prints how long plans for a device take, and how good
they are, beside plans for as many live bytes.

For each trace (those of data/traces by default) the budgets are shares of the way from the
least live bytes of any plan to those without a plan; the device has 3% more than the budget.
Prints a Markdown row for each: the milliseconds that the plan for the budget recomputes, then,
with all settings, with expandable segments and with native ones, how much more the plan for the
device recomputes; the CPU seconds of `plan --budget` with the device's bytes as budget, and how
many times those the three plans for the device take.
"""

import json
import pathlib
import resource
import statistics
import subprocess
import sys
from typing import Any

_SHARES = (0.8, 0.5, 0.2, 0.05)
_ALLOCATORS = ((), ("--allocator", "expandable_segments:True"), ("--allocator", "native"))
_MORE = 1.03
_RUNS = 3


def _run(program: str, trace: str, *options: str) -> tuple[float, dict[str, Any] | None]:
    """Returns the CPU seconds and the plan, or None without one."""
    seconds = []
    for _ in range(_RUNS):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        run = subprocess.run(
            [program, "plan", trace, *options, "--json"], capture_output=True, text=True
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        if run.returncode not in (0, 3, 4):
            sys.exit(f"device_plans.py: {trace} {options}: {run.stderr}")
        seconds.append(after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)
    plan = json.loads(run.stdout) if run.returncode == 0 else None
    return statistics.median(seconds), plan


def _rows(program: str, trace: str) -> None:
    name = pathlib.Path(trace).name.removesuffix(".json.gz")
    least = _run(program, trace, "--budget", "min", "--time-limit", "10")[1]
    assert least is not None
    lowest, highest = least["peak_bytes"], least["baseline"]["peak_bytes"]
    for share in _SHARES:
        budget = int(lowest + share * (highest - lowest))
        plan = _run(program, trace, "--budget", str(budget), "--time-limit", "10")[1]
        assert plan is not None
        device_bytes = str(int(_MORE * budget))
        seconds = _run(program, trace, "--budget", device_bytes, "--time-limit", "10")[0]
        cells = [f"{plan['recompute_ms']:.3f}"]
        times = []
        for allocator in _ALLOCATORS:
            device = ["--device-memory", device_bytes, *allocator]
            taken, found = _run(program, trace, *device, "--time-limit", "10")
            times.append(f"{taken / seconds:.1f}")
            if found is None:
                cells.append("none found")
                continue
            more = found["recompute_ms"] / plan["recompute_ms"] - 1
            cells.append(f"{100 * more:+.1f}%")
        proven = "" if plan["status"] == "optimal" else " (not proven)"
        cells += [f"{seconds:.2f}{proven}", *times]
        print(f"| {name} | {share:.0%} | {' | '.join(cells)} |", flush=True)


def main() -> None:
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    program = str(pathlib.Path(sys.argv[1]).resolve())
    folder = pathlib.Path(__file__).parents[1] / "data" / "traces"
    traces = sys.argv[2:] or sorted(map(str, folder.glob("*.json.gz")))
    print(
        "| trace | budget | recomputed, ms | all | expandable | native | budget, s | all, times"
        " | expandable, times | native, times |"
    )
    print("|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|")
    for trace in traces:
        _rows(program, trace)


if __name__ == "__main__":
    main()
