"""Plans for training steps of many packages of PyPI: each is traced, planned at three
budgets, and held against its step traced again and against real steps without the plan.

    ACPLAN=... PYTHONPATH=. python tests/compare_third_party.py run RESULTS.jsonl [NAME...]
    PYTHONPATH=. python tests/compare_third_party.py page RESULTS.jsonl
    PYTHONPATH=. python tests/compare_third_party.py check [NAME...]

`run` appends a line for each step that the file has no good line of yet; a name is a package
or `PACKAGE: STEP`. `page` writes docs/measured/third_party.csv. `check` runs the real steps
alone, without acplan. `tests/run_third_party.sh` installs the packages and does all of it.
"""

import concurrent.futures
import copy
import dataclasses
import importlib
import importlib.metadata
import inspect
import itertools
import json
import logging
import multiprocessing
import multiprocessing.connection
import os
import pathlib
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
# e3nn 0.4.4, which MACE asks for, reads a table of its own that holds slices.
os.environ.setdefault("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")

import torch
from torch import Tensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

import acplan
from acplan import AcplanError, Plan, Trace
from acplan._step.training_step import TrainingStep, default_loss
from acplan._verify.verify import verifying
from measured import same_ms
from third_party import all_entries
from third_party.page import write_table, wrong
from third_party.registry import Entry, seed

# Shares of the way from the least that any plan needs to what the step needs without one.
SHARES = (0.75, 0.5)
_TIME_LIMIT = 1.0  # seconds, of one search
_MOST_SECONDS = 180  # of one step, on the processor
_MOST_BYTES = 8 << 30  # of one step
_ITERATIONS = 2
_CLOSE = 1e-5  # of the largest element

# The tensors that a real step leaves, indexed by name: None if there is no such tensor.
Values = dict[str, Tensor | None]


@dataclasses.dataclass
class Result:
    """One line of the file. `plans` are (overhead, is optimal, what did not hold)."""

    package: str
    name: str
    version: str = ""
    kind: str = ""
    operators: int = 0
    peak_bytes: int = 0
    least_bytes: int = 0
    values: str = ""
    # The tolerance within which two runs without a plan agree: 0 if they are equal bit for bit.
    tolerance: float = 0.0
    refused: str = ""
    plans: list[tuple[float, bool, str]] = dataclasses.field(default_factory=list)
    error: str = ""
    seconds: float = 0.0


def result_of(entry: Entry) -> Result:
    """Traces, plans, verifies and runs one step."""
    result = Result(entry.package, entry.name, importlib.metadata.version(entry.package))
    try:
        _fill(result, entry)
    except AcplanError as error:
        result.error = _one_line(str(error))
    except BaseException as error:  # Whatever it is, it is this step's result.
        if os.environ.get("DEBUG"):
            traceback.print_exc()
        result.error = f"{type(error).__name__}: {_one_line(str(error))} {_place(error)}"
    return result


def _fill(result: Result, entry: Entry) -> None:
    result.kind = type(entry.new_step().model).__name__
    expected = real_step(entry, None)
    result.tolerance = _tolerance(expected, real_step(entry, None))
    traced, options = _traced(entry, result)
    result.operators = len(traced.data["operators"])
    result.peak_bytes = traced.peak_bytes
    plans = _plans(traced)
    result.least_bytes = plans[-1].peak_bytes
    result.plans = [(plan.overhead, plan.status == "optimal", "") for plan in plans]
    traced_again = _wrong_when_traced(entry, options, traced, plans)
    run = [_wrong_when_run(entry, expected, result.tolerance, plan) for plan in plans]
    result.plans = [
        (plan.overhead, plan.status == "optimal", "; ".join(filter(None, both)))
        for plan, both in zip(plans, zip(traced_again, run, strict=True), strict=True)
    ]


