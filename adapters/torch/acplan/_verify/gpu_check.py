"""python -m acplan gpu-check: real training steps beside the predictions of plans."""

import argparse
import contextlib
import dataclasses
import datetime
import gc
import math
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from acplan._apply.apply import apply
from acplan._base.errors import AcplanError, reason_of
from acplan._base.program import find_program
from acplan._device.devices import DEVICES
from acplan._files.json_files import require_writable, write_json
from acplan._files.plan_file import Plan, PlannedModule
from acplan._files.trace_file import Trace
from acplan._files.verification import VerifiedOperator
from acplan._program.plan import plan
from acplan._step.recorder import Recorder
from acplan._step.trace import trace
from acplan._verify.gpu_check_models import CheckedModel, checked_models
from acplan._verify.gpu_check_rows import Row, print_header, print_row
from acplan._verify.gpu_check_run import predicted_run, process_allocator
from acplan._verify.retrace import is_of_a_frame
from acplan._verify.simulated import simulate

PLANS = ("none", "blocks", "80%", "60%", "min", "offload")
_WARM_UPS = 2
# The share of a device's memory that a model without a plan may use.
_SHARE = 0.85


@dataclasses.dataclass(frozen=True)
class _Bench:
    """A model, the device on which its steps run, and how many of them are timed."""

    model: CheckedModel
    device: str
    steps: int


@dataclasses.dataclass(frozen=True)
class _Baseline:
    """The model without a plan: its trace, its steps, and the losses of a second run."""

    traced: Trace
    measured: "Measured"
    losses_again: tuple[float, ...]


@dataclasses.dataclass(frozen=True)
class Measured:
    """Training steps that ran."""

    operators: tuple[str, ...]
    losses: tuple[float, ...]
    step_ms: float
    allocated_bytes: int | None
    reserved_bytes: int | None  # at most, from the model's construction on
    retries: int | None = None  # num_alloc_retries
    ooms: int | None = None  # num_ooms


def add_parser(commands: Any) -> None:
    """Adds the sub-command to those of `python -m acplan`."""
    parser = commands.add_parser(
        "gpu-check", help="run models with plans on the GPU, and compare with the predictions"
    )
    names = ", ".join(checked_models(is_small=True))
    parser.add_argument("--models", metavar="NAME,...", help=f"of {names}; default: all")
    plans = ", ".join(PLANS).replace("%", "%%")
    parser.add_argument("--plans", metavar="NAME,...", help=f"of {plans}; default: all")
    parser.add_argument(
        "--device",
        choices=["cuda", "cpu"],
        default="cuda",
        help="cpu: small models, and no memory is measured; default: cuda",
    )
    parser.add_argument(
        "--steps", type=int, default=5, metavar="N", help="number of timed steps; default: 5"
    )
    parser.add_argument("-o", "--output", metavar="FILE", help="results, .json[.gz]")
    parser.add_argument("--debug", action="store_true", help="show tracebacks of errors")
    parser.set_defaults(run=_run_command)


def _run_command(flags: argparse.Namespace) -> int:
    if flags.output:
        require_writable(flags.output)
    if flags.steps < 1:
        raise AcplanError(f"--steps: expected a number above 0, found {flags.steps}")
    if flags.device == "cuda" and not torch.cuda.is_available():
        raise AcplanError(
            "gpu-check: expected a CUDA device, PyTorch finds none; --device cpu runs "
            "small models without one"
        )
    models = checked_models(is_small=flags.device == "cpu")
    names = _names("--models", flags.models, list(models))
    plans = _names("--plans", flags.plans, PLANS)
    find_program()
    header = machine(flags.device)
    print_header(header, sys.stdout)
    rows = []
    for name in names:
        for row in check(name, models[name], plans, flags.device, flags.steps):
            print_row(row, sys.stdout)
            rows.append(row)
    good = sum(row.is_good for row in rows)
    print(f"\n{good} of {len(rows)} equal and within their budgets")
    if flags.output:
        write_json(flags.output, to_data(header, rows))
    return 0 if good == len(rows) else 1


