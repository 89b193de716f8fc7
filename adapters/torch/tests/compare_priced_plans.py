"""Prices plans that were made with other run-times: those of a roofline and those of kernels.

    ACPLAN=... OMP_NUM_THREADS=1 PYTHONPATH=. python tests/compare_priced_plans.py [TRACE...]

writes docs/measured/priced_plans.csv. For each bundled trace there are two answers to how long
its operators take: the larger of FLOPs and bytes at the vendor's rates, which the bundled file
has, and the kernels' times of `acplan.trace` (docs/python/run_times.md). Plans are made with
either, and one with the kernels' that loses least if kinds of operators are off by up to 1.5.
Each plan's step is then priced by both, in milliseconds.
"""

import gzip
import json
import pathlib
import sys
from collections.abc import Iterator
from typing import Any

from acplan import AcplanError, Plan, Trace, plan, trace
from measured import simulated
from models import MODELS
from tables import Table
from write_traces import BUNDLED

_TRACES = pathlib.Path(__file__).parents[3] / "data" / "traces"
# Shares of the way from the least budget to the step without a plan.
_SHARES = (0.7, 0.3)
_OFF_BY = 1.5
_TIME_LIMIT = 10
_COLUMNS = (
    "trace", "budget", "priced by", "without a plan: ms", "plan by roofline: ms",
    "plan by kernels: ms", "robust plan: ms",
)  # fmt: skip


def _traces_of(name: str) -> dict[str, Trace]:
    """Returns the step with the times of a roofline, and with those of kernels."""
    make, autocast = MODELS[BUNDLED[name]]
    model, inputs = make().on_meta()
    kernels = trace(model, autocast=autocast, source=False, **inputs)
    bundled = json.loads(gzip.decompress((_TRACES / f"{name}.json.gz").read_bytes()))
    before, now = bundled["operators"], kernels.data["operators"]
    if [o["name"] for o in before] != [o["name"] for o in now]:
        raise AcplanError(f"{name}: the bundled trace has other operators")
    timed = [{**o, "runtime_ms": old["runtime_ms"]} for o, old in zip(now, before, strict=True)]
    return {"roofline": Trace({**kernels.data, "operators": timed}), "kernels": kernels}


def _plans_of(traces: dict[str, Trace], budget: int) -> Iterator[Plan]:
    options: dict[str, Any] = {"time_limit": _TIME_LIMIT, "without_host": True}
    yield plan(traces["roofline"], budget, **options)
    yield plan(traces["kernels"], budget, **options)
    yield plan(traces["kernels"], budget, times_off=_OFF_BY, robust=True, **options)


def _rows(name: str) -> Iterator[list[object]]:
    traces = _traces_of(name)
    most = traces["kernels"].peak_bytes
    least = plan(traces["kernels"], "min", time_limit=_TIME_LIMIT, without_host=True).peak_bytes
    for share in _SHARES:
        plans = list(_plans_of(traces, int(least + share * (most - least))))
        for label, priced_by in traces.items():
            step_ms = sum(o["runtime_ms"] for o in priced_by.data["operators"])
            prices = (
                step_ms + simulated(priced_by, priced)["recompute_ms"] for priced in plans
            )
            yield [name, f"{share:.0%}", label, *(f"{ms:.3f}" for ms in (step_ms, *prices))]


def main(names: list[str]) -> None:
    table = Table("priced_plans", _COLUMNS, is_partial=bool(names))
    for name in names or BUNDLED:
        try:
            for row in _rows(name):
                table.add(*row)
        except AcplanError as error:
            print(f"left out: {error}", file=sys.stderr)


if __name__ == "__main__":
    main(sys.argv[1:])
