"""A training step on fake tensors."""

import contextlib
import dataclasses
import gc
import re
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedOperatorException,
)
from torch.distributed.device_mesh import DeviceMesh
from torch.utils._python_dispatch import _disable_current_modes

from acplan._base.errors import AcplanError, DependsOnValues
from acplan._base.interrupts import uninterrupted
from acplan._base.sharded_modules import shards_on_host
from acplan._base.stand_ins import is_run_inside
from acplan._base.tensors import is_sparse, tensors_in
from acplan._base.torchscript import holders_of
from acplan._base.triton_kernels import watch_launches
from acplan._device.devices import Device
from acplan._device.fake_cuda import fake_cuda
from acplan._fakes.assumed_values import Assumed
from acplan._fakes.branches import line_of_error
from acplan._fakes.default_values import give_defaults
from acplan._fakes.followed_numbers import BegunAnew, Following
from acplan._fakes.known_values import LOST_ZERO, ValuedFakeTensorMode, depends_on_values
from acplan._fakes.number_functions import following
from acplan._fakes.random_states import start_of_step
from acplan._fakes.real_values import (
    Beginning,
    Limits,
    RealValuesMode,
    drawn_again,
)
from acplan._fakes.restored_functions import FunctionsGiven, Origins, is_of_devices, replace_in
from acplan._fakes.restored_state import (
    copied_with,
    not_of_optimizers,
    state_kept,
    tensors_beside,
    without_saved_hooks,
)
from acplan._fakes.routing import Routing
from acplan._fakes.sparse_fakes import fake_of_sparse
from acplan._fakes.value_readers import as_in_training
from acplan._step.autocast import Autocast, autocast_as_it_was, autocast_of
from acplan._step.microbatches import NOTE_ON_EARLIER, Microbatch, MicrobatchContext
from acplan._step.optimizers import make_optimizer
from acplan._step.parallel import require_traceable, way_out_of_shapes
from acplan._step.parallel_already import mesh_of, own_groups
from acplan._step.pipeline import Pipeline
from acplan._step.step_errors import OF_SHAPES, WAY_OUT, told_with_line
from acplan._step.training_step import ForwardFn, LossFn, TrainingStep, default_loss
from acplan._step.update import Updating, fakes_as_plain_tensors

_LAST = (
    "if a step has several backward passes, leave the last one to acplan: return its loss "
    "before loss.backward()"
)
_NOTE_ON_EXPERTS = (
    "choices of experts are not computed: their tokens are those of expert_shares, or else "
    "equal ones"
)
_FREED = "through the graph a second time"

