"""acplan.trace: one training step of a model, without running it."""

import contextlib
import dataclasses
import gc
import itertools
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedOperatorException,
)
from torch.utils._python_dispatch import _disable_current_modes

from acplan import showing
from acplan.arguments import require_function, require_module
from acplan.asking import line_of_error
from acplan.assumed import Assumed
from acplan.capacity import Capacity, require_capacity
from acplan.checkpointed import without_checkpointing
from acplan.devices import Device, find_device
from acplan.errors import AcplanError, DependsOnValues
from acplan.fake_cuda import fake_cuda
from acplan.figures import figure
from acplan.files import read_json, write_json
from acplan.fingerprints import WEIGHTS, weights_of
from acplan.following import BegunAnew, Following
from acplan.functions_given import FunctionsGiven, Origins, is_of_devices, replace_in
from acplan.holding import DIFFERENTIATES
from acplan.host_reads import with_reads_of_host
from acplan.inner_passes import held_until
from acplan.interrupts import uninterrupted
from acplan.kept_state import (
    copied_with,
    not_of_optimizers,
    state_kept,
    tensors_beside,
    without_saved_hooks,
)
from acplan.number_functions import following
from acplan.optimizers import OptimizerLike, make_optimizer
from acplan.precision import Autocast, AutocastLike, autocast_as_it_was, autocast_of
from acplan.progress import Phase, progress_bar
from acplan.real_values import (
    Beginning,
    Limits,
    NoValues,
    RealValuesMode,
    TooMuch,
    about_real_values,
    drawn_again,
    require_values,
)
from acplan.recorder import Call, Operator, Recorder, Saved, tensors_in
from acplan.scripted import holders_of, notes_of_scripts
from acplan.sources import SourceLines
from acplan.sparse_fakes import fake_of_sparse, is_sparse
from acplan.standing_in import is_run_inside
from acplan.timing import measured_device
from acplan.trace_errors import told_with_line
from acplan.triton_kernels import watch_launches
from acplan.updates import StepFn, Update, Updating, fakes_as_plain_tensors
from acplan.values import (
    LOST_ZERO,
    ValuedFakeTensorMode,
    as_in_training,
    depends_on_values,
    give_defaults,
    start_of_step,
)

LossFn = Callable[[Any], torch.Tensor]
# Of the model, and what it is given, the loss.
ForwardFn = Callable[..., torch.Tensor]

_LOGGER = logging.getLogger("acplan")

# Of trace(values=...).
VALUES = ("auto", "known", "real")

_LAST = (
    "of several backward passes a step, leave the last one to acplan: return its loss, before "
    "loss.backward()"
)
_FREED = "through the graph a second time"

# While a step is traced, PyTorch and the model are not as others expect them.
_ALONE = threading.RLock()