def _traced(entry: Entry, result: Result) -> tuple[Trace, dict[str, Any]]:
    """Returns the trace, with the values of the batch if it is refused without them, and the
    options that ask for these values."""
    step = entry.new_step()
    try:
        return acplan.trace(step.model, *step.args, progress=False, **step.options()), {}
    except AcplanError as error:
        if "values" not in inspect.signature(acplan.trace).parameters:
            raise
        result.refused = _one_line(str(error))
    result.values = "real"
    options = {"values": "real"}
    step = entry.new_step()
    return (
        acplan.trace(step.model, *step.args, progress=False, **{**step.options(), **options}),
        options,
    )


def _plans(traced: Trace) -> list[Plan]:
    """Returns plans at the shares, and as the last one the plan with the least memory."""
    with tempfile.TemporaryDirectory(prefix="acplan-") as folder:
        path = pathlib.Path(folder) / "trace.json"
        traced.save(path)
        least = acplan.plan(path, "min", time_limit=_TIME_LIMIT)
        between = max(0, traced.peak_bytes - least.budget_bytes)
        budgets = [least.budget_bytes + round(share * between) for share in SHARES]
        return [acplan.plan(path, b, time_limit=_TIME_LIMIT) for b in budgets] + [least]


def _wrong_when_traced(
    entry: Entry, options: dict[str, Any], traced: Trace, plans: Sequence[Plan]
) -> list[str]:
    step = entry.new_step()
    step_ms = sum(op["runtime_ms"] for op in traced.data["operators"])
    with verifying(
        step.model, *step.args, model_trace=traced, **{**step.options(), **options}
    ) as verified:
        return [_said(_retraced_difference, verified, plan, step_ms) for plan in plans]


def _retraced_difference(
    verified: Callable[[Plan], acplan.Verification], plan: Plan, step_ms: float
) -> str:
    return _unlike(plan, verified(plan), step_ms)


def _unlike(plan: Plan, verification: acplan.Verification, step_ms: float) -> str:
    if verification.first_difference() is not None:
        return " ".join(str(verification).split("\n"))
    if verification.measured_bytes != plan.peak_bytes:
        return f"peak {verification.measured_bytes:,}, planned {plan.peak_bytes:,}"
    if verification.measured_bytes > plan.budget_bytes:
        return "over the budget"
    if not same_ms(verification.measured_ms - step_ms, plan.recompute_ms):
        rerun_ms = verification.measured_ms - step_ms
        return f"recomputes {rerun_ms:.6g} ms, planned {plan.recompute_ms:.6g}"
    return ""


def _tolerance(expected: Values, others: Values) -> float:
    """Returns the tolerance within which two runs without a plan agree: some kernels add in
    another order if memory is aligned otherwise."""
    for tolerance in (0.0, _CLOSE):
        difference = first_difference(expected, others, tolerance)
        if not difference:
            return tolerance
    raise RuntimeError(f"without a plan, {difference} differs from run to run")


def _wrong_when_run(entry: Entry, expected: Values, tolerance: float, plan: Plan) -> str:
    def difference() -> str:
        name = first_difference(expected, real_step(entry, plan), tolerance)
        return f"real step: {name} differs" if name else ""

    return _said(difference)


def _said(find: Callable[..., str], *args: Any) -> str:
    """Returns what the function finds, or the error that it raises, so that other plans are
    tried all the same."""
    try:
        return find(*args)
    except Exception as error:  # It is what did not hold.
        if os.environ.get("DEBUG"):
            traceback.print_exc()
        return f"{type(error).__name__}: {_one_line(str(error))} {_place(error)}"


def real_step(entry: Entry, plan: Plan | None) -> Values:
    """Losses, gradients, weights, buffers and random states of two iterations."""
    step = entry.new_step()
    model = step.model if plan is None else acplan.apply(step.model, plan)
    optimizer = _optimizer(step)
    values: Values = {}
    for k in range(_ITERATIONS):
        seed()
        args, kwargs = copy.deepcopy((step.args, step.kwargs))
        loss = _loss(step, model, args, kwargs)
        loss.backward()
        values[f"the loss of iteration {k + 1}"] = loss.detach().clone()
        for name, weight in _names(model, "named_parameters"):
            grad = weight.grad
            values[f"the gradient of {name} in iteration {k + 1}"] = (
                grad if grad is None else grad.detach().clone()
            )
        values[f"the random state after iteration {k + 1}"] = torch.get_rng_state()
        if step.step_fn is not None:
            step.step_fn(model, optimizer)
        else:
            optimizer.step()
            optimizer.zero_grad()
    if plan is not None:
        acplan.remove(model)
    for name, value in itertools.chain(
        step.model.named_parameters(), step.model.named_buffers()
    ):
        values[f"{name} at the end"] = value.detach().clone()
    return values


