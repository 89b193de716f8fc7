"""The requests of a training run to the allocator: those of the run on fake tensors, and those
that the program predicts."""

import contextlib
import csv
import dataclasses
import json
import os
import pathlib
import subprocess
import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
import transformers
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

import acplan
from acplan._apply.apply import applied
from acplan._base.stand_ins import inner_tensors, is_run_inside
from acplan._device.devices import find_device
from acplan._device.fake_streams import current_stream_number
from acplan._step.step import Step, alone, step_on_fakes
from acplan._step.training_step import TrainingStep
from ddp_on_fakes import in_ddp

ITERATIONS = 3


def tiny_gpt2(**changes: Any) -> nn.Module:
    settings: dict[str, Any] = {
        "n_layer": 2,
        "n_embd": 64,
        "n_head": 2,
        "n_positions": 64,
        "vocab_size": 128,
        "use_cache": False,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**settings | changes))


def tiny_bert(**changes: Any) -> nn.Module:
    settings: dict[str, Any] = {
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 128,
        "vocab_size": 128,
        "max_position_embeddings": 64,
    }
    return transformers.BertForMaskedLM(transformers.BertConfig(**settings | changes))


@dataclasses.dataclass(frozen=True)
class Request:
    """An allocation, the blocks (numbered by their allocations) that were freed since the one
    before, and the place in the run."""

    bytes: int
    freed: frozenset[int]
    stream: int = 0
    place: str = dataclasses.field(default="", compare=False)


@contextlib.contextmanager
def resizes_noted(note: Callable[[torch.UntypedStorage, int], None]) -> Iterator[None]:
    """Passes each storage that gets other memory within the block, and the bytes that it had
    before, to `note`."""
    plain = torch.UntypedStorage.resize_

    def resize_(storage: torch.UntypedStorage, size: int) -> Any:
        before = storage.nbytes()
        result = plain(storage, size)
        note(storage, before)
        return result

    # The class inherits the method: what is set here hides it. mypy allows no method to be
    # assigned.
    torch.UntypedStorage.resize_ = resize_  # type: ignore[assignment]
    try:
        yield
    finally:
        del torch.UntypedStorage.resize_


