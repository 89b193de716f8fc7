"""acplan.trace: one training step of a model, without running it."""

import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from acplan._base.arguments import require_function, require_module
from acplan._base.errors import AcplanError, DependsOnValues
from acplan._base.modules import arguments_by_name, tensors_by_name
from acplan._base.progress import Phase, progress_bar
from acplan._base.source_lines import SourceLines
from acplan._base.tensors import tensors_in
from acplan._device.devices import Device, find_device
from acplan._device.operator_timing import measured_device
from acplan._fakes.real_values import (
    Limits,
    NoValues,
    TooMuch,
    about_real_values,
    require_values,
)
from acplan._fakes.routing import require_shares
from acplan._fakes.row_capacity import require_capacity
from acplan._files.trace_file import INPUTS, PARALLEL, Capacity, Trace
from acplan._step.autocast import AutocastLike
from acplan._step.checkpointing_off import without_checkpointing
from acplan._step.microbatches import MicrobatchContext
from acplan._step.optimizers import OptimizerLike
from acplan._step.parallel import Parallelize, model_of_rank
from acplan._step.parallel_already import parallel_data
from acplan._step.pipeline import ScheduleFn, require_alone
from acplan._step.recorder import Recorder
from acplan._step.run_step import (
    AROUND_STEPS,
    recasts_of,
    require_same_step,
    run_step,
)
from acplan._step.saved_tensors import dropping_saved, recording_saved
from acplan._step.step import Step, alone, step_on_fakes
from acplan._step.trace_data import Recorded, trace_data
from acplan._step.training_step import ForwardFn, LossFn, TrainingStep
from acplan._step.update import StepFn

_LOGGER = logging.getLogger("acplan")

# The options of trace(values=...).
VALUES = ("auto", "known", "real")