# While a step is traced, PyTorch and the model are not in the state that others expect.
_ALONE = threading.RLock()


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
    held_tensors: list[torch.Tensor] = dataclasses.field(default_factory=list)
    # The ids of parameters that require a gradient before the step.
    trained: frozenset[int] = frozenset()
    microbatch_context: MicrobatchContext | None = None
    mesh: DeviceMesh | None = None
    pipeline: Pipeline | None = None

    def begin(self) -> None:
        start_of_step()
        if self.beginning is not None:
            gc.collect()  # values that earlier steps have left in cycles
            self.beginning.put_back()

    def loss(self) -> torch.Tensor:
        """Returns the loss from which backward begins."""
        self.begin()
        loss = self.loss_of(self.model, *self.args, **self.kwargs)
        return loss if self.updating is None else self.updating.scaled(loss)

    @property
    def accumulate(self) -> int:
        return 1 if self.updating is None else self.updating.accumulate

    def run_earlier(self) -> None:
        """Runs the microbatches before the last one, as far as they leave gradients."""
        if self.accumulate > 1:
            with self.microbatch(is_last=False):
                self.run_passes()

    def run_passes(self, end_forward: Callable[[], object] = int) -> None:
        """Runs the forward and the backward pass of a microbatch, or all passes of a pipeline,
        and `end_forward` after the last forward pass."""
        if self.pipeline is None:
            loss = self.loss()
            end_forward()
            self.backward(loss)
            return
        self.begin()
        with contextlib.nullcontext() if self.autocast is None else self.autocast.context():
            self.pipeline.step(self.args, self.kwargs, end_forward)

    def with_model(self, model: torch.nn.Module) -> "Step":
        """Returns the step of the same model with units."""
        pipeline = None if self.pipeline is None else self.pipeline.with_model(model)
        return dataclasses.replace(self, model=model, pipeline=pipeline)

    def microbatch(self, is_last: bool = True) -> contextlib.AbstractContextManager[object]:
        """Lets the block, a forward and a backward pass, run in the user's context."""
        if self.microbatch_context is None:
            return contextlib.nullcontext()
        microbatch = Microbatch(self.model, self.args, self.kwargs, self.mesh, is_last)
        return microbatch.context(self.microbatch_context)

    def states(self) -> list[torch.Tensor]:
        """Returns the tensors that the update keeps from step to step, except the
        optimizer's."""
        return [] if self.updating is None else self.updating.states()

    def update(self, optimizer: torch.optim.Optimizer) -> None:
        """Runs everything that follows the backward pass."""
        if self.updating is None:
            return
        if self.beginning is None:
            self.updating.run(self.model, optimizer)
            return
        self.beginning.note(self.model, tensors_in((self.args, self.kwargs)))
        with self.beginning.update(self.model, self.updating.is_own):
            self.updating.run(self.model, optimizer)

    def run(self, optimizer: torch.optim.Optimizer) -> None:
        """Runs an iteration."""
        self.run_earlier()
        with self.microbatch():
            self.run_passes()
        self.update(optimizer)

    def backward(self, loss: torch.Tensor) -> None:
        """Runs the last backward pass of a microbatch."""
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
                f"{name}: a backward pass has already freed tensors that the loss needs; "
                f"{_LAST}"
            ) from error

    def loss_of(self, model: Callable[..., Any], *args: Any, **kwargs: Any) -> torch.Tensor:
        context = contextlib.nullcontext() if self.autocast is None else self.autocast.context()
        with context:
            if self.forward_fn is None:
                loss = self.loss_fn(model(*args, **kwargs))
            else:
                loss = self.forward_fn(model, *args, **kwargs)
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            actual = tuple(loss.shape) if isinstance(loss, torch.Tensor) else type(loss)
            name = "loss_fn" if self.forward_fn is None else "forward_fn"
            hint = f"; {_LAST}" if self.forward_fn is not None and loss is None else ""
            raise AcplanError(f"{name}: expected a scalar tensor, found {actual}{hint}")
        return loss


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Keeps other threads from tracing and compiling within the block: while one does, all
    would learn that they are traced. Signals wait for the next operator."""
    compiler = sys.modules.get("torch._dynamo.convert_frame")
    compiles = getattr(compiler, "compile_lock", contextlib.nullcontext())
    with uninterrupted(), _ALONE, compiles, _without_collections():
        yield


@contextlib.contextmanager
def _without_collections() -> Iterator[None]:
    """Keeps Python from collecting cycles by itself within the block: the time of a collection
    depends on all that the process has made before, and so would the bytes that are live, as
    tensors may be in cycles. So cycles stay, which is the most memory that a step can need."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextlib.contextmanager
def step_on_fakes(
    training: TrainingStep,
    device: Device | None = None,
    *,
    real: Limits | None = None,
    tick: Callable[[], object] = int,
) -> Iterator[tuple[Step, torch.optim.Optimizer]]:
    """Yields a training step on fake tensors, after a first one, and its optimizer.

    The tensors are on a fake CUDA device of this kind. `real`: the step has real values, within
    these limits; `tick` is called after each operator that is computed.
    """
    if training.loss_fn is not None and training.forward_fn is not None:
        raise AcplanError("loss_fn: cannot be combined with forward_fn, which makes the loss")
    # It asks for the current device, not for the fake one.
    training = dataclasses.replace(training, autocast=autocast_of(training.autocast))
    with contextlib.closing(Following()) as session:
        while True:
            answers = "" if device is None else device.name
            mode = ValuedFakeTensorMode(answers)
            if real is not None:
                mode = RealValuesMode(answers, real, training.capacity, tick)
            if training.parallel is not None or mesh_of(training.model) is not None:
                mode.ranks.routing = Routing(training.expert_shares)
            session.begin()
            with contextlib.ExitStack() as stack:
                assumed = _enter_fakes(stack, device, session, mode)
                once = _run_on_fakes(training, session, mode, assumed)
                try:
                    step_and_optimizer = stack.enter_context(once)
                except BegunAnew:
                    continue
                yield step_and_optimizer
                return


