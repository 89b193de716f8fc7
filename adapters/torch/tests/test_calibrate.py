"""Traces whose step takes as long as one that was measured."""

import math
from typing import Any

import pytest
import torch
from torch import nn

import acplan
from acplan import AcplanError, Plan, PlannedModule, Trace
from measured import simulated


def _trace(width: int, **options: Any) -> Trace:
    blocks = [nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(3)]
    return acplan.trace(nn.Sequential(*blocks), torch.randn(4096, width), **options)


def _step(traced: Trace, plan: Plan | None = None) -> dict[str, float]:
    step: dict[str, float] = simulated(traced, plan or Plan(()))["host"]
    return step


@pytest.mark.parametrize("width", [8, 2048], ids=["host", "device"])
@pytest.mark.parametrize("factor", [0.5, 3])
def test_a_step_takes_what_was_measured(width: int, factor: float) -> None:
    traced = _trace(width)
    before = _step(traced)
    after = _step(acplan.calibrate(traced, factor * before["step_ms"]))
    assert after["step_ms"] == pytest.approx(factor * before["step_ms"])
    waited, other = ("ms", "device_ms") if width == 8 else ("device_ms", "ms")
    assert after[waited] == pytest.approx(after["step_ms"])
    assert after[other] == pytest.approx(min(before[other], after["step_ms"]))


def test_what_is_recomputed_follows() -> None:
    traced = _trace(2048)
    unit = Plan((PlannedModule("Sequential.1"),))
    before = simulated(traced, unit)
    measured = 2 * before["host"]["step_ms"]
    with_plan = acplan.calibrate(traced, measured, plan=unit)
    after = simulated(with_plan, unit)
    assert after["host"]["step_ms"] == pytest.approx(measured)
    assert after["recompute_ms"] == pytest.approx(2 * before["recompute_ms"])
    assert "the device's by 2, the host's by 1" in with_plan.notes[-1]


def test_an_iteration_has_its_microbatches() -> None:
    traced = _trace(2048, accumulate=4)
    calibrated = acplan.calibrate(traced, 100)
    assert math.isclose(_step(calibrated)["step_ms"], 25)


@pytest.mark.parametrize("step_ms", [0, -1, float("inf"), float("nan"), "12", True, None])
def test_no_time_is_refused(step_ms: Any) -> None:
    with pytest.raises(AcplanError, match="calibrate: step_ms: expected milliseconds above 0"):
        acplan.calibrate(_trace(8), step_ms)


def test_a_file_is_refused() -> None:
    file: Any = "trace.json"
    with pytest.raises(AcplanError, match="calibrate: trace: expected a Trace, found str"):
        acplan.calibrate(file, 12)