def _names(flag: str, text: str | None, choices: Sequence[str]) -> Sequence[str]:
    if text is None:
        return choices
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in choices:
            raise AcplanError(f"{flag}: expected names of {', '.join(choices)}, found {name!r}")
    return list(dict.fromkeys(names))


def machine(device: str) -> dict[str, Any]:
    """Returns the facts about the machine and its software."""
    facts: dict[str, Any] = {
        "device": platform.processor() or platform.machine(),
        "memory_bytes": None,
        "torch": torch.__version__,
        "cuda": None,
        "cudnn": None,
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
    }
    if device == "cuda":
        facts["device"] = torch.cuda.get_device_name()
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        facts["memory_bytes"] = properties.total_memory
        facts["cuda"] = torch.version.cuda or torch.version.hip
        facts["cudnn"] = torch.backends.cudnn.version()
    return facts


def to_data(header: dict[str, Any], rows: Sequence[Row]) -> dict[str, Any]:
    return {
        "format": "acplan.gpu_check",
        "version": 1,
        **header,
        "rows": [
            dataclasses.asdict(row) | {"memory_error": row.memory_error, "good": row.is_good}
            for row in rows
        ],
    }


def check(
    name: str,
    make: Callable[[], CheckedModel],
    plans: Sequence[str],
    device: str,
    steps: int,
) -> Iterator[Row]:
    """Yields the rows of a model. An error becomes a row, and does not end the check."""
    memory = math.inf
    if device == "cuda":
        memory = _SHARE * torch.cuda.get_device_properties(0).total_memory
    try:
        bench = _Bench(make(), device, steps)
        traced, batch = fitting_trace(bench.model, device, memory)
        measured = _measure(bench, None, batch)
        repeat = _measure(bench, None, batch) if device == "cuda" else measured
        base = _Baseline(traced, measured, repeat.losses)
    except Exception as error:
        for label in plans:
            yield Row(name, label, error=reason_of(error, "the run"))
        return
    blank = Row(name, "", batch)
    for label in plans:
        row = dataclasses.replace(blank, plan=label)
        try:
            yield _checked(row, bench, base)
        except AcplanError as error:
            has_no_plan = error.exit_code in (3, 4)  # no plan fits, proven or not
            text = reason_of(error, "the run")
            is_error = not has_no_plan
            yield (
                dataclasses.replace(row, error=text)
                if is_error
                else dataclasses.replace(row, note=text)
            )
        except Exception as error:
            yield dataclasses.replace(row, error=reason_of(error, "the run"))


def _checked(row: Row, bench: _Bench, base: _Baseline) -> Row:
    assert row.batch is not None
    traced = base.traced
    row_plan = _plan_of(row.plan, bench.model, traced, bench.device)
    stall_ms = None if row_plan is None else row_plan.stall_ms
    baseline_operators = _traced_operators(traced)
    predicted = baseline_operators if row_plan is None else simulate(traced, row_plan)
    _clean(bench.device)
    allocator = process_allocator(bench.device)
    run = predicted_run(traced, row_plan, allocator, _WARM_UPS + 1 + bench.steps)
    measured = base.measured
    if row_plan is not None:
        measured = _measure(bench, row_plan, row.batch)
    predicted_ms = math.fsum(operator.runtime_ms for operator in predicted) + (stall_ms or 0)
    baseline_ms = math.fsum(operator.runtime_ms for operator in baseline_operators)
    peak = max(operator.live_bytes for operator in predicted) if row_plan else traced.peak_bytes
    return dataclasses.replace(
        row,
        budget_bytes=row_plan.budget_bytes if row_plan and row_plan.data else None,
        predicted_bytes=peak,
        allocated_bytes=measured.allocated_bytes,
        reserved_bytes=measured.reserved_bytes,
        predicted_reserved_bytes=run.reserved_bytes,
        retries=measured.retries,
        predicted_retries=run.retries,
        ooms=measured.ooms,
        predicted_ooms=run.ooms,
        predicted_ms=predicted_ms,
        stall_ms=stall_ms,
        measured_ms=measured.step_ms,
        predicted_overhead=predicted_ms / baseline_ms - 1 if baseline_ms else None,
        measured_overhead=measured.step_ms / base.measured.step_ms - 1,
        operators=len(measured.operators),
        operators_differ=_difference(
            [operator.name for operator in predicted], measured.operators
        ),
        losses_differ=_losses_differ(measured.losses, base.measured.losses, base.losses_again),
    )