def _enter_fakes(
    stack: contextlib.ExitStack,
    device: Device | None,
    session: Following,
    mode: ValuedFakeTensorMode,
) -> Assumed:
    """Enters all contexts in which a step runs on fake tensors and leaves nothing behind."""
    watch_launches()
    assumed = Assumed()
    enter = stack.enter_context
    enter(told_with_line())
    enter(alone())
    enter(_disable_current_modes())
    enter(torch.inference_mode(False))
    enter(torch.enable_grad())
    # Autograd has no threads for the device if it ran before without one. Some other modes
    # switch them on.
    enter(torch.autograd.set_multithreading_enabled(False))
    enter(without_saved_hooks())
    enter(autocast_as_it_was())
    enter(fake_cuda(device))
    if isinstance(mode, RealValuesMode):
        enter(drawn_again())
    enter(as_in_training())
    enter(following(session))
    enter(fakes_as_plain_tensors())
    enter(mode)
    enter(assumed)
    return assumed


@contextlib.contextmanager
def _rank_of(training: TrainingStep) -> Iterator[DeviceMesh | None]:
    """Shards the model, which is on fake tensors, within the block if it is parallel. Yields
    its mesh."""
    parallel = training.parallel
    if parallel is None:
        mesh = mesh_of(training.model)
        is_plain = mesh is None and training.schedule is None
        with contextlib.nullcontext() if is_plain else own_groups(training.model):
            yield mesh
        return
    with parallel.group_made() as mesh:
        parallel.shard(training.model, mesh)
        try:
            yield mesh
        except RuntimeError as error:
            if re.search(f"{OF_SHAPES}|size", str(error), re.IGNORECASE):
                setattr(error, WAY_OUT, way_out_of_shapes(training.model))
            raise


@contextlib.contextmanager
def _run_on_fakes(
    training: TrainingStep, session: Following, mode: ValuedFakeTensorMode, assumed: Assumed
) -> Iterator[tuple[Step, torch.optim.Optimizer]]:
    model = training.model
    require_traceable(model)
    beginning = Beginning(mode) if isinstance(mode, RealValuesMode) else None
    functions = FunctionsGiven(model, training.functions)
    with (
        functions.state_kept(),
        _faked(model, mode, training.param_dtype, beginning) as fake,
        _rank_of(training) as mesh,
    ):
        user_inputs = (training.args, training.kwargs)
        held_tensors = functions.move_modules(fake)
        inputs = copied_with(user_inputs, fake)
        session.notes += give_defaults(model.forward, user_inputs, inputs)
        optimizer = make_optimizer(training.optimizer, model, fake)
        was_training = model.training
        model.train()
        try:
            step = Step(
                model,
                inputs[0],
                inputs[1],
                loss_fn=training.loss_fn or default_loss,
                autocast=autocast_of(training.autocast),
                forward_fn=training.forward_fn,
                updating=Updating(training.update, model, assumed),
                beginning=beginning,
                held_tensors=held_tensors,
                trained=frozenset(id(p) for p in model.parameters() if p.requires_grad),
                microbatch_context=training.microbatch_context,
                mesh=mesh,
                pipeline=Pipeline.from_training(training, model, mesh),
            )
            held_tensors += _first_run(step, optimizer, functions, fake)
            notes = _notes_of_history(step, optimizer, session)
            if step.microbatch_context is not None and step.accumulate > 1:
                notes += (NOTE_ON_EARLIER,)
            routing = mode.ranks.routing
            if routing is not None and routing.is_used:
                notes += (_NOTE_ON_EXPERTS,)
            yield dataclasses.replace(step, notes=notes), optimizer
            session.require_none_failed()
        except Exception as error:
            # The user's code may have caught the first error.
            cause = session.first_error or error
            if not isinstance(cause, _OF_VALUES):
                _tell(error)
                raise
            text = depends_on_values(cause, user_inputs, inputs)
            if isinstance(mode, RealValuesMode) and mode.not_computed:
                text += f"; {mode.not_computed}"
            raise DependsOnValues(text) from error
        finally:
            model.train(was_training)


