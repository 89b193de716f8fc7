"""acplan.trace: one training step of a model, without running it."""

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)
from torch.utils._pytree import tree_map

from acplan.devices import Device, find_device
from acplan.errors import AcplanError
from acplan.fake_cuda import fake_cuda
from acplan.files import read_json, write_json
from acplan.progress import progress_bar
from acplan.recorder import Call, Operator, Recorder, Saved, tensors_in
from acplan.timing import measured_device
from acplan.values import (
    ValuedFakeTensorMode,
    as_in_training,
    give_defaults,
    give_value,
    start_of_step,
)

LossFn = Callable[[Any], torch.Tensor]
OptimizerFn = Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]


@dataclasses.dataclass(frozen=True)
class Trace:
    """A training step as `acplan` reads it: docs/file_formats.md, `acplan.trace`."""

    data: dict[str, Any]

    @property
    def peak_bytes(self) -> int:
        """The most bytes in use, each storage rounded up to 512."""
        return int(self.data["measured"]["peak_bytes"])

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the file whole or not at all; `.gz` is gzipped."""
        write_json(path, self.data)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Trace":
        data = read_json(path)
        found = data.get("format") if isinstance(data, dict) else data
        if found != "acplan.trace":
            raise AcplanError(f"{path}: expected format acplan.trace, found {found!r}")
        return cls(data)


def trace(
    model: torch.nn.Module,
    *args: Any,
    loss_fn: LossFn | None = None,
    optimizer: OptimizerFn | None = None,
    device: str | Device = "a100",
    autocast: torch.dtype | None = None,
    progress: bool = False,
    **kwargs: Any,
) -> Trace:
    """Traces the second training step of `model(*args, **kwargs)`.

    The model may be on any device, "meta" included; it is left as it was. Nothing
    is computed: parameters, inputs and all else are fake tensors on a CUDA device.

    loss_fn:   from the model's output to a scalar; by default the output's `loss`,
               or the mean of its first floating-point tensor.
    optimizer: from the parameters to an optimizer; by default torch.optim.AdamW.
    device:    whose roofline gives the run-times: a name of acplan.devices.DEVICES;
               "cuda": they are measured on the CUDA device that is there.
    autocast:  the data type of torch.autocast around the forward pass, if any.
    progress:  shows a bar on standard error, if tqdm is installed.
    """
    target = measured_device() if device == "cuda" else find_device(device)
    with (
        progress_bar(progress) as phase,
        step_on_fakes(model, args, kwargs, loss_fn, optimizer, autocast) as (
            fake,
            run_optimizer,
        ),
    ):
        full = Recorder(target, phase("trace: what is kept", None))
        marks = run_step(full, fake, run_optimizer, full.recording_saved())
        # Once more, to see when all but autograd let go of a storage.
        scopes = Recorder(None, phase("trace: until when", full.now))
        run_step(scopes, fake, run_optimizer, scopes.dropping_saved())
        _require_same_step(full, scopes)
        recasts = _recasts(full, fake, run_optimizer, marks.forward_end)
        return Trace(_to_data(fake, target, full, scopes, marks, recasts))


@dataclasses.dataclass(frozen=True)
class Step:
    model: torch.nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    loss_fn: LossFn
    autocast: torch.dtype | None

    def loss(self) -> torch.Tensor:
        start_of_step()
        return self.loss_of(self.model, *self.args, **self.kwargs)

    def loss_of(
        self, model: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> torch.Tensor:
        context = (
            contextlib.nullcontext()
            if self.autocast is None
            else torch.autocast("cuda", dtype=self.autocast)
        )
        with context:
            loss = self.loss_fn(model(*args, **kwargs))
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            found = tuple(loss.shape) if isinstance(loss, torch.Tensor) else type(loss)
            raise AcplanError(f"loss_fn: expected a scalar tensor, found {found}")
        return loss


@dataclasses.dataclass(frozen=True)
class _Marks:
    forward_end: int
    backward_end: int
    gradients: frozenset[int]
    # Tensors that modules keep as attributes, before the step and after it.
    attributes: tuple[dict[str, int], dict[str, int]]


def _default_optimizer(parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    # CUDA's default, which PyTorch does not choose for fake parameters.
    return torch.optim.AdamW(parameters, foreach=True)


def _default_loss(output: Any) -> Any:
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
def step_on_fakes(
    model: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    loss_fn: LossFn | None,
    optimizer_fn: OptimizerFn | None,
    autocast: torch.dtype | None,
) -> Iterator[tuple[Step, torch.optim.Optimizer]]:
    """A step on fake tensors, after a first one, and its optimizer."""
    step = Step(model, args, kwargs, loss_fn or _default_loss, autocast)
    mode = ValuedFakeTensorMode()
    # Autograd has no threads for the device where it ran before without one.
    one_thread = torch.autograd.set_multithreading_enabled(False)
    with fake_cuda(), as_in_training(), one_thread, mode:
        with _faked(step.model, mode) as fake:
            inputs = tree_map(fake, (step.args, step.kwargs))
            give_defaults(step.model.forward, (step.args, step.kwargs), inputs)
            on_device = dataclasses.replace(step, args=inputs[0], kwargs=inputs[1])
            trained = [p for p in step.model.parameters() if p.requires_grad]
            if not trained:
                raise AcplanError("no parameter of the model requires a gradient")
            optimizer = (optimizer_fn or _default_optimizer)(trained)
            was_training = step.model.training
            step.model.train()
            try:
                on_device.loss().backward()
                optimizer.step()
                optimizer.zero_grad()
                yield on_device, optimizer
            except (DataDependentOutputException, DynamicOutputShapeException) as error:
                raise AcplanError(
                    "what the model runs depends on values, which a trace does not "
                    f"compute: {error} (a tensor's .item(), its truth, its nonzero())"
                ) from error
            finally:
                step.model.train(was_training)


@contextlib.contextmanager
def _faked(
    model: torch.nn.Module, mode: FakeTensorMode
) -> Iterator[Callable[[Any], Any]]:
    """Replaces every tensor of the model by a fake one on the device."""
    fakes: dict[int, Any] = {}

    def fake(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if id(value) not in fakes:
            with mode, torch.no_grad():
                made = torch.empty_strided(
                    value.shape, value.stride(), dtype=value.dtype, device="cuda"
                )
            give_value(made, value)
            if isinstance(value, torch.nn.Parameter):
                made = torch.nn.Parameter(made, requires_grad=value.requires_grad)
            else:
                made.requires_grad_(value.requires_grad)
            fakes[id(value)] = (made, value)  # the original keeps its id
        return fakes[id(value)][0]

    with contextlib.ExitStack() as undo:
        for module in model.modules():
            # Parameters, buffers, hooks and whatever else the step changes.
            for values in (vars(module), *vars(module).values()):
                if isinstance(values, dict):
                    undo.callback(_restore, values, dict(values))
                elif isinstance(values, list):
                    undo.callback(_restore, values, list(values))
            for values in (vars(module), module._parameters, module._buffers):
                for name, value in list(values.items()):
                    if isinstance(value, torch.Tensor):
                        values[name] = fake(value)
        yield fake


def _restore(values: Any, before: Any) -> None:
    # What refuses to be written to was not.
    if _is_as_before(values, before):
        return
    values.clear()
    if isinstance(before, dict):
        values.update(before)
    else:
        values.extend(before)


def _is_as_before(values: Any, before: Any) -> bool:
    if len(values) != len(before):
        return False
    if isinstance(before, dict):
        return all(
            name == old and value is before[old]
            for (name, value), old in zip(values.items(), before)
        )
    return all(value is old for value, old in zip(values, before))


def _register(
    recorder: Recorder, step: Step, optimizer: torch.optim.Optimizer
) -> None:
    """What is there before the step, in an order of its own."""

    def add(values: Any, category: str) -> None:
        for index in recorder.storages_of(values):
            storage = recorder.storages[index]
            storage.category = storage.category or category

    for parameter in step.model.parameters():
        add(parameter, "parameter")
    for buffer in step.model.buffers():
        add(buffer, "buffer")
    add((step.args, step.kwargs), "input")
    for state in optimizer.state.values():
        add(state, "optimizer")
    for storage in _attributes(recorder, step.model).values():
        known = recorder.storages[storage]
        known.category = known.category or "activation"


def _attributes(recorder: Recorder, model: torch.nn.Module) -> dict[str, int]:
    """The storages of tensors that modules keep as plain attributes, by name."""
    found = {}
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            if name in ("_parameters", "_buffers", "_modules") or "hooks" in name:
                continue
            for place, tensor in enumerate(tensors_in(value)):
                found[f"{path}.{name}.{place}"] = recorder.storage_of(tensor)
    return found


def run_step(
    recorder: Recorder,
    step: Step,
    optimizer: torch.optim.Optimizer,
    saved_hooks: torch.autograd.graph.saved_tensors_hooks | None = None,
) -> _Marks:
    """Forward, backward and optimizer step. With hooks of the recorder for what
    autograd saves, the model must be without checkpointing."""
    with recorder:
        _register(recorder, step, optimizer)
        attributes = _attributes(recorder, step.model)
        handles = recorder.watch_calls(step.model.modules()) if saved_hooks else []
        with saved_hooks or contextlib.nullcontext():
            loss = step.loss()
        recorder.end_forward()
        _remove(handles)
        forward_end = recorder.now
        loss.backward()
        del loss
        recorder.ignore_gradients()
        backward_end = recorder.now
        gradients = frozenset(
            recorder.storage_of(parameter.grad)
            for parameter in step.model.parameters()
            if parameter.grad is not None
        )
        optimizer.step()
        optimizer.zero_grad()
        kept = _attributes(recorder, step.model)
    return _Marks(forward_end, backward_end, gradients, (attributes, kept))


def _remove(handles: list[torch.utils.hooks.RemovableHandle]) -> None:
    for handle in handles:
        handle.remove()


def _require_same_step(full: Recorder, scopes: Recorder) -> None:
    names = [operator.name for operator in full.operators]
    again = [operator.name for operator in scopes.operators]
    if names == again:
        assert len(full.storages) == len(scopes.storages)
        assert len(full.tensors) == len(scopes.tensors)
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
        if kept is not None and kept != expected.cast_of:
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
        "forward_end": marks.forward_end,
        "backward_end": marks.backward_end,
        "modules": _modules(recorder, step),
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
        "saved": [_saved(saved) for saved in recorder.saved],
        "kept": _kept(recorder, scopes, marks),
        "measured": {"peak_bytes": peak_of(recorder)},
    }


def _settle(recorder: Recorder, marks: _Marks) -> None:
    """Fills in what the recording alone does not say."""
    was_saved = {saved.storage for saved in recorder.saved}
    for index, storage in enumerate(recorder.storages):
        if storage.category:
            continue
        if index in marks.gradients:
            storage.category = "gradient"
        elif index in was_saved and 0 <= storage.born < marks.forward_end:
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


def _kept(
    recorder: Recorder, scopes: Recorder, marks: _Marks
) -> list[dict[str, Any]]:
    before, after = marks.attributes
    kept = []
    for name, storage in after.items():
        born = recorder.storages[storage].born
        if before.get(name) == storage or not 0 <= born < marks.forward_end:
            continue
        since = scopes.storages[before[name]].freed if name in before else None
        kept.append({"storage": storage, "since": born + 1 if since is None else since})
    return kept


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
    if operator.mutates:
        data["mutates"] = operator.mutates
    if recasts:
        data["recasts"] = recasts
    return data


def _modules(recorder: Recorder, step: Step) -> list[dict[str, Any]]:
    root = type(step.model).__name__
    modules = []
    for path, module in step.model.named_modules():
        own = module.parameters(recurse=False), module.buffers(recurse=False)
        modules.append(
            {
                "fqn": f"{root}.{path}" if path else root,
                "class": type(module).__name__,
                "parameters": recorder.storages_of(list(own[0])),
                "buffers": recorder.storages_of(list(own[1])),
            }
        )
    return modules


def timeline_of(recorder: Recorder) -> list[int]:
    """Bytes in use while each operator runs, storages rounded up to 512."""
    count = recorder.now
    change = [0] * (count + 1)
    for storage in recorder.storages:
        if not storage.on_device:
            continue
        rounded = (storage.bytes + 511) // 512 * 512
        born = max(storage.born, 0)
        if born >= count:
            continue
        freed = count if storage.freed is None else storage.freed
        change[born] += rounded
        change[min(max(freed, born + 1), count)] -= rounded
    live = 0
    timeline = []
    for k in range(count):
        live += change[k]
        timeline.append(live)
    return timeline


def peak_of(recorder: Recorder) -> int:
    return max(timeline_of(recorder), default=0)