def trace(
    model: torch.nn.Module | Callable[[], torch.nn.Module],
    *args: Any,
    loss_fn: LossFn | None = None,
    forward_fn: ForwardFn | None = None,
    param_dtype: torch.dtype | None = None,
    optimizer: OptimizerLike = None,
    device: str | Device = "a100",
    autocast: AutocastLike = None,
    accumulate: int = 1,
    microbatch_context: MicrobatchContext | None = None,
    clip_grad_norm: float | None = None,
    clip_grad_value: float | None = None,
    grad_scaler: bool = False,
    ema: float | bool = False,
    step_fn: StepFn | None = None,
    workspaces: bool = True,
    source: bool = True,
    values: str = "auto",
    capacity: Capacity = 1,
    mesh: Mapping[str, int] | None = None,
    parallelize: Parallelize | None = None,
    rank: int | None = None,
    expert_shares: Sequence[float] | None = None,
    schedule: ScheduleFn | None = None,
    progress: bool | None = None,
    **kwargs: Any,
) -> Trace:
    """Traces the second training step of `model(*args, **kwargs)`.

    The model may be on any device, "meta" included; it is left unchanged. Nothing is computed:
    parameters, inputs and all other tensors are fake tensors on a CUDA device. If the model
    checkpoints by itself, that is switched off, with a warning.

    loss_fn:     a function of the model's output that returns a scalar; by default the output's
                 `loss`, or the mean of its first floating-point tensor.
    forward_fn:  a function of the model, args and kwargs that returns the loss, if a trainer
                 does more than `loss_fn(model(*args, **kwargs))`; the model as a whole is then
                 no candidate for a plan.
    param_dtype: the data type of floating-point parameters if they compute in another type than
                 their own: that of fully_shard's MixedPrecisionPolicy.
    optimizer:   a name of acplan.OPTIMIZERS or of transformers' TrainingArguments; an optimizer
                 of this model, such as the one that trains it; or a class or function of its
                 parameters. By default torch.optim.AdamW, with the implementation that it
                 chooses on CUDA (foreach).
    device:      the device whose kernels run if PyTorch finds no CUDA device, and whose
                 rates give the run-times: a name of acplan.DEVICES; "cuda": run-times are
                 measured on the current CUDA device.
    autocast:    the autocast of the forward pass, if any: "bf16", "fp16", a data type, or a
                 torch.autocast.
    accumulate:  the number of microbatches of an iteration, each of them `args` and `kwargs`.
                 The last one is traced, with the gradients of those before, and the update;
                 run-times are those of a microbatch, and the update's share of it.
    microbatch_context: a function of an acplan.Microbatch that returns the context manager in
                 which its forward and its backward pass run, such as context_parallel; or that
                 prepares the model for it and returns None: set_requires_gradient_sync.
    clip_grad_norm, clip_grad_value: the limits to which gradients are clipped, as
                 torch.nn.utils.clip_grad_norm_ and clip_grad_value_ do.
    grad_scaler: the loss is scaled by a torch.amp.GradScaler.
    ema:         weights are averaged after each update, by a
                 torch.optim.swa_utils.AveragedModel: True, or the decay.
    step_fn:     a function of the model and its optimizer that does everything after the
                 backward pass, in place of the above: it clips, steps, and sets gradients to
                 None.
    workspaces:  counts the memory that the device's kernels allocate beside their results
                 (docs/workspaces.md).
    source:      keeps for each operator the line of Python that runs it: its file, as installed
                 or from the working directory on, its number, and its function.
    values:      "real": everything that the step computes is computed on the CPU, too, from the
                 model's own weights and inputs, so that its decisions by values (rows of an
                 expert, an early exit) are those of this batch; "known": only results that
                 follow from whole numbers, masks and constants are computed; "auto": "known",
                 and "real" if the step needs it and takes seconds.
    capacity:    the number of rows that values select (nonzero, masks), relative to this batch,
                 or "all": a plan of such a trace holds for fewer rows, too.
    mesh:        the sizes of the mesh of devices on which the model is parallel, by the names
                 of its dimensions: {"dp": 8, "tp": 4}. The trace is that of one of its ranks.
                 `model` is then a function that returns a new model; args and kwargs are what
                 the rank is given.
    parallelize: a function of the model and its DeviceMesh that shards the model in place, by
                 fully_shard, parallelize_module and the like; or a list of such functions, of
                 which the last calls fully_shard: a plan is applied before that one.
    rank:        the rank that is traced; by default 0, which holds at least as much as any
                 other if a dimension does not divide evenly.
    expert_shares: the relative numbers of tokens that go to each expert of a parallel model, by
                 default equal ones: a trace of a rank does not compute choices by `topk`.
    schedule:    a function of the model and its DeviceMesh (None without a mesh) that returns a
                 schedule of torch.distributed.pipelining, whose stages are the model or modules
                 of it. args and kwargs are then those of the rank's `schedule.step`, and all
                 microbatches are traced.
    progress:    shows a bar beyond two seconds, if tqdm is installed; by default if somebody
                 watches, on a terminal or in a notebook.
    """
    # A function makes the model of a rank, by the other options.
    whole: Any = model
    training = TrainingStep(
        whole, args, kwargs, loss_fn, forward_fn, param_dtype, optimizer, autocast, accumulate,
        microbatch_context, clip_grad_norm, clip_grad_value, grad_scaler, ema, step_fn, values,
        capacity, mesh, parallelize, rank, expert_shares, schedule,
    )  # fmt: skip
    module = model_of_rank(model, training.parallel)
    training = dataclasses.replace(training, model=module)
    _require_options(training)
    target = measured_device() if device == "cuda" else find_device(device)
    with (
        progress_bar(progress) as phase,
        alone(),
        without_checkpointing(module) as plain,
    ):
        recording = _Recording(
            dataclasses.replace(training, model=plain), target, phase, workspaces, source
        )
        result = recording.with_values(values)
    shapes = _shapes(module, args, kwargs) if schedule is None else {}
    return Trace(result.data | {INPUTS: shapes})


def _shapes(
    model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, list[int]]:
    """Returns the shapes of the tensors that the model is given, by the names of forward's
    arguments."""
    tensors = tensors_by_name(arguments_by_name(model, args, kwargs))
    return {name: list(tensor.shape) for name, tensor in tensors.items()}