class _Requests(TorchDispatchMode):
    """Notes every storage on the device when it is made, and when it is freed."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.requests: list[Request] = []
        self.place = "model"
        self._blocks: dict[int, int] = {}
        self._freed: set[int] = set()

    def hold(self, value: Any, place: str) -> None:
        if not isinstance(value, torch.Tensor) or value.device.type != "cuda":
            return
        while is_run_inside(type(value)):
            (value,) = inner_tensors(value)
        storage = value.untyped_storage()
        key = storage._cdata
        if key in self._blocks or storage.nbytes() == 0:
            return
        self._allocate(storage, place)
        weakref.finalize(storage, self._free, key).atexit = False

    def _allocate(self, storage: torch.UntypedStorage, place: str) -> None:
        self._blocks[storage._cdata] = len(self.requests)
        freed, stream = frozenset(self._freed), current_stream_number()
        text = f"{self.place}: {place}"
        self.requests.append(Request(storage.nbytes(), freed, stream, text))
        self._freed = set()

    def _free(self, key: int) -> None:
        if key in self._blocks:
            self._freed.add(self._blocks.pop(key))

    def note_resize(self, storage: torch.UntypedStorage, before: int) -> None:
        if before:
            self._free(storage._cdata)
        elif storage.nbytes():
            self._allocate(storage, "resized")

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if any(map(is_run_inside, types)):
            return NotImplemented
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            self.hold(leaf, str(func))
        return result


def real_requests(
    training: TrainingStep,
    plan: acplan.Plan | None = None,
    iterations: int = ITERATIONS,
    is_state_first: bool = False,
    ddp: Mapping[str, Any] | None = None,
) -> list[Request]:
    """Returns the requests of a training run on fake tensors, with a plan or without.

    ddp: the arguments of DistributedDataParallel, if the model is in one.
    """
    with alone(), step_on_fakes(training, find_device("a100")) as (step, optimizer):
        # The run begins here, and not with the step that was run on these fakes already.
        optimizer.state.clear()
        step.model.zero_grad(set_to_none=True)
        scaler = None if step.updating is None else step.updating._scaler
        if scaler is not None:
            scaler._scale = scaler._growth_tracker = None
        with nullcontext(step.model) if plan is None else applied(step.model, plan) as model:
            run = _Run(step, model, optimizer, iterations, is_state_first, ddp)
            return run.requests()


@dataclasses.dataclass(frozen=True)
class _Run:
    step: Step
    model: nn.Module
    optimizer: torch.optim.Optimizer
    iterations: int
    is_state_first: bool
    ddp: Mapping[str, Any] | None

    def requests(self) -> list[Request]:
        requests = _Requests()
        step = self.step
        for tensor in _in_order_of_to(step.model):
            requests.hold(tensor, "model")
        for tensor in step.states():  # averaged weights
            requests.hold(tensor, "average")
        if step.pipeline is not None:
            for tensor in step.pipeline.buffers():
                requests.hold(tensor, "buffer")
        wrapped = nullcontext(self.model)
        if self.ddp is not None:
            wrapped = in_ddp(self.model, **self.ddp)
        with requests, resizes_noted(requests.note_resize), wrapped as model:
            if self.is_state_first:
                acplan.make_optimizer_state(self.optimizer)
            inputs: Any = None
            for iteration in range(self.iterations):
                for microbatch in range(step.accumulate):
                    requests.place = f"{iteration + 1}.{microbatch + 1}"
                    inputs = _copied((step.args, step.kwargs))
                    args, kwargs = inputs
                    now = dataclasses.replace(step, model=model, args=args, kwargs=kwargs)
                    is_last = microbatch + 1 == step.accumulate
                    no_sync = nullcontext() if is_last or self.ddp is None else model.no_sync()
                    with no_sync, now.microbatch(is_last):
                        now.run_passes()
                now.update(self.optimizer)
                del now
        return list(requests.requests)


def real_requests_of_lengths(
    training: TrainingStep,
    inputs: Mapping[int, Any],
    order: Sequence[int | tuple[str, int]],
    plan: acplan.Plan | acplan.PlanTable | None = None,
    is_state_first: bool = False,
    evaluated: Mapping[int, Any] | None = None,
    ddp: Mapping[str, Any] | None = None,
) -> list[Request]:
    """Returns the requests of a run on fake tensors whose batches have several lengths.

    inputs: by length, the slices that cut the keyword arguments of `training` to it;
            evaluated: those for evaluations, if they are others.
    order:  the lengths; ("eval", length) stands for an evaluation.
    ddp:    the arguments of DistributedDataParallel, if the model is in one.
    """
    with alone(), step_on_fakes(training, find_device("a100")) as (step, optimizer):
        optimizer.state.clear()
        step.model.zero_grad(set_to_none=True)
        # Before the run begins: a slice would show as an input of the longest length.
        batches: dict[Any, Any] = {
            batch: {name: value[cut].clone() for name, value in step.kwargs.items()}
            for batch, cut in (
                *inputs.items(),
                *((("eval", length), cut) for length, cut in (evaluated or inputs).items()),
            )
        }
        model = step.model if plan is None else acplan.apply(step.model, plan, strict=True)
        try:
            now = dataclasses.replace(step, model=model)
            plain = step.model
            return _run_lengths(now, plain, optimizer, batches, order, is_state_first, ddp)
        finally:
            acplan.remove(model)


def _run_lengths(
    step: Step,
    plain: nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: Mapping[Any, Any],
    order: Sequence[int | tuple[str, int]],
    is_state_first: bool,
    ddp: Mapping[str, Any] | None,
) -> list[Request]:
    requests = _Requests()
    for tensor in _in_order_of_to(plain):
        requests.hold(tensor, "model")
    wrapped = nullcontext(step.model) if ddp is None else in_ddp(step.model, **ddp)
    with requests, wrapped as model:
        step = dataclasses.replace(step, model=model)
        if is_state_first:
            acplan.make_optimizer_state(optimizer)
        inputs: Any = None
        evaluated: Any = None
        for place, batch in enumerate(order):
            requests.place = f"batch {place + 1}"
            if isinstance(batch, tuple):
                evaluated = _copied(batches[batch])
                step.model.eval()
                with torch.no_grad():
                    dataclasses.replace(step, kwargs=evaluated).loss()
                step.model.train()
                continue
            evaluated = None
            inputs = _copied(batches[batch])
            now = dataclasses.replace(step, kwargs=inputs)
            now.backward(now.loss())
            now.update(optimizer)
            del now
    return list(requests.requests)


def predicted_requests_of_lengths(
    traces: Mapping[int, acplan.Trace],
    lengths: acplan.Lengths,
    plan: acplan.Plan | acplan.PlanTable | None = None,
    is_state_first: bool = False,
    evaluations: Mapping[int, acplan.Trace] | None = None,
    ddp: Mapping[str, Any] | None = None,
) -> list[Request]:
    """Returns the requests of the same run by `acplan lengths simulate`."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        arguments = ["--without-least-device", *_flags_of(ddp)]
        for length, trace in (evaluations or {}).items():
            trace.save(folder / f"evaluation_{length}.json")
            arguments += ["--evaluation", f"{length}=evaluation_{length}.json"]
        simulate_lengths(folder, traces, lengths, plan, "native", is_state_first, *arguments)
        with (folder / "run.csv").open(newline="") as file:
            return _requests_of(list(csv.DictReader(file)))