@dataclasses.dataclass(frozen=True)
class Trace:
    """A training step as `acplan` reads it: docs/file_formats.md, `acplan.trace`."""

    data: dict[str, Any]

    @property
    def peak_bytes(self) -> int:
        """The most bytes in use, each storage rounded up to 512."""
        return int(self.data["measured"]["peak_bytes"])

    @property
    def accumulate(self) -> int:
        """The microbatches of an iteration, of which this is the last one."""
        return int(self.data.get("accumulate", 1))

    @property
    def workspaces(self) -> bool:
        """Whether what kernels allocate beside their results is part of it."""
        return bool(self.data.get("workspaces", False))

    @property
    def has_real_values(self) -> bool:
        """Whether the step ran with real values of all that it computes."""
        return self.data.get("values") == "real"

    @property
    def capacity(self) -> Capacity:
        """How many times as many rows values select as with the batch, or "all"."""
        found: Capacity = self.data.get("capacity", 1)
        return found

    @property
    def notes(self) -> list[str]:
        """What the trace assumes of the step."""
        return list(self.data.get("notes", ()))

    @property
    def live_bytes(self) -> list[int]:
        """In use while each operator runs, storages rounded up to 512."""
        storages = ((s["born"], s["freed"], s["bytes"]) for s in self.data["storages"])
        return live_bytes(storages, len(self.data["operators"]))

    def source_of(self, operator: int) -> str:
        """The line of Python that an operator is from, such as `model.py:123`, or ""."""
        index = self.data["operators"][operator].get("source", -1)
        if index < 0:
            return ""
        source = self.data["sources"][index]
        return f"{source['file']}:{source['line']}"

    def to_pandas(self) -> Any:
        """A table of the operators: name, phase, module, milliseconds, bytes in use, and
        the line of Python."""
        return showing.to_pandas(list(self._rows()))

    def _rows(self) -> Iterator[dict[str, Any]]:
        data = self.data
        modules, calls = data["modules"], data["calls"]
        for k, (operator, live) in enumerate(zip(data["operators"], self.live_bytes)):
            is_forward = k < data["forward_end"]
            is_update = k >= data["backward_end"]
            call = operator["call"]
            yield {
                "name": operator["name"],
                "phase": "forward" if is_forward else "optimizer" if is_update else "backward",
                "module": modules[calls[call]["module"]]["fqn"] if call >= 0 else "",
                "runtime_ms": operator["runtime_ms"],
                "live_bytes": live,
                "source": self.source_of(k),
            }

    def __repr__(self) -> str:
        return (
            f"<Trace of {showing.plain(self.data['model']['name'])}: "
            f"{len(self.data['operators']):,} operators, peak "
            f"{showing.size(self.peak_bytes)}>"
        )

    def _repr_html_(self) -> str:
        data = self.data
        facts = {
            "operators": f"{len(data['operators']):,}",
            "peak": showing.size(self.peak_bytes),
        }
        live = {"memory": [(float(k), float(b)) for k, b in enumerate(self.live_bytes)]}
        name = data["model"]["name"]
        plain = showing.chart("operators of the step", live, None)
        return showing.page(f"Trace of {name}", facts, figure(["memory"], self, plain))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the file whole or not at all; `.gz` is gzipped."""
        write_json(path, self.data)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Trace":
        data = read_json(path)
        found = data.get("format") if isinstance(data, dict) else data
        if found != "acplan.trace":
            raise AcplanError(f"{path}: expected format acplan.trace, found {found!r}")
        for key, kind in _LOOKED_AT.items():
            if not isinstance(data.get(key), kind):
                what = type(data[key]).__name__ if key in data else "none"
                raise AcplanError(f"{path}: {key}: expected a {kind.__name__}, found {what}")
        for key, inner in (("model", "name"), ("measured", "peak_bytes")):
            if inner not in data[key]:
                raise AcplanError(f"{path}: {key}: expected the key {inner!r}, found none")
        return cls(data)


# Before the program has read the file.
_LOOKED_AT = {"model": dict, "measured": dict, "operators": list, "storages": list}


def trace(
    model: torch.nn.Module,
    *args: Any,
    loss_fn: LossFn | None = None,
    forward_fn: ForwardFn | None = None,
    param_dtype: torch.dtype | None = None,
    optimizer: OptimizerLike = None,
    device: str | Device = "a100",
    autocast: AutocastLike = None,
    accumulate: int = 1,
    clip_grad_norm: float | None = None,
    clip_grad_value: float | None = None,
    grad_scaler: bool = False,
    ema: float | bool = False,
    step_fn: StepFn | None = None,
    workspaces: bool = True,
    source: bool = True,
    values: str = "auto",
    capacity: Capacity = 1,
    progress: bool | None = None,
    **kwargs: Any,
) -> Trace:
    """Traces the second training step of `model(*args, **kwargs)`.

    The model may be on any device, "meta" included; it is left as it was. Nothing
    is computed: parameters, inputs and all else are fake tensors on a CUDA device.
    Where the model checkpoints by itself, that is switched off, and said.

    loss_fn:   from the model's output to a scalar; by default the output's `loss`,
               or the mean of its first floating-point tensor.
    forward_fn: of the model, args and kwargs, the loss, where a trainer does more than
               `loss_fn(model(*args, **kwargs))`; the model as a whole is then no
               candidate for a plan.
    param_dtype: of the parameters of floating point, where they compute in another type
               than their own: that of fully_shard's MixedPrecisionPolicy.
    optimizer: a name of acplan.OPTIMIZERS or of transformers' TrainingArguments; an
               optimizer of this model, such as the one that trains it; or a class or
               function of its parameters. By default torch.optim.AdamW, with the
               implementation that it chooses on CUDA (foreach).
    device:    whose kernels run, where PyTorch finds no CUDA device, and whose roofline
               gives the run-times: a name of acplan.devices.DEVICES; "cuda": they are
               measured on the CUDA device that is there.
    autocast:  of the forward pass, if any: "bf16", "fp16", a data type, or a
               torch.autocast.
    accumulate: the microbatches of an iteration, each of them `args` and `kwargs`. What
               is traced is the last one, with the gradients of those before, and the
               update; run-times are those of a microbatch, of the update its share.
    clip_grad_norm, clip_grad_value: what gradients are clipped to, as
               torch.nn.utils.clip_grad_norm_ and clip_grad_value_ do.
    grad_scaler: the loss is scaled by a torch.amp.GradScaler.
    ema:       weights are averaged after each update, by a
               torch.optim.swa_utils.AveragedModel: True, or the decay.
    step_fn:   what follows the backward pass, of the model and its optimizer, in place
               of all that: it clips, steps, and sets gradients to None.
    workspaces: counts what the device's kernels allocate beside their results
               (docs/workspaces.md).
    source:    keeps of each operator the line of Python that it is from: its file, as
               installed or from the working directory on, its number, and its function.
    values:    "real": all that the step computes is computed on the CPU, too, from the
               model's own weights and inputs, so that what it decides by values (rows of
               an expert, an early exit) is as with this batch; "known": nothing is
               computed but what follows from whole numbers, masks and constants; "auto":
               the second one, and the first one where the step needs it and takes seconds.
    capacity:  of rows that values select (nonzero, masks), as many times as many as with
               this batch, or "all": a plan of such a trace holds for fewer, too.
    progress:  shows a bar beyond two seconds, if tqdm is installed; by default where
               somebody watches, on a terminal or in a notebook.
    """
    require_module(model)
    require_capacity(capacity)
    if values not in VALUES:
        raise AcplanError(f"values: expected one of {', '.join(VALUES)}, found {values!r}")
    require_function(loss_fn, "loss_fn", "the model's output")
    require_function(forward_fn, "forward_fn", "the model and what it is given")
    target = measured_device() if device == "cuda" else find_device(device)
    update = Update(accumulate, clip_grad_norm, clip_grad_value, grad_scaler, ema, step_fn)
    with (
        progress_bar(progress) as phase,
        alone(),
        without_checkpointing(model) as plain,
    ):

        def traced(real: Limits | None) -> Trace:
            with step_on_fakes(
                plain,
                args,
                kwargs,
                loss_fn,
                optimizer,
                autocast,
                update,
                target,
                forward_fn,
                param_dtype,
                real=real,
                capacity=capacity,
                tick=phase("trace: first step", None) if real else int,
            ) as (fake, run_optimizer):
                if real is not None:
                    about = about_real_values(capacity)
                    fake = dataclasses.replace(fake, notes=(*fake.notes, about))
                sources = SourceLines(around=_AROUND_STEPS) if source else None
                return _recorded(fake, run_optimizer, target, phase, workspaces, sources)

        if values == "real":
            limits = Limits.of_the_machine()
            require_values(plain, tensors_in((args, kwargs)), limits)
            return traced(limits)
        try:
            return traced(None)
        except DependsOnValues as error:
            if values == "known":
                raise DependsOnValues(
                    f'{error}; values="real" computes them on the CPU'
                ) from error
            return _traced_unasked(traced, plain, tensors_in((args, kwargs)), error)


def _traced_unasked(
    traced: Callable[[Limits], Trace],
    model: torch.nn.Module,
    inputs: list[torch.Tensor],
    error: DependsOnValues,
) -> Trace:
    """With real values, where what they take is small."""
    limits = Limits.unasked()
    try:
        require_values(model, inputs, limits)
        _LOGGER.warning(
            "trace: what the model runs depends on values that it computes: it is computed on "
            "the CPU, too, and what runs is as with these inputs and weights"
        )
        return traced(limits)
    except TooMuch as much:
        raise DependsOnValues(
            f'{error}; values="real" computes them on the CPU, which is not done unasked, '
            f"as {much}"
        ) from None
    except NoValues as no_values:
        raise DependsOnValues(
            f'{error}; values="real" computes them on the CPU, but {no_values}'
        ) from None


def _recorded(
    step: "Step",
    optimizer: torch.optim.Optimizer,
    device: Device,
    phase: Phase,
    workspaces: bool,
    sources: SourceLines | None,
) -> Trace:
    kernels = device if workspaces else None
    full = Recorder(
        device, phase("trace: what is kept", None), kernels=kernels, sources=sources
    )
    marks = run_step(full, step, optimizer, full.recording_saved())
    # Once more, to see when all but autograd let go of a storage.
    scopes = Recorder(None, phase("trace: until when", full.now), kernels=kernels)
    run_step(scopes, step, optimizer, scopes.dropping_saved())
    _require_same_step(full, scopes)
    recasts = _recasts(full, step, optimizer, marks.forward_end)
    data = _to_data(step, device, full, scopes, marks, recasts)
    return Trace(data if sources is None else data | {"sources": sources.table()})


@dataclasses.dataclass(frozen=True)
class Step:
    model: torch.nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    loss_fn: LossFn
    autocast: Autocast | None
    forward_fn: ForwardFn | None = None
    updating: Updating | None = None
    notes: tuple[str, ...] = ()
    beginning: Beginning | None = None
    # Tensors on the device that the functions above hold.
    held: list[torch.Tensor] = dataclasses.field(default_factory=list)
    # Parameters, by identity, that require a gradient before the step.
    trained: frozenset[int] = frozenset()

    def loss(self) -> torch.Tensor:
        """What backward begins with."""
        start_of_step()
        if self.beginning is not None:
            gc.collect()  # of values that earlier steps have left in cycles
            self.beginning.put_back()
        loss = self.loss_of(self.model, *self.args, **self.kwargs)
        return loss if self.updating is None else self.updating.scaled(loss)

    @property
    def accumulate(self) -> int:
        return 1 if self.updating is None else self.updating.accumulate

    def run_earlier(self) -> None:
        """The microbatches before the last one, as far as they leave gradients."""
        if self.accumulate > 1:
            self.backward(self.loss())

    def states(self) -> list[torch.Tensor]:
        """What the update keeps from step to step, besides the optimizer's."""
        return [] if self.updating is None else self.updating.states()

    def update(self, optimizer: torch.optim.Optimizer) -> None:
        """All that follows the backward pass."""
        if self.updating is None:
            return
        if self.beginning is None:
            self.updating.run(self.model, optimizer)
            return
        self.beginning.note(self.model, tensors_in((self.args, self.kwargs)))
        with self.beginning.update(self.model, self.updating.is_own):
            self.updating.run(self.model, optimizer)

    def run(self, optimizer: torch.optim.Optimizer) -> None:
        """An iteration."""
        self.run_earlier()
        self.backward(self.loss())
        self.update(optimizer)

    def backward(self, loss: torch.Tensor) -> None:
        """The last backward pass of a microbatch."""
        name = "forward_fn" if self.forward_fn is not None else "the loss"
        if not loss.requires_grad:
            raise AcplanError(
                f"{name}: expected a loss that has a gradient, found one without; {_LAST}"
            )
        try:
            loss.backward()
        except RuntimeError as error:
            if _FREED not in str(error):
                raise
            raise AcplanError(
                f"{name}: a backward pass has freed what the loss needs already; {_LAST}"
            ) from error

    def loss_of(self, model: Callable[..., Any], *args: Any, **kwargs: Any) -> torch.Tensor:
        context = contextlib.nullcontext() if self.autocast is None else self.autocast.context()
        with context:
            if self.forward_fn is None:
                loss = self.loss_fn(model(*args, **kwargs))
            else:
                loss = self.forward_fn(model, *args, **kwargs)
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            found = tuple(loss.shape) if isinstance(loss, torch.Tensor) else type(loss)
            name = "loss_fn" if self.forward_fn is None else "forward_fn"
            hint = f"; {_LAST}" if self.forward_fn is not None and loss is None else ""
            raise AcplanError(f"{name}: expected a scalar tensor, found {found}{hint}")
        return loss


