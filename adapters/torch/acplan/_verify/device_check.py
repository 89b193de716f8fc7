"""The run of a plan on a device, predicted and re-traced: both by `acplan simulate`."""

from typing import Any

from acplan._base.question import QuestionFolder, question_folder
from acplan._files.json_files import read_json
from acplan._files.plan_file import Plan
from acplan._files.trace_file import Trace
from acplan._files.verification import DeviceCheck, DeviceRun
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
        place = f"iteration {failure['iteration']}" + (
            f", {failure['operator']} in {failure['module']}" if "operator" in failure else ""
        )
        why = (
            f"{failure['bytes']:,} bytes at {place}, with {failure['allocated_bytes']:,} "
            f"allocated and {failure['reserved_bytes']:,} reserved"
        )
    return DeviceRun(
        data["allocated_bytes"], data["reserved_bytes"], data["least_device_bytes"], why
    )
