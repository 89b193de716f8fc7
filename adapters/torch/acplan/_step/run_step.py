"""A step that a recorder watches."""

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import torch

from acplan._base.errors import AcplanError
from acplan._base.tensors import tensors_in
from acplan._files.trace_file import live_bytes
from acplan._step.recorder import Recorder
from acplan._step.step import Step


@dataclasses.dataclass(frozen=True)
class Marks:
    forward_end: int
    backward_end: int
    gradients: frozenset[int]
    # By module, before the step: its parameters' and its buffers' storages.
    own: list[tuple[list[int], list[int]]]


def _register(recorder: Recorder, step: Step, optimizer: torch.optim.Optimizer) -> None:
    """What is there before the step, in an order of its own."""

    def add(values: Any, category: str) -> None:
        for index in recorder.storages_of(values):
            storage = recorder.storages[index]
            storage.category = storage.category or category

    for parameter in step.model.parameters():
        add(parameter, "parameter")
    for buffer in step.model.buffers():
        add(buffer, "buffer")
    add((step.args, step.kwargs, step.held), "input")
    for parameter in step.model.parameters():
        add(parameter.grad, "gradient")
    for state in (*optimizer.state.values(), step.states()):
        add(state, "optimizer")
    recorder.add_persistent_workspace()
    for storage in _attributes(recorder, step.model):
        known = recorder.storages[storage]
        known.category = known.category or "activation"


def _attributes(recorder: Recorder, model: torch.nn.Module) -> Iterator[int]:
    """Yields the storages of tensors that modules keep as plain attributes."""
    for module in model.modules():
        for name, value in vars(module).items():
            if name in ("_parameters", "_buffers", "_modules") or "hooks" in name:
                continue
            yield from map(recorder.storage_of, recorder.plain(tensors_in(value)))


def run_step(
    recorder: Recorder,
    step: Step,
    optimizer: torch.optim.Optimizer,
    saved_hooks: torch.autograd.graph.saved_tensors_hooks | None = None,
) -> Marks:
    """Forward, backward and optimizer step. With hooks of the recorder for what
    autograd saves, the model must be without checkpointing."""
    step.run_earlier()
    with recorder:
        _register(recorder, step, optimizer)
        own = [_own_storages(recorder, module) for module in step.model.modules()]
        is_whole = step.forward_fn is not None
        with contextlib.ExitStack() as watching:
            if saved_hooks:
                modules = step.model.modules()
                watching.enter_context(recorder.watching_calls(modules, but_root=is_whole))
                watching.enter_context(saved_hooks)
                if is_whole:
                    watching.enter_context(recorder.call_of_root())
            loss = step.loss()
        recorder.end_forward()
        forward_end = recorder.now
        step.backward(loss)
        del loss
        recorder.ignore_gradients()
        backward_end = recorder.now
        gradients = frozenset(recorder.storages_of([p.grad for p in step.model.parameters()]))
        step.update(optimizer)
    for operator in recorder.operators[backward_end:]:
        operator.runtime_ms /= step.accumulate
    return Marks(forward_end, backward_end, gradients, own)


# What their frames are in is not the step.
AROUND_STEPS = (Step.loss_of.__code__, run_step.__code__)


def require_same_step(full: Recorder, scopes: Recorder) -> None:
    names = [operator.name for operator in full.operators]
    again = [operator.name for operator in scopes.operators]
    if names == again:
        if len(full.storages) != len(scopes.storages):
            raise AcplanError(
                "the model keeps more tensors from step to step, in a list say: what a "
                "step holds of those before is not the same twice"
            )
        if len(full.tensors) != len(scopes.tensors):
            raise AcplanError(
                "the model's step makes other views from one time to the next, as where "
                "it traces a graph of its own (torch.func.linearize, make_fx)"
            )
        return
    at = next(
        (k for k, (a, b) in enumerate(zip(names, again)) if a != b),
        min(len(names), len(again)),
    )
    raise AcplanError(
        "the model's step differs from one time to the next (from operator "
        f"{at} on), so no plan made for one would fit the other"
    )


def recasts_of(
    full: Recorder, step: Step, optimizer: torch.optim.Optimizer, forward_end: int
) -> dict[int, list[int]]:
    """By operator: the casts before it that autocast kept from earlier, in the order
    in which it would make them."""
    casts: dict[int, int] = {}
    for k, operator in enumerate(full.operators[:forward_end]):
        if operator.cast_of is not None:
            casts.setdefault(operator.cast_of, k)
    if not casts:
        return {}
    forgetful = Recorder(forgets_casts=True)
    again = run_step(forgetful, step, optimizer).forward_end
    found: dict[int, list[int]] = {}
    place = 0
    for operator in forgetful.operators[:again]:
        expected = full.operators[place]
        kept = operator.cast_of
        # Storages of the step itself may have other numbers in another run of it.
        if kept in casts and kept != expected.cast_of:
            found.setdefault(place, []).append(casts[kept])
            continue
        if operator.name != expected.name:
            raise AcplanError(f"autocast: operator {place}: cannot follow its casts")
        place += 1
    return found


def _own_storages(recorder: Recorder, module: torch.nn.Module) -> tuple[list[int], list[int]]:
    parameters = recorder.storages_of(list(module.parameters(recurse=False)))
    return parameters, recorder.storages_of(list(module.buffers(recurse=False)))


def timeline_of(recorder: Recorder) -> list[int]:
    """Bytes in use while each operator runs, storages rounded up to 512."""
    storages = ((s.born, s.freed, s.bytes) for s in recorder.storages if s.on_device)
    return live_bytes(storages, recorder.now)


def peak_of(recorder: Recorder) -> int:
    return max(timeline_of(recorder), default=0)
