"""The parts of a training step other than forward and backward: microbatches, clipping, loss
scaling, the optimizer, averages of weights."""

import contextlib
import dataclasses
import importlib
import math
import operator
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
)
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from acplan._base.errors import AcplanError
from acplan._base.offloaded_states import OffloadedStates
from acplan._base.patching import set_attribute
from acplan._fakes.assumed_values import Assumed
from acplan._step.optimizers import needs_closure

# Entries in the state of torch.optim.LBFGS: a tensor for each of the last steps.
_HISTORIES = ("old_dirs", "old_stps", "ro")
StepFn = Callable[[torch.nn.Module, torch.optim.Optimizer], object]


@dataclasses.dataclass(frozen=True)
class Update:
    """The options of acplan.trace that say how gradients become weights."""

    accumulate: int = 1
    clip_grad_norm: float | None = None
    clip_grad_value: float | None = None
    grad_scaler: bool = False
    ema: float | bool = False
    step_fn: StepFn | None = None

    def __post_init__(self) -> None:
        try:
            is_count = operator.index(self.accumulate) >= 1
        except TypeError:
            is_count = False
        if not is_count or isinstance(self.accumulate, bool):
            raise AcplanError(
                "accumulate: expected a number of microbatches, 1 or more, found "
                f"{self.accumulate!r}"
            )
        for name in ("clip_grad_norm", "clip_grad_value"):
            _require_positive(name, getattr(self, name))
        if not isinstance(self.grad_scaler, bool):
            raise AcplanError(
                f"grad_scaler: expected True or False, found {self.grad_scaler!r}"
            )
        if not isinstance(self.ema, bool) and not _is_number(self.ema, 0, 1):
            raise AcplanError(
                f"ema: expected True, False or a decay from 0 to 1, found {self.ema!r}"
            )
        self._require_one_owner()

    def _require_one_owner(self) -> None:
        if self.step_fn is None:
            return
        if not callable(self.step_fn):
            raise AcplanError(
                "step_fn: expected a function of the model and its optimizer, found "
                f"{type(self.step_fn).__name__}"
            )
        for name in ("clip_grad_norm", "clip_grad_value", "grad_scaler", "ema"):
            if getattr(self, name) not in (None, False):
                raise AcplanError(
                    f"{name}: cannot be combined with step_fn, which does everything after "
                    "the backward pass"
                )


def _require_positive(name: str, value: Any) -> None:
    if value is not None and not _is_number(value, 0, math.inf):
        raise AcplanError(f"{name}: expected a number above 0, found {value!r}")


def _is_number(value: Any, above: float, most: float) -> bool:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and above < value <= most


