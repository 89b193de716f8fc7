"""The run of a plan on a device, predicted and re-traced: both by `acplan simulate`, or by
`acplan lengths simulate` for a table of plans."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from acplan._base.question import QuestionFolder, question_folder
from acplan._files.json_files import read_json
from acplan._files.plan_file import Plan
from acplan._files.plan_table import PlanTable
from acplan._files.trace_file import Trace
from acplan._files.verification import DeviceCheck, DeviceRun
from acplan._program.lengths import Batches
from acplan._program.plan import installed_allocator


def has_run(plan: Plan) -> bool:
    """Returns whether a run of the plan can be simulated: on one rank, with all of its
    memory on the device."""
    data = plan.data
    return (
        data.get("memory_model", "trace") == "trace"
        and data.get("world_size", 1) == 1
        and not data.get("without_states")
        and plan.stall_ms is None
    )


def check_device(model_trace: Trace, plan: Plan, retrace: Trace) -> DeviceCheck:
    """Runs the plan's steps on its device, or with the defaults on one without a limit.

    retrace: the step with the plan, which therefore runs without one.
    """
    device = plan.device
    device_bytes = None
    if device is not None:
        device_bytes = plan.budget_bytes - int(plan.data.get("reserve_bytes", 0))
    version = installed_allocator() if device is None else device.torch_version
    is_state_first = device is not None and device.optimizer_state_first
    question = {
        "allocator": "native" if device is None else device.allocator,
        "optimizer_state": "first" if is_state_first else "update",
        "output": "run",
    }
    if device is not None and device.ddp:
        question["ddp"] = device.ddp
    if version is not None:
        question["torch_version"] = version
    if device_bytes is not None:
        question["device_memory"] = str(device_bytes)
    with question_folder() as folder:
        plan.save(str(folder.path_of("plan")), model=model_trace.data["model"]["name"])
        predicted = _ask(folder, {**question, "trace": model_trace, "plan": "plan"})
        measured = _ask(folder, {**question, "trace": retrace})
    return DeviceCheck(
        question["allocator"],
        predicted["torch_version"],
        is_state_first,
        device_bytes,
        _run_of(predicted),
        _run_of(measured),
    )


def check_batches(
    batches: Batches, table: PlanTable, retraces: Mapping[int, Trace]
) -> DeviceCheck:
    """Runs all batches on the table's device: as predicted, and of the steps that were traced
    again with their plans, which therefore run without one."""
    device = table.device
    question = {
        "allocator": device.allocator,
        "torch_version": device.torch_version,
        "optimizer_state": "first" if device.optimizer_state_first else "update",
        "device_memory": str(table.usable_bytes),
        **({"ddp": device.ddp} if device.ddp else {}),
    }
    # An evaluation has no plan.
    traced_again = dataclasses.replace(
        batches, traces=dict(retraces), evaluations=batches.evaluations or batches.traces
    )
    return DeviceCheck(
        device.allocator,
        device.torch_version,
        device.optimizer_state_first,
        table.usable_bytes,
        _run_of(_run_batches(batches, question, table)),
        _run_of(_run_batches(traced_again, question, None)),
    )


def _run_batches(
    batches: Batches, question: Mapping[str, Any], table: PlanTable | None
) -> dict[str, Any]:
    with question_folder() as folder:
        plan = None if table is None else folder.add("table.json", table)
        full_question = {**question, **batches.question(folder), "plan": plan, "output": "run"}
        folder.ask("lengths simulate", full_question).require_success()
        run: dict[str, Any] = read_json(folder.path_of("run"))
    return run


def _ask(folder: QuestionFolder, question: dict[str, Any]) -> dict[str, Any]:
    name = "planned" if "plan" in question else "retraced"
    question["trace"] = folder.add(name, question["trace"])
    folder.ask("simulate", question).require_success()
    run: dict[str, Any] = read_json(folder.path_of("run"))["run"]
    return run


def _run_of(data: dict[str, Any]) -> DeviceRun:
    failure = data["failure"]
    why = ""
    if failure is not None:
        count = "iteration" if "iteration" in failure else "batch"
        place = f"{count} {failure[count]}" + (
            f", {failure['operator']} in {failure['module']}" if "operator" in failure else ""
        )
        why = (
            f"{failure['bytes']:,} bytes at {place}, with {failure['allocated_bytes']:,} "
            f"allocated and {failure['reserved_bytes']:,} reserved"
        )
    return DeviceRun(
        data["allocated_bytes"], data["reserved_bytes"], data["least_device_bytes"], why
    )
