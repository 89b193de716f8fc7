"""A training step of a compiled model on fake tensors, which computes nothing and leaves
no trace in the model."""

import contextlib
import dataclasses
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from unittest import mock

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_map

from acplan.graph_values import tensors_in
from acplan.recorded_steps import Run, StepRecorder, held_by, numbers_of
from acplan.tracing import default_loss
from acplan.values import ValuedFakeTensorMode, give_value, random_state_kept

Backend = Callable[..., Any]
Compile = Callable[[torch.nn.Module, Backend], Callable[..., Any]]


@dataclasses.dataclass(frozen=True)
class RecordedStep:
    """The runs of a step, and what its memory is.

    forward, backward: in the order in which they ran.
    bytes_of:   what each storage takes, by number.
    of_model:   storages of parameters and buffers.
    returned:   what the model returns, which its caller has.
    gradients:  what is a parameter's gradient, or that of an input, after the step.
    seeds:      what backward begins with.
    elsewhere_bytes: gradients that no graph has made.
    """

    forward: tuple[Run, ...]
    backward: tuple[Run, ...]
    bytes_of: tuple[int, ...]
    of_model: frozenset[int]
    returned: frozenset[int]
    gradients: frozenset[int]
    seeds: frozenset[int]
    elsewhere_bytes: int


def record_step(
    recorder: StepRecorder,
    model: torch.nn.Module,
    call: Callable[..., Any],
    given: tuple[tuple[Any, ...], dict[str, Any]],
) -> RecordedStep:
    """Runs `call`, the compiled model or the model with compiled parts, on fakes of what
    is given, and backward from its loss; where there is none, from the mean of the first
    tensor of floating-point numbers that it returns."""
    mode = ValuedFakeTensorMode()
    mode.cache_enabled = False  # type: ignore[misc]
    numbers = recorder.storages
    with random_state_kept(), _unasked(), mode, _faked(model, mode) as fake:
        args, kwargs = tree_map(fake, given)
        of_model = numbers_of(numbers, [*model.parameters(), *model.buffers()])
        inputs = [t for t in tensors_in((args, kwargs)) if t.requires_grad]
        with torch.enable_grad():
            output = call(*args, **kwargs)
            loss = _loss_of(output)
        returned = numbers_of(numbers, held_by(output))
        seed = torch.ones_like(loss)
        seeds = {numbers.number(seed)}
        with torch.autocast(loss.device.type, enabled=False):
            loss.backward(seed)
        trained = [p for p in model.parameters() if p.requires_grad]
        gradients = numbers_of(numbers, [t.grad for t in (*trained, *inputs)])
        made = {g for run in recorder.backward_runs for g in run.gradients.values()}
        bytes_of = tuple(size for size, _ in numbers.bytes_on)
        elsewhere = sum(bytes_of[g] for g in gradients - made)
    return RecordedStep(
        tuple(recorder.runs),
        tuple(recorder.backward_runs),
        bytes_of,
        frozenset(of_model),
        frozenset(returned),
        frozenset(gradients),
        frozenset(seeds),
        elsewhere,
    )


def _loss_of(output: Any) -> torch.Tensor:
    if isinstance(output, torch.Tensor) and output.dim() == 0:
        return output
    loss: torch.Tensor = default_loss(output)
    return loss


@contextlib.contextmanager
def _unasked() -> Iterator[None]:
    """While it lasts, transformers takes no fake tensor for a sign that it is traced: what
    it then does not look at decides what the graphs are given, such as masks."""
    library = sys.modules.get("transformers.utils.import_utils")
    if not hasattr(library, "is_fake_tensor"):
        yield
        return
    with mock.patch.object(library, "is_fake_tensor", lambda _: False):
        yield


@contextlib.contextmanager
def _faked(
    model: torch.nn.Module, mode: FakeTensorMode
) -> Iterator[Callable[[Any], Any]]:
    """Replaces every tensor of the model by a fake one, and whatever the step changes in
    its modules by what it was."""
    fakes: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def fake(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if id(value) not in fakes:
            made = mode.from_tensor(value.detach())
            give_value(made, value)
            if isinstance(value, torch.nn.Parameter):
                made = torch.nn.Parameter(made, requires_grad=value.requires_grad)
            else:
                made.requires_grad_(value.requires_grad)
            fakes[id(value)] = (made, value)  # the original keeps its id
        return fakes[id(value)][0]

    with contextlib.ExitStack() as undo:
        for values in _attributes_of(model.modules()):
            undo.callback(_restore, values, [*values.items()])
        for values in _attributes_of(model.modules()):
            for name, value in list(values.items()):
                if isinstance(value, torch.Tensor):
                    values[name] = fake(value)
        yield fake


def _attributes_of(modules: Iterable[torch.nn.Module]) -> Iterator[dict[str, Any]]:
    for module in modules:
        yield vars(module)
        yield from (v for v in vars(module).values() if isinstance(v, dict))


def _restore(values: dict[str, Any], before: list[tuple[str, Any]]) -> None:
    is_same = len(values) == len(before) and all(
        name in values and values[name] is value for name, value in before
    )
    if not is_same:
        values.clear()
        values.update(before)
