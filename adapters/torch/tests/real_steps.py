"""A model's forward pass on real CPU tensors, beside the one that acplan traces."""

import dataclasses
import random
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from acplan._step.step import step_on_fakes
from acplan._step.training_step import TrainingStep
from device_marks import device_marks

# Operators that acplan._step.recorder does not see either.
_INVISIBLE = ("aten.detach.default", "prim.device.default")
_PLACES = ("device", "pin_memory")
# Their sizes are those of the result; a -1 among them is as good.
_OF_KNOWN_SIZES = ("aten.view.default", "aten._unsafe_view.default")
_NUMBERS = ("aten.lift_fresh.default", "aten.scalar_tensor.default")
# The buffers that they make beside the result are for the device's own backward kernel.
_WITH_BUFFERS = (
    "aten.log_sigmoid_forward.default",
    "aten._embedding_bag.default",
    "aten._embedding_bag_forward_only.default",
    "aten._native_multi_head_attention.default",
)


@dataclasses.dataclass(frozen=True)
class LoggedOperator:
    """One operator: its name, what it was given, what it made."""

    name: str
    arguments: str
    results: str

    def __str__(self) -> str:
        return f"{self.name}({self.arguments}) -> {self.results}"


class _Log(TorchDispatchMode):
    """Every operator of a forward pass, but for moves between host and device."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operators: list[LoggedOperator] = []

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        name = str(func)
        compared = args[:1] if name in _OF_KNOWN_SIZES else args
        options = {k: v for k, v in kwargs.items() if k not in _PLACES}
        description = _described((compared, options))
        out = func(*args, **kwargs)
        if name not in _INVISIBLE and not _is_move(name, args, out, options):
            results = out[0] if name in _WITH_BUFFERS else out
            self.operators.append(LoggedOperator(name, description, _described(results)))
        _compare_counts(self.operators)
        _compare_assigned_numbers(self.operators)
        return out


def _is_move(name: str, args: tuple[Any, ...], out: Any, options: dict[str, Any]) -> bool:
    """Returns whether an operator moves data between the CPU and the device: the CPU's step has
    nothing to move but may copy."""
    return (
        name == "aten._to_copy.default"
        and args[0].dtype == out.dtype
        and "memory_format" not in options
    )


def _compare_counts(operators: list[LoggedOperator]) -> None:
    """transformers counts the tokens of an expert as integers on CUDA, as floats on the
    CPU: the types of what goes into a histogram and comes out are not compared."""
    names = [operator.name for operator in operators[-2:]]
    if names[-1:] == ["aten.histc.default"] or names[:1] == ["aten.histc.default"]:
        operators[-2:] = [_of_any_type(operator) for operator in operators[-2:]]


def _compare_assigned_numbers(operators: list[LoggedOperator]) -> None:
    """Marks a number that is assigned to places of a tensor. From PyTorch 2.15 on it is made on
    the device if that is a GPU, and comes from the host on the CPU."""
    names = [operator.name for operator in operators[-2:]]
    if names[1:] == ["aten.index_put_.default"] and names[0] in _NUMBERS:
        operators[-2] = LoggedOperator("a number", "", operators[-2].results)


def _of_any_type(operator: LoggedOperator) -> LoggedOperator:
    pattern = re.compile(r"dtype=torch\.\w+|float32|int32")
    return LoggedOperator(
        operator.name, pattern.sub("", operator.arguments), pattern.sub("", operator.results)
    )


def _described(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        kind = str(value.dtype).removeprefix("torch.")
        return f"{kind}{'nested' if value.is_nested else list(value.shape)}"
    if isinstance(value, dict):
        return ", ".join(f"{k}={_described(v)}" for k, v in sorted(value.items()))
    if isinstance(value, (list, tuple)):
        return f"({', '.join(_described(v) for v in value)})"
    return re.sub(r"device\(.*\)", "device", repr(value))


class Marked(nn.Module):
    """A model whose forward passes are marked and noted."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        random.seed(0)
        numpy.random.seed(0)
        torch.default_generator.manual_seed(0)
        log = _Log()
        with device_marks(), log:
            out = self.model(*args, **kwargs)
        _PASSES["last"] = log.operators
        return out


# No part of a model: traces put back what a model has.
_PASSES: dict[str, list[LoggedOperator]] = {}


@dataclasses.dataclass(frozen=True)
class Case:
    """How a step is run: what is given, whether autocast is on, whether it trains."""

    inputs: dict[str, Any]
    autocast: torch.dtype | None = None
    trains: bool = True


def real_pass(model: nn.Module, case: Case) -> list[LoggedOperator]:
    """Returns the operators of the second forward pass on real CPU tensors."""
    marked_model = Marked(model).train(case.trains)
    for _ in range(2):
        inputs = tree_map_only(torch.Tensor, torch.Tensor.clone, case.inputs)
        with (
            torch.set_grad_enabled(case.trains),
            torch.autocast("cpu", torch.bfloat16, enabled=case.autocast is not None),
        ):
            marked_model(**inputs)
    return _PASSES.pop("last")


def traced_pass(model: nn.Module, case: Case) -> list[LoggedOperator]:
    """Returns the operators of the second forward pass as acplan runs it on fake tensors of a
    GPU. The first pass ends with a step of the optimizer."""
    marked_model = Marked(model)
    training = TrainingStep(
        marked_model, (), case.inputs, optimizer=_sgd, autocast=case.autocast
    )
    with step_on_fakes(training) as (step, _):
        step.model.train(case.trains)
        with torch.set_grad_enabled(case.trains):
            for _ in range(1 if case.trains else 2):
                step.loss()
        # Before the trace puts back what it has put there.
        return _PASSES.pop("last")


def _sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=1e-3)


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Two forward passes: the real one, and what the trace has or why it has none."""

    real: Sequence[LoggedOperator]
    traced: Sequence[LoggedOperator]
    error: str = ""

    @property
    def has_same_attention(self) -> bool:
        return not self.error and _attention(self.real) == _attention(self.traced)

    def difference(self) -> str:
        """Returns the first difference in a few words, "" if there is none."""
        if self.error:
            return self.error
        for place, (real, traced) in enumerate(zip(self.real, self.traced)):
            if real != traced:
                return f"operator {place}: {_difference_of(real, traced)}"
        if len(self.real) != len(self.traced):
            return f"{len(self.real)} operators, {len(self.traced)} in the trace"
        return ""


def compare(make: Callable[[], nn.Module], case: Case) -> Comparison:
    """Compares the passes of one model: first the traced one, which leaves the model
    unchanged."""
    model = make()
    traced: list[LoggedOperator] = []
    error = ""
    try:
        traced = traced_pass(model, case)
    except Exception as raised:  # Whatever it is, it is this architecture's result.
        lines = str(raised).strip().splitlines() or [""]
        error = f"not traced: {type(raised).__name__}: {lines[0][:160]}"
    return Comparison(real_pass(model, case), traced, error)


def _attention(operators: Sequence[LoggedOperator]) -> list[LoggedOperator]:
    return [
        operator for operator in operators if operator.name == "acplan_marks.attention.default"
    ]


def _difference_of(real: LoggedOperator, traced: LoggedOperator) -> str:
    if real.name != traced.name:
        return f"{real.name}, in the trace {traced.name}"
    if real.arguments != traced.arguments:
        return f"{real.name}({real.arguments}), in the trace ({traced.arguments})"
    return f"{real.name} makes {real.results}, in the trace {traced.results}"
