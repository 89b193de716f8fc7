"""A model with the options of its training step, from a function of the user's."""

import dataclasses
import importlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from acplan._base.errors import AcplanError
from acplan._base.tensors import tensors_in
from acplan._files.trace_file import Capacity
from acplan._step.autocast import AutocastLike
from acplan._step.microbatches import MicrobatchContext
from acplan._step.optimizers import OptimizerLike
from acplan._step.parallel import Parallel, Parallelize, model_of_rank
from acplan._step.pipeline import ScheduleFn
from acplan._step.update import StepFn, Update

LossFn = Callable[[Any], torch.Tensor]
# Returns the loss of the model and its arguments.
ForwardFn = Callable[..., torch.Tensor]


@dataclasses.dataclass(frozen=True)
class TrainingStep:
    """The arguments of acplan.trace; `model_facts` is added to the trace's entry on its
    model."""

    model: torch.nn.Module
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = dataclasses.field(default_factory=dict)
    loss_fn: LossFn | None = None
    forward_fn: ForwardFn | None = None
    param_dtype: torch.dtype | None = None
    optimizer: OptimizerLike = None
    autocast: AutocastLike = None
    accumulate: int = 1
    microbatch_context: MicrobatchContext | None = None
    clip_grad_norm: float | None = None
    clip_grad_value: float | None = None
    grad_scaler: bool = False
    ema: float | bool = False
    step_fn: StepFn | None = None
    values: str = "auto"
    capacity: Capacity = 1
    mesh: Mapping[str, int] | None = None
    parallelize: Parallelize | None = None
    rank: int | None = None
    expert_shares: Sequence[float] | None = None
    schedule: ScheduleFn | None = None
    model_facts: dict[str, Any] = dataclasses.field(default_factory=dict)

    @classmethod
    def from_arguments(
        cls, model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> "TrainingStep":
        """Returns the step for keyword arguments that are options of the step or the model's
        own."""
        options = {name: kwargs[name] for name in STEP_OPTIONS if name in kwargs}
        own = {name: kwargs[name] for name in kwargs if name not in STEP_OPTIONS}
        return cls(model, args, own, **options)

    @property
    def update(self) -> Update:
        names = (field.name for field in dataclasses.fields(Update))
        return Update(**{name: getattr(self, name) for name in names})

    @property
    def parallel(self) -> Parallel | None:
        # A stage need not be parallel in itself.
        parallelize = self.parallelize
        if parallelize is None and None not in (self.schedule, self.mesh):
            parallelize = ()
        return Parallel.from_options(self.mesh, parallelize, self.rank)

    @property
    def functions(self) -> tuple[Any, ...]:
        """The user's functions that run in the step, or make a part of it."""
        return self.loss_fn, self.forward_fn, self.step_fn, self.optimizer, self.schedule

    @property
    def is_of_rank(self) -> bool:
        """True if the step is one rank's part of a step, by its options."""
        return self.parallel is not None or self.schedule is not None

    def options(self) -> dict[str, Any]:
        """Returns the keyword arguments of acplan.trace and acplan.verify."""
        return {name: getattr(self, name) for name in STEP_OPTIONS} | self.kwargs


def training_step(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> TrainingStep:
    """Returns the step for the arguments of acplan.trace; a function makes the model if it is
    parallel."""
    step = TrainingStep.from_arguments(model, args, kwargs)
    return dataclasses.replace(step, model=model_of_rank(model, step.parallel))


def default_loss(output: Any) -> Any:
    loss = getattr(output, "loss", None)
    if loss is None and isinstance(output, dict):
        loss = output.get("loss")
    if loss is not None:
        return loss
    for tensor in tensors_in(output):
        if tensor.is_floating_point():
            return tensor.float().mean()
    raise AcplanError(
        "the model returns neither a `loss` nor a floating-point tensor: give a loss_fn"
    )


# The arguments of acplan.trace about a training step, except the model and its arguments.
STEP_OPTIONS = tuple(
    field.name
    for field in dataclasses.fields(TrainingStep)
    if field.name not in ("model", "args", "kwargs", "model_facts")
)

_KEYS = ("model", "args", "kwargs", *STEP_OPTIONS)


def step_of_factory(name: str) -> TrainingStep:
    """Returns the step that the function `package.module:function` returns: a model; or a tuple
    of a model, its arguments and its keyword arguments, of which the last or both may be
    missing; or a dict with `model` and any of args, kwargs and the options of acplan.trace that
    describe a step, such as loss_fn, optimizer, autocast and accumulate."""
    result = _function(name)()
    if isinstance(result, torch.nn.Module):
        result = {"model": result}
    elif isinstance(result, tuple) and 1 <= len(result) <= 3:
        result = dict(zip(_KEYS, result))
    if not isinstance(result, dict):
        raise AcplanError(
            f"{name}: expected it to return (model, args, kwargs) or a dict, found "
            f"{type(result).__name__}"
        )
    unknown = [key for key in result if key not in _KEYS]
    if unknown:
        raise AcplanError(f"{name}: expected the keys {', '.join(_KEYS)}, found {unknown[0]!r}")
    if not isinstance(result.get("model"), torch.nn.Module):
        raise AcplanError(
            f"{name}: expected a torch.nn.Module as model, found "
            f"{type(result.get('model')).__name__}"
        )
    args, kwargs = result.get("args") or (), result.get("kwargs") or {}
    if not isinstance(args, (tuple, list)) or not isinstance(kwargs, dict):
        raise AcplanError(
            f"{name}: expected a tuple of arguments and a dict of keyword arguments, "
            f"found {type(args).__name__} and {type(kwargs).__name__}"
        )
    return TrainingStep(**{**result, "args": tuple(args), "kwargs": kwargs})


def _function(name: str) -> Callable[[], Any]:
    module_name, separator, attribute = name.partition(":")
    if not (module_name and separator and attribute):
        raise AcplanError(f"--factory: expected package.module:function, found {name!r}")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        thing: Any = importlib.import_module(module_name)
    except ImportError as error:
        raise AcplanError(f"--factory: {module_name!r}: {error}") from None
    for part in attribute.split("."):
        if not hasattr(thing, part):
            raise AcplanError(f"--factory: {module_name!r} has no {attribute!r}")
        thing = getattr(thing, part)
    if not callable(thing):
        raise AcplanError(f"--factory: {name!r} is not a function")
    function: Callable[[], Any] = thing
    return function