def _traced_operators(traced: Trace) -> tuple[VerifiedOperator, ...]:
    return tuple(
        VerifiedOperator(operator["name"], 0, operator["runtime_ms"])
        for operator in traced.data["operators"]
    )


def _difference(predicted: Sequence[str], measured: Sequence[str]) -> str | None:
    for place, (one, other) in enumerate(zip(predicted, measured)):
        if one != other:
            return f"operator {place}: predicted {one}, measured {other}"
    if len(predicted) != len(measured):
        return f"predicted {len(predicted)} operators, measured {len(measured)}"
    return None


def _losses_differ(
    losses: Sequence[float], base: Sequence[float], repeat: Sequence[float]
) -> str | None:
    """Returns the difference of losses, or None if they are equal bit for bit, or differ by at
    most twice as much as two runs without a plan."""
    if list(losses) == list(base):
        return None
    noise = max(abs(a - b) for a, b in zip(base, repeat))
    worst = max(abs(a - b) for a, b in zip(losses, base))
    if worst <= 2 * noise:
        return None
    return f"by {worst:.3g}; two runs without a plan by {noise:.3g}"


# --- Plans


def _plan_of(label: str, model: CheckedModel, traced: Trace, device: str) -> Plan | None:
    if label == "none":
        return None
    if label == "blocks":
        return Plan(tuple(PlannedModule(fqn) for fqn in blocks_of(_on_meta(model))))
    if label == "offload":
        rate = _link_rate(device)
        skips = "save,recompute,skip"
        return plan(traced, "80%", offload=rate, decisions=skips, segments="auto")
    return plan(traced, label)


def _link_rate(device: str) -> str:
    """Returns the rate of the link to the host: that of the slower way, while the other is
    busy."""
    if device == "cpu":
        return "25GB/s"
    size, copies = 1 << 28, 8
    host = [torch.empty(size, dtype=torch.uint8, pin_memory=True) for _ in range(2)]
    on_device = [torch.empty(size, dtype=torch.uint8, device=device) for _ in range(2)]
    ways = [torch.cuda.Stream(), torch.cuda.Stream()]
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(copies):
        with torch.cuda.stream(ways[0]):
            host[0].copy_(on_device[0], non_blocking=True)
        with torch.cuda.stream(ways[1]):
            on_device[1].copy_(host[1], non_blocking=True)
    torch.cuda.synchronize()
    return f"{size * copies / (time.perf_counter() - start) / 1e9:.3g}GB/s"


def blocks_of(model: nn.Module) -> list[str]:
    """Returns the names of the modules in the outermost lists of modules, except single layers;
    or of the root's own modules, if there are no such lists."""
    root = type(model).__name__
    paths: list[str] = []
    for path, module in model.named_modules():
        if not isinstance(module, (nn.ModuleList, nn.Sequential)):
            continue
        if any(f"{path}.".startswith(f"{block}.") for block in paths):
            continue
        paths += [
            f"{path}.{name}" if path else name
            for name, part in module.named_children()
            if any(part.children())
        ]
    paths = paths or [name for name, _ in model.named_children()]
    return [f"{root}.{path}" for path in paths]


def _on_meta(model: CheckedModel) -> nn.Module:
    with torch.device("meta"):
        return model.make()


def _optimizer(parameters: Any) -> torch.optim.Optimizer:
    # In lists, as CUDA does by default, unlike the CPU.
    return torch.optim.AdamW(parameters, lr=1e-4, foreach=True)


