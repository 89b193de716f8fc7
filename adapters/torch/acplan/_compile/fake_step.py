"""A training step of a compiled model on fake tensors, which computes nothing and leaves the
model unchanged."""

import contextlib
import copy
import dataclasses
import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._guards import TracingContext, detect_fake_mode, tracing
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)
from torch.utils._python_dispatch import _disable_current_modes

from acplan._base.errors import AcplanError
from acplan._base.patching import replaced_here
from acplan._base.tensors import tensors_in
from acplan._compile.dynamo_state import compiler_as_it_was
from acplan._compile.step_recorder import Run, StepRecorder, held_by, numbers_of
from acplan._fakes.known_values import ValuedFakeTensorMode
from acplan._fakes.random_states import random_state_kept
from acplan._fakes.restored_state import (
    copied_with,
    fake_beside,
    state_kept,
    without_saved_hooks,
)
from acplan._fakes.tensor_values import give_value
from acplan._step.step import alone
from acplan._step.training_step import default_loss

Backend = Callable[..., Any]
Compile = Callable[[torch.nn.Module, Backend], Callable[..., Any]]


@dataclasses.dataclass(frozen=True)
class RecordedStep:
    """The runs of a step, and its memory.

    forward, backward: in the order in which they ran.
    bytes_of:    the bytes of each storage, by number.
    of_model:    storages of parameters and buffers.
    returned:    storages that the model returns, and its caller has.
    gradients:   storages of gradients of parameters, or of inputs, after the step.
    seeds:       storages with which backward begins.
    elsewhere_bytes: gradients that no graph has made, and tensors that autograd keeps for the
                 model's own code between graphs.
    """

    forward: tuple[Run, ...]
    backward: tuple[Run, ...]
    bytes_of: tuple[int, ...]
    of_model: frozenset[int]
    returned: frozenset[int]
    gradients: frozenset[int]
    seeds: frozenset[int]
    elsewhere_bytes: int


@functools.cache
def compiles_fakes() -> bool:
    """Returns whether Dynamo compiles for fake tensors of another mode than its own, such as
    those of a recorded step: from PyTorch 2.11 on."""
    with FakeTensorMode():
        other = torch.empty(1)
    with tracing(TracingContext(FakeTensorMode())):
        try:
            detect_fake_mode([other])
        except AssertionError:
            return False
    return True


def record_step(
    recorder: StepRecorder,
    model: torch.nn.Module,
    call: Callable[..., Any],
    user_inputs: tuple[tuple[Any, ...], dict[str, Any]],
    region: int | None = None,
) -> RecordedStep:
    """Runs `call`, the compiled model or the model with compiled parts, on fakes of the user's
    inputs, and backward from its loss, or, if it has no loss, from the mean of the first
    floating-point tensor that it returns. `region`: the region of Dynamo's caches in which
    `call` compiles, if it has one of its own."""
    mode = ValuedFakeTensorMode()
    mode.cache_enabled = False
    numbers = recorder.storages
    with _on_its_own(region), mode, _faked(model, mode) as fake:
        args, kwargs = copied_with(user_inputs, fake)
        of_model = numbers_of(numbers, [*model.parameters(), *model.buffers()])
        inputs = [t for t in held_by((args, kwargs)) if t.requires_grad]
        with torch.enable_grad():
            output = call(*args, **kwargs)
            loss = _loss_of(output)
        returned = numbers_of(numbers, held_by(output))
        saved = numbers_of(numbers, _kept_by_autograd(loss))
        seed = torch.ones_like(loss)
        seeds = {numbers.number(seed)}
        recorder.is_backward = True
        with torch.autocast(loss.device.type, enabled=False):
            loss.backward(seed)
        recorder.require_order()
        trained = [p for p in model.parameters() if p.requires_grad]
        gradients = numbers_of(numbers, [t.grad for t in (*trained, *inputs)])
        graph_gradients = {g for run in recorder.backward_runs for g in run.gradients.values()}
        bytes_of = tuple(size for size, _ in numbers.bytes_on)
        graph_storages = {
            s for run in recorder.runs for s in (*run.handed_out, *run.inputs.values())
        }
        other_storages = (gradients - graph_gradients) | (saved - graph_storages - of_model)
    return RecordedStep(
        tuple(recorder.runs),
        tuple(recorder.backward_runs),
        bytes_of,
        frozenset(of_model),
        frozenset(returned),
        frozenset(gradients),
        frozenset(seeds),
        sum(bytes_of[storage] for storage in other_storages),
    )