def _notes_of_history(
    step: Step, optimizer: torch.optim.Optimizer, session: Following
) -> tuple[str, ...]:
    """Brings a step that has run once into the state from which any later one begins. Returns
    the notes on it."""
    if session.has_numbers:
        # The step before may have left some numbers behind.
        step.run(optimizer)
    session.can_begin_anew = False
    session.require_none_failed()
    assert step.updating is not None
    return (*session.notes, *step.updating.fill_history(optimizer))


def _first_run(
    step: Step,
    optimizer: torch.optim.Optimizer,
    functions: FunctionsGiven,
    fake: Callable[[Any], Any],
) -> list[torch.Tensor]:
    """Runs a step, and begins again if a tensor of the user's functions must be on the device.
    Returns the tensors that it has moved."""
    moved_tensors: dict[int, torch.Tensor] = {}
    origins: Origins | None = None
    while True:
        try:
            with origins or contextlib.nullcontext():
                step.run(optimizer)
            return [*moved_tensors.values()]
        except RuntimeError as error:
            if not is_of_devices(error):
                raise
            met = set() if origins is None else origins.met - moved_tensors.keys()
            if functions.movable and (origins is None or met):
                moved_tensors |= zip(met, functions.move(met, fake))
                origins = Origins(functions.movable)
            elif not functions.move_devices(step.model):
                raise AcplanError(_of_devices(error)) from error
            step.model.zero_grad()


def _of_devices(error: RuntimeError) -> str:
    line = line_of_error(error)
    return (
        "an operator has a tensor on the CPU and tensors of the device, which a GPU would "
        "refuse too: make it on the device of the others, keep it in a buffer of the model, "
        f"or give it as an input ({str(error).strip().splitlines()[0]}"
        f"{f', at {line}' if line else ''})"
    )


def _tell(error: Exception) -> None:
    """Raises an error with a remedy for an error of PyTorch, if there is one."""
    if isinstance(error, UnsupportedOperatorException):
        raise AcplanError(
            f"{error}: PyTorch has no fake implementation of this operator, so it cannot be "
            "traced; let the model run another operator (for jagged tensors, attention in "
            "half precision)"
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
    """Replaces every tensor of the model by a fake one, on the device unless fully_shard keeps
    it on the host, within the block. Yields the function that does so."""
    fakes: dict[int, Any] = {}
    on_host = shards_on_host(model)

    def plain(value: torch.Tensor) -> torch.Tensor:
        is_cast = isinstance(value, torch.nn.Parameter) and value.is_floating_point()
        dtype = param_dtype if is_cast and param_dtype else value.dtype
        with mode, torch.no_grad():
            device = "cpu" if id(value) in on_host else "cuda"
            data = torch.empty_strided(value.shape, value.stride(), dtype=dtype, device=device)
        mode.give_value(data, value)
        return data

    def from_parts(value: Any) -> Any:
        names, context = value.__tensor_flatten__()
        parts = {name: fake(getattr(value, name)) for name in names}
        unflatten = type(value).__tensor_unflatten__
        return unflatten(parts, context, value.size(), value.stride())

    def fake(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if id(value) not in fakes:
            if is_run_inside(type(value)):
                result = from_parts(value)
            elif is_sparse(value):
                result = fake_of_sparse(value, fake)
            else:
                result = plain(value)
            if isinstance(value, torch.nn.Parameter):
                result = torch.nn.Parameter(result, requires_grad=value.requires_grad)
                for name, attribute in vars(value).items():
                    vars(result).setdefault(name, fake(attribute))
            else:
                result.requires_grad_(value.requires_grad)
            if beginning is not None:
                beginning.add(result, value)
            fakes[id(value)] = (result, value)  # the original is held: its id stays valid
        return fakes[id(value)][0]

    with state_kept(model, of_functions=False) as things:
        for module in model.modules():
            for values in holders_of(module):
                for name, value in list(values.items()):
                    if isinstance(value, torch.Tensor):
                        values[name] = fake(value)
        for tensor in tensors_beside(model.parameters()):
            fake(tensor)
        # They are replaced in lists, dictionaries and objects, too; an optimizer that the model
        # reaches, as a LightningModule reaches its trainer's, keeps its own tensors.
        others = {key: replacement for key, (replacement, _) in fakes.items()}
        replace_in(not_of_optimizers(things), others)
        yield fake
