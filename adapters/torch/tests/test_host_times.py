"""The host's times in a trace, and plans of steps that wait for the host."""

import dataclasses
from typing import Any

import pytest
import torch
from torch import nn

import acplan
from acplan import AcplanError, PlanHost, PlannedModule, Trace
from measured import simulated


def _model() -> nn.Module:
    blocks = [nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64)) for _ in range(4)]
    return nn.Sequential(*blocks)


def _trace(**options: Any) -> Trace:
    return acplan.trace(_model(), torch.randn(4096, 64), **options)


def test_traces_have_the_times_of_the_hosts_operators() -> None:
    slow = dataclasses.replace(acplan.DEVICES["a100"], host_factor=2)
    host, twice = _trace().data["host"], _trace(device=slow).data["host"]
    assert twice["unit_us"]["view"] == 2 * host["unit_us"]["view"] > 0
    assert twice["launch_us"] == 2 * host["launch_us"] > 0
    graphs = dataclasses.replace(slow, host_factor=0)
    assert "host" not in _trace(device=graphs).data


def test_a_unit_takes_the_host_its_operators_and_modules() -> None:
    traced = _trace()
    data, times = traced.data, traced.data["host"]
    plain = simulated(traced, acplan.Plan(()))["host"]
    unit = simulated(traced, acplan.Plan((PlannedModule("Sequential.1"),)))
    names = [module["fqn"] for module in data["modules"]]
    call = next(c for c in data["calls"] if names[c["module"]] == "Sequential.1")
    operators = data["operators"][call["start"] : call["end"]]
    views = sum(o.get("view", False) for o in operators)
    # The unit and its three children. Everything runs again but the last product.
    increase = (
        (len(operators) - views) * times["quiet_unit_us"]["operator"]
        + views * times["quiet_unit_us"]["view"]
        + 4 * times["module_us"]
        + 2 * times["launch_us"]
    )
    assert (unit["host"]["ms"] - plain["ms"]) * 1e3 == pytest.approx(increase)
    device_ms = sum(o["runtime_ms"] for o in data["operators"])
    assert plain["device_ms"] == pytest.approx(device_ms)
    assert unit["host"]["step_ms"] == max(unit["host"]["ms"], unit["host"]["device_ms"])


def test_plans_say_what_the_step_waits_for() -> None:
    small = acplan.plan(_trace(), "80%")
    assert small.host is not None and small.host.is_waited_for
    assert small.host.step_ms == small.host.ms > small.host.device_ms
    assert small.host.least_step_ms is not None
    assert small.host.baseline_ms < small.host.least_step_ms <= small.host.step_ms
    assert "the step waits for the host" in str(small)
    fast = dataclasses.replace(acplan.DEVICES["a100"], host_factor=1e-3)
    waiting = acplan.plan(_trace(device=fast), "80%")
    assert waiting.host is not None and not waiting.host.is_waited_for
    assert waiting.host.step_ms == waiting.host.device_ms
    assert "host" not in str(waiting)
    assert acplan.plan(_trace(), "80%", without_host=True).host is None


@pytest.mark.parametrize("wrong", [3, {"ms": 1}, {"ms": "x"}])
def test_a_wrong_entry_is_refused(wrong: Any) -> None:
    with pytest.raises(AcplanError, match="plan: host: "):
        PlanHost.from_optional(wrong)