@contextlib.contextmanager
def _on_its_own(region: int | None) -> Iterator[None]:
    """Keeps other threads, modes and hooks of the user's out of the block."""
    with (
        alone(),
        torch.autograd.set_multithreading_enabled(False),
        _disable_current_modes(),
        without_saved_hooks(),
        _of_values(),
        compiler_as_it_was(region),
        random_state_kept(),
        _unasked(),
    ):
        yield


def _kept_by_autograd(loss: torch.Tensor) -> list[torch.Tensor]:
    """Returns the tensors that operators have saved for their backward."""
    tensors: list[torch.Tensor] = []
    pending, visited = [loss.grad_fn], {loss.grad_fn, None}
    while pending:
        node: Any = pending.pop()
        for name in dir(node):
            if name.startswith("_saved_"):
                with contextlib.suppress(RuntimeError):
                    tensors += tensors_in(getattr(node, name))
        for source, _ in node.next_functions if node is not None else ():
            if source not in visited:
                visited.add(source)
                pending.append(source)
    return tensors


@contextlib.contextmanager
def _of_values() -> Iterator[None]:
    try:
        yield
    except (DataDependentOutputException, DynamicOutputShapeException) as error:
        raise AcplanError(f"the operators between graphs depend on values: {error}") from error


def _loss_of(output: Any) -> torch.Tensor:
    if isinstance(output, torch.Tensor) and output.dim() == 0:
        return output
    loss: torch.Tensor = default_loss(output)
    return loss


@contextlib.contextmanager
def _unasked() -> Iterator[None]:
    """Keeps transformers, within the block, from taking a fake tensor for a sign that it is
    traced: values that it then does not read, such as masks, decide the graphs' inputs."""
    library = sys.modules.get("transformers.utils.import_utils")
    if not hasattr(library, "is_fake_tensor"):
        yield
        return
    with replaced_here(library, "is_fake_tensor", lambda _: False):
        yield


@contextlib.contextmanager
def _faked(
    model: torch.nn.Module, mode: FakeTensorMode
) -> Iterator[Callable[[torch.Tensor], Any]]:
    """Replaces every tensor of the model by a fake one within the block, and restores
    everything that the step has changed in its modules. Yields the function that makes
    fakes."""
    fakes: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def fake(value: torch.Tensor) -> torch.Tensor:
        if id(value) not in fakes:
            result = fake_beside(mode, value)
            give_value(result, value)
            if isinstance(value, torch.nn.Parameter):
                result = torch.nn.Parameter(result, requires_grad=value.requires_grad)
            else:
                result.requires_grad_(value.requires_grad)
            vars(result).update(_marks_for_dynamo(value))
            fakes[id(value)] = (
                result,
                value,
            )  # the original is held, so that its id stays valid
        return fakes[id(value)][0]

    with state_kept(model):
        for module in model.modules():
            for values in (vars(module), *vars(module).values()):
                for name, value in [*values.items()] if isinstance(values, dict) else ():
                    if isinstance(value, torch.Tensor):
                        values[name] = fake(value)
        yield fake


def _marks_for_dynamo(tensor: torch.Tensor) -> dict[str, Any]:
    """Returns the marks of the model's user on the tensor's sizes, by
    torch._dynamo.mark_dynamic for example."""
    marks = {k: v for k, v in vars(tensor).items() if k.startswith(_MARKS)}
    return copy.deepcopy(marks)


_MARKS = ("_dynamo_", "_has_dynamo_")