class Updating:
    """An Update at work on one model of fake tensors."""

    def __init__(self, update: Update, model: torch.nn.Module, assumed: Assumed):
        self._update = update
        self._assumed = assumed
        self._scaler = torch.amp.GradScaler("cuda") if update.grad_scaler else None
        self._average: AveragedModel | None = None
        if update.ema is not False:
            decay = 0.999 if update.ema is True else update.ema
            with assumed.answering():
                self._average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay))

    @property
    def accumulate(self) -> int:
        return self._update.accumulate

    @property
    def is_own(self) -> bool:
        """True if a function of the user's does the update."""
        return self._update.step_fn is not None

    def scaled(self, loss: torch.Tensor) -> torch.Tensor:
        """Returns the loss from which backward begins."""
        if self.accumulate > 1:
            loss = loss / self.accumulate
        return loss if self._scaler is None else self._scaler.scale(loss)

    def states(self) -> list[torch.Tensor]:
        """Returns the tensors that it keeps from step to step, except the optimizer's."""
        values = list(self._average.state_dict().values()) if self._average else []
        if self._scaler is not None:
            # They have no public name.
            values += [self._scaler._scale, self._scaler._growth_tracker]
        return [value for value in values if isinstance(value, torch.Tensor)]

    def run(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Runs everything that follows the backward pass."""
        self._require_gradients(optimizer)
        with self._assumed.answering(), _naming_the_optimizer(optimizer):
            if self._update.step_fn is not None:
                self._update.step_fn(model, optimizer)
                return
            self._clip(model, optimizer)
            if self._scaler is None:
                _step(optimizer)
            else:
                self._scaler.step(optimizer)
                self._scaler.update()
            if self._average is not None:
                self._average.update_parameters(model)
            optimizer.zero_grad()

    def _require_gradients(self, optimizer: torch.optim.Optimizer) -> None:
        """Raises AcplanError if an option needs gradients that backward has used up."""
        if not isinstance(optimizer, OffloadedStates) or optimizer.early is None:
            return
        for name in ("clip_grad_norm", "clip_grad_value", "grad_scaler"):
            if getattr(self._update, name) not in (None, False):
                raise AcplanError(
                    f"{name}: expected gradients after backward; offload_states with "
                    "in_backward=True has used and released them"
                )

    def fill_history(self, optimizer: torch.optim.Optimizer) -> tuple[str, ...]:
        """Fills LBFGS' history of earlier steps up to its largest size. Returns the notes of
        the trace on such an optimizer."""
        if self._update.step_fn is not None or not needs_closure(optimizer):
            return ()
        groups = optimizer.param_groups
        trained = [p for group in groups for p in group["params"] if p.requires_grad]
        gradients = [p.grad for p in trained]
        for parameter in trained:
            parameter.grad = parameter.detach().clone()
        with self._assumed.answering(), _naming_the_optimizer(optimizer):
            _step(optimizer)
            for state in optimizer.state.values():
                for name in _HISTORIES:
                    if history := state.get(name):
                        missing = groups[0].get("history_size", 0) - len(history)
                        history += [torch.empty_like(history[0]) for _ in range(missing)]
            _step(optimizer)
        for parameter, gradient in zip(trained, gradients):
            parameter.grad = gradient
        size = sum(p.nbytes for p in trained)
        return (
            f"{type(optimizer).__name__} runs the model several times per step, and the "
            "trace is of the first time; later it also holds a copy of the gradients, "
            f"{size:,} bytes: add them to the reserve",
        )

    def _clip(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        norm, value = self._update.clip_grad_norm, self._update.clip_grad_value
        if norm is None and value is None:
            return
        if self._scaler is not None:
            self._scaler.unscale_(optimizer)
        if norm is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), norm)
        if value is not None:
            torch.nn.utils.clip_grad_value_(model.parameters(), value)


@contextlib.contextmanager
def fakes_as_plain_tensors() -> Iterator[None]:
    """Lets PyTorch treat fake tensors like plain ones within the block: it chooses
    implementations of optimizers and clipping by the type of tensors, and copies a plain tensor
    to one with a storage of its own."""
    with contextlib.ExitStack() as stack:
        for name in ("torch.optim.optimizer", "torch.utils._foreach_utils"):
            module = importlib.import_module(name)
            types = [*module._foreach_supported_types, FakeTensor]
            stack.enter_context(set_attribute(module, "_foreach_supported_types", types))
        stack.enter_context(set_attribute(FakeTensor, "__deepcopy__", _copy_of))
        yield


def _step(optimizer: torch.optim.Optimizer) -> None:
    """Runs a step of the optimizer with the current gradients, as if the closure that it may
    need had made them."""
    if not needs_closure(optimizer):
        optimizer.step()
        return
    device = optimizer.param_groups[0]["params"][0].device
    loss: Any = torch.ones((), device=device)
    optimizer.step(lambda: loss)


def _copy_of(tensor: FakeTensor, memo: dict[int, Any]) -> torch.Tensor:
    copy = tensor.detach().clone()
    if isinstance(tensor, torch.nn.Parameter):
        copy = torch.nn.Parameter(copy, tensor.requires_grad)
    memo[id(tensor)] = copy
    return copy


@contextlib.contextmanager
def _naming_the_optimizer(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Lets errors within the block name the optimizer, which may do things that fake tensors
    cannot."""
    try:
        yield
    except (AcplanError, DataDependentOutputException, DynamicOutputShapeException):
        raise
    except Exception as error:
        lines = str(error).strip().splitlines()
        hint = (
            "; if its step runs the model again, let forward_fn do the part before the last "
            "backward pass, and step_fn the rest"
            if "closure" in str(error)
            else ""
        )
        raise AcplanError(
            f"the update with {type(optimizer).__name__} does not run on fake tensors: "
            f"{type(error).__name__}: {lines[0] if lines else 'no message'}{hint}"
        ) from error
