"""acplan.calibrate: a trace whose step takes as long as one that was measured."""

import json
import math
from typing import Any

from acplan._base.errors import AcplanError
from acplan._base.question import question_folder
from acplan._files.plan_file import Plan
from acplan._files.trace_file import Trace


def calibrate(trace: Trace, step_ms: float, *, plan: Plan | None = None) -> Trace:
    """Returns the trace with run-times by which its step takes as long as it was measured to.

    trace:   a trace of the step, from `acplan.trace`.
    step_ms: the milliseconds of a whole iteration on the GPU, its microbatches and the update,
             measured over some iterations with a `torch.cuda.synchronize()` at both ends.
    plan:    the plan with which the iteration was measured; none by default.

    A step takes the longer of the device's and the host's time. The run-times of that one get a
    factor. A measurement doesn't show the other one: its times stay, unless together they are
    longer than the step, which they then equal. The trace has a note with the factors.
    """
    if not isinstance(trace, Trace):
        raise AcplanError(f"calibrate: trace: expected a Trace, found {type(trace).__name__}")
    is_number = isinstance(step_ms, (int, float)) and not isinstance(step_ms, bool)
    if not is_number or not math.isfinite(step_ms) or step_ms <= 0:
        raise AcplanError(
            f"calibrate: step_ms: expected milliseconds above 0, found {step_ms!r}"
        )
    device_ms, host_ms = _predicted_ms(trace, plan)
    measured_ms = step_ms / trace.accumulate
    longer_ms = max(device_ms, host_ms)
    device, host = (
        measured_ms / ms if ms == longer_ms or ms > measured_ms else 1.0
        for ms in (device_ms, host_ms)
    )
    return _with_factors(trace, step_ms, device, host)


def _predicted_ms(trace: Trace, plan: Plan | None) -> tuple[float, float]:
    """Returns the milliseconds of the device and of the host for a microbatch, with its share
    of the update."""
    with question_folder() as folder:
        question: dict[str, Any] = {"trace": folder.add("trace", trace)}
        if plan is not None:
            plan.save(folder.path_of("plan"), model=trace.data["model"]["name"])
            question["plan"] = "plan"
        answer = json.loads(
            folder.ask("simulate", {**question, "json": True}).require_success().out
        )
    step = answer["baseline" if plan is None else "planned"]
    host_ms = step["host"]["ms"] if "host" in step else 0.0
    if "streams" in step:
        return step["streams"]["step_ms"], host_ms
    device_ms = math.fsum(o["runtime_ms"] for o in trace.data["operators"])
    return device_ms + step["recompute_ms"], host_ms


def _with_factors(trace: Trace, step_ms: float, device: float, host: float) -> Trace:
    data = dict(trace.data)
    if "device" in data:
        predicted = data["device"].items()
        data["device"] = {key: value for key, value in predicted if key != "time_errors"}
    data["operators"] = [
        {**operator, "runtime_ms": operator["runtime_ms"] * device}
        for operator in data["operators"]
    ]
    if "host" in data:
        data["host"] = {key: _scaled(value, host) for key, value in data["host"].items()}
    note = f"run-times are scaled so that an iteration takes {step_ms:g} ms: the device's by "
    note += f"{device:.3g}" + (f", the host's by {host:.3g}" if "host" in data else "")
    data["notes"] = [*data.get("notes", ()), note]
    return Trace(data)


def _scaled(value: Any, factor: float) -> Any:
    if isinstance(value, dict):
        return {key: number * factor for key, number in value.items()}
    return value * factor