def fitting_trace(model: CheckedModel, device: str, memory: float) -> tuple[Trace, int]:
    """Returns the trace for the largest batch that fits into this memory without a plan, and
    the batch, which is halved as often as needed."""
    batch = model.batch
    while True:
        inputs: dict[str, Any] = model.inputs(batch)
        traced = trace(
            _on_meta(model),
            optimizer=_optimizer,
            device="cuda" if device == "cuda" else DEVICES["a100"],
            autocast=model.autocast,
            **inputs,
        )
        if traced.peak_bytes <= memory:
            return traced, batch
        if batch == 1:
            raise AcplanError(
                f"a batch of one needs {traced.peak_bytes:,} bytes without a plan, of "
                f"{memory:,.0f}"
            )
        batch //= 2


# --- Measurements


def _measure(bench: _Bench, row_plan: Plan | None, batch: int) -> Measured:
    model, device = bench.model, bench.device
    _clean(device)
    before = torch.cuda.memory_allocated() if device == "cuda" else 0
    counts_before = _counts(device)
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    torch.manual_seed(0)
    with torch.device(device):
        module = model.make()
    host_inputs = model.inputs(batch)
    inputs = {name: value.to(device) for name, value in host_inputs.items()}
    module.train()
    if row_plan is not None:
        module = apply(module, row_plan)
    optimizer = _optimizer([p for p in module.parameters() if p.requires_grad])
    losses: list[float] = []

    def step() -> None:
        torch.manual_seed(len(losses))
        with _autocast(model, device):
            loss = module(**inputs)["loss"]
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))

    def renew_inputs() -> None:
        # A loader puts the next inputs on the device before the last ones go.
        nonlocal inputs
        inputs = {name: value.to(device) for name, value in host_inputs.items()}

    step()
    for _ in range(_WARM_UPS - 1):
        renew_inputs()
        step()
    renew_inputs()
    torch.manual_seed(len(losses))
    operators = _operators_of(bench, module, inputs, optimizer)
    reserved = None
    if device == "cuda":
        torch.cuda.synchronize()
        reserved = torch.cuda.max_memory_reserved()
        torch.cuda.reset_peak_memory_stats()
    times = []
    for _ in range(bench.steps):
        renew_inputs()
        times.append(_timed(step, device))
    allocated = None
    if reserved is not None:
        allocated = torch.cuda.max_memory_allocated() - before
        reserved = max(reserved, torch.cuda.max_memory_reserved())
    retries, ooms = (
        None if old is None or new is None else new - old
        for old, new in zip(counts_before, _counts(device))
    )
    return Measured(
        operators, tuple(losses), statistics.median(times), allocated, reserved, retries, ooms
    )


def _counts(device: str) -> tuple[int | None, int | None]:
    """Returns how often the allocator has emptied its cache for a request, and failed."""
    if device != "cuda":
        return None, None
    counts = torch.cuda.memory_stats()
    return counts["num_alloc_retries"], counts["num_ooms"]


def _operators_of(
    bench: _Bench,
    module: nn.Module,
    inputs: dict[str, torch.Tensor],
    optimizer: torch.optim.Optimizer,
) -> tuple[str, ...]:
    """Runs a step as in the trace, in which nothing reads the loss. Returns the names of its
    operators."""
    recorder = Recorder()
    with recorder:
        with _autocast(bench.model, bench.device):
            loss = module(**inputs)["loss"]
        loss.backward()
        del loss
        optimizer.step()
        optimizer.zero_grad()
    return tuple(
        operator.name
        for operator in recorder.log.operators
        if not is_of_a_frame(recorder.log, operator)
    )


def _autocast(model: CheckedModel, device: str) -> contextlib.AbstractContextManager[Any]:
    if model.autocast is None:
        return contextlib.nullcontext()
    return torch.autocast(device, dtype=model.autocast)


def _timed(step: Callable[[], None], device: str) -> float:
    if device == "cpu":
        start = time.perf_counter()
        step()
        return (time.perf_counter() - start) * 1e3
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    step()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end))


def _clean(device: str) -> None:
    gc.collect()
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


# --- The table