def _names(model: torch.nn.Module, what: str) -> Iterable[tuple[str, Tensor]]:
    """Yields parameters, as they are named without a plan."""
    for name, value in getattr(model, what)():
        yield name.replace("_checkpoint_wrapped_module.", ""), value


def _optimizer(step: TrainingStep) -> torch.optim.Optimizer:
    if isinstance(step.optimizer, torch.optim.Optimizer):
        return step.optimizer
    weights = [w for w in step.model.parameters() if w.requires_grad]
    if callable(step.optimizer):
        optimizer = step.optimizer(weights)
        assert isinstance(optimizer, torch.optim.Optimizer)
        return optimizer
    return torch.optim.AdamW(weights)


def _loss(
    step: TrainingStep, model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Tensor:
    if step.forward_fn is not None:
        return step.forward_fn(model, *args, **kwargs)
    return (step.loss_fn or default_loss)(model(*args, **kwargs))


def first_difference(expected: Values, actual: Values, tolerance: float = 0.0) -> str:
    """Returns the name of the first value that differs by more than the tolerance, or ""."""
    for name, value in expected.items():
        if name not in actual:
            return name
        other = actual[name]
        if (value is None) != (other is None):
            return name
        if value is None or other is None or _is_same(value, other):
            continue
        if not (tolerance and _is_close(value, other, tolerance)):
            return f"{name} ({_distance(value, other)})"
    return next((name for name in actual if name not in expected), "")


def _is_same(a: Tensor, b: Tensor) -> bool:
    """Returns whether tensors are equal bit for bit, also where they are not a number."""
    if is_traceable_wrapper_subclass(a) and type(a) is type(b):
        inner = a.__tensor_flatten__()[0]
        return all(_is_same(getattr(a, name), getattr(b, name)) for name in inner)
    if a.dtype != b.dtype or a.shape != b.shape or a.layout != b.layout:
        return False
    if a.is_sparse:
        a, b = a.to_dense(), b.to_dense()
    a, b = a.contiguous(), b.contiguous()
    return torch.equal(a.view(-1).view(torch.uint8), b.view(-1).view(torch.uint8))


def _is_close(a: Tensor, b: Tensor, tolerance: float) -> bool:
    if a.shape != b.shape or not a.is_floating_point():
        return False
    scale = a.abs().max().clamp_min(1e-30)
    return bool((a - b).abs().max() <= tolerance * scale)


def _distance(a: Tensor, b: Tensor) -> str:
    if a.shape != b.shape or not (a.is_floating_point() or a.is_complex()):
        return "of another kind"
    return f"by at most {(a - b).abs().max().item():.3g}"


def _one_line(text: str) -> str:
    return next(iter(text.strip().splitlines()), "")[:300]


def _place(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return ""
    return f"({pathlib.PurePath(frames[-1].filename).name}:{frames[-1].lineno})"


def _checked(entry: Entry) -> Result:
    """Runs the real steps alone, without a plan."""
    result = Result(entry.package, entry.name, importlib.metadata.version(entry.package))
    try:
        result.kind = type(entry.new_step().model).__name__
        expected = real_step(entry, None)
        result.operators = len(expected)
        loss = expected["the loss of iteration 1"]
        assert loss is not None and loss.isfinite(), f"the loss is {loss}"
        result.tolerance = _tolerance(expected, real_step(entry, None))
    except BaseException as error:
        if os.environ.get("DEBUG"):
            traceback.print_exc()
        result.error = f"{type(error).__name__}: {_one_line(str(error))} {_place(error)}"
    return result


Find = Callable[[Entry], Result]
_Out = multiprocessing.connection.Connection


def _send_result(find: Find, entry: Entry, out: _Out) -> None:
    """Sends the result, from a process of its own that the system ends if it takes too much
    time or memory."""
    resource.setrlimit(resource.RLIMIT_CPU, (_MOST_SECONDS, _MOST_SECONDS + 5))
    resource.setrlimit(resource.RLIMIT_DATA, (_MOST_BYTES, _MOST_BYTES))
    out.send(find(entry))


def _result_in_own_process(find: Find, entry: Entry) -> Result:
    """Returns the result of a process of its own, so that no step ends the others."""
    began = time.monotonic()
    ours, theirs = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(
        target=_send_result, args=(find, entry, theirs)
    )
    process.start()
    theirs.close()
    try:
        if not ours.poll(4 * _MOST_SECONDS):
            raise EOFError
        result: Result = ours.recv()
    except EOFError:
        process.join(1)
        result = Result(entry.package, entry.name, error=_ending(process.exitcode))
    finally:
        process.kill()
        process.join()
    result.seconds = round(time.monotonic() - began, 1)
    return result


def _ending(code: int | None) -> str:
    if code is None or code == -signal.SIGXCPU:
        return f"more than {_MOST_SECONDS} s"
    return f"its process ended: exit code {code}"


def _package(find: Find, entries: Sequence[Entry], path: pathlib.Path | None) -> None:
    """Runs all steps of a package, which is imported once."""
    for name in dict.fromkeys(itertools.chain(*(e.modules for e in entries))):
        try:
            importlib.import_module(name)
        except Exception:  # Each step says so.
            if os.environ.get("DEBUG"):
                traceback.print_exc()
    _be_quiet()
    for entry in entries:
        result = _result_in_own_process(find, entry)
        verdict = wrong(dataclasses.asdict(result)) or (
            "closely" if result.tolerance else "yes"
        )
        print(f"{entry.key}: {verdict} [{result.seconds} s]", flush=True)
        if path is not None:
            with path.open("a") as file:
                file.write(json.dumps(dataclasses.asdict(result)) + "\n")


def _be_quiet() -> None:
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    torch.set_num_threads(1)
    if not os.environ.get("DEBUG"):  # Packages draw progress bars there.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def _run(find: Find, names: Sequence[str], path: pathlib.Path | None) -> None:
    entries = all_entries()
    unknown = [
        n
        for n in names
        if n not in entries and not any(e.package == n for e in entries.values())
    ]
    if unknown:
        sys.exit(f"compare_third_party.py: expected packages or steps, found {unknown}")
    present = set()
    if path is not None and path.exists():
        lines = map(json.loads, path.read_text().splitlines())
        present = {f"{line['package']}: {line['name']}" for line in lines if not wrong(line)}
    selection = [
        e
        for key, e in entries.items()
        if key not in present and (not names or key in names or e.package in names)
    ]
    selection.sort(key=lambda e: e.package.lower())
    groups = [list(group) for _, group in itertools.groupby(selection, key=lambda e: e.package)]
    jobs = int(os.environ.get("JOBS", os.cpu_count() or 1))
    with concurrent.futures.ThreadPoolExecutor(jobs) as waiting:
        list(waiting.map(lambda group: _package_apart(find, group, path), groups))


def _package_apart(find: Find, entries: Sequence[Entry], path: pathlib.Path | None) -> None:
    process = multiprocessing.get_context("fork").Process(
        target=_package, args=(find, entries, path)
    )
    process.start()
    process.join()


def _main(arguments: list[str]) -> None:
    match arguments:
        case ["run", path, *names]:
            _run(result_of, names, pathlib.Path(path))
        case ["check", *names]:
            _run(_checked, names, None)
        case ["page", path]:
            write_table(pathlib.Path(path))
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    _main(sys.argv[1:])