@dataclasses.dataclass(frozen=True)
class _Marks:
    forward_end: int
    backward_end: int
    gradients: frozenset[int]
    # By module, before the step: its parameters' and its buffers' storages.
    own: list[tuple[list[int], list[int]]]


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


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """No other thread traces, or compiles: while one does, all hear that they do. Signals
    wait for the next operator."""
    compiler = sys.modules.get("torch._dynamo.convert_frame")
    compiles = getattr(compiler, "compile_lock", contextlib.nullcontext())
    with uninterrupted(), _ALONE, compiles, _without_collections():
        yield


@contextlib.contextmanager
def _without_collections() -> Iterator[None]:
    """Python collects no cycles by itself: when it would depends on all that the process
    has made before, and with it the bytes that are live, of tensors in cycles. So these
    stay, which is the most that a step can need of them."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextlib.contextmanager
def step_on_fakes(
    model: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    loss_fn: LossFn | None,
    optimizer: OptimizerLike,
    autocast: AutocastLike,
    update: Update | None = None,
    device: Device | None = None,
    forward_fn: ForwardFn | None = None,
    param_dtype: torch.dtype | None = None,
    *,
    real: Limits | None = None,
    capacity: Capacity = 1,
    tick: Callable[[], object] = int,
) -> Iterator[tuple[Step, torch.optim.Optimizer]]:
    """A step on fake tensors, after a first one, and its optimizer. `real`: with real
    values, within these limits; `tick` is called after each operator that is computed."""
    if loss_fn is not None and forward_fn is not None:
        raise AcplanError("loss_fn: forward_fn makes the loss, give one of both")
    step = Step(
        model,
        args,
        kwargs,
        loss_fn or default_loss,
        autocast_of(autocast),
        forward_fn,
    )
    with contextlib.closing(Following()) as session:
        while True:
            with contextlib.ExitStack() as stack:
                once = _run_on_fakes(
                    step,
                    session,
                    optimizer,
                    update,
                    device,
                    param_dtype,
                    real=real,
                    capacity=capacity,
                    tick=tick,
                )
                try:
                    found = stack.enter_context(once)
                except BegunAnew:
                    continue
                yield found
                return


@contextlib.contextmanager
def _run_on_fakes(
    step: Step,
    session: Following,
    optimizer: OptimizerLike,
    update: Update | None,
    device: Device | None,
    param_dtype: torch.dtype | None,
    *,
    real: Limits | None,
    capacity: Capacity,
    tick: Callable[[], object],
) -> Iterator[tuple[Step, torch.optim.Optimizer]]:
    watch_launches()
    answers = "" if device is None else device.name
    mode, assumed = ValuedFakeTensorMode(answers), Assumed()
    session.begin()
    beginning = None
    if real is not None:
        mode = RealValuesMode(answers, real, capacity, tick)
        beginning = Beginning(mode)
    with (
        told_with_line(),
        alone(),
        _disable_current_modes(),
        torch.inference_mode(False),
        torch.enable_grad(),
        # Autograd has no threads for the device where it ran before without one. Of other
        # modes some switch them on.
        torch.autograd.set_multithreading_enabled(False),
        without_saved_hooks(),
        autocast_as_it_was(),
        fake_cuda(device),
        contextlib.nullcontext() if real is None else drawn_again(),
        as_in_training(),
        following(session),
        fakes_as_plain_tensors(),
        mode,
        assumed,
    ):
        functions = FunctionsGiven(
            step.model,
            (
                step.loss_fn,
                step.forward_fn,
                update.step_fn if update else None,
                optimizer,
            ),
        )
        with (
            functions.kept(),
            _faked(step.model, mode, param_dtype, beginning) as fake,
        ):
            given = (step.args, step.kwargs)
            held = functions.move_modules(fake)
            inputs = copied_with(given, fake)
            session.notes += give_defaults(step.model.forward, given, inputs)
            made = make_optimizer(optimizer, step.model, fake)
            was_training = step.model.training
            step.model.train()
            try:
                on_device = dataclasses.replace(
                    step,
                    args=inputs[0],
                    kwargs=inputs[1],
                    updating=Updating(update or Update(), step.model, assumed),
                    beginning=beginning,
                    held=held,
                    trained=frozenset(
                        id(p) for p in step.model.parameters() if p.requires_grad
                    ),
                )
                held += _first_run(on_device, made, functions, fake)
                if session.has_numbers:
                    # The step before it may have left some behind.
                    on_device.run(made)
                session.can_begin_anew = False
                session.require_none_failed()
                assert on_device.updating is not None
                history = on_device.updating.fill_history(made)
                notes = (*session.notes, *history)
                yield dataclasses.replace(on_device, notes=notes), made
                session.require_none_failed()
            except Exception as error:
                # The user's code may have caught the first one.
                cause = session.first_error or error
                if not isinstance(cause, _OF_VALUES):
                    _tell(error)
                    raise
                text = depends_on_values(cause, given, inputs)
                if isinstance(mode, RealValuesMode) and mode.not_computed:
                    text += f"; {mode.not_computed}"
                raise DependsOnValues(text) from error
            finally:
                step.model.train(was_training)


def _first_run(
    step: Step,
    optimizer: torch.optim.Optimizer,
    functions: FunctionsGiven,
    fake: Callable[[Any], Any],
) -> list[torch.Tensor]:
    """Runs a step, and begins again where a tensor of the functions that are given has to
    be on the device; returns those that it has moved."""
    moved: dict[int, torch.Tensor] = {}
    origins: Origins | None = None
    while True:
        try:
            with origins or contextlib.nullcontext():
                step.run(optimizer)
            return [*moved.values()]
        except RuntimeError as error:
            if not is_of_devices(error):
                raise
            met = set() if origins is None else origins.met - moved.keys()
            if functions.movable and (origins is None or met):
                moved |= zip(met, functions.move(met, fake))
                origins = Origins(functions.movable)
            elif not functions.move_devices(step.model):
                raise AcplanError(_of_devices(error)) from error
            step.model.zero_grad()


def _of_devices(error: RuntimeError) -> str:
    line = line_of_error(error)
    return (
        "a tensor on the CPU meets tensors of the device in one operator, which a GPU "
        "would refuse as well: make it on the device of what it meets, keep it in a buffer "
        f"of the model, or give it as an input ({str(error).strip().splitlines()[0]}"
        f"{f', at {line}' if line else ''})"
    )


def _tell(error: Exception) -> None:
    """Raises what says of an error of PyTorch what to do."""
    if isinstance(error, UnsupportedOperatorException):
        raise AcplanError(
            f"{error}: PyTorch has no fake of this operator, so that what runs it "
            "cannot be traced; have the model take another way, for jagged "
            "tensors attention in half precision"
        ) from error
    text = str(error)
    if isinstance(error, RuntimeError) and "invalid gradient" in text and "meta" in text:
        raise AcplanError(LOST_ZERO) from error


_OF_VALUES = (DataDependentOutputException, DynamicOutputShapeException)


@contextlib.contextmanager
def _faked(
    model: torch.nn.Module,
    mode: ValuedFakeTensorMode,
    param_dtype: torch.dtype | None = None,
    beginning: Beginning | None = None,
) -> Iterator[Callable[[Any], Any]]:
    """Replaces every tensor of the model by a fake one on the device."""
    fakes: dict[int, Any] = {}

    def plain(value: torch.Tensor) -> torch.Tensor:
        is_cast = isinstance(value, torch.nn.Parameter) and value.is_floating_point()
        dtype = param_dtype if is_cast and param_dtype else value.dtype
        with mode, torch.no_grad():
            made = torch.empty_strided(value.shape, value.stride(), dtype=dtype, device="cuda")
        mode.give_value(made, value)
        return made

    def inside(value: Any) -> Any:
        names, context = value.__tensor_flatten__()
        parts = {name: fake(getattr(value, name)) for name in names}
        unflatten = type(value).__tensor_unflatten__
        return unflatten(parts, context, value.size(), value.stride())

    def fake(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if id(value) not in fakes:
            if is_run_inside(type(value)):
                made = inside(value)
            elif is_sparse(value):
                made = fake_of_sparse(value, fake)
            else:
                made = plain(value)
            if isinstance(value, torch.nn.Parameter):
                made = torch.nn.Parameter(made, requires_grad=value.requires_grad)
                for name, attribute in vars(value).items():
                    vars(made).setdefault(name, fake(attribute))
            else:
                made.requires_grad_(value.requires_grad)
            if beginning is not None:
                beginning.add(made, value)
            fakes[id(value)] = (made, value)  # the original keeps its id
        return fakes[id(value)][0]

    with state_kept(model, of_functions=False) as reached:
        for module in model.modules():
            for values in holders_of(module):
                for name, value in list(values.items()):
                    if isinstance(value, torch.Tensor):
                        values[name] = fake(value)
        for tensor in tensors_beside(model.parameters()):
            fake(tensor)
        # In lists, dictionaries and objects, too, where it is one of these; an optimizer
        # that the model reaches, as a LightningModule does its trainer's, keeps its own.
        others = {key: made for key, (made, _) in fakes.items()}
        replace_in(not_of_optimizers(reached), others)
        yield fake


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
) -> _Marks:
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
    return _Marks(forward_end, backward_end, gradients, own)


# What their frames are in is not the step.
_AROUND_STEPS = (Step.loss_of.__code__, run_step.__code__)


def _require_same_step(full: Recorder, scopes: Recorder) -> None:
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


def _recasts(
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


def _to_data(
    step: Step,
    device: Device,
    recorder: Recorder,
    scopes: Recorder,
    marks: _Marks,
    recasts: Mapping[int, list[int]],
) -> dict[str, Any]:
    count = recorder.now
    creates: list[list[int]] = [[] for _ in range(count)]
    for index, storage in enumerate(recorder.storages):
        if storage.born >= 0:
            creates[storage.born].append(index)
    holding = recorder.inner_passes.settle(recorder.calls, recorder.saved)
    _hold_during(holding, recorder, scopes)
    _settle(recorder, marks)
    return {
        "format": "acplan.trace",
        "version": 1,
        "model": {
            "name": type(step.model).__name__,
            "root_class": type(step.model).__name__,
        },
        "device": {
            "name": device.name,
            "peak_flops": device.bfloat16,
            "bandwidth": device.bandwidth,
        },
        **({"accumulate": step.accumulate} if step.accumulate > 1 else {}),
        "forward_end": marks.forward_end,
        "backward_end": marks.backward_end,
        "modules": _modules(step, marks, holding),
        "calls": [_call(call) for call in recorder.calls],
        "operators": [
            _operator(operator, creates[k], recasts.get(k))
            for k, operator in enumerate(recorder.operators)
        ],
        "storages": [
            {
                "bytes": storage.bytes if storage.on_device else 0,
                "category": storage.category,
                "born": storage.born,
                "freed": storage.freed,
            }
            | (
                {"scope_end": scopes.storages[index].freed}
                if 0 <= storage.born < marks.forward_end
                else {}
            )
            for index, storage in enumerate(recorder.storages)
        ],
        "tensors": [
            {
                "storage": tensor.storage,
                "base": tensor.base,
                "scope_end": scopes.tensors[index].freed,
            }
            for index, tensor in enumerate(recorder.tensors)
        ],
        "saved": [_saved(saved) for saved in with_reads_of_host(recorder, marks.forward_end)],
        "measured": {"peak_bytes": peak_of(recorder)},
        "workspaces": recorder.counts_workspaces,
        "notes": [
            *step.notes,
            *recorder.inner_passes.notes(),
            *notes_of_scripts(step.model),
        ],
        **({} if step.beginning is None else step.beginning.of_trace()),
    }


def _hold_during(parts: dict[int, bool], recorder: Recorder, scopes: Recorder) -> None:
    """What autograd saves in calls of which a pass is a part is there until they end, as if
    the program held it."""
    if not parts:
        return
    ends = held_until(recorder.calls, parts)
    for saved in recorder.saved:
        end = ends[saved.call] if saved.call >= 0 else None
        if end is None:
            continue
        until = end if saved.released is None else min(end, saved.released)
        for of in (scopes.storages[saved.storage], scopes.tensors[saved.tensor]):
            if of.freed is not None:
                of.freed = max(of.freed, until)


def _settle(recorder: Recorder, marks: _Marks) -> None:
    """Fills in what the recording alone does not say."""
    was_saved = {saved.storage for saved in recorder.saved}
    for index, storage in enumerate(recorder.storages):
        if storage.category:
            continue
        # Losses that make gradients in the forward pass, fused ones, hand them over.
        is_of_forward = 0 <= storage.born < marks.forward_end
        if index in marks.gradients and not is_of_forward:
            storage.category = "gradient"
        elif index in was_saved and is_of_forward:
            storage.category = "activation"
        else:
            storage.category = "temporary"
    for call in recorder.calls:
        if call.backward_start is None:
            call.backward_end = None
        elif call.backward_end is None:
            call.backward_end = marks.backward_end
        else:
            call.backward_end = max(call.backward_end, call.backward_start)
    _add_state_read(recorder, marks)
    _add_statistics_written(recorder, marks)
    for saved in recorder.saved:
        if saved.unpacked is None:
            continue
        if saved.local_end is None:
            saved.local_end = marks.backward_end
        saved.local_end = max(saved.local_end, saved.unpacked)
        if saved.released is None:
            continue
        # A backward node that returns what it unpacked hands it on.
        storage = recorder.storages[saved.storage]
        if storage.freed is not None:
            storage.freed = max(storage.freed, saved.local_end)


def _add_state_read(recorder: Recorder, marks: _Marks) -> None:
    """Adds to the inputs of each call what it reads that is no argument, and that all others
    let go of within the step, as of attributes that are given another tensor: a unit holds
    it until it has run again. Casts that autocast keeps are made again."""
    casts = {
        storage
        for operator in recorder.operators[: marks.forward_end]
        if operator.cast_of is not None
        for storage in operator.outputs
    }
    for call in recorder.calls:
        read = {
            storage
            for operator in recorder.operators[call.start : call.end]
            if not operator.is_view
            for storage in operator.reads
            if storage not in casts
        }
        states = (
            storage
            for storage in read
            if recorder.storages[storage].born < call.start
            and recorder.storages[storage].freed is not None
        )
        call.inputs = sorted({*call.inputs, *states})


def _add_statistics_written(recorder: Recorder, marks: _Marks) -> None:
    """Says of normalisations that they write to their running statistics, which schemas
    leave out, where other operators read those."""
    forward = recorder.operators[: marks.forward_end]
    moved = {storage for operator in forward for storage in operator.statistics}
    read = {
        storage
        for operator in forward
        if moved and not operator.is_view
        for storage in operator.reads
        if storage in moved and storage not in operator.statistics
    }
    for operator in forward:
        written = read.intersection(operator.statistics)
        if written:
            operator.mutates = sorted({*operator.mutates, *written})


def _call(call: Call) -> dict[str, Any]:
    data = dataclasses.asdict(call)
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
    if operator.mutates:
        data["mutates"] = operator.mutates
    if recasts:
        data["recasts"] = recasts
    if operator.source >= 0:
        data["source"] = operator.source
    return data


def _own_storages(recorder: Recorder, module: torch.nn.Module) -> tuple[list[int], list[int]]:
    parameters = recorder.storages_of(list(module.parameters(recurse=False)))
    return parameters, recorder.storages_of(list(module.buffers(recurse=False)))


def _modules(step: Step, marks: _Marks, holding: dict[int, bool]) -> list[dict[str, Any]]:
    root = type(step.model).__name__
    return [
        {
            "fqn": f"{root}.{path}" if path else root,
            "class": type(module).__name__,
            "parameters": parameters,
            "buffers": buffers,
            WEIGHTS: weights_of(module, trained_before=step.trained),
            **({DIFFERENTIATES: holding[place]} if place in holding else {}),
        }
        for place, ((path, module), (parameters, buffers)) in enumerate(
            zip(step.model.named_modules(), marks.own)
        )
    ]


def timeline_of(recorder: Recorder) -> list[int]:
    """Bytes in use while each operator runs, storages rounded up to 512."""
    storages = ((s.born, s.freed, s.bytes) for s in recorder.storages if s.on_device)
    return live_bytes(storages, recorder.now)


def live_bytes(storages: Iterable[tuple[int, int | None, int]], count: int) -> list[int]:
    """While each of so many operators runs: of what is born, freed and how large."""
    change = [0] * (count + 1)
    for born_at, freed_at, size in storages:
        rounded = (size + 511) // 512 * 512
        born = max(born_at, 0)
        if born >= count:
            continue
        freed = count if freed_at is None else freed_at
        change[born] += rounded
        change[min(max(freed, born + 1), count)] -= rounded
    return list(itertools.accumulate(change[:count]))


def peak_of(recorder: Recorder) -> int:
    return max(timeline_of(recorder), default=0)