def _require_options(training: TrainingStep) -> None:
    require_module(training.model)
    require_capacity(training.capacity)
    require_shares(training.expert_shares)
    if training.values not in VALUES:
        raise AcplanError(
            f"values: expected one of {', '.join(VALUES)}, found {training.values!r}"
        )
    if training.parallel is not None and training.values == "real":
        raise AcplanError(
            "values: expected a model on one device, found a rank of a mesh, whose values "
            "other ranks compute, too"
        )
    require_function(training.loss_fn, "loss_fn", "the model's output")
    require_function(training.forward_fn, "forward_fn", "the model and its arguments")
    require_alone(training)
    require_function(training.schedule, "schedule", "the model and its mesh")
    require_function(training.microbatch_context, "microbatch_context", "an acplan.Microbatch")
    _ = training.update  # refuses wrong options


@dataclasses.dataclass(frozen=True)
class _Recording:
    """A step that is to be traced, and the properties that are recorded."""

    training: TrainingStep
    device: Device
    phase: Phase
    workspaces: bool
    source: bool

    def with_values(self, values: str) -> Trace:
        """Returns the trace; `values` is as in `trace`."""
        if values == "real":
            limits = Limits.of_the_machine()
            self._require_values(limits)
            return self._traced(limits)
        try:
            return self._traced(None)
        except DependsOnValues as error:
            if values == "known":
                raise DependsOnValues(
                    f'{error}; values="real" computes them on the CPU'
                ) from error
            return self._traced_unasked(error)

    def _require_values(self, limits: Limits) -> None:
        inputs = tensors_in((self.training.args, self.training.kwargs))
        require_values(self.training.model, inputs, limits)

    def _traced_unasked(self, error: DependsOnValues) -> Trace:
        """Traces with real values if that takes little time and memory."""
        limits = Limits.unasked()
        try:
            self._require_values(limits)
            _LOGGER.warning(
                "trace: the operators that the model runs depend on values that it computes, "
                "so the step is computed on the CPU too; the trace is for these inputs and "
                "weights"
            )
            return self._traced(limits)
        except TooMuch as much:
            raise DependsOnValues(
                f'{error}; values="real" computes them on the CPU, which acplan does only '
                f"on request, as {much}"
            ) from None
        except NoValues as no_values:
            raise DependsOnValues(
                f'{error}; values="real" computes them on the CPU, but {no_values}'
            ) from None

    def _traced(self, real: Limits | None) -> Trace:
        tick = self.phase("trace: first step", None) if real else int
        with step_on_fakes(self.training, self.device, real=real, tick=tick) as (
            step,
            optimizer,
        ):
            if real is not None:
                note = about_real_values(self.training.capacity)
                step = dataclasses.replace(step, notes=(*step.notes, note))
            return self._recorded(step, optimizer)

    def _recorded(self, step: Step, optimizer: torch.optim.Optimizer) -> Trace:
        kernels = self.device if self.workspaces else None
        sources = SourceLines(outer_codes=AROUND_STEPS) if self.source else None
        full = Recorder(
            self.device,
            self.phase("trace: kept tensors", None),
            kernels=kernels,
            sources=sources,
        )
        marks = run_step(full, step, optimizer, recording_saved(full.log))
        # A second run shows when everything except autograd has released a storage.
        scopes = Recorder(None, self.phase("trace: lifetimes", full.log.now), kernels=kernels)
        run_step(scopes, step, optimizer, dropping_saved(scopes.log))
        require_same_step(full.log, scopes.log)
        recasts = recasts_of(full.log, step, optimizer, marks.forward_end)
        data = trace_data(step, self.device, Recorded(full, scopes, marks, recasts))
        if (parallel := self.training.parallel) is not None:
            data[PARALLEL] = parallel.data(step.model)
        elif step.mesh is not None:
            data[PARALLEL] = parallel_data(step.mesh)
        if step.pipeline is not None:
            data["pipeline"] = step.pipeline.data()
        return Trace(data if sources is None else data | {"sources": sources.table()})
