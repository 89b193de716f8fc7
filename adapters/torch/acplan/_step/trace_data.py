"""Turns the records of a step into the data of a trace."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from acplan._base.modules import class_name_of
from acplan._base.torchscript import notes_of_scripts
from acplan._device.devices import Device
from acplan._device.host_times import host_times_of
from acplan._files.fingerprint import WEIGHTS, weights_of
from acplan._files.trace_file import DIFFERENTIATES, live_bytes
from acplan._step.host_reads import with_reads_of_host
from acplan._step.inner_passes import held_until
from acplan._step.recorder import Recorder
from acplan._step.records import Call, Operator, Saved
from acplan._step.run_step import (
    Marks,
    peak_of,
)
from acplan._step.step import Step
from acplan._step.step_log import StepLog


@dataclasses.dataclass(frozen=True)
class Recorded:
    """The records of a step: a full one; one that shows until when anything except autograd
    holds its storages; the ends of its passes; and, by operator, the casts that autocast kept
    from before it."""

    full: Recorder
    scopes: Recorder
    marks: Marks
    recasts: Mapping[int, list[int]]


def _device(device: Device) -> dict[str, Any]:
    data: dict[str, Any] = {
        "name": device.name,
        "peak_flops": device.bfloat16,
        "bandwidth": device.bandwidth,
    }
    if device.time_errors is not None:
        median, ninety = device.time_errors
        data["time_errors"] = {"median": median, "ninety": ninety}
        if device.kind_errors:
            data["time_errors"]["ninety_of_kinds"] = dict(device.kind_errors)
    return data


def trace_data(step: Step, device: Device, recorded: Recorded) -> dict[str, Any]:
    """Returns the data of a trace (docs/file_formats.md)."""
    log, marks = recorded.full.log, recorded.marks
    holding = log.inner_passes.settle(log.calls, log.saved)
    _hold_during(holding, log, recorded.scopes.log)
    _settle(log, marks)
    return {
        "format": "acplan.trace",
        "version": 1,
        "model": {
            "name": class_name_of(step.model),
            "root_class": class_name_of(step.model),
        },
        "device": _device(device),
        **({"accumulate": step.accumulate} if step.accumulate > 1 else {}),
        "forward_end": marks.forward_end,
        "backward_end": marks.backward_end,
        "modules": _modules(step, marks, holding),
        "calls": [_call(call) for call in log.calls],
        "operators": _operators(log, recorded.recasts),
        "storages": _storages(recorded),
        "tensors": [
            {
                "storage": tensor.storage,
                "base": tensor.base,
                "scope_end": recorded.scopes.log.tensors[index].freed,
            }
            for index, tensor in enumerate(log.tensors)
        ],
        "saved": [_saved(saved) for saved in with_reads_of_host(log, marks.forward_end)],
        **marks.tensors.data(),
        **host_times_of(device),
        "measured": {"peak_bytes": peak_of(log)},
        "workspaces": recorded.full.counts_workspaces,
        "notes": [
            *step.notes,
            *log.inner_passes.notes(),
            *_notes_of_host(log),
            *notes_of_scripts(step.model),
        ],
        **({} if step.beginning is None else step.beginning.of_trace()),
    }


def _operators(log: StepLog, recasts: Mapping[int, list[int]]) -> list[dict[str, Any]]:
    creates: list[list[int]] = [[] for _ in range(log.now)]
    for index, storage in enumerate(log.storages):
        if storage.born >= 0:
            creates[storage.born].append(index)
    return [
        _operator(operator, creates[k], recasts.get(k))
        for k, operator in enumerate(log.operators)
    ]


def _storages(recorded: Recorded) -> list[dict[str, Any]]:
    has_host_parameters = recorded.full.log.has_host_parameters

    def host_bytes(size: int) -> dict[str, int]:
        return {"host_bytes": size} if has_host_parameters and size else {}

    return [
        {
            "bytes": storage.bytes if storage.on_device else 0,
            "category": storage.category,
            "born": storage.born,
            "freed": storage.freed,
        }
        | ({"stream": storage.stream} if storage.stream else {})
        | ({} if storage.on_device else host_bytes(storage.bytes))
        | (
            {"scope_end": recorded.scopes.log.storages[index].freed}
            if 0 <= storage.born < recorded.marks.forward_end
            else {}
        )
        for index, storage in enumerate(recorded.full.log.storages)
    ]


def _notes_of_host(log: StepLog) -> list[str]:
    """Returns the note on the most bytes that the host has of a model with parameters there."""
    if not log.has_host_parameters:
        return []
    storages = [s for s in log.storages if not s.on_device]
    most = max(live_bytes([(s.born, s.freed, s.bytes) for s in storages], log.now), default=0)
    return [
        "fully_shard keeps parameters, gradients and the optimizer's states in the host's "
        f"memory, up to {most:,} bytes"
    ]


def _hold_during(parts: dict[int, bool], log: StepLog, scopes: StepLog) -> None:
    """Extends the life of tensors that autograd saves in calls of which a pass is a part to the
    end of these calls, as if the program held them."""
    if not parts:
        return
    ends = held_until(log.calls, parts)
    for saved in log.saved:
        end = ends[saved.call] if saved.call >= 0 else None
        if end is None:
            continue
        until = end if saved.released is None else min(end, saved.released)
        for record in (scopes.storages[saved.storage], scopes.tensors[saved.tensor]):
            if record.freed is not None:
                record.freed = max(record.freed, until)


def _settle(log: StepLog, marks: Marks) -> None:
    """Fills in the fields that the recording alone does not have."""
    was_saved = {saved.storage for saved in log.saved}
    for index, storage in enumerate(log.storages):
        if storage.category:
            continue
        # Fused losses make gradients in the forward pass and hand them over.
        is_of_forward = 0 <= storage.born < marks.forward_end
        if index in marks.gradients and not is_of_forward:
            storage.category = "gradient"
        elif index in was_saved and is_of_forward:
            storage.category = "activation"
        else:
            storage.category = "temporary"
    for call in log.calls:
        if call.backward_start is None:
            call.backward_end = None
        elif call.backward_end is None:
            call.backward_end = marks.backward_end
        else:
            call.backward_end = max(call.backward_end, call.backward_start)
    _add_state_read(log, marks)
    _add_statistics_written(log, marks)
    for saved in log.saved:
        if saved.unpacked is None:
            continue
        if saved.local_end is None:
            saved.local_end = marks.backward_end
        saved.local_end = max(saved.local_end, saved.unpacked)
        if saved.released is None:
            continue
        # A backward node that returns what it unpacked passes it on.
        storage = log.storages[saved.storage]
        if storage.freed is not None:
            storage.freed = max(storage.freed, saved.local_end)


def _add_state_read(log: StepLog, marks: Marks) -> None:
    """Adds to the inputs of each call the storages that it reads, that are no arguments, and
    that everything else releases within the step, as when an attribute is set to another
    tensor: a unit holds them until it has run again. Casts that autocast keeps are made again,
    and are not added."""
    casts = {
        storage
        for operator in log.operators[: marks.forward_end]
        if operator.cast_of is not None
        for storage in operator.outputs
    }
    for call in log.calls:
        read = {
            storage
            for operator in log.operators[call.start : call.end]
            if not operator.is_view
            for storage in operator.reads
            if storage not in casts
        }
        states = (
            storage
            for storage in read
            if log.storages[storage].born < call.start
            and log.storages[storage].freed is not None
        )
        call.inputs = sorted({*call.inputs, *states})


def _add_statistics_written(log: StepLog, marks: Marks) -> None:
    """Adds to the storages that normalisations write to their running statistics, which schemas
    leave out, if other operators read these."""
    forward = log.operators[: marks.forward_end]
    statistics = {storage for operator in forward for storage in operator.statistics}
    read = {
        storage
        for operator in forward
        if statistics and not operator.is_view
        for storage in operator.reads
        if storage in statistics and storage not in operator.statistics
    }
    for operator in forward:
        storages = read.intersection(operator.statistics)
        if storages:
            operator.mutates = sorted({*operator.mutates, *storages})


def _call(call: Call) -> dict[str, Any]:
    data = dataclasses.asdict(call)
    if call.gather_begin is None:
        del data["gather_begin"], data["gather_end"]
    if not call.further_inputs:
        del data["further_inputs"]
    if not data.pop("no_grad"):
        return data
    return data | {"no_grad": True}


def _saved(saved: Saved) -> dict[str, Any]:
    data = dataclasses.asdict(saved)
    data["unpacked_again"] = data.pop("unpacks") > 1
    for flag in ("requires_grad", "unpacked_again"):
        if not data[flag]:
            del data[flag]
    return data


def _operator(
    operator: Operator, creates: list[int], recasts: list[int] | None
) -> dict[str, Any]:
    data: dict[str, Any] = {
        "name": operator.name,
        "call": operator.call,
        "runtime_ms": operator.runtime_ms,
        "reads": operator.reads,
        "creates": creates,
        "outputs": operator.outputs,
    }
    if operator.results:
        data["results"] = operator.results
    if operator.is_view:
        data["view"] = True
    if operator.is_random:
        data["random"] = True
    if operator.is_opaque:
        data["opaque"] = True
    if operator.is_once:
        data["once"] = True
    if operator.mutates:
        data["mutates"] = operator.mutates
    if recasts:
        data["recasts"] = recasts
    if operator.source >= 0:
        data["source"] = operator.source
    if operator.stream:
        data["stream"] = operator.stream
    if operator.waits:
        data["waits"] = operator.waits
    return data


def _modules(step: Step, marks: Marks, holding: dict[int, bool]) -> list[dict[str, Any]]:
    root = class_name_of(step.model)
    return [
        {
            "fqn": f"{root}.{path}" if path else root,
            "class": class_name_of(module),
            "parameters": parameters,
            "buffers": buffers,
            WEIGHTS: weights_of(module, trained_before=step.trained),
            **({DIFFERENTIATES: holding[place]} if place in holding else {}),
        }
        for place, ((path, module), (parameters, buffers)) in enumerate(
            zip(step.model.named_modules(), marks.own)
        )
    ]
