"""Prices plans that were made with other run-times: those of a roofline and those of kernels.

    ACPLAN=... OMP_NUM_THREADS=1 PYTHONPATH=. python tests/compare_priced_plans.py [TRACE...]

writes docs/measured/priced_plans.csv. For each bundled trace there are two answers to how long
its operators take: the larger of FLOPs and bytes at the vendor's rates, and the kernels' times
of `acplan.trace` (docs/python/run_times.md). Plans are made with
either, and one with the kernels' that loses least if kinds of operators are off by up to 1.5.
Each plan's step is then priced by both, in milliseconds.
"""

import sys
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from acplan import DEVICES, AcplanError, Device, Plan, Trace, plan, trace
from acplan._device.devices import OperatorRun, flops_of
from acplan._device.product_times import Call
from measured import simulated
from models import MODELS
from tables import Table
from write_traces import BUNDLED

# Shares of the way from the least budget to the step without a plan.
_SHARES = (0.7, 0.3)
_OFF_BY = 1.5
_TIME_LIMIT = 10
_COLUMNS = (
    "trace", "budget", "priced by", "without a plan: ms", "plan by roofline: ms",
    "plan by kernels: ms", "robust plan: ms",
)  # fmt: skip


class _Roofline(Device):
    """A device whose kernels reach the vendor's rates."""

    def runtime_ms(
        self,
        run: OperatorRun,
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
    ) -> float:
        call = Call(*run, inputs, outputs, flops_of(*run))
        compute = call.flops / self.peak_flops(call.dtype)
        return max(compute, call.traffic / self.bandwidth) * 1e3


def _traces_of(name: str) -> dict[str, Trace]:
    """Returns the step with the times of a roofline, and with those of kernels."""
    make, autocast = MODELS[BUNDLED[name]]
    kernels = DEVICES["a100"]
    devices = {"roofline": _Roofline(**vars(kernels)), "kernels": kernels}
    traces = {}
    for times, device in devices.items():
        model, inputs = make().on_meta()
        traces[times] = trace(model, device=device, autocast=autocast, source=False, **inputs)
    return traces


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
