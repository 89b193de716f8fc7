"""Runs a step that a recorder watches."""

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import torch

from acplan._base.errors import AcplanError
from acplan._base.tensors import tensors_in
from acplan._device.host_copy_times import let_waits_take_the_time
from acplan._files.trace_file import live_bytes
from acplan._step.model_tensors import ModelTensors
from acplan._step.module_calls import ModuleCalls
from acplan._step.parallel import whole_gradients
from acplan._step.pipeline import Pipeline
from acplan._step.recorder import Recorder
from acplan._step.step import Step
from acplan._step.step_log import StepLog


@dataclasses.dataclass(frozen=True)
class Marks:
    forward_end: int
    backward_end: int
    gradients: frozenset[int]
    # For each module, the storages of its parameters and buffers before the step.
    own: list[tuple[list[int], list[int]]]
    tensors: ModelTensors


def _register(recorder: Recorder, step: Step, optimizer: torch.optim.Optimizer) -> None:
    """Logs the storages that exist before the step, in a fixed order."""

    log = recorder.log

    def add(values: Any, category: str) -> None:
        for index in log.storages_of(values):
            storage = log.storages[index]
            storage.category = storage.category or category

    for parameter in step.model.parameters():
        add(parameter, "parameter")
    log.has_host_parameters = not all(storage.on_device for storage in log.storages)
    for buffer in step.model.buffers():
        add(buffer, "buffer")
    add((step.args, step.kwargs, step.held_tensors), "input")
    if step.pipeline is not None:
        add(step.pipeline.buffers(), "buffer")
    for parameter in step.model.parameters():
        add(parameter.grad, "gradient")
    add(whole_gradients(step.model), "gradient")
    for state in (*optimizer.state.values(), step.states()):
        add(state, "optimizer")
    for storage in _attributes(log, step.model):
        record = log.storages[storage]
        record.category = record.category or "activation"


def _attributes(log: StepLog, model: torch.nn.Module) -> Iterator[int]:
    """Yields the storages of tensors that modules keep as plain attributes."""
    for module in model.modules():
        for name, value in vars(module).items():
            if name in ("_parameters", "_buffers", "_modules") or "hooks" in name:
                continue
            yield from map(log.storage_of, log.plain(tensors_in(value)))


def run_step(
    recorder: Recorder,
    step: Step,
    optimizer: torch.optim.Optimizer,
    saved_hooks: torch.autograd.graph.saved_tensors_hooks | None = None,
) -> Marks:
    """Runs forward, backward and optimizer step. With hooks of the recorder on what autograd
    saves, the model must be without checkpointing."""
    step.run_earlier()
    log = recorder.log
    log.inner_passes.are_split = step.pipeline is not None
    calls = ModuleCalls(log)
    with recorder:
        _register(recorder, step, optimizer)
        own = [_own_storages(log, module) for module in step.model.modules()]
        tensors = ModelTensors(log, step.model)
        is_whole = step.forward_fn is not None or step.pipeline is not None
        forward_end = 0
        with (
            step.microbatch(),
            contextlib.ExitStack() as gathering,
            contextlib.ExitStack() as watching,
        ):

            def end_forward() -> None:
                nonlocal forward_end
                watching.close()
                log.is_forward = False
                forward_end = log.now

            if saved_hooks:
                gathering.enter_context(calls.gathering_watched(step.model.modules()))
                modules = step.model.modules()
                watching.enter_context(calls.watched(modules, but_root=is_whole))
                watching.enter_context(saved_hooks)
                if is_whole:
                    watching.enter_context(calls.root_called())
            step.run_passes(end_forward)
        calls.ignore_gradients()
        backward_end = log.now
        gradients = frozenset(log.storages_of([p.grad for p in step.model.parameters()]))
        tensors.end_backward(forward_end)
        step.update(optimizer)
    recorder.add_persistent_workspace(forward_end, backward_end)
    let_waits_take_the_time(log.operators)
    for operator in log.operators[backward_end:]:
        operator.runtime_ms /= step.accumulate
    return Marks(forward_end, backward_end, gradients, own, tensors)


# Frames of these functions are not part of the step.
AROUND_STEPS = (Step.loss_of.__code__, Pipeline.step.__code__, run_step.__code__)


def require_same_step(full: StepLog, scopes: StepLog) -> None:
    names = [operator.name for operator in full.operators]
    names_again = [operator.name for operator in scopes.operators]
    if names == names_again:
        if len(full.storages) != len(scopes.storages):
            raise AcplanError(
                "the model keeps more tensors with each step, for example in a list, so "
                "memory differs between steps"
            )
        if len(full.tensors) != len(scopes.tensors):
            raise AcplanError(
                "the model's step makes different views in each run, for example because it "
                "traces a graph of its own (torch.func.linearize, make_fx)"
            )
        return
    at = next(
        (k for k, (a, b) in enumerate(zip(names, names_again)) if a != b),
        min(len(names), len(names_again)),
    )
    raise AcplanError(
        f"the model's step differs between runs (from operator {at} on), so a plan for one "
        "run would not fit another"
    )


def recasts_of(
    full: StepLog, step: Step, optimizer: torch.optim.Optimizer, forward_end: int
) -> dict[int, list[int]]:
    """Returns, for each operator, the casts before it that autocast kept from earlier, in the
    order in which they would be made. Runs another forward pass for that, which must be the
    last one."""
    casts: dict[int, int] = {}
    for k, operator in enumerate(full.operators[:forward_end]):
        if operator.cast_of is not None:
            casts.setdefault(operator.cast_of, k)
    if not casts:
        return {}
    forgetful = Recorder(forgets_casts=True)
    step.run_earlier()
    with forgetful:
        _register(forgetful, step, optimizer)
        if step.pipeline is None:
            step.loss()
        else:
            step.run_passes()
    recasts: dict[int, list[int]] = {}
    place = 0
    for operator in forgetful.log.operators:
        expected = full.operators[place]
        leaf = operator.cast_of
        # Storages of the step itself may have other numbers in another run of it.
        if leaf in casts and leaf != expected.cast_of:
            recasts.setdefault(place, []).append(casts[leaf])
            continue
        if operator.name != expected.name:
            raise AcplanError(f"autocast: operator {place}: cannot follow its casts")
        place += 1
    return recasts


def _own_storages(log: StepLog, module: torch.nn.Module) -> tuple[list[int], list[int]]:
    parameters = log.storages_of(list(module.parameters(recurse=False)))
    return parameters, log.storages_of(list(module.buffers(recurse=False)))


def timeline_of(log: StepLog) -> list[int]:
    """Returns the bytes in use while each operator runs, storages rounded up to 512."""
    storages = ((s.born, s.freed, s.bytes) for s in log.storages if s.on_device)
    return live_bytes(storages, log.now)


def peak_of(log: StepLog) -> int:
    return max(timeline_of(log), default=0)