def simulate_lengths(
    folder: pathlib.Path,
    traces: Mapping[int, acplan.Trace],
    lengths: acplan.Lengths,
    plan: acplan.Plan | acplan.PlanTable | None,
    allocator: str,
    is_state_first: bool,
    *arguments: str,
) -> dict[str, Any]:
    """Runs `acplan lengths simulate` in the folder. Returns what it prints."""
    names = []
    for length, trace in traces.items():
        trace.save(folder / f"{length}.json")
        names.append(f"{length}={length}.json")
    lengths.save(folder / "lengths")
    if plan is not None:
        plan.save(folder / "plan.json")
        arguments = (*arguments, "--plan", "plan.json")
    outcome = subprocess.run(
        [os.environ["ACPLAN"], "lengths", "simulate", *names, "--lengths", "lengths"]
        + ["--allocator", allocator, "--timeline", "run.csv", "--json"]
        + ["--optimizer-state", "first" if is_state_first else "update", *arguments],
        cwd=folder,
        check=True,
        capture_output=True,
        text=True,
    )
    result: dict[str, Any] = json.loads(outcome.stdout)
    return result


def _in_order_of_to(module: nn.Module) -> Iterator[torch.Tensor]:
    """Yields parameters and buffers as Module.to moves them."""
    for child in module.children():
        yield from _in_order_of_to(child)
    yield from module.parameters(recurse=False)
    yield from module.buffers(recurse=False)


def _copied(inputs: Any) -> Any:
    return tree_map_only(torch.Tensor, torch.clone, inputs)


def predicted_requests(
    trace: acplan.Trace,
    plan: acplan.Plan | None = None,
    iterations: int = ITERATIONS,
    is_state_first: bool = False,
    ddp: Mapping[str, Any] | None = None,
) -> list[Request]:
    """Returns the requests of the same run by `acplan simulate`."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        trace.save(folder / "trace.json")
        arguments = ["trace.json"]
        if plan is not None:
            plan.save(folder / "plan.json", model=trace.data["model"]["name"])
            arguments.append("plan.json")
        arguments += _flags_of(ddp)
        subprocess.run(
            [os.environ["ACPLAN"], "simulate", *arguments, "--allocator", "native"]
            + ["--optimizer-state", "first" if is_state_first else "update"]
            + ["--without-least-device", "--timeline", "run.csv"],
            cwd=folder,
            check=True,
            capture_output=True,
        )
        with (folder / "run.csv").open(newline="") as file:
            rows = list(csv.DictReader(file))
    return _requests_of(row for row in rows if int(row["iteration"]) <= iterations)


def _flags_of(ddp: Mapping[str, Any] | None) -> list[str]:
    if ddp is None:
        return []
    texts = [f"{name}:{value}" for name, value in ddp.items()]
    return ["--ddp", ",".join(texts) or "default"]


def _requests_of(rows: Any) -> list[Request]:
    requests: list[Request] = []
    blocks: dict[str, int] = {}
    freed: set[int] = set()
    for row in rows:
        if row["kind"] == "free":
            freed.add(blocks.pop(row["id"]))
            continue
        blocks[row["id"]] = len(requests)
        moment = f"{row['iteration']}.{row['microbatch']}" if "step" in row else row["batch"]
        place = f"{moment}: {row.get('step', '')} {row['operator']}"
        stream = int(row.get("stream", 0))
        requests.append(Request(int(row["bytes"]), frozenset(freed), stream, place))
        freed = set()
    return requests


def difference(real: list[Request], predicted: list[Request]) -> str:
    """Returns the first difference, or "". The prediction may end earlier, with an iteration
    that repeats."""
    for place, (a, b) in enumerate(zip(real, predicted)):
        if a == b:
            continue
        sizes = {k: real[k].bytes for k in a.freed | b.freed}
        return (
            f"request {place}: {a.bytes:,} bytes at {a.place}, predicted {b.bytes:,} at "
            f"{b.place}; freed before {_text_of(a.freed - b.freed, sizes, real)}, predicted "
            f"{_text_of(b.freed - a.freed, sizes, real)}"
        )
    if len(predicted) > len(real):
        return f"{len(real)} requests, predicted {len(predicted)}"
    return ""


def _text_of(freed: frozenset[int], sizes: dict[int, int], real: list[Request]) -> str:
    return "; ".join(f"{k} ({sizes[k]:,} bytes, {real[k].place})" for k in sorted(freed)) or "-"
